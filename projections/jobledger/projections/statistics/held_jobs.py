"""Jobs that wait for their limits, counted by the limits' names without keys, since a name may have very many keys.

A job that waits for several limits counts for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from jobledger.ledger.model.limits.names import RESERVED, split
from jobledger.ledger.model.times import time_text
from jobledger.projections.statistics.tally import moment

#: Condition on jobs in the index by which they are counted.
IS_HELD: Final = "status = 'held'"
#: Forces that index: otherwise SQLite would use the index by status and read every row.
SETS: Final = (
    "SELECT limits, count(*), min(since_us) FROM jobs INDEXED BY jobs_by_limits_since_us_status "  # noqa: S608
    f"WHERE {IS_HELD} GROUP BY limits"
)
_DEFINED: Final = "SELECT DISTINCT name FROM limits"


class HeldRow(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, and the held jobs that name it."""

    limit: str  #: its name, or `(other)`
    jobs: int
    holders: int  #: jobs that hold a slot of it, with any key
    oldest: str | None  #: when the oldest of them became held, ISO-8601 text in UTC; None without any
    defined: bool  #: False: nobody has set the limit, so these jobs wait until somebody does


def read_held(select: Callable[[str], Sequence[Sequence[Any]]], taken: Mapping[str, int]) -> list[HeldRow]:
    """Return every limit that is defined, or that a job waits for or holds, by name.

    `select` runs a statement on a projection's file. `taken`: by limit and key, how many jobs hold a slot.
    """
    counts: dict[str, int] = {}
    oldest: dict[str, int] = {}
    for limits, count, since_us in select(SETS):
        for name in {split(limit)[0] for limit in limits.split()}:
            counts[name] = counts.get(name, 0) + count
            oldest[name] = min(oldest.get(name, since_us), since_us)
    holders: dict[str, int] = {}
    for limit, count in taken.items():
        name = split(limit)[0]
        holders[name] = holders.get(name, 0) + count
    defined = {name for (name,) in select(_DEFINED)}
    return [
        HeldRow(
            limit=name,
            jobs=counts.get(name, 0),
            holders=holders.get(name, 0),
            oldest=time_text(moment(oldest[name])) if name in oldest else None,
            defined=name in defined or name in RESERVED,
        )
        for name in sorted(defined | counts.keys() | holders.keys())
    ]


def folded(rows: Sequence[HeldRow], values_max: int, other: str) -> list[HeldRow]:
    """Return the first `values_max` rows by name as they are, and the rest as one row of the name `other`."""
    shown, rest = list(rows[:values_max]), rows[values_max:]
    if rest:
        since = [row.oldest for row in rest if row.oldest is not None]
        summed = HeldRow(
            limit=other,
            jobs=sum(row.jobs for row in rest),
            holders=sum(row.holders for row in rest),
            oldest=min(since, default=None),
            defined=all(row.defined for row in rest),
        )
        shown.append(summed)
    return shown
