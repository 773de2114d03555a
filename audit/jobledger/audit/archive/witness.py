"""The part of a check about the archive: what the ledger records of each export, computed again from its events.

A manifest that fits its files proves only that nobody damaged them by accident. The `archived` events say
what was moved, so an export that was replaced by another is found, even if that one is sound. Source: ADR
011.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import anyio.to_thread

from jobledger.audit.archive.chain import Past
from jobledger.audit.export import ExportLog
from jobledger.audit.export.files import Redactions, Totals
from jobledger.audit.export.manifest import manifest_sha256
from jobledger.audit.export.payloads import payload_problems
from jobledger.audit.verify.checker import Checker
from jobledger.audit.verify.report import CrossCheck
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.log import Log, events_among
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived, Forgotten, Redacted
from jobledger.ledger.model.times import shown_time

_PROBLEMS_MAX: Final = 100  # with large values, of each export
_NOTHING: Final = "nothing was ever archived"


class _ExportSum(NamedTuple):
    """What the events of one export add up to."""

    export: ExportLog
    figures: tuple[int, str, str]  #: count, digest and head hash


class _RedactionSum(NamedTuple):
    """What the redacted events of one export add up to."""

    export: ExportLog
    figures: tuple[int, str]  #: how many, and the sha256 over their lines


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
        self._totals, self._redactions = Totals(), Redactions()
        self._redacted: list[_RedactionSum] = []
        self._facts: dict[int, Redacted] = {}  # by the first sequence of the export, the newest one
        first = past.exports[0].manifest.first_sequence if past.exports else 1
        self._begin = max(from_sequence, first)
        self._archived: dict[int, Archived] = {}  # by last sequence
        self._forgotten: dict[int, Forgotten] = {}  # by last sequence
        self._reached = 0
        self._found: dict[int, _ExportSum] = {}  # by last sequence; not yet named by an `archived` event
        self._problems: list[tuple[int, str]] = [(each[0], each[1]) for each in past.problems]
        self._agreeing = 0
        self._unmatched = 0

    def feed(self, batch: Sequence[Message]) -> None:
        """Take what was read; see `audit.Witness`."""
        self._reached = batch[-1].stream_sequence if batch else self._reached
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
            self._totals.add(message.sha256)
            self._redactions.add(message)
        if sequence >= manifest.last_sequence:
            export = self._waiting.pop(0)
            self._found[manifest.last_sequence] = _ExportSum(export, self._totals.figures)
            self._redacted.append(_RedactionSum(export, self._redactions.figures))
            self._totals, self._redactions = Totals(), Redactions()

    def _compare(self, message: Message) -> None:
        try:
            event = REACTOR.decode(message)
        except CorruptLedgerError:
            return  # which the checker tells
        if isinstance(event, Redacted):
            self._facts[event.first_sequence] = event
        if isinstance(event, Forgotten):
            self._compare_forgotten(event, message.stream_sequence)
        if not isinstance(event, Archived):
            return
        self._archived[event.through_sequence] = event
        found = self._found.pop(event.through_sequence, None)
        if found is None:
            is_known = event.through_sequence in self._skipped or event.through_sequence <= self._gone
            self._unmatched += not is_known
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

    @property
    def _gone(self) -> int:
        """The last event that is forgotten; 0 without any."""
        return 0 if self._past.forgotten is None else self._past.forgotten.through_sequence

    def _compare_forgotten(self, event: Forgotten, stream_sequence: int) -> None:
        """Compare what was forgotten with what an archive run had recorded of it, if that has to be among what was read."""
        self._forgotten[event.last_sequence] = event
        is_read = (
            self._is_archive and self._begin - 1 <= event.last_sequence and stream_sequence <= self._reached
        )
        then = self._archived.get(event.last_sequence)
        said = (event.events, event.digest, event.head_hash, event.manifest_sha256)
        if then is None:
            is_wrong = is_read
        else:
            is_wrong = said != (then.count, then.digest, then.head_hash, then.manifest_sha256)
        if is_wrong:
            self._say(
                stream_sequence,
                f"`forgotten` of stream sequence {event.first_sequence} to {event.last_sequence} names another export than "
                "the `archived` event of these",
            )

    def _say(self, stream_sequence: int, sentence: str) -> None:
        self._problems.append((stream_sequence, sentence))

    async def finish(self, checker: Checker) -> None:
        """Tell the checker what does not agree; see `audit.Witness`."""
        for last, found in self._found.items():
            await self._compare_unnamed(last, found)
        await self._read_facts_behind()
        for redacted in self._redacted:
            self._compare_redacted(redacted)
        past = self._past.forgotten
        if past is not None:
            checker.forgotten = past
            fact = self._forgotten.get(past.through_sequence)
            if not self._skipped and (fact is None or fact.past != past):
                self._say(
                    past.through_sequence + 1,
                    f"`archived` says that events up to {past.through_sequence} were forgotten, and no `forgotten` event does",
                )
        gone = max(self._forgotten, default=0) if self._is_archive else 0
        for export in self._past.exports:
            if export.manifest.last_sequence > gone:  # else it was forgotten since this check began
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

    async def _read_facts_behind(self) -> None:
        """Take what was redacted and forgotten after what was read, where the check ends before the ledger does."""
        log = self._past.log
        if self._reached >= (await log.head()).last_sequence:
            return
        for kind in ("redacted", "forgotten"):
            subject = REACTOR.of_type(log.names, kind, ARCHIVE)
            read = log.read_messages(from_sequence=self._reached + 1, subject=subject)
            async with contextlib.aclosing(read) as batches:
                async for batch in batches:
                    for message in events_among(batch):
                        self._compare(message)

    def _compare_redacted(self, found: _RedactionSum) -> None:
        """Compare an export's redacted lines, and the manifest that names them, with what was recorded of them."""
        export, manifest = found.export, found.export.manifest
        fact = self._facts.get(manifest.first_sequence)
        count, wrong = found.figures[0], ""
        if fact is None:
            wrong = f"{count:,} lines in it were redacted, and no `redacted` event says so" if count else ""
        elif fact.manifest_sha256 != manifest_sha256(export.folder):
            wrong = (
                "it is not as it was redacted"
                if manifest.redacted_figures[0]
                else "it has values that were redacted"
            )
            wrong += (
                f": `redacted` of {shown_time(fact.at)} by {fact.by} names another manifest; if the run was cut off, or a "
                "copy was brought back, run `jobledger audit redact` again for the same jobs"
            )
        elif found.figures != (fact.events, fact.lines_sha256):
            wrong = f"its {count:,} redacted lines are not the {fact.events:,} that `redacted` of {shown_time(fact.at)} names"
        if wrong:
            self._say(manifest.first_sequence, f"{export.folder}: {wrong}")

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
        if bare := [each for each in self._forgotten.values() if each.stored_until is None]:
            gone = ", ".join(f"{each.first_sequence:,} to {each.last_sequence:,}" for each in bare[:5])
            said += f"; before they were forgotten, the files of these were gone already: {gone}"
        if self._past.returned:
            said += (
                f"; forgotten, and files of it are there all the same: {', '.join(self._past.returned[:5])}"
            )
        if self._past.strangers:
            said += f"; no part of the archive: {', '.join(self._past.strangers[:5])}"
        return said
