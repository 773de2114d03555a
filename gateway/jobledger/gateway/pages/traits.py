"""Traits of the jobs of a list: values that are far more frequent among them than among other jobs. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from jobledger.projections import JobRow

_VALUES_MAX: Final = 40  #: a field with more different values than this has no trait
_JOBS_MIN: Final = 5
_APART_MIN: Final = 0.12  #: smallest difference of the two shares
_SHOWN: Final = 10


class Trait(msgspec.Struct, frozen=True, kw_only=True):
    """A value, and how frequent it is."""

    key: str  #: key of the condition in a search
    value: str
    jobs: int
    here: float  #: share among the jobs of the list
    there: float  #: share among the other jobs

    @property
    def text(self) -> str:
        """The condition as a person types it."""
        value = f'"{self.value}"' if " " in self.value else self.value
        return f"{self.key}{'=' if '.' in self.key else ':'}{value}"


def traits(
    rows: Sequence[JobRow], others: Sequence[JobRow], asked: frozenset[str], *, values: bool
) -> list[Trait]:
    """Return the traits that set the rows apart, the strongest first.

    `asked`: keys of the search that chose the list; `values`: whether fields of inputs may be shown.
    """
    here, there = (_counted(each, values=values) for each in (rows, others))
    found: list[Trait] = []
    for key, counts in here.items():
        if key in asked or len(counts) > _VALUES_MAX:
            continue
        for value, jobs in counts.items():
            share, usual = jobs / len(rows), there[key][value] / max(1, len(others))
            if jobs >= _JOBS_MIN and share - usual >= _APART_MIN:
                found.append(Trait(key=key, value=value, jobs=jobs, here=share, there=usual))
    return sorted(found, key=lambda each: each.there - each.here)[:_SHOWN]


def _counted(rows: Sequence[JobRow], *, values: bool) -> Mapping[str, Counter[str]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for key, value in _traits_of(row, values=values):
            found[key][value] += 1
    return found


def _traits_of(row: JobRow, *, values: bool) -> Iterator[tuple[str, str]]:
    yield "task", row.task
    yield "queue", row.queue
    yield "state", row.status
    if row.tenant:
        yield "tenant", row.tenant
    if row.error_type:
        yield "error", row.error_type
    for limit in row.limits:
        yield "limit", limit
    if not values:
        return
    for key, value in row.metadata.items():
        yield f"meta.{key}", value
    if row.input is None:
        return
    try:
        fields: Any = msgspec.json.decode(row.input)
    except msgspec.DecodeError:
        return
    named: dict[str, object] = cast("dict[str, object]", fields) if isinstance(fields, dict) else {}
    for key, given in named.items():
        if isinstance(given, str | int) and len(str(given)) <= _VALUES_MAX:
            yield f"input.{key}", given if isinstance(given, str) else msgspec.json.encode(given).decode()
