"""The part of a check about the archive: what the ledger records of each export, computed again from its events.

A manifest that fits its files proves only that nobody damaged them by accident. The `archived` events say
what was moved, so an export that was replaced by another is found, even if that one is sound. Source: ADR
011.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import anyio.to_thread

from jobledger.audit.archive.chain import Past
from jobledger.audit.export import ExportLog
from jobledger.audit.export.files import Totals
from jobledger.audit.export.payloads import payload_problems
from jobledger.audit.verify.checker import Checker
from jobledger.audit.verify.report import CrossCheck
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived

_PROBLEMS_MAX: Final = 100  # with large values, of each export
_NOTHING: Final = "nothing was ever archived"


class _ExportSum(NamedTuple):
    """What the events of one export add up to."""

    export: ExportLog
    figures: tuple[int, str, str]  #: count, digest and head hash


class ArchiveWitness:
    """A witness of `audit.verify` over a ledger with its past in front of it."""

    def __init__(self, past: Past, live: Log, *, from_sequence: int = 1, is_archive: bool = True) -> None:
        """`is_archive`: the exports are those of an archive, so that each has to be one that the ledger names."""
        self._past = past
        self._live = live
        self._is_archive = is_archive
        self._chain = f"{live.names.ledger_root}.reactor.{ARCHIVE}."
        self._waiting = [each for each in past.exports if each.manifest.first_sequence >= from_sequence]
        skipped = (each.manifest for each in past.exports if each.manifest.first_sequence < from_sequence)
        self._skipped = {manifest.last_sequence for manifest in skipped}
        self._totals = Totals()
        self._found: dict[int, _ExportSum] = {}  # by last sequence; not yet named by an `archived` event
        self._problems: list[tuple[int, str]] = [(each[0], each[1]) for each in past.problems]
        self._agreeing = 0
        self._unmatched = 0

    def feed(self, batch: Sequence[Message]) -> None:
        """Take what was read; see `audit.Witness`."""
        for message in batch:
            if self._waiting:
                self._add(message)
            if not isinstance(message, StoredEvent) and message.subject.startswith(self._chain):
                self._compare(message)

    def _add(self, message: Message) -> None:
        manifest, sequence = self._waiting[0].manifest, message.stream_sequence
        if sequence < manifest.first_sequence:
            return
        if sequence <= manifest.last_sequence:
            self._totals.add(message.data)
        if sequence >= manifest.last_sequence:
            self._found[manifest.last_sequence] = _ExportSum(self._waiting.pop(0), self._totals.figures)
            self._totals = Totals()

    def _compare(self, message: Message) -> None:
        try:
            event = REACTOR.decode(message)
        except CorruptLedgerError:
            return  # which the checker tells
        if not isinstance(event, Archived):
            return
        found = self._found.pop(event.through_sequence, None)
        if found is None:
            self._unmatched += event.through_sequence not in self._skipped
            return
        first = found.export.manifest.first_sequence
        said = (event.count, event.digest, event.head_hash)
        differing = [
            f"{name} {now}, and `archived` at {message.stream_sequence} says {then}"
            for name, now, then in zip(("count", "digest", "head hash"), found.figures, said, strict=True)
            if now != then
        ]
        if differing:
            self._say(
                first,
                f"stream sequence {first} to {event.through_sequence} in {found.export.folder} is not what was moved "
                f"there: its {differing[0]}",
            )
        else:
            self._agreeing += 1

    def _say(self, stream_sequence: int, sentence: str) -> None:
        self._problems.append((stream_sequence, sentence))

    async def finish(self, checker: Checker) -> None:
        """Tell the checker what does not agree; see `audit.Witness`."""
        for last, found in self._found.items():
            await self._compare_unnamed(last, found)
        for export in self._past.exports:
            await anyio.to_thread.run_sync(self._check_payloads, export)
        for sequence, sentence in sorted(self._problems, reverse=True):
            # In front of what follows from it: replaced events break many rules.
            checker.note("", "archive", sentence, stream_sequence=sequence, in_front=True)
        is_compared = self._agreeing or self._problems
        agrees = not self._problems if is_compared else None
        checker.compared(CrossCheck(what="archive", sentence=self._sentence(), agrees=agrees))

    async def _compare_unnamed(self, last: int, found: _ExportSum) -> None:
        """Compare an export that no `archived` event names with the ledger, if that still has the event at its end."""
        manifest = found.export.manifest
        held = await self._live.get(last)
        if held is not None and held.hash == found.figures[2]:
            self._agreeing += 1
        elif held is not None:
            self._say(
                manifest.first_sequence,
                f"{found.export.folder} is not of this ledger, or one of both was altered: the event at stream "
                f"sequence {last} has the hash {found.figures[2]} there, and {held.hash} in the ledger",
            )
        elif self._is_archive:
            self._say(
                manifest.first_sequence,
                f"no `archived` event says that stream sequence {manifest.first_sequence} to {last} lie in "
                f"{found.export.folder}, and the ledger does not hold them",
            )
        else:
            self._unmatched += 1

    def _check_payloads(self, export: ExportLog) -> None:
        for error in islice(payload_problems(export.folder, export.manifest), _PROBLEMS_MAX):
            self._say(export.manifest.first_sequence, f"{error.file}: {error.problem}")

    def _sentence(self) -> str:
        exports = self._past.exports
        if not exports:
            return _NOTHING
        through = exports[-1].manifest.last_sequence
        noun = "export" if len(exports) == 1 else "exports"
        said = f"{self._agreeing:,} of {len(exports):,} {noun}, up to stream sequence {through:,}, agree with the ledger"
        if self._skipped:
            said += f"; {len(self._skipped):,} begin before what was read"
        if self._unmatched:
            said += f"; {self._unmatched:,} could not be compared, since no export ends where `archived` says"
        if self._past.strangers:
            said += f"; no part of the archive: {', '.join(self._past.strangers[:5])}"
        return said
