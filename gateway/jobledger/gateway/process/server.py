"""The server of one gateway process: uvicorn, run and stopped by us."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Final, cast

import msgspec
import uvicorn
from starlette.types import ASGIApp

from jobledger.gateway.process.listener import BACKLOG, check_certificate
from jobledger.gateway.process.protocol import BoundedProtocol, Take
from jobledger.gateway.shares import Kind, Share
from jobledger.ledger.model.errors import ConfigurationError

#: Longer than load balancers keep an idle connection: else the gateway could close one as they send a request.
_KEEP_ALIVE_S: Final = 75
_GRACE_S_MAX: Final = 3_600.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings by which one gateway process listens and stops."""

    host: str = "127.0.0.1"
    port: int = 8080  #: 0 takes a free one
    listening: int | None = (
        None  #: descriptor of a socket that listens already; host and port are ignored then
    )
    grace_s: float = 10.0  #: how long running requests may go on after a stop
    https_cert: Path | None = None  #: certificate in PEM
    https_key: Path | None = None  #: its key; None: in the same file
    shares: dict[Kind, Share] = {}  #: shares of what may be open at once, which replace the usual ones

    def __post_init__(self) -> None:
        """Check every value. Raises: ConfigurationError."""
        if not 0 <= self.grace_s <= _GRACE_S_MAX:
            raise ConfigurationError(f"grace_s must be 0 to {_GRACE_S_MAX:g} seconds, got {self.grace_s!r}")
        if self.https_key is not None and self.https_cert is None:
            raise ConfigurationError("https_key is the key of a certificate: give https_cert too")


class _Uvicorn(uvicorn.Server):
    """A uvicorn that leaves signals to us."""

    on_ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Server:
    """Answers requests on one socket until it is stopped."""

    def __init__(self, app: ASGIApp, settings: Settings, take: Take) -> None:
        """`take` counts connections. Raises: ConfigurationError for an unreadable certificate."""
        if settings.https_cert is not None:
            check_certificate(settings.https_cert, settings.https_key)
        config = uvicorn.Config(
            app,
            http=cast("type[asyncio.Protocol]", partial(BoundedProtocol, take)),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # we log errors of the application ourselves, and nobody logs bad requests
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the gate knows which proxies are believed
            backlog=BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=settings.grace_s,  # type: ignore[arg-type]  # any number of seconds
            ssl_certfile=settings.https_cert,
            ssl_keyfile=settings.https_key,
        )
        self._server = _Uvicorn(config)

    async def run(self, bound: socket.socket, on_ready: Callable[[], None]) -> None:
        """Answer until `stop`, and then until running requests have ended or the grace is over."""
        self._server.on_ready = on_ready
        await self._server.serve([bound])

    def stop(self) -> None:
        """Take no more requests, and let running ones end; when called again, end them at once."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True
