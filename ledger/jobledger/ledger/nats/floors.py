"""The bucket LANES: the sequence up to which each lane was settled, in case the server has lost its consumer.

A consumer of work is kept in the server's memory and is gone after a restart. The process that creates it again lets
it begin after the newest note. A note that is seconds old does no harm: dispatches settled since are delivered once
more, and the ledger refuses them. A note counts only while the ledger still has, unchanged, the event that was its
newest just after the note: a ledger that lost its end lost outcomes of settled dispatches, and has other dispatches at
the same sequences.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import msgspec

from jobledger.ledger.model.errors import LedgerError, PermissionRefusedError, ServerUnreachableError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.streams import StreamSpec, bucket_specification, ensure_streams

_TIMEOUT_S: Final = 5.0
_LANES_MAX: Final = 30_000
_NOTE_BYTES_MAX: Final = 1 << 10


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """An event that proves that a ledger has not lost its end."""

    sequence: int  #: of the newest event of the ledger; 0 for none
    sha256: str  #: of that event as it is stored


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The sequence up to which a lane was settled, and the newest event of the ledger just after that was read.

    While the ledger has that event, it has the outcomes of all settled dispatches, too.
    """

    settled: int  #: stream sequence: no dispatch of the lane up to it has to be delivered
    mark: Mark  #: read after the consumer was


def lanes_specification(names: Names, replicas: int) -> StreamSpec:
    """Return the bucket; workers make it."""
    return bucket_specification(
        _stream(names),
        _subject(names, ">"),
        entries_max=_LANES_MAX,
        entry_bytes_max=_NOTE_BYTES_MAX,
        replicas=replicas,
    )


async def make_bucket(inbox: Inbox, names: Names, *, replicas: int) -> bool:
    """Create the bucket if it is missing; return False if this user may not do so, or may not look for it.

    Raises: as `ensure_streams`.
    """
    try:
        await ensure_streams(inbox, [lanes_specification(names, replicas)])
    except PermissionRefusedError:
        return False
    return True


async def mark_of(log: Log) -> Mark:
    """Return the present mark of the ledger. Raises: UnreachableError, LedgerError."""
    sequence = (await log.head()).last_sequence
    newest = await log.get(sequence)
    return Mark(sequence=0, sha256="") if newest is None else _mark(sequence, newest.data)


async def write_floor(inbox: Inbox, names: Names, consumer: str, note: Note) -> None:
    """Note how far a consumer is. Raises: ServerUnreachableError, ReplyTimeoutError, PermissionRefusedError, LedgerError."""
    try:
        data, _ = await inbox.ask(_subject(names, consumer), note, timeout_s=_TIMEOUT_S)
    except ConnectionLostError as error:
        raise ServerUnreachableError("the connection was lost while a floor was noted") from error
    if b'"error"' in data:
        raise LedgerError(f"the server refused the floor of {consumer}: {data[:200].decode()}")


async def read_floor(inbox: Inbox, log: Log, consumer: str) -> int | None:
    """Return the stream sequence up to which a lane was settled; None without a note for this ledger.

    Raises: UnreachableError, LedgerError.
    """
    try:
        found = await api.get_message(
            inbox, _stream(log.names), {"last_by_subj": _subject(log.names, consumer)}
        )
        note = None if found is None else msgspec.json.decode(found.content, type=Note)
    except (
        PermissionRefusedError,
        msgspec.MsgspecError,
    ):  # a newer version wrote it, or this user may not read
        return None
    if note is None or not 0 < note.settled <= note.mark.sequence:
        return None
    return note.settled if await holds(log, note.mark) else None


async def holds(log: Log, mark: Mark) -> bool:
    """Return whether a ledger still has the event of a mark. Raises: UnreachableError, LedgerError."""
    if not mark.sequence:
        return True
    marked = await log.get(mark.sequence)
    return marked is not None and _mark(mark.sequence, marked.data) == mark


def _mark(sequence: int, data: bytes) -> Mark:
    return Mark(sequence=sequence, sha256=sha256(data).hexdigest())


def _stream(names: Names) -> str:
    return f"KV_{names.lanes_bucket}"


def _subject(names: Names, key: str) -> str:
    return f"$KV.{names.lanes_bucket}.{key}"
