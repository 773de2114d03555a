"""What a check does not prove; every verdict lists it, so that nobody reads more into the verdict.

A ledger whose end was cut off is sound, only shorter; one that somebody rewrote with new hashes is sound, too. Both
show only by a record kept elsewhere: a published seal, an earlier report, a projection that has read further. So the
report says how far the check compared each of these, and `unproven` yields what no comparison proves. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from jobledger.audit.verify.report import Report
from jobledger.ledger.model.reactor import ForgottenPast

TIMES: Final = (
    "when the server stored an event: its time (`stored_at`) is in no hash and no seal, and was only held to the "
    "event's own time and to its neighbours"
)
ORIGIN: Final = (
    "that the export is of this very ledger and was not cut off or rewritten: only an earlier report, a seal that "
    "was kept elsewhere or the ledger itself tells"
)
SIGNATURES: Final = (
    "who signed what this was compared with: a signature was not checked; name the public key (--seal-key)"
)
_ANCHORS: Final = "name a published seal (--seal) or an earlier report (--against)"
_GAPS_SHOWN: Final = 3


def unproven(
    report: Report,
    *,
    is_part: bool = False,
    is_selection: bool = False,
    has_end: bool = True,
) -> Iterator[str]:
    """Yield what the check of `report` did not prove, a sentence each; `report.not_proven` is not read.

    `is_part`: events before it are left out by intent; `is_selection`: so are events in between; `has_end`: the
    check went up to the end of the ledger or the export.
    """
    begin, head = report.from_sequence, report.head_sequence
    if is_selection:
        yield "that no event is missing at the end of a chain, for the export holds a selection of the events"
    if begin > 1:
        yield from _before(begin, None if is_part else report.forgotten, is_part=is_part)
    if report.redacted:
        yield _redacted(report.redacted)
    yield from _of_runs(report, is_selection=is_selection)
    anchored = any(each.through or each.intact for each in report.compared)
    if report.what == "export" and not anchored:
        yield ORIGIN
    else:
        if has_end:
            yield _end(max((each.through for each in report.compared), default=0))
        gaps = list(_gaps(begin, head, (span for each in report.compared for span in each.intact)))
        if gaps:
            yield f"that {_named(gaps)} not rewritten with new hashes: {_ANCHORS} that covers this range"
    if report.large_values.unread:
        yield _unread(report)
    if any(each.signed is False for each in report.compared):
        yield SIGNATURES
    if report.events:
        yield TIMES


def _before(begin: int, forgotten: ForgottenPast | None, *, is_part: bool) -> Iterator[str]:
    if is_part:
        yield (
            f"what needs the events before {begin:,}: of jobs begun before it, "
            "the links between their events were checked"
        )
    elif forgotten is None or forgotten.through_sequence < begin - 1:
        yield f"what was archived before {begin:,}: name it with --archive"
    if forgotten is not None:
        yield forgotten.words


def _redacted(count: int) -> str:
    if count == 1:
        return "what 1 redacted event said: its values were taken out, and its sha256 alone is left"
    return f"what {count:,} redacted events said: their values were taken out, and their sha256 alone is left"


def _of_runs(report: Report, *, is_selection: bool) -> Iterator[str]:
    if is_selection and report.runs + report.children:
        yield "that runs and their children agree, for the other one's events may have been left out"
    elif report.children_unproven:
        yield f"that a run asked for each child: of {report.children_unproven:,} the run's events lie before the range"
    if report.copies_unproven:
        yield (
            f"that {report.copies_unproven:,} copied steps are those of the run they name: its events are not in "
            "the range, or were redacted"
        )


def _unread(report: Report) -> str:
    count = report.large_values.unread
    values = "the large input or result that an event refers to"
    if count > 1:
        values = f"the {count:,} large inputs and results that events refer to"
    if report.what == "export":
        return f"{values}: left out of the export, so only the events' hashes of them are there"
    return f"{values}: not read, so they may be gone or differ; --with-payloads reads them"


def _end(through: int) -> str:
    if through:
        return f"that nothing was cut off beyond {through:,}, which is as far as what lies elsewhere goes"
    return f"that nothing was cut off at the end: {_ANCHORS}, or compare with a projection"


def _gaps(begin: int, head: int, intact: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of `begin` to `head` that lie in none of the ranges, in order."""
    at = begin
    for first, last in sorted(intact):
        if first > at and at <= head:
            yield at, min(first - 1, head)
        at = max(at, last + 1)
    if at <= head:
        yield at, head


def _named(gaps: list[tuple[int, int]]) -> str:
    shown = [
        f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in gaps[:_GAPS_SHOWN]
    ]
    if len(gaps) > _GAPS_SHOWN:
        shown.append(f"{len(gaps) - _GAPS_SHOWN:,} more ranges")
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    first, last = gaps[0]
    return f"stream sequence {listed} {'was' if len(gaps) == 1 and first == last else 'were'}"
