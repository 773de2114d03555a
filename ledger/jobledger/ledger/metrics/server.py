"""A small HTTP server for `/metrics` and `/healthz`, in threads of its own: it answers while the event loop is busy.

Nothing but GET, one answer a connection, a few connections at a time, each with a limit: who reads slowly is cut
off. It listens on loopback; elsewhere only with a token, which every request must then carry.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from types import TracebackType
from typing import Final, Self

from jobledger.ledger.metrics.exposition import Collected, Page, metrics_page, text_page
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

#: Says "" when all is well, else why not, in a sentence.
Health = Callable[[], str]


def read_token(path: Path) -> bytes:
    """Return the token in a file, without the line end.

    Raises: ConfigurationError.
    """
    try:
        with path.open("rb") as file:
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
    """Serves what `collected` has, for the length of a `with` block."""

    def __init__(
        self,
        collected: Collected,
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
                "give a token file too (--token-file, of a worker --metrics-token-file), or listen on 127.0.0.1"
            )
            raise ConfigurationError(message)
        self._server = _Server(family, address, _Site(collected, health, token))
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

    def close(self) -> None:
        """Listen no more; what is being answered is cut off."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the one address of a name that is listened on."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{host!r} is no address to listen on: {error}") from error
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


class _Site:
    """What can be asked for, and by whom."""

    def __init__(self, collected: Collected, health: Health, token: bytes | None) -> None:
        self._collected = collected
        self._health = health
        self._token = token
        self._one_at_a_time = threading.Lock()

    def is_allowed(self, authorization: str) -> bool:
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        is_token = hmac.compare_digest(given.strip().encode(errors="replace"), self._token)
        return is_token and scheme.lower() == "bearer"

    def page(self, path: str, accept: str, accept_encoding: str) -> Page:
        if path == "/healthz":
            reason = self._health()
            return (
                text_page(HTTPStatus.SERVICE_UNAVAILABLE, reason)
                if reason
                else text_page(HTTPStatus.OK, "ok")
            )
        if path != "/metrics":
            return text_page(HTTPStatus.NOT_FOUND, "there are /metrics and /healthz")
        if not self._one_at_a_time.acquire(timeout=_COLLECT_S):
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, "another scrape has not ended yet")
        try:
            return metrics_page(self._collected, accept=accept, accept_encoding=accept_encoding)
        finally:
            self._one_at_a_time.release()


class _Server(TCPServer):
    """A bounded number of threads, each with a deadline that the accepting thread keeps."""

    allow_reuse_address = True
    request_queue_size = REQUESTS_MAX

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int], site: _Site) -> None:
        self.address_family = family
        self.site = site
        self._places = threading.BoundedSemaphore(REQUESTS_MAX)
        self._open: dict[socket.socket, float] = {}  # until when
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            message = f"{address[0]} port {address[1]} cannot be listened on ({error.strerror}): choose another port"
            raise PortInUseError(message) from error

    def process_request(self, request: object, client_address: object) -> None:
        """Answer in a thread, or not at all when too many are at it."""
        assert isinstance(request, socket.socket)
        if not self._places.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic() + REQUEST_S
        threading.Thread(target=self._answer, args=(request, client_address), daemon=True).start()

    def _answer(self, request: socket.socket, client_address: object) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the other side went away, or was cut off
        except Exception:  # what goes wrong with one scrape must not end the thread that answers the others
            logger.exception("a scrape failed")
        finally:
            self._open.pop(request, None)
            self.shutdown_request(request)
            self._places.release()

    def service_actions(self) -> None:
        """Cut off who is over time; called several times a second."""
        now = time.monotonic()
        for request, deadline in list(self._open.items()):
            if now >= deadline:
                self._cut(request)

    def server_close(self) -> None:
        """Listen no more, and cut off who is still there."""
        super().server_close()
        for request in list(self._open):
            self._cut(request)

    def _cut(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server_version = "jobledger"
    sys_version = ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        site = self.server.site
        if site.is_allowed(self.headers.get("Authorization", "")):
            page = self._page(site)
        else:
            page = text_page(HTTPStatus.UNAUTHORIZED, "send the token: Authorization: Bearer ...")
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        if page.is_gzip:
            self.send_header("Content-Encoding", "gzip")
        if page.status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Bearer realm="jobledger"')
        self.end_headers()
        self.wfile.write(page.body)

    def _page(self, site: _Site) -> Page:
        path = self.path.partition("?")[0]
        try:
            return site.page(path, self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", ""))
        except Exception:  # a collector's error is answered, or the scraper would wait for its own limit
            logger.exception("%s could not be answered", path[:80])
            return text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing: a scrape every few seconds is no news."""
