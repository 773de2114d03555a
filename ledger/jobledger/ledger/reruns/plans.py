"""Beginning a run again as a new job whose first attempt copies recorded steps of another one; `Ledger.rerun`.

What is copied is decided here and recorded in the new job's first event; the worker copies (`workers.runs.copies`).
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

import msgspec

from jobledger.ledger.enqueuer import Enqueuer, unpack
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import (
    InvalidInputError,
    JobNotFoundError,
    KeyUnavailableError,
    RefusedError,
)
from jobledger.ledger.model.events import RerunOf, order_at_first
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.runs.reruns import copied_from
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef, check_token, is_own_queue
from jobledger.ledger.model.times import time_text
from jobledger.ledger.protocols import Client
from jobledger.ledger.reruns.groups import CopiedGroup, find_groups
from jobledger.ledger.reruns.repairs import check_failed, check_recorded, check_untaken
from jobledger.ledger.tasks import Task, TaskWithOptions

#: What a rerun does not take over: it is nobody's child, part of no batch, and holds no key.
_NOT_TAKEN: Final[dict[str, Any]] = {"member": None, "batch": "", "tick": "", "unique": "", "trace": ""}


class Rerun(TypedDict, total=False):
    """How a run is begun again; see `Ledger.rerun`."""

    at: datetime | None  #: take the source as it was at this moment by the server's clock; None: as it is
    input: Mapping[str, Any] | None  #: the whole input of the rerun; None: the source's
    task: (
        Task[..., Any] | TaskWithOptions[..., Any] | None
    )  #: the workflow, which checks `input` and types the result
    id: str | None  #: of the new job; None: one of its own
    by: str  #: who asks for it; "": this client
    reason: str  #: why; kept in the first event of the new job


class RerunRequest(Rerun, total=False):
    """Which steps are copied, one of the two, and how the run is begun again."""

    from_step: str | None  #: key of the first step that is executed; those before are copied
    failed: bool  #: copy every step and child that completed, wherever it is, and execute only the others


class RerunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a rerun would be."""

    source: Job  #: as it was at the moment that is asked for
    rerun_of: RerunOf
    copied: tuple[Step, ...]  #: steps that are copied, in the order in which they were recorded first
    groups: tuple[CopiedGroup, ...] = ()  #: groups that begin again with the children that had completed
    again: tuple[
        Step, ...
    ]  #: the other recorded steps: the rerun executes them, if its code still asks for them
    input_text: bytes | None  #: JSON text of the new input; None: the source's


async def plan_rerun(client: Client, ref: JobRef, **how: Unpack[RerunRequest]) -> RerunPlan:
    """Return what `rerun` would begin now; nothing is written. Raises: as `Ledger.rerun`."""
    from_step, at = _first_step(how), how.get("at")
    whole = await _whole(client, ref)
    events = whole if at is None else _as_of(client, ref, whole, at)
    source = fold(events).job
    assert source is not None, "events of a job add up to it"
    if source.order.key:
        with contextlib.suppress(KeyUnavailableError):  # what is copied stays sealed: no key is needed for it
            await client.patience.read(lambda: client.keys.key(source.order.key))  # an erased one is refused
    if from_step:
        _check_step(source, from_step)
    else:
        now = fold(whole).job
        assert now is not None, "events of a job add up to it"
        check_failed(now, source)
    copied = copied_from(source.steps, from_step)
    check_untaken(source, from_step, copied)
    _check_held(source, copied, events)
    groups: Sequence[CopiedGroup] = ()
    if not from_step:
        groups = await client.patience.read(lambda: find_groups(client.log, ref, source, events, at=at))
    rerun_of = RerunOf(
        queue=ref.queue,
        job=ref.job_id,
        sequence=events[-1].stream_sequence,
        hash=events[-1].hash,
        from_step=from_step,
        steps=len(copied) + len(groups),
        children=sum(each.children for each in groups),
        ends_to=max((each.ends_to for each in groups), default=0),
        reason=how.get("reason", ""),
    )
    keys = {step.key for step in (*copied, *(each.step for each in groups))}
    return RerunPlan(
        source=source,
        rerun_of=rerun_of,
        copied=tuple(copied),
        groups=tuple(groups),
        again=tuple(step for step in source.steps.values() if step.key not in keys),
        input_text=_input_text(source, how),
    )


async def rerun(
    client: Client, enqueuer: Enqueuer, ref: JobRef, **how: Unpack[RerunRequest]
) -> JobHandle[Any]:
    """Begin a run again; see `Ledger.rerun`."""
    plan = await plan_rerun(client, ref, **how)
    source = plan.source
    order = msgspec.structs.replace(
        source.order, rerun_of=plan.rerun_of, notify=client.hints.inbox, **_NOT_TAKEN
    )
    text = plan.input_text
    if text is not None:
        what = f"input of task {source.task}"
        value, reference = await client.patience.read(
            lambda: client.inputs.put(text, what=what, key=source.order.key)
        )
        order = msgspec.structs.replace(order, input=value, input_ref=reference)
    chosen = how.get("id")
    new_id = enqueuer.new_id(source.task) if chosen is None else check_token("job id", chosen)
    command = Enqueue(ref=JobRef(queue=ref.queue, job_id=new_id), task=source.task, order=order)
    sequence, created = await client.patience.append(
        lambda: enqueuer.begin(command, how.get("by", "")), job_id=new_id, doing="was begun"
    )
    if not created:
        await _require_same(client, command.ref, plan.rerun_of)
    task = how.get("task")
    reader = None if task is None else unpack(task)[0].signature
    return JobHandle(client, command.ref, created=created, sequence=sequence, reader=reader)


def _first_step(how: RerunRequest) -> str:
    """Return the first step that is not copied, "" where whatever completed is. Raises: InvalidInputError."""
    from_step = how.get("from_step")
    if how.get("failed", False) == (from_step is not None):
        raise InvalidInputError(
            "say either from which step the run begins again, or that what failed does: one of the two"
        )
    if from_step is None:
        return ""
    if not from_step:
        raise InvalidInputError("the step from which a run begins again needs a name")
    return from_step


async def _whole(client: Client, ref: JobRef) -> Sequence[StoredEvent]:
    """Return the events of the source. Raises: JobNotFoundError."""
    chain = client.log.names.chain(ref)
    events = await client.patience.read(lambda: client.log.read_chain(chain))
    if not events:
        raise JobNotFoundError(ref.job_id)
    return events


def _as_of(client: Client, ref: JobRef, events: Sequence[StoredEvent], at: datetime) -> Sequence[StoredEvent]:
    """Return the events that were stored by a moment. Raises: InvalidInputError for the moment."""
    if at.tzinfo is None:
        raise InvalidInputError(f"at must have a time zone, got {at!r}")
    if at > client.stamp().at:
        raise InvalidInputError(f"{time_text(at)} is still to come: give a past time")
    held = [stored for stored in events if stored.stored_at <= at]
    if not held:
        first = time_text(events[0].stored_at)
        raise InvalidInputError(
            f"run {ref.job_id} has no events in the ledger up to {time_text(at)}: its first one is of {first}"
        )
    return held


def _check_step(source: Job, from_step: str) -> None:
    """Refuse a step that no rerun can begin with. Raises: InvalidInputError."""
    check_recorded(source)
    step = source.steps.get(from_step)
    if step is None:
        near = difflib.get_close_matches(from_step, list(source.steps), n=1)
        meant = f": did you mean {near[0]!r}?" if near else ":"
        raise InvalidInputError(
            f"run {source.id} has recorded no step {from_step[:80]!r}{meant} `jobledger jobs show {source.id}` shows those that it has"
        )
    if step.kind == "undo":
        raise InvalidInputError(
            f"step {from_step!r} of run {source.id} took something back: name another one"
        )
    if "/" in from_step:
        raise InvalidInputError(
            f"step {from_step!r} of run {source.id} is in a branch, beside which other branches went on: "
            "name a step before or after them, or begin again what failed in all of them"
        )


def _check_held(source: Job, copied: Sequence[Step], events: Sequence[StoredEvent]) -> None:
    """Refuse to copy what the ledger no longer holds. Raises: RefusedError."""
    held = {stored.stream_sequence for stored in events}
    gone = next((step for step in copied if step.sequence not in held), None)
    if gone is not None:
        raise RefusedError(
            f"step {gone.key!r} of run {source.id} ended at stream sequence {gone.sequence}, which is in an archive: "
            "a rerun copies only what the ledger holds; begin with the run's first step, or enqueue a new run"
        )


def _input_text(source: Job, how: Rerun) -> bytes | None:
    """Return the new input as text. Raises: InvalidInputError."""
    values, task = how.get("input"), how.get("task")
    plain = None if task is None else unpack(task)[0]
    if plain is not None and plain.name != source.task:
        raise InvalidInputError(f"job {source.id} runs task {source.task}, not {plain.name}")
    if values is None:
        return None
    if is_own_queue(source.queue):  # it says which jobs are made, in any queue
        raise InvalidInputError(
            f"run {source.id} is one of the ledger's own: rerun it without another input, or begin a new one"
        )
    if plain is not None:
        return plain.signature.encode((), values)
    return encode_value(dict(values), what=f"input of task {source.task}")


async def _require_same(client: Client, ref: JobRef, asked: RerunOf) -> None:
    """Refuse an id that another job has. Raises: InvalidInputError."""
    events = await client.patience.read(lambda: client.log.read_chain(client.log.names.chain(ref)))
    known = order_at_first(events[0].event).rerun_of if events and not events[0].event.prev else None
    same = known is not None and (known.queue, known.job, known.from_step) == (
        asked.queue,
        asked.job,
        asked.from_step,
    )
    if events and not same:
        raise InvalidInputError(
            f"job {ref.job_id} of queue {ref.queue} exists and is no rerun of {asked.job} "
            f"{f'from {asked.from_step!r}' if asked.from_step else 'of what failed'}: choose another id"
        )
