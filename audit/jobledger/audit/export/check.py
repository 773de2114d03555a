"""Checking an export without a server: its files against its manifest, its events against the rules of the ledger.

A check does not stop at the first fault: it reads each file, line and event, and reports all in one report.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread
import msgspec

from jobledger.audit.errors import ExportDamagedError
from jobledger.audit.export.files import Damage, EventFile, Redactions, Row, Totals, as_message, next_rows
from jobledger.audit.export.manifest import (
    MANIFEST,
    ExportedPayloads,
    Manifest,
    export_folder,
    is_file_name,
    read_manifest,
)
from jobledger.audit.export.payloads import PAYLOAD_LIST, PayloadLine, listed, payload_problems
from jobledger.audit.export.reader import event_file
from jobledger.audit.verify import Witness
from jobledger.audit.verify.checker import Checker
from jobledger.audit.verify.options import DEFAULT_OPTIONS, CheckOptions
from jobledger.audit.verify.payloads import WHAT, in_words, problem_of
from jobledger.audit.verify.references import Reference, References
from jobledger.audit.verify.report import CrossCheck, LargeValues, Report
from jobledger.audit.verify.unproven import unproven
from jobledger.ledger.model.aggregate import Rule
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError, InvalidInputError
from jobledger.ledger.model.subjects import Names

# Checking the large values of an export: each file against its name, the list against what the events refer to.

_PROBLEMS_MAX: Final = 1_000


class Problem(NamedTuple):
    """What is wrong with a large value, or with the list of them."""

    sentence: str
    rule: Rule = "export"
    job: str = ""
    stream_sequence: int = 0


class Values(NamedTuple):
    """What a check of the large values found."""

    problems: list[Problem]
    found: LargeValues
    sentence: str = ""  #: what was compared; "" where nothing was


def check_values(folder: Path, manifest: Manifest, wanted: References) -> Values:
    """Check the large values of an export; `wanted` are the references of all its events.

    Raises: ScratchSpaceError.
    """
    payloads, count = manifest.payloads, len(wanted)
    if isinstance(payloads, msgspec.UnsetType):
        return Values([], LargeValues(count=count, unread=count))
    problems: list[Problem] = []
    for number, problem in enumerate(_problems(folder, manifest, payloads, wanted)):
        if number >= _PROBLEMS_MAX:
            problems.append(Problem(f"more than {_PROBLEMS_MAX:,} large values are not what they were"))
            break
        problems.append(problem)
    if not payloads.included:
        return Values(problems, LargeValues(count=count, unread=count))
    found = LargeValues(count=count, stored=payloads.stored, gone=payloads.gone, differs=payloads.differs)
    return Values(problems, found, f"{in_words(found)}, {payloads.bytes:,} bytes" if count else "")


def _problems(
    folder: Path, manifest: Manifest, payloads: ExportedPayloads, wanted: References
) -> Iterator[Problem]:
    if len(wanted) != payloads.count:
        yield Problem(
            f"{MANIFEST} says that the events refer to {payloads.count:,} large values, and they refer to {len(wanted):,}"
        )
    if not payloads.included:
        return
    for error in payload_problems(folder, manifest):
        place = f", line {error.line:,}" if error.line else ""
        yield Problem(f"{error.file.relative_to(folder)}{place}: {error.problem}")
    # Damage to the list was told just now.
    with contextlib.suppress(ExportDamagedError), contextlib.closing(listed(folder, manifest)) as lines:
        yield from _differences(iter(wanted), lines)


def _differences(wanted: Iterator[Reference], lines: Iterator[PayloadLine]) -> Iterator[Problem]:
    """Walk two lists that are in the same order."""
    want, line = next(wanted, None), next(lines, None)
    while want is not None or line is not None:
        if line is None or (want is not None and want.sha256 < line.sha256):
            assert want is not None, "one of both is there"
            sentence = f"an event refers to the large value {want.sha256}, which {PAYLOAD_LIST} does not list"
            yield Problem(sentence, stream_sequence=want.stream_sequence)
            want = next(wanted, None)
        elif want is None or line.sha256 < want.sha256:
            yield Problem(f"{PAYLOAD_LIST} lists {line.sha256}, to which no event refers")
            line = next(lines, None)
        else:
            problem = problem_of(want, line.state)
            if problem is not None:
                yield Problem(problem, "payload", want.job, want.stream_sequence)
            want, line = next(wanted, None), next(lines, None)


async def verify_export(
    folder: Path,
    *,
    options: CheckOptions = DEFAULT_OPTIONS,
    before: Report | None = None,
    witnesses: Sequence[Witness] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check an export; `before` is an earlier report, of the ledger or an export, which this one must continue.

    An export from stream sequence 1 proves every rule that a ledger can prove without its server. One that
    begins later or holds a selection proves less: the report names the rest under "not proven". `witnesses` are
    as `audit.verify` takes them. `on_progress` gets events done and all.

    Raises: as `read_manifest`; InvalidInputError for an earlier report that such an export cannot be compared with;
        ConfigurationError for Parquet without pyarrow; ScratchSpaceError.
    """
    folder = export_folder(folder)
    manifest = read_manifest(folder)
    if (before is not None or witnesses) and not manifest.complete:
        raise InvalidInputError(
            f"{folder} holds a selection of the events: an earlier report or a seal is about all of them, "
            "so they cannot be compared"
        )
    checker = Checker(
        Names(manifest.environment),
        from_sequence=manifest.first_sequence,
        is_selection=not manifest.complete,
        options=options,
        before=before,
    )
    with contextlib.closing(checker), contextlib.closing(References()) as references:
        files = [event_file(folder, entry) for entry in manifest.files]
        _note_strangers(checker, folder, manifest)
        reading = _FileReader(checker, manifest, witnesses, references, on_progress)
        for file in files:
            await reading.read(file)
        reading.note_end()
        await reading.check_payloads(folder)
        for witness in witnesses:
            await witness.finish(checker)
        report = msgspec.structs.replace(checker.finish(), what="export")
        limits = unproven(report, is_part=True, is_selection=not manifest.complete)
        return msgspec.structs.replace(report, not_proven=tuple(limits))


def _note_strangers(checker: Checker, folder: Path, manifest: Manifest) -> None:
    known = {entry.name for entry in manifest.files}
    for path in sorted(folder.iterdir()):
        if is_file_name(path.name) and path.name not in known:
            checker.note("", "export", f"{path.name} is not in the manifest")


class _FileReader:
    """Feeds the checker from file after file."""

    def __init__(
        self,
        checker: Checker,
        manifest: Manifest,
        witnesses: Sequence[Witness],
        references: References,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._checker = checker
        self._references = references
        self._manifest = manifest
        self._witnesses = witnesses
        self._on_progress = on_progress
        self._totals = Totals()
        self._skipped = 0  # lines in a row that could not be read
        self._redacted = Redactions()

    async def read(self, file: EventFile) -> None:
        problem = await anyio.to_thread.run_sync(file.check)
        if problem is not None:
            self._note(file, problem, stream_sequence=file.entry.first_sequence)
        if not file.path.is_file():
            self._skipped += file.entry.count
            return
        count = 0
        with contextlib.closing(file.rows()) as rows:
            while taken := await anyio.to_thread.run_sync(next_rows, rows):
                found = [message for row in taken if (message := self._take(file, row)) is not None]
                count += sum(isinstance(row, Row) for row in taken)
                self._references.add(found)
                for witness in self._witnesses:
                    witness.feed(found)
                if self._on_progress is not None:
                    self._on_progress(self._totals.count, self._manifest.count)
        if count != file.entry.count:
            self._note(file, f"it has {count:,} events, and the manifest says {file.entry.count:,}")

    def _note(self, file: EventFile, problem: str, *, line: int = 0, stream_sequence: int = 0) -> None:
        place = f", line {line:,}" if line else ""
        self._checker.note(
            "", "export", f"{file.path.name}{place}: {problem}", stream_sequence=stream_sequence
        )

    def _take(self, file: EventFile, row: Row | Damage) -> Message | None:
        """Feed the checker with a row; return it as an event, None when it is none."""
        if isinstance(row, Damage):
            self._note(file, row.problem, line=row.number)
            self._skipped += 1
            return None
        self._totals.add(row.sha256)
        checker, sequence = self._checker, row.stream_sequence
        if not file.entry.first_sequence <= sequence <= file.entry.last_sequence:
            problem = "this event does not belong in a file of its range"
            self._note(file, problem, line=row.number, stream_sequence=sequence)
        # A selection has holes by intent; and lines that could not be read are reported already.
        if not self._manifest.complete or sequence == checker.next_sequence + self._skipped:
            checker.next_sequence = max(checker.next_sequence, sequence)
        self._skipped = 0
        try:
            message = as_message(file, row)
        except CorruptLedgerError as error:
            checker.unreadable(error)
            return None
        self._redacted.add(message)
        checker.feed(message)
        return message

    async def check_payloads(self, folder: Path) -> None:
        """Check the large values, and that the export lists those that the events refer to."""
        values = await anyio.to_thread.run_sync(check_values, folder, self._manifest, self._references)
        self._checker.large_values = values.found
        for each in values.problems:
            self._checker.note(each.job, each.rule, each.sentence, stream_sequence=each.stream_sequence)
        if values.sentence:
            agrees = not values.problems
            self._checker.compared(CrossCheck(what=WHAT, sentence=values.sentence, agrees=agrees))

    def note_end(self) -> None:
        """Tell what is missing at the end of the range, and whether the events are those of the manifest."""
        checker, last = self._checker, self._manifest.last_sequence
        if self._manifest.complete and checker.next_sequence + self._skipped <= last:
            sentence = (
                f"stream sequence {checker.next_sequence} to {last} are missing at the end of the export"
            )
            checker.note("", "sequence", sentence, stream_sequence=checker.next_sequence)
        said = (self._manifest.count, self._manifest.digest, self._manifest.head_hash)
        for name, found, wanted in zip(
            ("count", "digest", "head_hash"), self._totals.figures, said, strict=True
        ):
            if found != wanted:
                checker.note("", "export", f"{MANIFEST} says {name} {wanted!r}, its events have {found!r}")
        if self._redacted.figures != self._manifest.redacted_figures:
            checker.note("", "export", f"its redacted lines are not those that {MANIFEST} says")
