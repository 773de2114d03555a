"""Which workflows there are: in the code at hand, at living workers, and among the runs of the ledger, by version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from jobledger.admin.rows import Rows
from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.model.job import FINAL_STATES, JobState
from jobledger.ledger.nats.task_book import TaskEntry, find_task
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.projections.filters import Term, joined

#: At most this many tasks are looked up in the bucket TASKS, one request each.
LOOKED_UP_MAX: Final = 500
#: A job is a run if it is bound to a version or has recorded a step.
IS_RUN: Final = (
    "(version IS NOT NULL OR EXISTS "
    "(SELECT 1 FROM steps WHERE steps.job_id = jobs.id AND steps.queue = jobs.queue))"
)
#: The same for all runs at once: found by their versions and steps, so that no other job is read.
_RUNS: Final = (
    "SELECT rowid AS run FROM jobs WHERE version IS NOT NULL UNION SELECT runs.rowid FROM "
    "(SELECT DISTINCT job_id, queue FROM steps) AS s JOIN jobs AS runs ON runs.id = s.job_id AND runs.queue = s.queue"
)
_COUNTS: Final = (
    "SELECT task, coalesce(version, ''), status, coalesce(dead_reason, ''), queue, count(*), min(created_at), "  # noqa: S608
    f"max(created_at) FROM ({_RUNS}) CROSS JOIN jobs ON jobs.rowid = run WHERE {{}} GROUP BY 1, 2, 3, 4, 5"
)


class WorkflowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a workflow; a workflow without versions has one, called ""."""

    workflow: str
    version: str
    queues: tuple[str, ...]  #: where its runs go or went, sorted
    in_code: bool | None  #: whether the code at hand has it; None: no code was named
    #: How many living workers have a task of that name; they do not say of which version.
    workers: int
    #: Whether the last worker that started with the workflow had this version; None: none said so.
    announced: bool | None
    open: dict[str, int]  #: runs that did not end, by state
    dead_letters: int
    diverged: int  #: dead letters that asked for something else than was recorded
    ended: int  #: runs that ended, but are no dead letters
    oldest_open: str | None  #: when the oldest of the open ones was made
    newest: str | None  #: when the newest run of all was made

    @property
    def open_count(self) -> int:
        """How many runs did not end."""
        return sum(self.open.values())

    @property
    def is_free(self) -> bool:
        """Whether no open run and no dead letter, which may be requeued, needs its code."""
        return not self.open_count and not self.dead_letters


class _Runs:
    """Runs of one version, counted."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.diverged = 0
        self.queues: set[str] = set()
        self.oldest_open: str | None = None
        self.newest: str | None = None

    def add(self, row: tuple[Any, ...]) -> None:
        _, _, status, reason, queue, count, oldest, newest = row
        self.states[status] += count
        self.queues.add(queue)
        self.diverged += count if status == JobState.DEAD_LETTERED and reason == "diverged" else 0
        if status not in _FINAL:
            self.oldest_open = oldest if self.oldest_open is None else min(self.oldest_open, oldest)
        self.newest = newest if self.newest is None else max(self.newest, newest)


_FINAL: Final = frozenset(state.value for state in FINAL_STATES)


class _AnnouncedVersion(NamedTuple):
    workers: Counter[str]  #: number of living workers by task
    entries: Mapping[str, TaskEntry]  #: entries of workflows in the bucket TASKS


async def list_workflows(
    rows: Rows, tasks: TaskRegistry | None = None, *, visible_to: Sequence[Term] = ()
) -> list[WorkflowVersion]:
    """Return each version of each workflow that the code at hand, a worker or a run of the ledger names, by name.

    `visible_to`: conditions on `queue` and `task` of the runs that count.

    Raises: ProjectionError, UnreachableError.
    """
    runs: dict[tuple[str, str], _Runs] = {}
    where, values = joined(visible_to)
    async with rows.opened() as view:
        for row in view.store.select(_COUNTS.format(where), values):
            runs.setdefault((row[0], row[1]), _Runs()).add(row)
    code = {(each.name, each.version): each for each in _workflows(tasks)}
    announced = await _announced(rows, {name for name, _ in (*runs, *code)})
    said = {(name, version) for name, entry in announced.entries.items() for version in entry.versions or ()}
    return [
        _listed(key, runs.get(key, _Runs()), code if tasks is not None else None, announced)
        for key in sorted({*runs, *code, *said})
    ]


def _workflows(tasks: TaskRegistry | None) -> Iterable[Task[Any, Any]]:
    return () if tasks is None else (each for each in tasks if each.makes_runs)


async def _announced(rows: Rows, known: set[str]) -> _AnnouncedVersion:
    ledger = rows.ledger
    workers = Counter(
        name for info in await ledger.leases.all() if not info.stopped for name in info.tasks or ()
    )
    entries: dict[str, TaskEntry] = {}
    for name in sorted(known | workers.keys())[:LOOKED_UP_MAX]:
        try:
            entry = await find_task(ledger.inbox, ledger.names, name)
        except PermissionRefusedError:
            break  # without the right to read the bucket the rest is shown
        if entry is not None and entry.versions is not None:
            entries[name] = entry
    return _AnnouncedVersion(workers, entries)


def _listed(
    key: tuple[str, str],
    runs: _Runs,
    code: Mapping[tuple[str, str], Task[Any, Any]] | None,
    announced: _AnnouncedVersion,
) -> WorkflowVersion:
    name, version = key
    entry = announced.entries.get(name)
    queues = set(runs.queues)
    if entry is not None and version in (entry.versions or ()):
        queues.add(entry.queue)
    if code is not None and key in code:
        queues.add(code[key].defaults.queue)
    dead = runs.states[JobState.DEAD_LETTERED.value]
    return WorkflowVersion(
        workflow=name,
        version=version,
        queues=tuple(sorted(queues)),
        in_code=None if code is None else key in code,
        workers=announced.workers[name],
        announced=None if entry is None else version in (entry.versions or ()),
        open={state: count for state, count in sorted(runs.states.items()) if state not in _FINAL},
        dead_letters=dead,
        diverged=runs.diverged,
        ended=sum(count for state, count in runs.states.items() if state in _FINAL) - dead,
        oldest_open=runs.oldest_open,
        newest=runs.newest,
    )


def age_of(text: str | None) -> datetime | None:
    """Return the moment in a column of the projection."""
    return None if text is None else datetime.fromisoformat(text)
