"""The connection to NATS: nats-py's client with two hot paths of our own, and its errors put into our words.

nats-py keeps the protocol: connect, TLS, authentication, reconnect. Ours are sending a message without a coroutine
and receiving one without a queue and a task, which the ledger does several times per job (ADR 004).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from jobledger.ledger.model.errors import (
    ForeignLoopError,
    JetStreamDisabledError,
    LedgerClosedError,
    ServerUnreachableError,
    UnsupportedServerError,
)
from jobledger.ledger.nats.parser import Collector, Handler, MessageParser

logger = logging.getLogger("jobledger.connection")

SERVER_VERSION_MIN: Final = (2, 12)
SERVER_VERSION_SAFE: Final = (2, 15)  # holes in `sync_interval: always` were closed there
PENDING_BYTES_MAX: Final = 32 << 20
_RECONNECT_WAIT_S: Final = 0.25
_NEXT_ADDRESS: Final = re.compile(r",\s*(?=\w+://)")
_PERMISSION: Final = re.compile(
    r"permissions violation for (?P<verb>publish|subscription) to \"(?P<subject>[^\"]+)\"", re.IGNORECASE
)


class ConnectionLostError(Exception):
    """The connection went away while something was under way; for this package, which decides what it means."""


class Connection(Client):
    """One client connection; see the module's docstring. Made by `open_connection`."""

    def __init__(self) -> None:
        super().__init__()
        #: Kept, for on Python 3.11 each look for the running loop is a system call: a seventh of a worker's time.
        self.loop = asyncio.get_running_loop()
        self._handlers: dict[int, Handler] = {}
        self._collectors: dict[bytes, Collector] = {}
        self._ps = MessageParser(self, self._handlers, self._collectors)
        self._up = asyncio.Event()
        self.lost_listeners: list[Callable[[], None]] = []  #: called when the connection breaks
        self.refused_listeners: list[Callable[[str, str], None]] = []  #: called with verb and subject
        self.closed_for_good = asyncio.Event()  #: nats-py gave up; nothing works any more
        self.is_retired = False  #: its owner is done with it, and says so before closing it
        self._pid = os.getpid()

    def send(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Hand one message to the flusher; it is on its way, not yet sent.

        `headers` is a whole header block, or b"". The caller vouches for the subject.

        Raises: ConnectionLostError at once while there is no connection, so that nothing waits unseen in a buffer.
        """
        if not self.is_connected:
            raise ConnectionLostError
        if headers:
            size = len(headers)
            line = f"HPUB {subject} {reply} {size} {size + len(data)}\r\n".encode()
            command = b"".join((line, headers, data, b"\r\n"))
        else:
            command = f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n"
        self._pending.append(command)
        self._pending_data_size += len(command)
        queue = self._flush_queue
        if queue is not None and queue.empty():
            queue.put_nowait(self.loop.create_future())

    def require_here(self) -> None:
        """Return if this can be used by whoever asks: for the verbs of an application, not for the ways of every job.

        Raises: LedgerClosedError; ForeignLoopError outside of the event loop that it belongs to.
        """
        if self.is_retired:
            raise LedgerClosedError("this ledger was closed: connect again")
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:  # none runs in this thread, or the one that seems to is that of a parent process
            is_here = False
        if not is_here:
            raise ForeignLoopError(self._where())

    def _where(self) -> str:
        """Say where this could be used."""
        if self._pid != os.getpid():
            return (
                f"this ledger was connected in process {self._pid}, from which this one was forked: "
                "connect in this process"
            )
        if self.loop.is_closed():
            return "the event loop that connected this ledger has ended: connect in the loop that uses the ledger"
        return (
            "this ledger was connected in another event loop: connect in this one, "
            "or use jobledger.ledger.sync, which works in every thread"
        )

    @property
    def has_jetstream(self) -> bool:
        """Whether the server said at the handshake that it runs JetStream; nats-py keeps that to itself."""
        return bool(self._server_info.get("jetstream", False))

    async def listen(self, subject: str, handler: Handler) -> Subscription:
        """Subscribe; `handler` is called for every message, straight from the reader, or collects them."""
        subscription = await self.subscribe(subject, cb=_unused)
        number = subscription._id  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # the key of nats-py's own table
        self._handlers[number] = handler
        if isinstance(handler, Collector):
            self._collectors[b"%d" % number] = handler
        return subscription

    async def unlisten(self, subscription: Subscription) -> None:
        """End a subscription made by `listen`; harmless when the connection is gone."""
        number = subscription._id  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        self._handlers.pop(number, None)
        self._collectors.pop(b"%d" % number, None)
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self._handlers.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.deliver(handler, bytes(subject), bytes(reply), data, headers or b"")

    def deliver(self, handler: Handler, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Call the handler of a message; an exception in it is logged and goes no further."""
        try:
            handler(subject, reply, data, headers)
        except Exception:
            # One bad message must not end the reader, and with it every other subscription.
            logger.exception("a message on %s could not be handled", subject.decode(errors="replace"))

    async def wait_connected(self, timeout_s: float) -> None:
        """Return once there is a connection.

        Raises: ConnectionLostError when there is none within the limit, or never again.
        """
        if self.is_connected:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_connected:
                    if self.is_closed:
                        raise ConnectionLostError
                    # nats-py tells of a loss in a task of its own, later than it knows: without this a caller
                    # that tries again would never let that task run.
                    self._up.clear()
                    await self._up.wait()
        except TimeoutError as error:
            raise ConnectionLostError from error

    async def on_lost(self) -> None:
        """Tell everybody who waits for an answer that it will not come on this connection."""
        self._up.clear()
        if not self.is_closed:
            logger.warning("connection to %s lost, reconnecting", redact(self._url_text()))
        for listener in tuple(self.lost_listeners):
            listener()

    async def on_found(self) -> None:
        """Let those who wait go on."""
        logger.info("connected to %s again", redact(self._url_text()))
        self._up.set()

    async def on_closed(self) -> None:
        """Note that nats-py will not try again."""
        self.closed_for_good.set()
        self._up.set()
        for listener in tuple(self.lost_listeners):
            listener()

    async def on_error(self, error: Exception) -> None:
        """Route what nats-py only reports on the side: refused permissions, slow consumers."""
        refused = _PERMISSION.search(str(error))
        if refused is not None:
            for listener in tuple(self.refused_listeners):
                listener(refused["verb"], refused["subject"])
            logger.error("the server refuses to %s %s", refused["verb"], refused["subject"])
        elif self.is_connected:
            logger.warning("nats: %s", error)

    def _url_text(self) -> str:
        url = self.connected_url
        return url.geturl() if url is not None else "the server"

    def mark_up(self) -> None:
        """Note that the first connection stands."""
        self._up.set()


async def _unused(_: object) -> None:
    """Stand in as nats-py's callback; `Connection._process_msg` never queues for it."""


def redact(url: str) -> str:
    """Return `url` without user, password or token, whether or not it is well-formed."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}{separator}***@{host}" if at and credentials else url


async def open_connection(
    url: str,
    *,
    name: str,
    timeout_s: float,
    inbox_prefix: str = "_INBOX",
    options: dict[str, Any] | None = None,
) -> Connection:
    """Connect, check the server, and keep the connection up from then on without limit.

    `options` go to nats-py's `connect` (credentials, TLS); `url` may name several servers, comma separated.

    Raises: ServerUnreachableError, UnsupportedServerError, JetStreamDisabledError.
    """
    connection = Connection()
    servers = [server.strip() for server in url.split(",")]
    # A comma may also stand in a password: what is shown is cut only where an address surely begins.
    shown = ", ".join(redact(part) for part in _NEXT_ADDRESS.split(url))
    try:
        async with asyncio.timeout(timeout_s):
            await connection.connect(
                servers=servers,
                name=name,
                error_cb=connection.on_error,
                disconnected_cb=connection.on_lost,
                reconnected_cb=connection.on_found,
                closed_cb=connection.on_closed,
                connect_timeout=max(1, int(timeout_s)),
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=_RECONNECT_WAIT_S,  # type: ignore[arg-type] # seconds, and a float works
                inbox_prefix=inbox_prefix,
                pending_size=PENDING_BYTES_MAX,
                skip_subject_validation=True,  # every token was checked at the entry, see subjects.check_token
                **{**_decoded_credentials(servers), **(options or {})},
            )
    except (OSError, TimeoutError, ValueError, nats.errors.Error) as error:
        await _abandon(connection)
        cause = connection.last_error or error
        raise ServerUnreachableError(_unreachable(shown, cause)) from error
    # Only now: the first attempt must fail at once, the later ones never.
    connection.options["allow_reconnect"] = True
    connection.options["max_reconnect_attempts"] = -1
    connection.mark_up()
    try:
        _check_server(connection, shown)
    except Exception:
        await _abandon(connection)
        raise
    return connection


def _decoded_credentials(servers: list[str]) -> dict[str, Any]:
    """Return what `%XX` in the credentials of an address stands for: nats-py would send them as they are spelled.

    Nothing where there is no `%`. Several servers with such credentials must have the same.
    """
    for server in servers:
        with contextlib.suppress(ValueError):  # an address that is none is nats-py's to refuse
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            user, password = parts.username or "", parts.password
            if "%" in f"{user}{password}":
                if password is None:
                    return {"token": unquote(user)}
                return {"user": unquote(user), "password": unquote(password)}
    return {}


async def _abandon(connection: Connection) -> None:
    with contextlib.suppress(Exception):  # it is being thrown away; the first error is the one that counts
        await connection.close()


def _unreachable(shown: str, error: BaseException) -> str:
    text = str(error).lower()
    if "authorization" in text or "authentication" in text:
        return f"{shown} refused the credentials: check user, password or token of --url"
    if isinstance(error, ConnectionRefusedError) or "no servers" in text or "refused" in text:
        return f"no server answers at {shown}: start one with `jobledger server`, or name another with --url"
    if isinstance(error, TimeoutError | nats.errors.TimeoutError):
        return f"{shown} did not answer in time: is it a nats-server, and is it well? (`jobledger doctor`)"
    if isinstance(error, ValueError):  # its text may quote a part of the password
        return f"{shown} is not the address of a server: nats://host:port, special characters of a password as %XX"
    return f"cannot connect to {shown}: {str(error) or type(error).__name__}"


def _check_server(connection: Connection, shown: str) -> None:
    version = connection.connected_server_version
    found = (version.major, version.minor)
    if found < SERVER_VERSION_MIN:
        message = (
            f"{shown} is nats-server {version.major}.{version.minor}.{version.patch}; "
            "jobledger needs 2.12 or newer (atomic batches), 2.15 or newer is advised"
        )
        raise UnsupportedServerError(message)
    if found < SERVER_VERSION_SAFE:
        logger.warning(
            "nats-server %s.%s at %s: before 2.15 `sync_interval: always` can lose acknowledged events in a power cut",
            *found,
            shown,
        )
    if not connection.has_jetstream:
        message = (
            f"{shown} runs without JetStream: start it with a jetstream block, as in the project's nats.conf"
        )
        raise JetStreamDisabledError(message)
