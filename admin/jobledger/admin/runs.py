"""Runs for a reader: their steps, and the jobs below them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from jobledger.admin.rows import Rows
from jobledger.audit.why_run import ChildNow
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE, PayloadRef
from jobledger.ledger.model.errors import AmbiguousIdError, JobNotFoundError
from jobledger.ledger.model.job import CLOSED_STATES, FINAL_STATES, Job, evolve
from jobledger.ledger.model.rights.marks import PAYLOAD
from jobledger.ledger.model.runs.orders import ChildOrder
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.seals import is_covered
from jobledger.projections import Store
from jobledger.projections.tables.job_schema import IS_DEAD_CHILD
from jobledger.projections.tables.steps import (
    NotedSteps,
    SignalRow,
    StepRow,
    read_steps,
    signal_of,
    step_of,
)

#: A tree shows at most this many children of one step; those that did not complete come first.
CHILDREN_SHOWN: Final = 10
#: A tree shows at most this many jobs, on at most this many levels.
TREE_JOBS_MAX: Final = 200
TREE_DEPTH_MAX: Final = 8
_OPEN_SHOWN: Final = 3  #: `why` names at most this many open children of a step

_CHILD: Final = "queue, id, parent_item, status, worker, due_at, limits"
#: Dead letters come first, if they count as open: they wait for a person.
_OPEN_CHILDREN: Final = {
    on_dead_letter: f"SELECT {_CHILD} FROM jobs WHERE parent_id = ? AND parent_queue = ? AND parent_step = ? "  # noqa: S608 - constants
    f"AND status NOT IN ({', '.join(repr(state.value) for state in sorted(ended))}) "
    "ORDER BY status <> 'dead_lettered', parent_item LIMIT ?"
    for on_dead_letter, ended in (("wait", CLOSED_STATES), ("fail", FINAL_STATES))
}
#: How many of the newest dead letters are looked at for children of runs.
_DEAD_MAX: Final = 10_000
#: Selects those of the newest dead children of runs whose run waits for its children.
_DEAD_CHILDREN: Final = (
    "SELECT p.queue, p.id, c.parent_step, c.queue, c.id, c.parent_item, c.completed_at, c.error "  # noqa: S608
    "FROM (SELECT queue, id, parent_queue, parent_id, parent_step, parent_item, completed_at, error "
    f"FROM jobs INDEXED BY jobs_by_created_at_parent_id WHERE {IS_DEAD_CHILD} "
    f"ORDER BY created_at DESC LIMIT {_DEAD_MAX}) AS c "
    "JOIN jobs AS p ON p.id = c.parent_id AND p.queue = c.parent_queue "
    "WHERE p.status IN ('waiting', 'paused') AND p.awaiting LIKE '%children%' ORDER BY c.completed_at, c.parent_item"
)
_CHILDREN: Final = (
    "SELECT queue, id, parent_item FROM jobs WHERE parent_id = ? AND parent_queue = ? AND parent_step = ? "
    "ORDER BY status = 'completed', parent_item LIMIT ?"
)


class RunRecord(NamedTuple):
    """The facts in the events of a run."""

    job: Job
    steps: list[StepRow]  #: in the order in which they were recorded first
    signals: list[SignalRow]


def recorded(history: Iterable[StoredEvent]) -> RunRecord:
    """Return a run as its events add up; never stale, as the rows of the projection may be. `history` is not empty."""
    job: Job | None = None
    noted = NotedSteps()
    for stored in history:
        before, job = job, evolve(job, stored.event, stored.stream_sequence)
        if job.steps or job.signals:
            noted.add(stored, before, job)
    assert job is not None, "a history is not empty"
    steps = sorted(map(step_of, noted.step_rows(job)), key=lambda step: step.number)
    return RunRecord(job, steps, list(map(signal_of, noted.signal_rows(job))))


class StepValues(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a step, as the ledger has them: of a large one only the reference."""

    #: For a `call` its job's input, for other steps with children an array. None: the ledger has none, since of a
    #: function's arguments it keeps only a digest.
    input: Annotated[Any, PAYLOAD]
    input_ref: PayloadRef | None  #: reference of a large value
    input_sha256: str  #: the first 16 hex digits of its digest, of every step; "": it has no JSON form
    #: For a `call` its job's result, for other steps with children the results of all; None: no result (yet).
    result: Annotated[Any, PAYLOAD]
    result_ref: PayloadRef | None  #: reference of a large value


class StepShown(StepRow, frozen=True, kw_only=True):
    """One step of a run, and its values where they are asked for."""

    values: StepValues | msgspec.UnsetType = msgspec.UNSET


def step_shown(run: RunRecord, row: StepRow, *, values: bool) -> StepShown:
    """Return a step of a run; with `values` also these."""
    shown = step_values(run, row) if values else msgspec.UNSET
    return StepShown(**msgspec.structs.asdict(row), values=shown)


def step_values(run: RunRecord, row: StepRow) -> StepValues:
    """Return the values of a step of a run as the fold has them."""
    step, owner = run.job.steps[row.key], run.job.order.key
    return StepValues(
        input=_value(step, step.items, owner),
        input_ref=step.items_ref,
        input_sha256=step.input_sha256,
        result=_value(step, step.result, owner),
        result_ref=step.result_ref,
    )


def _value(step: Step, value: msgspec.Raw, key: str) -> Any:
    """Return a value; `key`: that of the run's owner, given if the value is still sealed."""
    if value is NO_VALUE:
        return None
    if key and bytes(value) != b"[]" and is_covered(bytes(value)):
        return {"sealed": key}
    if step.kind == "call":
        with contextlib.suppress(msgspec.ValidationError):  # no array of one value: it is shown as it is
            return msgspec.json.decode(value, type=tuple[Any])[0]
    return msgspec.json.decode(value)


class TreeStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step in a tree, and the jobs that it asked for."""

    step: StepRow
    children: tuple[Tree, ...]  #: some of them; those that did not complete come first
    hidden: int  #: how many more there are


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A job, its steps and all that lies below them."""

    queue: str
    id: str
    task: str
    version: str | None
    status: str
    awaiting: str | None
    since: str  #: time of its newest event
    started_at: str | None  #: start of its first attempt; None: none has begun
    completed_at: str | None  #: when its present final state was entered; None: it has not ended
    item: int | None  #: a child's number among those of its step
    label: str = (
        ""  #: its name in its graph; "": it is no node of a graph, or an older version began that graph
    )
    late: bool  #: a child that was counted as not completed, and that completed later by a person's act
    undos: int  #: how many undos are registered, by its newest pause
    error: str | None
    steps: tuple[TreeStep, ...]


def run_tree(store: Store, job_id: str, queue: str | None = None) -> Tree:
    """Return a job, found by its id or a prefix, with its steps and the jobs below it, as of one moment.

    Raises: JobNotFoundError, AmbiguousIdError.
    """
    with store.one_moment():
        found = store.find(job_id, queue=queue)
        if len(found) > 1:
            raise AmbiguousIdError(job_id, [f"{ref.queue}/{ref.job_id}" for ref in found])
        tree = _Planter(store).tree(found[0].queue, found[0].job_id, depth=0) if found else None
        if tree is None:
            raise JobNotFoundError(job_id)
        return tree


class _Planter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._room = TREE_JOBS_MAX

    def tree(
        self, queue: str, job_id: str, *, depth: int, failed: int = 0, order: ChildOrder | None = None
    ) -> Tree | None:
        """Return a job; `order`: what asked for it, None at the root."""
        row = self._store.job(queue, job_id)
        if row is None:
            return None
        self._room -= 1
        rows = read_steps(self._store.select, queue, job_id)
        job = self._store.folded(queue, job_id) if rows else None
        item = row.parent_item
        return Tree(
            queue=queue,
            id=job_id,
            task=row.task,
            version=row.version,
            status=row.status,
            awaiting=row.awaiting,
            since=row.updated_at,
            started_at=row.started_at,
            completed_at=row.completed_at,
            item=item,
            label="" if order is None or item is None else order.node(item).label,
            late=row.status == "completed" and item is not None and bool(failed >> item & 1),
            undos=0 if job is None or job.is_final else job.undos,
            error=row.error,
            steps=tuple(self._step(job, step, depth) for step in rows) if job is not None else (),
        )

    def _step(self, job: Job, step: StepRow, depth: int) -> TreeStep:
        if step.items_open is None:
            return TreeStep(step=step, children=(), hidden=0)
        known = job.steps[step.key]
        room = min(CHILDREN_SHOWN, self._room) if depth < TREE_DEPTH_MAX else 0
        found = self._store.select(_CHILDREN, (job.id, job.queue, step.key, max(0, room)))
        trees = (
            self.tree(queue, job_id, depth=depth + 1, failed=known.failed, order=known.order)
            for queue, job_id, _ in found
        )
        children = tuple(tree for tree in trees if tree is not None)
        return TreeStep(step=step, children=children, hidden=max(0, known.opened.bit_count() - len(children)))


class DeadChildren(msgspec.Struct, kw_only=True):
    """Dead letters for which a run waits: it goes on when a person has requeued or discarded them."""

    queue: str  #: the queue of the run
    run: str
    since: str  #: when the first of them became one, ISO-8601 text
    child_queue: str  #: the queue of the first one
    child: str
    error: str
    count: int = 1


def dead_children(store: Store) -> list[DeadChildren]:
    """Return the runs that wait for a person, the longest wait first; only the newest dead children are looked at."""
    runs: dict[tuple[str, str], Job | None] = {}
    found: dict[tuple[str, str], DeadChildren] = {}
    for queue, job_id, key, child_queue, child, item, since, error in store.select(_DEAD_CHILDREN, ()):
        ref = (str(queue), str(job_id))
        if ref not in runs:
            runs[ref] = store.folded(*ref)
        job = runs[ref]
        step = None if job is None else job.steps.get(key)
        if step is None or not step.open >> item & 1 or step.order is None:
            continue
        if step.order.on_dead_letter == "fail":  # the child's end is about to be counted
            continue
        if ref in found:
            found[ref].count += 1
        else:
            found[ref] = DeadChildren(
                queue=ref[0],
                run=ref[1],
                since=since,
                child_queue=child_queue,
                child=child,
                error=error or "",
            )
    return list(found.values())


async def open_children_of(rows: Rows, job: Job) -> dict[str, tuple[ChildNow, ...]]:
    """Return the first open children of each step that a run waits for, by the key of the step.

    Raises: ProjectionError, UnreachableError.
    """
    groups = [key for key in job.awaited if key in job.steps and job.steps[key].open]
    if not groups:
        return {}
    async with rows.opened() as view:
        return {
            key: tuple(
                _child(row)
                for row in view.store.select(
                    _OPEN_CHILDREN[order.on_dead_letter], (job.id, job.queue, key, _OPEN_SHOWN)
                )
            )
            for key in groups
            if (order := job.steps[key].order) is not None
        }


def _child(row: Sequence[Any]) -> ChildNow:
    queue, job_id, item, status, worker, due_at, limits = row
    return ChildNow(
        queue=queue,
        job=job_id,
        item=item,
        status=status,
        worker=worker or "",
        due_at=None if due_at is None else datetime.fromisoformat(due_at),
        limits=tuple(limits.split()),
    )
