"""What the queues hold: rows by queue and priority, or with the priorities of each queue added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jobledger.projections import QueueRow

_RANKS: Final = {"high": 0, "normal": 1, "low": 2}


def by_priority(rows: Iterable[QueueRow]) -> list[QueueRow]:
    """Return the rows in the order of the queues' names, the higher priority first."""
    return sorted(rows, key=_place)


def together(rows: Iterable[QueueRow]) -> list[QueueRow]:
    """Add the priorities of each queue up, in the order of the queues' names; `priority` is "" then."""
    found: dict[str, QueueRow] = {}
    for row in by_priority(rows):
        known = found.get(row.queue)
        found[row.queue] = QueueRow(
            queue=row.queue,
            priority="",
            counts=row.counts if known is None else _sums(known.counts, row.counts),
            oldest_waiting=_oldest(row.oldest_waiting, known.oldest_waiting if known else None),
            oldest_running=_oldest(row.oldest_running, known.oldest_running if known else None),
        )
    return list(found.values())


def _place(row: QueueRow) -> tuple[str, int]:
    return row.queue, _RANKS.get(row.priority, len(_RANKS))


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {state: count + other[state] for state, count in one.items()}


def _oldest(*times: str | None) -> str | None:
    return min((each for each in times if each is not None), default=None)
