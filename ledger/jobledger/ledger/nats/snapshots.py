"""Snapshots of streams, made by the server: written to a file in chunks, and restored from it.

The server sends the next chunks once earlier ones are acknowledged, so that memory is bounded on both sides, and takes
appends meanwhile. The content of chunks has the server's own form. The caller chooses the streams and their order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, cast

import anyio.to_thread

from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    LedgerError,
    RefusedError,
    ServerUnreachableError,
)
from jobledger.ledger.model.queue_pause import QUEUE
from jobledger.ledger.model.reactor import REACTOR, RESTORE
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.durables import make_consumer
from jobledger.ledger.nats.inbox import Inbox, NoRespondersError, ReplyTimeoutError, resolve, status_of
from jobledger.ledger.nats.infos import StreamInfo
from jobledger.ledger.nats.streams import RESTORE_MARK

_CHUNK_BYTES: Final = 128 << 10
_SILENT_S: Final = 60.0  #: how long the server may be silent between two chunks
_LAST_S: Final = 600.0  #: how long the server may take to read a stream after its last chunk
_DONE: Final = ("", "204")
_LOST: Final = "the connection was lost while the server was asked: try again"

#: A received chunk: data, and the subject for its ack; or the status that ends a snapshot; or an error.
_Chunk = tuple[bytes, str, str]


async def write_snapshot(
    inbox: Inbox,
    stream: str,
    write: Callable[[bytes], object],
) -> api.SnapshotBegun:
    """Write a stream, in its state at some moment from now on, and return its settings and the least that it held.

    Without its consumers, whose positions may be newer than the messages, so that they would skip some.
    `write` is called with each part of the snapshot, in a thread.

    Raises: MissingError, ServerUnreachableError, LedgerError if the server gave up, OSError.
    """
    connection = inbox.connection
    chunks: asyncio.Queue[_Chunk | None] = (
        asyncio.Queue()
    )  # bounded by the server: it waits for acknowledgements
    deliver = connection.new_inbox()

    def on_chunk(_subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        chunks.put_nowait((bytes(data), bytes(reply).decode(), status_of(headers)))

    def on_lost() -> None:
        chunks.put_nowait(None)

    subscription = await connection.listen(deliver, on_chunk)
    connection.lost_listeners.append(on_lost)
    try:
        begun = await api.begin_snapshot(inbox, stream, deliver, chunk_bytes=_CHUNK_BYTES)
        while (chunk := await _next(chunks, stream)) is not None:
            data, reply = chunk
            await anyio.to_thread.run_sync(write, data)
            if reply:
                connection.send(reply, "", b"", b"")
    except ConnectionLostError as error:
        raise ServerUnreachableError(_LOST) from error
    finally:
        connection.lost_listeners.remove(on_lost)
        await connection.unlisten(subscription)
    return begun


async def _next(chunks: asyncio.Queue[_Chunk | None], stream: str) -> tuple[bytes, str] | None:
    """Return the next chunk, None at the end. Raises: ServerUnreachableError, LedgerError."""
    try:
        async with asyncio.timeout(_SILENT_S):
            found = await chunks.get()
    except TimeoutError as error:
        message = (
            f"the server sent nothing more of the snapshot of {stream} within {_SILENT_S:g} s: try again"
        )
        raise ServerUnreachableError(message) from error
    if found is None:
        raise ServerUnreachableError(_LOST)
    data, reply, status = found
    if data:
        return data, reply
    if status not in _DONE:
        raise LedgerError(f"the server gave the snapshot of {stream} up (status {status}): try again")
    return None


async def restore_snapshot(
    inbox: Inbox,
    stream: str,
    file: IO[bytes],
    *,
    config: dict[str, Any],
    state: dict[str, Any],
) -> None:
    """Create a stream from a file of `write_snapshot`, with these settings.

    After a failure half-way there is no such stream. Raises: TakenError if it exists; LedgerFullError,
    ServerUnreachableError, LedgerError, OSError.
    """
    to = await api.begin_restore(inbox, stream, config, state)
    while data := await anyio.to_thread.run_sync(file.read, _CHUNK_BYTES):
        # The server answers each chunk once it has written it: with nothing, or with the reason why it gave up.
        answer = await _send(inbox, to, data, _SILENT_S)
        if answer:
            api.end_of_restore(stream, answer)
    api.end_of_restore(stream, await _send(inbox, to, b"", _LAST_S))


# During a restore a ledger takes only the record of that restore and events of queues: no job is added or claimed.


def closed_subjects(names: Names) -> list[str]:
    """Return the subjects of a ledger during a restore; `connect` refuses such a ledger."""
    return [QUEUE.everything(names), REACTOR.chain(names, RESTORE)]


def is_closed(names: Names, info: StreamInfo) -> bool:
    """Return whether a ledger's stream comes from an unfinished restore."""
    return sorted(info.config.get("subjects") or ()) == sorted(closed_subjects(names))


def marked(config: dict[str, Any], mark: str) -> dict[str, str]:
    """Return the metadata of a stream with the mark of a restore, without one for ""."""
    said = cast("dict[str, str]", config.get("metadata") or {})
    metadata = {name: value for name, value in said.items() if name != RESTORE_MARK}
    return {**metadata, RESTORE_MARK: mark} if mark else metadata


async def require_mark(inbox: Inbox, names: Names, mark: str) -> dict[str, Any]:
    """Return the settings of the ledger's stream if this restore created it.

    Raises: RefusedError, UnreachableError, LedgerError.
    """
    config = (await api.stream_info(inbox, names.ledger_stream)).config
    if (config.get("metadata") or {}).get(RESTORE_MARK) != mark:
        raise RefusedError(
            "another restore removed what this one had brought back, and goes on instead of it: wait for its end"
        )
    return config


async def open_ledger(inbox: Inbox, names: Names, mark: str) -> None:
    """Open a restored ledger for all events. Raises: as `require_mark`."""
    config = await require_mark(inbox, names, mark)
    opened = {**config, "subjects": [names.all_events], "metadata": marked(config, "")}
    await api.update_stream(inbox, names.ledger_stream, opened)


async def delete_streams(inbox: Inbox, streams: Sequence[str]) -> None:
    """Delete those of these streams that exist, in this order. Raises: ApiError, UnreachableError."""
    for stream in streams:
        with contextlib.suppress(api.MissingError):
            await api.delete_stream(inbox, stream)


def begun_at(config: dict[str, Any], stream_sequence: int) -> dict[str, Any]:
    """Return the settings of a consumer, with a beginning at a stream sequence."""
    kept = {key: value for key, value in config.items() if key != "opt_start_time"}
    return {**kept, "deliver_policy": "by_start_sequence", "opt_start_seq": max(1, stream_sequence)}


async def make_consumer_again(inbox: Inbox, stream: str, config: dict[str, Any], after: int) -> None:
    """Create a durable consumer that begins after a stream sequence; an existing one does not change.

    Raises: LedgerError, UnreachableError.
    """
    await make_consumer(inbox, stream, config["durable_name"], begun_at(config, after + 1))


async def _send(inbox: Inbox, subject: str, data: bytes, limit_s: float) -> bytes:
    """Send one chunk; return the server's answer. Raises: ServerUnreachableError, JetStreamDisabledError."""
    answer: asyncio.Future[bytes] = inbox.connection.loop.create_future()

    def on_reply(found: bytes | Exception, headers: bytes) -> None:
        if isinstance(found, bytes) and status_of(headers) == "503":
            resolve(answer, NoRespondersError(f"nobody answers {subject}"))
        else:
            resolve(answer, found)

    reply = inbox.expect(subject, on_reply)
    try:
        inbox.connection.send(subject, reply, b"", data)
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError as error:
        raise ReplyTimeoutError(f"the server took no part of a restore within {limit_s:g} s") from error
    except ConnectionLostError as error:
        raise ServerUnreachableError(_LOST) from error
    except NoRespondersError as error:
        raise JetStreamDisabledError("the server does not take the restore any more: try again") from error
    finally:
        inbox.forget(reply)
