"""A small S3 service on loopback: buckets in memory, with as much of the protocol as pyarrow speaks."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_KEYS_MAX = 1_000


class S3:
    """One bucket of the name `bucket`; `refuses` says which requests get 403.

    `silent` and `away` are of the whole service: it takes requests and says nothing, or is not there at all.
    """

    def __init__(self) -> None:
        self.port = 0  #: a free one, once it was opened
        self.objects: dict[str, bytes] = {}
        self.numbers = itertools.count()
        self.parts: dict[str, dict[int, bytes]] = {}
        self.refuses: Callable[[str, str], bool] = lambda _method, _key: False
        self.spoils: Callable[[str], bool] = lambda _key: False  #: whether what is kept has another byte
        self.asked: list[tuple[str, str]] = []  #: method and key of each request
        self._speaks = threading.Event()
        self._speaks.set()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def uri(self, prefix: str) -> str:
        """Return the URI of a prefix in the bucket."""
        options = f"scheme=http&endpoint_override=127.0.0.1:{self.port}&region=us-east-1"
        return f"s3://bucket/{prefix}?{options}"

    @contextlib.contextmanager
    def silent(self) -> Generator[None]:
        """Answer nothing in the block; what was asked in it is never answered."""
        self._speaks.clear()
        try:
            yield
        finally:
            self._speaks.set()

    @contextlib.contextmanager
    def away(self) -> Generator[None]:
        """Take no connection in the block, and end those that are there with their next request."""
        self.close()
        try:
            yield
        finally:
            self.open()

    def answers(self) -> bool:
        """Return whether a request gets an answer; where the service is silent, once it speaks again."""
        if not self._speaks.is_set():
            self._speaks.wait()
            return False
        return self._server is not None

    def open(self) -> None:
        """Take connections, at the port that it had before."""
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", self.port), type("Requests", (_Requests,), {"s3": self})
        )
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Take no connection any more."""
        if self._server is None or self._thread is None:
            return
        server, self._server = self._server, None
        server.shutdown()
        self._thread.join()
        server.server_close()


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    s3: S3

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Say nothing."""

    def _asked(self) -> tuple[str, dict[str, list[str]]] | None:
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix("/bucket").lstrip("/")
        if not self.s3.answers():
            self.close_connection = True
            return None
        self.s3.asked.append((self.command, key))
        if self.s3.refuses(self.command, key):
            self._body()
            self._answer(403, _error("AccessDenied"))
            return None
        return key, parse_qs(url.query, keep_blank_values=True)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return _plain(data) if "aws-chunked" in self.headers.get("Content-Encoding", "") else data

    def _answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        asked = self._asked()
        if asked is None:
            return
        key, _ = asked
        if not key:
            self._answer(200)
        elif key in self.s3.objects:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.s3.objects[key])))
            self.send_header("ETag", _tag(self.s3.objects[key]))
            self.send_header("Last-Modified", "Fri, 31 Jan 2025 08:00:00 GMT")
            self.end_headers()
        else:
            self._answer(404)

    def do_GET(self) -> None:
        asked = self._asked()
        if asked is None:
            return
        key, query = asked
        if not key:
            self._answer(200, self._listed(query))
            return
        data = self.s3.objects.get(key)
        if data is None:
            self._answer(404, _error("NoSuchKey"))
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, data, ETag=_tag(data))
            return
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        self._answer(
            206, data[first : last + 1], ETag=_tag(data), Content_Range=f"bytes {first}-{last}/{len(data)}"
        )

    def _listed(self, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        found: list[str] = []
        folders: set[str] = set()
        for key in sorted(self.s3.objects):
            if not key.startswith(prefix):
                continue
            inside, slash, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
            if slash:
                folders.add(prefix + inside + "/")
            else:
                found.append(key)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.s3.objects[key])}</Size>"
            "<LastModified>2025-01-31T08:00:00.000Z</LastModified></Contents>"
            for key in found
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)
        )
        assert len(found) + len(folders) <= _KEYS_MAX
        return (
            f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>"
            f"<KeyCount>{len(found) + len(folders)}</KeyCount>{contents}{common}</ListBucketResult>"
        ).encode()

    def do_PUT(self) -> None:
        asked = self._asked()
        if asked is None:
            return
        key, query = asked
        data = self._body()
        if "partNumber" in query:
            self.s3.parts[query["uploadId"][0]][int(query["partNumber"][0])] = data
        else:
            self.s3.objects[key] = data
        self._answer(200, ETag=_tag(data))

    def do_POST(self) -> None:
        asked = self._asked()
        if asked is None:
            return
        key, query = asked
        data = self._body()
        if "uploads" in query:
            number = f"u{next(self.s3.numbers)}"
            self.s3.parts[number] = {}
            self._answer(
                200,
                f"<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>{escape(key)}</Key>"
                f"<UploadId>{number}</UploadId></InitiateMultipartUploadResult>".encode(),
            )
        elif "uploadId" in query:
            parts = self.s3.parts.pop(query["uploadId"][0])
            kept = b"".join(parts[number] for number in sorted(parts))
            self.s3.objects[key] = b"!" + kept[1:] if self.s3.spoils(key) else kept
            self._answer(
                200,
                f"<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>{escape(key)}</Key>"
                f"<ETag>{escape(_tag(data))}</ETag></CompleteMultipartUploadResult>".encode(),
            )
        else:
            for each in re.findall(r"<Key>(.*?)</Key>", data.decode()):
                self.s3.objects.pop(each, None)
            self._answer(200, b"<DeleteResult></DeleteResult>")

    def do_DELETE(self) -> None:
        asked = self._asked()
        if asked is None:
            return
        self.s3.objects.pop(asked[0], None)
        self._answer(204)


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def _plain(data: bytes) -> bytes:
    """Return what a body of signed chunks holds."""
    found = b""
    while data:
        head, _, rest = data.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            break
        found, data = found + rest[:size], rest[size + 2 :]
    return found


@contextlib.contextmanager
def s3_service() -> Generator[S3]:
    """Run a service until the block ends."""
    s3 = S3()
    s3.open()
    try:
        yield s3
    finally:
        s3.close()
