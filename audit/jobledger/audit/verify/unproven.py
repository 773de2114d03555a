"""What a check does not prove, said with every verdict: nobody should take a word for more than it is.

An end that was cut off leaves a sound ledger, only shorter. It shows only by what lies elsewhere: a published seal, an
earlier report, a projection that has read further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jobledger.audit.verify.options import CheckOptions
from jobledger.audit.verify.report import Report

NOT_PROVEN: Final = "not proven"
TIMES: Final = (
    "when the server stored an event: its time (`stored_at`) is in no hash and no seal, and was only held to the "
    "event's own time and to its neighbours"
)
_ANCHORS: Final = "name a published seal (--seal) or an earlier report (--against)"


def unproven(
    *, begin: int, head: int, is_part: bool, has_end: bool, options: CheckOptions, before: Report | None
) -> Iterator[str]:
    """Yield what was not proven of a ledger that was checked from `begin` to `head`.

    `is_part`: by intent, with events before it; `has_end`: the check went up to the ledger's end.
    """
    if begin > 1 and is_part:
        yield (
            f"what needs the events before {begin:,}: of jobs begun before it, the links between their events were checked"
        )
    elif begin > 1:
        yield f"what was archived before {begin:,}: name it with --archive"
    if has_end:
        yield _end(options, before)
    if head >= begin:
        yield TIMES


def _end(options: CheckOptions, before: Report | None) -> str:
    kept = max(options.seals_through, before.head_sequence if before is not None else 0)
    through = max(kept, options.projection_at)
    if not through:
        return (
            "that nothing was cut off at the end, or written anew with hashes that fit: "
            f"{_ANCHORS}; a projection tells of the end, too"
        )
    cut = f"that nothing was cut off beyond {through:,}, as far as what lies elsewhere goes"
    if not kept:
        return f"{cut}, or written anew with hashes that fit: {_ANCHORS}"
    return cut
