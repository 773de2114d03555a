"""Bringing an export back: the same bytes under the same subjects at the same sequences, in an empty ledger.

Each append has the condition that the original had: the chain's newest event is the one whose hash the next event
names. An interrupted import continues, after the events that are there were compared with the export.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from jobledger.audit.errors import NotAnExportError
from jobledger.audit.export.log import ExportLog
from jobledger.audit.export.payloads import PayloadSink, import_payloads
from jobledger.audit.export.reader import read_export
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.codec import Message, Unreadable
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.events import PRIORITIES, Priority
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.subjects import Names, aggregate_of

_BATCH_EVENTS: Final = 500
_BATCH_BYTES: Final = 1 << 20
#: Chains whose last sequence is kept; the log is asked for others.
_CHAINS_KEPT: Final = 100_000


class _Link(msgspec.Struct):
    prev: str = ""


_link_decoder: msgspec.json.Decoder[_Link] = msgspec.json.Decoder(_Link)


async def import_export(
    folder: Path,
    log: Log,
    *,
    through: int | None = None,
    payloads: PayloadSink | None = None,
    lanes: set[tuple[str, Priority]] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Append every event of an export, up to the sequence `through`, to an empty log; return how many were appended.

    The log gets the same events, byte for byte, at the same stream sequences; their server times are those of
    the import. A log that already holds the beginning of the export, as after an interrupted import or of an
    export that this one continues, is gone on with: what both hold must be the same. Called again after it
    returned, it appends nothing. The large values of the export go to `payloads` first, so that no job is
    there without its input. `lanes` gets queue and priority of each dispatch in the log.

    Raises: NotAnExportError for a selection, which has holes, for one whose events were redacted, and for one of another
        environment;
        RefusedError when the log holds something else; WrongSequenceError when somebody else appends to it;
        as `read_export` and `Log.append`.
    """
    export = restorable(folder, log.names)
    manifest = export.manifest
    last = manifest.last_sequence if through is None else min(through, manifest.last_sequence)
    chains = _Chains(log)
    held = await _held(export, log, chains, last)
    if payloads is not None:
        await import_payloads(export.folder, manifest, payloads)
    source, count = read_export(folder), 0
    if lanes is not None:
        source = _with_lanes(source, last, lanes)
    with contextlib.closing(_wanted(source, held, last)) as wanted:
        while batch := await anyio.to_thread.run_sync(_next_batch, wanted):
            entries = [await chains.entry(message) for message in batch]
            first = await log.append(_in_one_batch(entries))
            if first != batch[0].stream_sequence:
                raise RefusedError(
                    f"somebody else appends to this ledger: what had stream sequence {batch[0].stream_sequence} got {first}"
                )
            count += len(batch)
            if on_progress is not None:
                on_progress(batch[-1].stream_sequence, last)
    return count


def restorable(folder: Path, names: Names) -> ExportLog:
    """Return an export that `import_export` can bring back to this environment; of its files only the manifest is read.

    Raises: NotAnExportError, as `import_export`.
    """
    export = ExportLog(folder, names)
    if not export.manifest.complete:
        raise NotAnExportError(
            f"{folder} holds a selection of the events: only a whole range can be brought back"
        )
    if redacted := export.manifest.redacted_figures[0]:
        raise _redacted(f"the values of {redacted:,} events in {folder}")
    return export


def _redacted(what: str) -> NotAnExportError:
    return NotAnExportError(
        f"{what} were redacted, so they cannot be brought back as they were stored: bring back a snapshot of the server "
        "instead"
    )


async def _held(export: ExportLog, log: Log, chains: _Chains, last: int) -> int:
    """Return the last stream sequence that the log has, after comparing its events with those of the export.

    Raises: RefusedError.
    """
    first, head = export.manifest.first_sequence, await log.head()
    if head.last_sequence < first - 1:
        raise RefusedError(
            f"the ledger ends at stream sequence {head.last_sequence}, and the export begins at {first}: "
            "bring back first what comes before, or, if that was forgotten, a back-up of the server"
        )
    if head.last_sequence > export.manifest.last_sequence:
        raise RefusedError(
            f"the ledger has {head.last_sequence:,} events, more than the export: it has to be an empty one"
        )
    if head.last_sequence >= first:
        await _compare(export, log, chains, max(first, head.first_sequence), min(last, head.last_sequence))
    return head.last_sequence


async def _compare(export: ExportLog, log: Log, chains: _Chains, first: int, last: int) -> None:
    theirs = log.read_messages(from_sequence=first)
    async with contextlib.aclosing(theirs), contextlib.aclosing(_one_by_one(export, first)) as ours:
        async for batch in theirs:
            for found in batch:
                if found.stream_sequence > last:
                    return
                chains.heed(found)
                wanted = await anext(ours)
                if (found.subject, found.data) != (wanted.subject, wanted.data):
                    raise RefusedError(
                        f"the ledger holds another event than the export at stream sequence {found.stream_sequence}: "
                        "it has to be an empty one"
                    )


async def _one_by_one(export: ExportLog, first: int) -> AsyncGenerator[Message, None]:
    async with contextlib.aclosing(export.read_messages(from_sequence=first)) as batches:
        async for batch in batches:
            for message in batch:
                yield message


def _with_lanes(source: Iterator[Message], last: int, lanes: set[tuple[str, Priority]]) -> Iterator[Message]:
    """Yield the events, and note the lane of each dispatch up to the sequence `last`."""
    for message in source:
        if ".queued." in message.subject and message.stream_sequence <= last:
            words = message.subject.split(".")
            if words[1] == "job" and words[-2] == "queued" and words[-1] in PRIORITIES:
                lanes.add((words[2], words[-1]))
        yield message


def _wanted(source: Iterator[Message], held: int, last: int) -> Generator[Message, None, None]:
    """Yield the events that the log lacks; read to the end, so that the digest over all of them is compared."""
    for message in source:
        if message.redacted:  # and the manifest does not say so
            raise _redacted(f"the values of the event at {message.stream_sequence}")
        if held < message.stream_sequence <= last:
            yield message


def _next_batch(wanted: Iterator[Message]) -> list[Message]:
    batch: list[Message] = []
    size = 0
    for message in islice(wanted, _BATCH_EVENTS):
        batch.append(message)
        size += len(message.data)
        if size >= _BATCH_BYTES:
            break
    return batch


def chain_of(subject: str) -> str:
    """Return the filter of the chain that an event belongs to, as whoever appended it named it.

    A message whose subject is not that of an event, and so is no event, is a chain of its own.
    """
    tokens = subject.split(".")
    aggregate = AGGREGATES.get(aggregate_of(subject))
    length = 0 if aggregate is None else 2 + len(aggregate.key)
    return ".".join([*tokens[:length], ">"]) if 0 < length < len(tokens) else subject


class _Chains:
    """The last sequence of each chain in the log being filled; bounded: for others the log is asked."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._last: OrderedDict[str, int] = OrderedDict()
        self._has_unreadable = False

    def heed(self, message: Message) -> None:
        """Note whether a message is no event: after one, a chain's first event need not be its first message."""
        self._has_unreadable = self._has_unreadable or isinstance(message, Unreadable)

    async def entry(self, message: Message) -> Entry:
        """Return the message with its condition; it counts as stored from now on."""
        self.heed(message)
        chain = chain_of(message.subject)
        expected = self._last.get(chain)
        if expected is None:
            expected = await self._look(chain, message)
        self._last[chain] = message.stream_sequence
        self._last.move_to_end(chain)
        if len(self._last) > _CHAINS_KEPT:
            self._last.popitem(last=False)
        return Entry(message.subject, message.data, chain, expected)

    async def _look(self, chain: str, message: Message) -> int:
        if not self._has_unreadable and not _link_decoder.decode(message.data).prev:
            return 0
        newest = await self._log.last(chain)
        return 0 if newest is None else newest.stream_sequence


def _in_one_batch(entries: list[Entry]) -> list[Entry]:
    """Leave the condition to each chain's first entry: the others follow one of the batch."""
    seen: set[str] = set()
    found: list[Entry] = []
    for entry in entries:
        found.append(msgspec.structs.replace(entry, expected=None) if entry.chain in seen else entry)
        seen.add(entry.chain)
    return found
