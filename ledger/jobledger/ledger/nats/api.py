"""JetStream's API: the one place that knows its subjects, its requests and the numbers of its errors.

Each function is one request and returns what the server answered, typed. A refusal is raised as one of our errors, by
its number. Only `nats/` imports this; the rest of the ledger uses `streams` and `durables`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    LedgerError,
    LedgerFullError,
    ServerUnreachableError,
    UnreachableError,
)
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import (
    Inbox,
    NoRespondersError,
    ReplyTimeoutError,
    header,
    resolve,
    status_of,
)
from jobledger.ledger.nats.infos import AccountInfo, ConsumerInfo, StreamInfo

T = TypeVar("T")

TIMEOUT_S: Final = 5.0
SNAPSHOT_S: Final = 30.0  #: how long the server may take until it sends or accepts the first chunk
_ROOT: Final = "$JS.API."
#: The name of the stream behind an object store, as in nats-py.
LOOK_UP: Final = f"{_ROOT}STREAM.NAMES"
_MISSING: Final = frozenset({10014, 10037, 10059})  # consumer, message, stream
_TAKEN: Final = frozenset({10013, 10058, 10105, 10130, 10148})
#: Codes for a stream, a consumer or a message without room; 10077 is a stream's own limit.
NO_ROOM: Final = frozenset({10023, 10028, 10047, 10077})
#: Codes for a stream whose replicas find no servers: too few of the cluster run, or the server is in no cluster.
TOO_FEW_SERVERS: Final = frozenset({10005, 10074})
_ELECTING: Final = 10008  # code while the servers of a stream, a consumer or the API elect a leader
_ENDINGS: Final = frozenset({"204", "404"})  # status at the end of a batch; of a direct get without a result
_UNAVAILABLE: Final = 503  # status as in HTTP
_OFFLINE: Final = frozenset({10118, 10119})  # codes for a stream and a consumer whose only server was stopped
#: On a cluster a request is repeated after this time: a leader that is gone does not answer, and the next leader does
#: not know the request. Only for requests with an immediate answer: a list of consumers takes 4 s while one server is
#: away.
_AGAIN_S: Final = 1.5
#: Any replica answers a direct get. If one is silent for this time, because it is frozen or cut off, the request is
#: sent again, perhaps to the same one, and so on.
_SILENT_S: Final = (0.3, 0.3, 0.3, 0.5, 0.5, 1.0, 1.0)
#: How long to wait for a connection that broke. After that the server counts as away, and requests fail at once.
_BACK_S: Final = 2.0
_RETRY_S: Final = 0.2
_PAGES_MAX: Final = 100  # of 256 consumers each, or of 1,024 names

#: Data and header block of a message that a direct get found.
Found = tuple[bytes, bytes]


class ApiError(LedgerError):
    """The server refused a request: `number` is JetStream's number, `said` the server's words."""

    def __init__(self, what: str, number: int, said: str) -> None:
        self.number = number
        self.said = said
        super().__init__(f"the server refused {what}: {said}")


class MissingError(ApiError):
    """There is no such stream, consumer or message."""


class TakenError(ApiError):
    """The name is in use, by an object with other settings, or one created at the same moment."""


class _Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = "no reason given"


class _Answer(msgspec.Struct, frozen=True):
    error: _Refusal | None = None


class _Done(msgspec.Struct, frozen=True):
    """The answer to a request that returns nothing."""


class StoredMessage(msgspec.Struct, frozen=True):
    """A message from the stream's leader."""

    subject: str
    stream_sequence: int = msgspec.field(name="seq")
    data: str = ""  #: base64
    headers: str = msgspec.field(default="", name="hdrs")  #: base64
    time: str = ""  #: when it was stored, by the server's clock

    @property
    def content(self) -> bytes:
        """The data as stored."""
        return base64.b64decode(self.data)

    def header(self, name: bytes) -> bytes:
        """Return one header's value, b"" without that header."""
        return header(base64.b64decode(self.headers), name)


class _PurgeCount(msgspec.Struct, frozen=True):
    purged: int = 0


class _Got(msgspec.Struct, frozen=True):
    message: StoredMessage


class SnapshotBegun(msgspec.Struct, frozen=True):
    """A stream in a snapshot that the server has begun to send."""

    config: dict[str, Any]
    state: dict[str, Any]


class _RestoreBegun(msgspec.Struct, frozen=True):
    deliver_subject: str


class _ConsumerPage(msgspec.Struct, frozen=True):
    consumers: list[ConsumerInfo] | None = None
    total: int = 0


class _NamePage(msgspec.Struct, frozen=True):
    consumers: list[str] | None = None
    total: int = 0


class _StreamNamePage(msgspec.Struct, frozen=True):
    streams: list[str] | None = None
    total: int = 0


async def account_info(inbox: Inbox) -> AccountInfo:
    """Return the account's use of storage."""
    return await _call(inbox, "INFO", {}, AccountInfo, "this account's usage")


async def stream_info(
    inbox: Inbox, stream: str, *, subjects: str | None = None, offset: int = 0
) -> StreamInfo:
    """Return a stream; with `subjects`, a filter, also how many messages each fitting subject has.

    The server names at most 100,000 subjects, those after the first `offset`.

    Raises: MissingError.
    """
    request: dict[str, Any] = {} if subjects is None else {"subjects_filter": subjects, "offset": offset}
    is_quick = subjects is None  # else all subjects are counted
    return await _call(
        inbox, f"STREAM.INFO.{stream}", request, StreamInfo, f"stream {stream}", is_quick=is_quick
    )


async def stream_names(inbox: Inbox, *, names_max: int) -> list[str]:
    """Return the names of the account's streams, at most about `names_max`."""
    found: list[str] = []
    for _ in range(_PAGES_MAX):
        request = {"offset": len(found)}
        answer = await _call(inbox, "STREAM.NAMES", request, _StreamNamePage, "the list of streams")
        page = answer.streams or []
        found += page
        if not page or len(found) >= min(answer.total, names_max):
            break
    return found


async def create_stream(inbox: Inbox, stream: str, config: dict[str, Any]) -> StreamInfo:
    """Create a stream; an existing one with the same settings is returned.

    Raises: TakenError, LedgerFullError.
    """
    request = {"name": stream, **config}
    return await _call(inbox, f"STREAM.CREATE.{stream}", request, StreamInfo, f"stream {stream}")


async def update_stream(inbox: Inbox, stream: str, config: dict[str, Any]) -> StreamInfo:
    """Give a stream other settings; `config` holds all of them. Raises: MissingError, ApiError."""
    return await _call(inbox, f"STREAM.UPDATE.{stream}", config, StreamInfo, f"stream {stream}")


async def purge_stream(inbox: Inbox, stream: str, *, before_sequence: int) -> None:
    """Delete every message before a stream sequence."""
    what = f"the purge of {stream}"
    await _call(inbox, f"STREAM.PURGE.{stream}", {"seq": before_sequence}, _Done, what, is_once=True)


async def purge_subject(
    inbox: Inbox, stream: str, subject: str, *, before_sequence: int | None = None
) -> int:
    """Delete the messages of a subject, those before a stream sequence or all; return how many. Raises: ApiError."""
    what = f"the purge of {subject} in {stream}"
    request: dict[str, Any] = {"filter": subject}
    if before_sequence is not None:
        request["seq"] = before_sequence
    return (await _call(inbox, f"STREAM.PURGE.{stream}", request, _PurgeCount, what, is_once=True)).purged


async def erase_message(inbox: Inbox, stream: str, sequence: int) -> None:
    """Delete a message, and write other bytes over it on the server's disk. Raises: MissingError, ApiError."""
    what = f"the erasure of message {sequence} of {stream}"
    request = {"seq": sequence, "no_erase": False}
    await _call(inbox, f"STREAM.MSG.DELETE.{stream}", request, _Done, what, is_once=True)


async def erase_if_there(inbox: Inbox, stream: str, sequence: int) -> bool:
    """Erase a message; return whether that was done: not if it is gone already. Raises: ApiError."""
    try:
        await erase_message(inbox, stream, sequence)
    except ApiError:
        if await get_message(inbox, stream, {"seq": sequence}) is not None:
            raise
        return False
    return True


async def delete_stream(inbox: Inbox, stream: str) -> None:
    """Delete a stream with all that it holds. Raises: MissingError."""
    await _call(inbox, f"STREAM.DELETE.{stream}", {}, _Done, f"the end of stream {stream}", is_once=True)


async def begin_snapshot(inbox: Inbox, stream: str, deliver: str, *, chunk_bytes: int) -> SnapshotBegun:
    """Make the server send a stream's snapshot, in chunks that are acknowledged. Raises: MissingError."""
    request = {"deliver_subject": deliver, "no_consumers": True, "chunk_size": chunk_bytes}
    what, limit_s = f"a snapshot of {stream}", SNAPSHOT_S
    call = f"STREAM.SNAPSHOT.{stream}"
    return await _call(inbox, call, request, SnapshotBegun, what, timeout_s=limit_s, is_once=True)


async def begin_restore(inbox: Inbox, stream: str, config: dict[str, Any], state: dict[str, Any]) -> str:
    """Begin to restore a stream; return the subject for its chunks. Raises: TakenError if the stream exists."""
    request, call = {"config": config, "state": state}, f"STREAM.RESTORE.{stream}"
    what, limit_s = f"the restore of {stream}", SNAPSHOT_S
    begun = await _call(inbox, call, request, _RestoreBegun, what, timeout_s=limit_s, is_once=True)
    return begun.deliver_subject


def end_of_restore(stream: str, data: bytes) -> None:
    """Read the answer to the empty chunk that ends a restore.

    Raises: LedgerError for a refusal of the server, or an unreadable answer.
    """
    what = f"the restore of {stream}"
    try:
        refusal = msgspec.json.decode(data, type=_Answer).error
    except msgspec.MsgspecError as error:
        raise LedgerError(f"the server's answer about {what} cannot be read: {error}") from error
    if refusal is not None:
        raise _refused(what, refusal)


async def get_message(
    inbox: Inbox, stream: str, request: dict[str, Any], *, timeout_s: float = TIMEOUT_S
) -> StoredMessage | None:
    """Return a message from the stream's leader, None if it has none.

    `request`: `{"seq": n}`, `{"last_by_subj": subject}`, or `{"seq": n, "next_by_subj": filter}`.
    """
    what = f"a message of {stream}"
    try:
        call = f"STREAM.MSG.GET.{stream}"
        found = await _call(inbox, call, request, _Got, what, timeout_s=timeout_s, is_quick=True)
    except MissingError:
        return None
    return found.message


class Batch(list[Found]):
    """Messages from one replica."""

    up_to = 0  #: the newest stream sequence of the replica, which it tells only for the newest of several subjects


async def direct_get(
    connection: Connection,
    inbox: Inbox,
    stream: str,
    request: dict[str, Any],
    *,
    batch: bool,
    timeout_s: float = TIMEOUT_S,
) -> Batch:
    """Return messages from any replica, empty if it has none; after a broken connection it waits for the next.

    Raises: ConnectionLostError also if the stream does not exist yet, or is moving; ReplyTimeoutError, ApiError.
    """
    give_up_at = connection.loop.time() + timeout_s
    while True:
        try:
            return await _get(
                connection, inbox, stream, request, give_up_at - connection.loop.time(), batch=batch
            )
        except ConnectionLostError:
            if connection.is_connected or not await _may_ask_again(connection, give_up_at):
                raise


async def _get(
    connection: Connection,
    inbox: Inbox,
    stream: str,
    request: dict[str, Any],
    timeout_s: float,
    *,
    batch: bool,
) -> Batch:
    """Ask one replica, and while it is silent others as well; the first whole answer counts. See `direct_get`."""
    done: asyncio.Future[Batch] = connection.loop.create_future()
    subject, data = f"{_ROOT}DIRECT.GET.{stream}", msgspec.json.encode(request)
    replies: list[str] = []
    answers: list[Batch] = []
    try:
        for limit_s in _limits(timeout_s, connection):
            if not any(answers):  # a replica that has begun to answer is not silent, but slow
                answers.append(Batch())
                replies.append(inbox.expect(subject, _collector(answers[-1], done, stream, batch=batch)))
                connection.send(subject, replies[-1], b"", data)
            if (await asyncio.wait((done,), timeout=limit_s))[0]:
                return done.result()
    finally:
        for reply in replies:
            inbox.forget(reply)
        if not done.cancel() and not done.cancelled():
            done.exception()  # retrieved here: the caller may have been cancelled in the same turn
    raise ReplyTimeoutError(f"no answer to a read within {timeout_s:g} s")


def _limits(timeout_s: float, connection: Connection) -> Iterator[float]:
    """Yield how long to wait after each question, together `timeout_s`."""
    left_s = timeout_s
    for silent_s in _SILENT_S if connection.is_clustered else ():
        if silent_s >= left_s:
            break
        left_s -= silent_s
        yield silent_s
    yield left_s


def _collector(
    found: Batch, done: asyncio.Future[Batch], stream: str, *, batch: bool
) -> Callable[[bytes | Exception, bytes], None]:
    """Return the handler of the messages that answer one request."""

    def on_reply(data: bytes | Exception, headers: bytes) -> None:
        if isinstance(data, Exception):
            resolve(done, data)
            return
        status = status_of(headers)
        if not status:
            found.append((data, headers))
        if status == "503":
            resolve(done, ConnectionLostError())
        elif status in _ENDINGS or not (status or batch):
            found.up_to = int(header(headers, b"Nats-UpTo-Sequence") or 0)
            resolve(done, found)
        elif status:
            resolve(done, ApiError(f"messages of {stream}", 0, f"status {status}"))

    return on_reply


async def consumer_info(inbox: Inbox, stream: str, consumer: str) -> ConsumerInfo:
    """Return a consumer.

    Raises: MissingError.
    """
    call = f"CONSUMER.INFO.{stream}.{consumer}"
    return await _call(inbox, call, {}, ConsumerInfo, f"consumer {consumer}", is_quick=True)


async def create_consumer(
    inbox: Inbox, stream: str, consumer: str, config: dict[str, Any], *, action: str = "create"
) -> ConsumerInfo:
    """Create a named consumer, or with the action "update" change one.

    Raises: TakenError if it exists; a server may also return the existing one if its settings are the same.
    """
    single = config.get("filter_subject")  # only a single filter becomes part of the subject of the request
    call = f"CONSUMER.CREATE.{stream}.{consumer}" + (f".{single}" if single else "")
    request = {"stream_name": stream, "action": action, "config": config}
    return await _call(inbox, call, request, ConsumerInfo, f"consumer {consumer}")


def right_to_read(stream: str) -> str:
    """Return the subject of the request for a consumer with a name from the server."""
    return f"{_ROOT}CONSUMER.CREATE.{stream}"


async def create_reader(
    inbox: Inbox, stream: str, config: dict[str, Any], *, timeout_s: float = TIMEOUT_S
) -> ConsumerInfo:
    """Create a consumer with a name from the server, which deletes it when it is not used any more."""
    request, what = {"stream_name": stream, "config": config}, f"a reader of {stream}"
    call = right_to_read(stream).removeprefix(_ROOT)  # each time another one
    return await _call(inbox, call, request, ConsumerInfo, what, timeout_s=timeout_s, is_once=True)


async def delete_consumer(inbox: Inbox, stream: str, consumer: str) -> None:
    """Delete a consumer and its position.

    Raises: MissingError.
    """
    what = f"the end of consumer {consumer}"
    await _call(inbox, f"CONSUMER.DELETE.{stream}.{consumer}", {}, _Done, what, is_once=True)


async def pause_consumer(inbox: Inbox, stream: str, consumer: str, until: str) -> None:
    """Pause a consumer until a time of the server's clock; "" ends its pause.

    Raises: MissingError.
    """
    request = {"pause_until": until} if until else {}
    await _call(
        inbox, f"CONSUMER.PAUSE.{stream}.{consumer}", request, _Done, f"a pause of consumer {consumer}"
    )


def drop_consumer(connection: Connection, stream: str, consumer: str) -> None:
    """Delete a consumer without waiting for an answer.

    Raises: ConnectionLostError.
    """
    connection.send(f"{_ROOT}CONSUMER.DELETE.{stream}.{consumer}", "", b"", b"")


async def consumers(inbox: Inbox, stream: str) -> list[ConsumerInfo]:
    """Return every consumer of a stream, each once."""
    found: dict[str, ConsumerInfo] = {}
    offset, what = 0, f"the list of consumers of {stream}"
    for _ in range(_PAGES_MAX):
        answer = await _call(inbox, f"CONSUMER.LIST.{stream}", {"offset": offset}, _ConsumerPage, what)
        page = answer.consumers or []
        found.update({info.name: info for info in page})
        offset += len(page)
        if not page or offset >= answer.total:
            break
    return list(found.values())


async def consumer_names(inbox: Inbox, stream: str) -> list[str]:
    """Return only the names of a stream's consumers, which is cheaper than `consumers`."""
    found: list[str] = []
    what = f"the list of consumers of {stream}"
    for _ in range(_PAGES_MAX):
        answer = await _call(inbox, f"CONSUMER.NAMES.{stream}", {"offset": len(found)}, _NamePage, what)
        page = answer.consumers or []
        found += page
        if not page or len(found) >= answer.total:
            break
    return found


def pull_subject(stream: str, consumer: str) -> str:
    """Return the subject of requests for a consumer's next messages."""
    return f"{_ROOT}CONSUMER.MSG.NEXT.{stream}.{consumer}"


async def _call(
    inbox: Inbox,
    call: str,
    request: object,
    kind: type[T],
    what: str,
    *,
    timeout_s: float = TIMEOUT_S,
    is_once: bool = False,
    is_quick: bool = False,
) -> T:
    """Send a request; unless it `is_once`, repeat it to the limit; `what` ends the sentence "the server refused ...".

    `is_quick`: a leader answers at once, so silence means that the leader is gone.

    Raises: as `_ask`.
    """
    connection = inbox.connection
    if is_once:
        return await _ask(inbox, call, request, kind, what, timeout_s=timeout_s)
    each_s = _AGAIN_S if connection.is_clustered and is_quick else timeout_s
    give_up_at = connection.loop.time() + timeout_s
    while True:
        left_s = give_up_at - connection.loop.time()
        try:
            return await _ask(inbox, call, request, kind, what, timeout_s=min(left_s, each_s))
        except UnreachableError:
            if not await _may_ask_again(connection, give_up_at):
                raise


async def _may_ask_again(connection: Connection, give_up_at: float) -> bool:
    """Wait until an unanswered request may be repeated: on another connection, or to another leader."""
    left_s = give_up_at - connection.loop.time()
    if connection.is_connected:
        if not connection.is_clustered or left_s <= _RETRY_S:
            return False
        await asyncio.sleep(_RETRY_S)
    else:
        with contextlib.suppress(ConnectionLostError):
            await connection.wait_connected(min(left_s, _BACK_S - connection.lost_for_s))
    return connection.is_connected and connection.loop.time() < give_up_at


async def _ask(inbox: Inbox, call: str, request: object, kind: type[T], what: str, *, timeout_s: float) -> T:
    """Ask once.

    Raises: ApiError, LedgerFullError, JetStreamDisabledError if nobody listens or the API is not available,
    ReplyTimeoutError, ServerUnreachableError without a connection, LedgerError for an unreadable answer.
    """
    try:
        data, _ = await inbox.ask(f"{_ROOT}{call}", request, timeout_s=timeout_s)
    except NoRespondersError as error:
        message = "the server has no JetStream for this account: enable jetstream in its configuration"
        raise JetStreamDisabledError(message) from error
    except ConnectionLostError as error:
        message = "the connection was lost while the server was asked: try again"
        raise ServerUnreachableError(message) from error
    try:
        refusal = msgspec.json.decode(data, type=_Answer).error
        if refusal is None:
            return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise LedgerError(f"the server's answer about {what} cannot be read: {error}") from error
    raise _refused(what, refusal)


def _refused(what: str, refusal: _Refusal) -> LedgerError:
    """Return our error for the server's: the one place where its numbers are translated."""
    number, said = refusal.err_code, refusal.description
    if number in _MISSING:
        return MissingError(what, number, said)
    if number in _TAKEN:
        return TakenError(what, number, said)
    if number in NO_ROOM:
        return LedgerFullError(
            f"the server has no room for {what} ({said}): raise max_file_store in its configuration, "
            "or ask for a smaller ledger (ledger_bytes_max)"
        )
    if number in _OFFLINE:
        return ServerUnreachableError(f"no server that runs has {what} ({said})")
    if number == _ELECTING:
        return ServerUnreachableError(f"the servers have no leader for {what} just now ({said}): try again")
    if refusal.code == _UNAVAILABLE:
        return JetStreamDisabledError(f"JetStream is not available for {what}: {said}")
    return ApiError(what, number, said)
