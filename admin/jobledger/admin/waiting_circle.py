"""Deadlocks of runs: each keeps a slot of a limit, and waits for a child that waits for a slot only such runs hold.

A child uses the slots of the runs above it, so one run does not wait for itself; but two runs can wait for each other,
if each keeps a key and has a child that needs the other's key. Read from the rows of one moment. Source: ADR 042.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from jobledger.ledger.model.limits.holders import JobKey

Select = Callable[..., Sequence[Sequence[Any]]]

#: At most this many runs that keep slots while they wait are read, the longest unchanged first.
_RUNS_MAX: Final = 500
_PARKED: Final = "status = 'waiting' AND awaiting = 'children'"
_KEEPERS: Final = (
    "SELECT DISTINCT j.queue, j.id, j.updated_at FROM slots s JOIN jobs j ON j.queue = s.queue AND j.id = s.job_id "  # noqa: S608
    f"WHERE s.kept = 1 AND {_PARKED} ORDER BY j.updated_at LIMIT {_RUNS_MAX}"
)
_OPEN: Final = (
    f"SELECT queue, id, status, limits, {_PARKED} FROM jobs WHERE parent_id = ? AND parent_queue = ? "  # noqa: S608
    "AND status NOT IN ('completed', 'cancelled', 'dead_lettered', 'discarded') LIMIT 1000"
)
_HOLDERS: Final = "SELECT queue, job_id FROM slots WHERE limit_key = ?"
_OWN: Final = "SELECT limit_key FROM slots WHERE queue = ? AND job_id = ? AND kept = 1 ORDER BY limit_key"
_SLOTS: Final = (
    "SELECT slots FROM limits WHERE name = ? AND limit_key IN (?, '') ORDER BY limit_key DESC LIMIT 1"
)


class Stuck(NamedTuple):
    """A run that never goes on by itself."""

    queue: str
    job: str
    since: str  #: when it began to wait, ISO-8601 text
    holds: str  #: a limit of which it keeps a slot
    child: str  #: `<queue>/<job id>` of a child that waits
    limit: str  #: the limit that this one waits for


class _Child(NamedTuple):
    key: JobKey
    limits: tuple[str, ...]  #: limits that it waits for; () if it is not held
    is_parked: bool  #: it is a run that waits for its own children


def stuck_runs(select: Select) -> list[Stuck]:
    """Return the runs that wait for each other, the one that has waited longest in front."""
    circle = _Circle(select)
    keepers = {(str(queue), str(job)): str(since) for queue, job, since in select(_KEEPERS)}
    if not keepers:
        return []
    stuck = circle.stuck(set(keepers))
    found: list[Stuck] = []
    for key, since in keepers.items():
        if key in stuck:
            held = circle.held_below(key, stuck)
            if held is not None:
                (own,) = select(_OWN, key)[:1]
                found.append(Stuck(*key, since, str(own[0]), "/".join(held[0]), held[1]))
    return found


class _Circle:
    """The jobs below the runs and the holders of full limits, each read once."""

    def __init__(self, select: Select) -> None:
        self._select = select
        self._children: dict[JobKey, list[_Child]] = {}
        self._full: dict[str, frozenset[JobKey] | None] = {}

    def stuck(self, runs: set[JobKey]) -> set[JobKey]:
        """Return those of the runs, and of the runs below them, that can never go on: the largest such set."""
        todo, found = list(runs), set(runs)
        while todo:
            below = [each.key for each in self._open(todo.pop()) if each.is_parked and each.key not in found]
            found.update(below)
            todo += below
        while True:
            left = {run for run in found if self._is_stuck(run, found)}
            if left == found:
                return found
            found = left

    def held_below(self, run: JobKey, stuck: set[JobKey]) -> tuple[JobKey, str] | None:
        """Return a job below a run that is held, and the limit that only stuck runs hold."""
        for child in self._open(run):
            limit = self._hopeless(child, stuck)
            if limit:
                return child.key, limit
            below = self.held_below(child.key, stuck) if child.is_parked else None
            if below is not None:
                return below
        return None

    def _is_stuck(self, run: JobKey, stuck: set[JobKey]) -> bool:
        """Return whether each open child of a run waits for stuck runs, or is one."""
        children = self._open(run)
        return bool(children) and all(each.key in stuck or self._hopeless(each, stuck) for each in children)

    def _hopeless(self, child: _Child, stuck: set[JobKey]) -> str:
        for limit in child.limits:
            holders = self._holders_of_full(limit)
            if holders is not None and holders <= stuck:
                return limit
        return ""

    def _holders_of_full(self, limit: str) -> frozenset[JobKey] | None:
        """Return the holders of a limit without a free slot; None if it has one."""
        if limit not in self._full:
            name, _, key = limit.partition(":")
            slots = self._select(_SLOTS, (name, key))
            holders = frozenset((str(queue), str(job)) for queue, job in self._select(_HOLDERS, (limit,)))
            is_full = bool(slots) and slots[0][0] is not None and 0 < int(slots[0][0]) <= len(holders)
            self._full[limit] = holders if is_full else None
        return self._full[limit]

    def _open(self, run: JobKey) -> list[_Child]:
        if run not in self._children:
            rows = self._select(_OPEN, (run[1], run[0]))
            self._children[run] = [
                _Child(
                    (str(queue), str(job)),
                    tuple(str(limits).split()) if status == "held" else (),
                    bool(is_parked),
                )
                for queue, job, status, limits, is_parked in rows
            ]
        return self._children[run]
