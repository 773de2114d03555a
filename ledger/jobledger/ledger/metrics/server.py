"""A small HTTP server for `/metrics` and `/healthz`, in threads of its own: it answers while the event loop is busy.

Nothing but GET, one answer a connection, a few connections at a time, each with a limit: who reads slowly is cut
off. It listens on loopback; elsewhere only with a token, which every request must then carry.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hmac
import ipaddress
import logging
import re
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, Self

import msgspec
from prometheus_client.exposition import gzip_accepted
from prometheus_client.registry import Collector

from jobledger.ledger.files import open_file
from jobledger.ledger.metrics.exposition import scrape
from jobledger.ledger.model.errors import ConfigurationError, PortInUseError

logger = logging.getLogger("jobledger.metrics")

REQUESTS_MAX: Final = 16
#: Of one request, from its connection to the last byte of its answer.
REQUEST_S: Final = 10.0
_POLL_S: Final = 0.1
_COLLECT_S: Final = 8.0
_TOKEN_LENGTH_MIN: Final = 16
_TOKEN_BYTES_MAX: Final = 4096
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/=-]+")
_BUSY: Final = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"
_TEXT: Final = "text/plain; charset=utf-8"

#: Says "" when all is well, else why not, in a sentence.
Health = Callable[[], str]


def read_token(path: Path) -> bytes:
    """Return the token in a file, without the line end.

    Raises: ConfigurationError.
    """
    try:
        with open_file(path) as file:
            token = file.read(_TOKEN_BYTES_MAX).strip()
    except OSError as error:
        raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from error
    if len(token) < _TOKEN_LENGTH_MIN or not _TOKEN.fullmatch(token):
        message = (
            f"the token file {path} must hold one token of {_TOKEN_LENGTH_MIN} or more letters, digits or ._~+/=-: "
            "make one with `openssl rand -hex 32`"
        )
        raise ConfigurationError(message)
    return token


class MetricsServer:
    """Serves what `collected` has, for the length of a `with` block.

    What is being answered at its end comes to its own, or to its deadline, in its thread.
    """

    def __init__(
        self,
        collected: Collector,
        health: Health,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: bytes | None = None,
    ) -> None:
        """Listen; requests are answered from the beginning of the block on.

        Raises: ConfigurationError for an address that is none, or one beyond loopback without a token;
        PortInUseError.
        """
        family, address = _address(host, port)
        if token is None and not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
            message = (
                f"{host} can be reached from other machines, and metrics name queues and tasks: "
                "give a token file too, or listen on 127.0.0.1"
            )
            raise ConfigurationError(message)
        site = _Site(collected, health, token, threading.Lock())
        self._server = _Server(family, address, functools.partial(_Handler, site))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="jobledger-metrics", daemon=True
        )

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = str(self._server.server_address[0])
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/metrics"

    @property
    def port(self) -> int:
        """The port, also when 0 asked for any."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the one address of a name that is listened on."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{host!r} is no address to listen on: {error}") from error
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


class _Server(ThreadingMixIn, TCPServer):
    """A thread for each request, up to a limit, each with a deadline.

    Not an `HTTPServer`, which asks for the full name of the address and may wait long for it.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = REQUESTS_MAX

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], handler: Callable[..., _Handler]
    ) -> None:
        self.address_family = family
        self._places = threading.BoundedSemaphore(REQUESTS_MAX)
        try:
            super().__init__(address, handler)
        except OSError as error:
            message = f"{address[0]} port {address[1]} cannot be listened on ({error.strerror}): choose another port"
            raise PortInUseError(message) from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or not at all when too many are at it."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.settimeout(0)
            request.send(_BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and cut off who is over time: a timeout of the socket would begin again with every byte."""
        deadline = threading.Timer(REQUEST_S, _cut, (request,))
        deadline.daemon = True
        deadline.start()
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the other side went away, or was cut off
        finally:
            deadline.cancel()
            self.shutdown_request(request)
            self._places.release()


def _cut(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Site(msgspec.Struct):
    """What can be asked for, and by whom."""

    collected: Collector
    health: Health
    token: bytes | None
    scraping: threading.Lock

    def answer(self, path: str, authorization: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and body."""
        if not self._is_allowed(authorization):
            return HTTPStatus.UNAUTHORIZED, _TEXT, b"send the token: Authorization: Bearer ...\n"
        if path == "/healthz":
            reason = self.health()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
            return status, _TEXT, f"{reason or 'ok'}\n".encode()
        if path != "/metrics":
            return HTTPStatus.NOT_FOUND, _TEXT, b"there are /metrics and /healthz\n"
        if not self.scraping.acquire(timeout=_COLLECT_S):
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"another scrape has not ended yet\n"
        try:
            return HTTPStatus.OK, *scrape(self.collected, accept)
        finally:
            self.scraping.release()

    def _is_allowed(self, authorization: str) -> bool:
        if self.token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        is_token = hmac.compare_digest(given.strip().encode(errors="replace"), self.token)
        return is_token and scheme.lower() == "bearer"


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server_version = "jobledger"
    sys_version = ""

    def __init__(self, site: _Site, *given: Any) -> None:
        self._site = site
        super().__init__(*given)

    def do_GET(self) -> None:
        path, asked = self.path.partition("?")[0], self.headers
        try:
            status, content_type, body = self._site.answer(
                path, asked.get("Authorization", ""), asked.get("Accept", "")
            )
        except Exception:  # a collector's error is answered, or the scraper would wait for its own limit
            logger.exception("%s could not be answered", path[:80])
            status, content_type, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"see the log\n"
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if gzip_accepted(asked.get("Accept-Encoding", "")):
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Bearer realm="jobledger"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing: a scrape every few seconds is no news."""
