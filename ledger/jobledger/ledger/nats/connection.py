"""The connection to NATS: nats-py's client with two fast paths of our own; its errors are raised as ours.

nats-py keeps the protocol: connect, TLS, authentication, reconnect. Our own paths send a message without a coroutine
and receive one without a queue and a task; the ledger does both several times per job (ADR 004).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import nats.errors
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.subscription import Subscription
from nats.protocol.parser import PERMISSIONS_ERR

from jobledger.ledger.model.errors import (
    ConfigurationError,
    ForeignLoopError,
    JetStreamDisabledError,
    LedgerClosedError,
    LedgerError,
    PermissionRefusedError,
    ServerUnreachableError,
    UnsupportedServerError,
)
from jobledger.ledger.nats.access import NO_ACCESS, Access, inbox_of, user_of_inbox
from jobledger.ledger.nats.addresses import (
    check_addresses,
    decoded_credentials,
    redact,
    servers_of,
    shown,
    user_of,
)
from jobledger.ledger.nats.durability import Durability, told_by
from jobledger.ledger.nats.outage import Outage
from jobledger.ledger.nats.parser import Collector, Handler, MessageParser
from jobledger.ledger.nats.reasons import ConnectFailedError, check_tls, failure, most_telling
from jobledger.ledger.nats.transport import Transport

logger = logging.getLogger("jobledger.connection")

SERVER_VERSION_MIN: Final = (2, 12)
SERVER_VERSION_SAFE: Final = (2, 15)  # holes in `sync_interval: always` were closed there
PENDING_BYTES_MAX: Final = 32 << 20
#: Most bytes that may wait to be sent at the beginning of a turn of the loop, so that a server that reads nothing
#: cannot fill our memory before its pings are missed. More than a bulk enqueue of usual events has in flight, and than
#: the largest message.
UNSENT_BYTES_MAX: Final = 64 << 20
PREFETCH_MAX: Final = 2_048  #: 1.2 MB of usual events
_RECONNECT_WAIT_S: Final = 0.25
#: A server that does not answer two pings is given up: within 8 s, whatever happens to its process or the network.
_PINGS: Final[dict[str, Any]] = {"ping_interval": 2, "max_outstanding_pings": 2}
#: A server is left for another one at most this often: if none takes a write, changing servers does not help.
_LEFT_EVERY_S: Final = 10.0
_CLOSE_S: Final = 2.0
_TELL_SLOW_S: Final = 60.0
_PERMISSION: Final = re.compile(
    r"permissions violation for (?P<verb>publish|subscription) to \"(?P<subject>[^\"]+)\"", re.IGNORECASE
)


_CONNECTED: Final = Client.CONNECTED

#: The arguments of nats-py's `connect` that this module sets.
_OURS: Final = frozenset(
    {
        "servers",
        "name",
        "error_cb",
        "disconnected_cb",
        "reconnected_cb",
        "closed_cb",
        "connect_timeout",
        "dont_randomize",
        "max_reconnect_attempts",
        "reconnect_time_wait",
        "inbox_prefix",
        "pending_size",
        "skip_subject_validation",
    }
)


class ConnectionLostError(Exception):
    """The connection was lost during an operation; only for this package, which translates it for callers."""


class Connection(Client):
    """One client connection; see the module's docstring. Made by `open_connection`."""

    def __init__(
        self, access: Access = NO_ACCESS, *, servers: int = 1, prefetch_max: int = PREFETCH_MAX
    ) -> None:
        super().__init__()
        self._access = access
        self.prefetch_max = prefetch_max  #: messages that a reader on it asks for at a time
        self.user = ""  #: user of the server whose inbox this connection uses; "": the common one
        self._attempts_left: int | None = (
            servers  # attempts of the first connection; later ones are tried without limit
        )
        self.failures: list[
            ConnectFailedError
        ] = []  #: of attempts since there was a connection, each sentence once
        #: Kept, since on Python 3.11 each look for the running loop is a system call: a seventh of a worker's time.
        self.loop = asyncio.get_running_loop()
        self._handlers: dict[bytes, Handler] = {}
        self._collectors: dict[bytes, Collector] = {}
        self._ps = self._parser = MessageParser(self, self._handlers, self._collectors)
        self._up = asyncio.Event()
        self.outage = Outage()
        self.lost_listeners: list[Callable[[], None]] = []  #: called when the connection breaks
        self.found_listeners: list[Callable[[], None]] = []  #: called after each reconnect
        #: Subjects that are not essential for this client, with whether the server may still allow it to publish to
        #: each.
        self.optional_rights: dict[str, bool] = {}
        #: Called when the server refuses a right; each returns whether it passed the error to a waiting caller.
        self.refused_listeners: list[Callable[[PermissionRefusedError], bool]] = []
        self.closed_for_good = asyncio.Event()  #: nats-py gave up; nothing works any more
        self.is_retired = False  #: its owner has stopped using it; set before it is closed
        self._lost_at: float | None = None  # since when there is no connection
        self._may_leave_at = 0.0
        self._leaving: asyncio.Task[None] | None = None
        self._pid = os.getpid()
        self._will_write = False
        self._tell_slow_at = 0.0  # no line about it before this moment of `time.monotonic`

    def send(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Add one message to the data that is written at the end of this turn of the loop; it is not yet sent.

        `headers` is a whole header block, or b"". The caller must have checked the subject.

        Raises: ConnectionLostError at once while there is no connection, or while the server reads so slowly that
            `UNSENT_BYTES_MAX` wait already, so that nothing waits unseen in a buffer.
        """
        if self._status != _CONNECTED:  # `is_connected`, without a call for every message
            raise ConnectionLostError
        if not self._will_write:  # the first one of this turn
            self._require_room()
            self._will_write = True
            self.loop.call_soon(self._write)
        # In parts: they are joined once, with all other messages of the same turn.
        if headers:
            size = len(headers)
            line = f"HPUB {subject} {reply} {size} {size + len(data)}\r\n"
            self._pending += (line.encode(), headers, data, b"\r\n")
        else:
            self._pending += (f"PUB {subject} {reply} {len(data)}\r\n".encode(), data, b"\r\n")

    def _require_room(self) -> None:
        """Raise if too many bytes wait to be sent. Raises: ConnectionLostError."""
        transport = self._transport
        waits = transport.unsent_bytes if isinstance(transport, Transport) else sum(map(len, self._pending))
        if waits < UNSENT_BYTES_MAX:
            return
        now = time.monotonic()
        if now >= self._tell_slow_at:
            self._tell_slow_at = now + _TELL_SLOW_S
            logger.warning("%s reads too slowly: %d bytes wait to be sent", self.shown_server, waits)
        raise ConnectionLostError

    def _write(self) -> None:
        """Write all that is pending, nats-py's own commands included, as one piece and without its flusher's task."""
        self._will_write = False
        transport, pending = self._transport, self._pending
        if not pending or not self.is_connected:
            return
        if not isinstance(transport, Transport):  # a web socket, to which a task writes
            self._pending_data_size += 1  # nats-py asks only whether there is anything
            queue = self._flush_queue
            if queue is not None and queue.empty():
                queue.put_nowait(self.loop.create_future())
            return
        self._pending, self._pending_data_size = [], 0
        with contextlib.suppress(RuntimeError, OSError):  # it is closing, which the reader will notice next
            transport.write(b"".join(pending))  # type: ignore[no-untyped-call]

    def require_here(self) -> None:
        """Raise unless the caller can use this connection: for an application's verbs, not for the paths of every job.

        Raises: LedgerClosedError; ForeignLoopError outside of the event loop that it belongs to.
        """
        if self.is_retired:
            raise LedgerClosedError("this ledger was closed: connect again")
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:  # no loop runs in this thread, or the one found is a parent process's
            is_here = False
        if not is_here:
            raise ForeignLoopError(self._where())

    def _where(self) -> str:
        """Return where this connection could be used, in words."""
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
        """Whether the server runs JetStream, by its handshake; nats-py does not expose that."""
        return bool(self._server_info.get("jetstream", False))

    @property
    def is_clustered(self) -> bool:
        """Whether the server is one of several, so that a stream can have replicas."""
        return bool(self._server_info.get("cluster"))

    @property
    def durability(self) -> Durability | None:
        """The durability of an acknowledged append on this server; None: not known."""
        return told_by(str(self._server_info.get("server_name", "")))

    async def listen(self, subject: str, handler: Handler) -> Subscription:
        """Subscribe; `handler` is called for every message, straight from the reader, or collects them."""
        subscription = await self.subscribe(subject, cb=_unused)
        number = b"%d" % subscription._id  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # the key of nats-py's own table
        self._handlers[number] = handler
        if isinstance(handler, Collector):
            self._collectors[number] = handler
        return subscription

    async def end_interest(self, subscription: Subscription) -> None:
        """End a subscription at the server; messages on their way still reach the handler, until `unlisten`."""
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()

    async def unlisten(self, subscription: Subscription) -> None:
        """End a subscription made by `listen`; harmless when the connection is gone."""
        number = b"%d" % subscription._id  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        self._handlers.pop(number, None)
        self._collectors.pop(number, None)
        await self.end_interest(subscription)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self._handlers.get(b"%d" % sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            handler(bytes(subject), bytes(reply), data, headers or b"")
        except Exception as error:  # noqa: BLE001 - logged
            self.on_failure(bytes(subject), error)

    def on_failure(self, subject: bytes, error: Exception) -> None:
        """Log a handler's error: one bad message must not end the reader, and with it all other subscriptions."""
        where = subject.decode(errors="replace")
        logger.error("a message on %s could not be handled", where, exc_info=error)

    def _on_data(self, data: bytes) -> bytes:
        """Pass messages on straight from the socket; return the bytes for nats-py's own reader."""
        return self._parser.take(data) if self.is_connected else data

    async def wait_connected(self, timeout_s: float) -> None:
        """Return once there is a connection.

        Raises: ConnectionLostError if there is none within the limit, or never will be.
        """
        if self.is_connected:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_connected:
                    if self.is_closed:
                        raise ConnectionLostError
                    # nats-py reports a loss in a task of its own, later than it notices it: without this a caller that
                    # tries again would never let that task run.
                    self._up.clear()
                    await self._up.wait()
        except TimeoutError as error:
            raise ConnectionLostError from error

    async def _connect_to_server(self, s: Srv) -> None:
        if s.uri.scheme in {"ws", "wss"}:
            try:
                await super()._connect_to_server(s)
            except Exception as error:  # any error of a web socket library, also a missing one
                raise self._failure(error, s) from error
            return
        self._drop_transport()
        s.last_attempt = time.monotonic()
        transport = self._transport = Transport(self._on_data)
        try:
            await transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])
        except (OSError, TimeoutError, ValueError) as error:  # the last of a host that is no name
            raise self._failure(error, s) from error

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except (OSError, TimeoutError, ValueError, LedgerError, nats.errors.Error) as error:
            assert self._current_server is not None, "it was just connected to"
            raise self._failure(error, self._current_server) from error

    def _failure(self, error: Exception, server: Srv) -> ConnectFailedError:
        return failure(error, _place(server), server.uri.hostname or "", self._access, self._server_info)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - nats-py's
        if initial_connection and not self.options["tls_handshake_first"]:
            server = self._current_server
            assert server is not None, "it says who it is"
            wanted = self._access.wants_tls or "tls" in self.options or server.uri.scheme == "tls"
            check_tls(_place(server), self._access, info, wanted=wanted, given="tls" in self.options)
            if wanted:
                info["tls_required"] = True  # also if the server makes TLS optional
        await super()._process_info(info, initial_connection)

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The TLS context of the next handshake, made from the present files."""
        if "tls" in self.options:
            return super().ssl_context
        return self._access.tls()

    def _connect_command(self) -> bytes:
        command = super()._connect_command()
        if not (self._access.creds or self._access.nkey):
            return command
        verb, _, body = command.partition(b" ")
        signed = self._access.signer().answer(self._server_info.get("nonce", ""))
        return b"%b %b\r\n" % (verb, json.dumps({**json.loads(body), **signed}).encode())

    async def _ping_interval(self) -> None:
        """Give up a silent server. Any data is a sign of life, since a pong may come after other data."""
        silent = 0
        while True:
            await asyncio.sleep(self.options["ping_interval"])
            silent = 0 if self._parser.heard() else silent + 1
            if silent > self.options["max_outstanding_pings"]:
                await self._process_op_err(nats.errors.StaleConnectionError())
                return
            await self._send_ping()

    @property
    def lost_for_s(self) -> float:
        """Seconds without a connection."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    def leave(self, why: str) -> None:
        """Change to another server, if one is known; `why`: the fault of this one, such as "took no write"."""
        now = time.monotonic()
        if len(self._server_pool) < 2 or not self.is_connected or now < self._may_leave_at:  # noqa: PLR2004 - another one
            return
        self._may_leave_at = now + _LEFT_EVERY_S
        logger.warning("%s %s, though it answers: another server is tried", self.shown_server, why)
        self._leaving = self.loop.create_task(self._process_op_err(nats.errors.StaleConnectionError()))

    async def _process_err(self, err_msg: str) -> None:
        said = self._parser.error_line()  # `err_msg` is in lower case, which changes subjects
        if PERMISSIONS_ERR in err_msg:
            self._tell_refused(said)
            return
        logger.warning("%s ended the connection: %s", self.shown_server, err_msg.strip("'"))
        if "authorization" in err_msg or "authentication" in err_msg:
            # Another password or newer credentials may lie in the files by now.
            await self._process_op_err(nats.errors.AuthorizationError())
        else:
            await super()._process_err(err_msg)

    def _tell_refused(self, said: str) -> None:
        refused = _PERMISSION.search(said)
        if refused is None:
            logger.error("the server does not allow this user all that it asks for: %s", said.strip())
            return
        verb = "publish" if refused["verb"].lower() == "publish" else "subscribe"
        error = PermissionRefusedError(verb, refused["subject"])
        told = [listener(error) for listener in tuple(self.refused_listeners)]
        if verb == "publish" and error.subject in self.optional_rights:
            self.optional_rights[error.subject] = False  # the reader that asked goes on without a consumer
            told.append(True)
        logger.log(logging.INFO if any(told) else logging.ERROR, "%s", error)

    async def close(self) -> None:
        """Close, after messages passed to `send` were written, if the server reads them."""
        self._pending_data_size += len(self._pending)  # else nats-py would leave out messages of `send`
        try:
            async with asyncio.timeout(_CLOSE_S):
                await super().close()
        except TimeoutError:
            await self.on_closed()
        finally:
            self._drop_transport()

    async def _process_op_err(self, e: Exception) -> None:
        """Drop data that was not written before the connection broke; nats-py would send it on the next one.

        Callers that wait for an answer get an error, and repeat the request if necessary. Requests for work and
        acknowledgements of the old connection would only take or settle jobs that others may have by now. nats-py
        itself repeats subscriptions.
        """
        if self.is_connected:
            self._pending, self._pending_data_size = [], 0
        await super()._process_op_err(e)

    def _drop_transport(self) -> None:
        """Abort the previous attempt, whose handshake may have failed: nats-py would leave its socket open."""
        if isinstance(self._transport, Transport):
            self._transport.abort()

    async def on_lost(self) -> None:
        """Notify all callers that wait for an answer that it will not come on this connection."""
        self._up.clear()
        self._lost_at = time.monotonic()
        self._put_last(self._current_server)
        if not self.is_closed:
            self.outage.note(f"the connection to {self.shown_server} is lost")
        for listener in tuple(self.lost_listeners):
            listener()

    def _put_last(self, lost: Srv | None) -> None:
        """Move the server that was lost to the end of nats-py's list, after the servers that it announced itself."""
        if lost in self._server_pool:
            self._server_pool.remove(lost)
            self._server_pool.append(lost)

    async def on_found(self) -> None:
        """Let waiting callers go on."""
        self.outage.over(f": connected to {self.shown_server}")
        for listener in tuple(self.found_listeners):
            listener()
        self.mark_up()

    async def on_closed(self) -> None:
        """Record that nats-py will not try again."""
        self.closed_for_good.set()
        self._up.set()
        for listener in tuple(self.lost_listeners):
            listener()

    async def on_error(self, error: Exception) -> None:
        """Record errors that nats-py only reports to a callback; end the first connection when every server was tried.

        Raises: ConnectFailedError.
        """
        if isinstance(error, ConnectFailedError):
            self._note_failure(error)
        elif self.is_connected:
            is_end = isinstance(error, nats.errors.UnexpectedEOF | nats.errors.StaleConnectionError | OSError)
            logger.log(logging.DEBUG if is_end else logging.WARNING, "nats: %s", error)

    def _note_failure(self, error: ConnectFailedError) -> None:
        if str(error) not in {str(each) for each in self.failures}:
            self.failures.append(error)
            if self._attempts_left is None and error.kind == "refused":
                logger.warning("%s", error)
        if self._attempts_left is not None:
            self._attempts_left -= 1
            if self._attempts_left <= 0:
                raise error

    @property
    def shown_server(self) -> str:
        """The address in use, without its password."""
        return "the server" if self._current_server is None else _place(self._current_server)

    def mark_up(self) -> None:
        """Record that the connection stands."""
        self._attempts_left = None
        self._lost_at = None
        self.failures.clear()
        self._up.set()


def _place(server: Srv) -> str:
    """Return a server's address without credentials."""
    return redact(server.uri.geturl())


def _user(access: Access, servers: list[str], options: dict[str, Any]) -> str:
    """Return the user as which this client logs in; "" if it logs in by a key, or as several users."""
    if access.user:
        return access.user
    if access.creds or access.nkey or access.token or access.token_file:
        return ""
    users = {user_of([each]) for each in servers}
    return str(options.get("user") or (users.pop() if len(users) == 1 else ""))


async def _unused(_: object) -> None:
    """Stand in as nats-py's callback; `Connection._process_msg` never queues for it."""


async def open_connection(
    url: str,
    *,
    name: str,
    timeout_s: float,
    access: Access = NO_ACCESS,
    inbox_prefix: str = "",
    prefetch_max: int = PREFETCH_MAX,
    options: dict[str, Any] | None = None,
) -> Connection:
    """Connect, check the server, and keep the connection up from then on without limit.

    `url` may name several servers, comma separated: they are tried in any order, each once, within `timeout_s` in all.
    `options` go to nats-py's `connect` as they are. `inbox_prefix`: "" gives a user an inbox of its own, see `inbox_of`.

    Raises: ConfigurationError, ServerUnreachableError, UnsupportedServerError, JetStreamDisabledError.
    """
    if ours := sorted(_OURS & (options or {}).keys()):
        message = f"nats_options cannot set {', '.join(ours)}: leave it out, the settings of `connect` say what can be said"
        raise ConfigurationError(message)
    access.check()
    servers = servers_of(url)
    random.shuffle(servers)  # here, not by nats-py at each loss, so that a lost server is tried last
    connection = Connection(access, servers=len(servers), prefetch_max=prefetch_max)
    try:
        check_addresses(servers)
        inbox_prefix = inbox_prefix or inbox_of(_user(access, servers, options or {}))
        connection.user = user_of_inbox(inbox_prefix)
        async with asyncio.timeout(timeout_s):
            await connection.connect(
                servers=servers,
                name=name,
                error_cb=connection.on_error,
                disconnected_cb=connection.on_lost,
                reconnected_cb=connection.on_found,
                closed_cb=connection.on_closed,
                connect_timeout=timeout_s / len(servers),  # type: ignore[arg-type] # seconds, and a float works
                dont_randomize=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=_RECONNECT_WAIT_S,  # type: ignore[arg-type] # the same
                inbox_prefix=inbox_prefix,
                pending_size=PENDING_BYTES_MAX,
                skip_subject_validation=True,  # every token was checked at the entry, see subjects.check_token
                **{**_PINGS, **(access.login() or decoded_credentials(servers)), **(options or {})},
            )
        connection.mark_up()
        _check_server(connection, shown(url))
    except (OSError, TimeoutError, ValueError, nats.errors.Error) as error:
        await _abandon(connection)
        raise _unreachable(shown(url), connection.failures, error) from error
    except BaseException:  # also when cancelled: nobody else closes it
        await _abandon(connection)
        raise
    return connection


async def _abandon(connection: Connection) -> None:
    with contextlib.suppress(Exception):  # the connection is given up anyway; the first error counts
        await connection.close()


def _unreachable(
    servers: str, failures: list[ConnectFailedError], error: Exception
) -> ServerUnreachableError:
    told = most_telling(failures)
    found = ServerUnreachableError(_sentence(servers, told, error))
    found.is_for_good = isinstance(error, ValueError) if told is None else told.kind == "refused"
    return found


def _sentence(servers: str, told: ConnectFailedError | None, error: Exception) -> str:
    if told is not None and told.kind != "away":
        return str(told)
    if told is not None:
        return (
            f"no server answers at {servers}: start one with `jobledger server`, or give the URL of another "
            "(JOBLEDGER_URL)"
        )
    if isinstance(error, TimeoutError):
        return f"{servers} did not answer in time: is it a nats-server, and is it well? (`jobledger doctor`)"
    if isinstance(error, ValueError):  # its text may quote a part of the password
        return f"{servers or 'an empty URL'} is not the address of a server: nats://host:port, special characters of a password as %XX"
    return f"cannot connect to {servers}: {str(error) or type(error).__name__}"


def _check_server(connection: Connection, servers: str) -> None:
    version = connection.connected_server_version
    found = (version.major, version.minor)
    if found < SERVER_VERSION_MIN:
        message = (
            f"{servers} is nats-server {version.major}.{version.minor}.{version.patch}; "
            "jobledger needs 2.12 or newer (atomic batches), 2.15 or newer is advised"
        )
        raise UnsupportedServerError(message)
    if found < SERVER_VERSION_SAFE:
        logger.warning(
            "nats-server %s.%s at %s: before 2.15 `sync_interval: always` can lose acknowledged events in a power cut",
            *found,
            servers,
        )
    if not connection.has_jetstream:
        message = f"{servers} runs without JetStream: start it with a jetstream block, as in the project's nats.conf"
        error = JetStreamDisabledError(message)
        error.is_for_good = True
        raise error
