"""`bulk_act`: the built-in task that does an act to many jobs, each with an outcome of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from jobledger.admin.bulk import ActResult, perform
from jobledger.admin.choice import ChosenJob
from jobledger.admin.rows import Rows
from jobledger.gateway.acts.bulk_input import (
    NAMED_MAX,
    QUEUE,
    TASK,
    ActRights,
    Done,
    Job,
    Outcome,
    ToDo,
    act_of,
    asker_of,
)
from jobledger.ledger import Context, Fail, Ledger, Snooze, task
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.access.holders import authority_of
from jobledger.ledger.model.errors import AccessDeniedError
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Scope
from jobledger.ledger.model.subjects import JobRef

#: Jobs between two checkpoints: an attempt that begins again repeats at most this many. The authority is read before
#: each chunk, so an authority that has ended stops the act there.
_CHUNK: Final = 250
#: About how long an act with a rate pauses between two chunks, if the rate allows a job in that time.
_PAUSE_S: Final = 6.0


async def begin_act(ledger: Ledger, principal: Principal, job_id: str, to_do: ToDo, jobs: list[Job]) -> None:
    """Enqueue the job that does an act to each of some jobs, with the authority of its asker.

    Raises: as `Ledger.enqueue`.
    """
    allowed = ActRights(
        permissions=tuple(sorted(principal.permissions)),
        queues=principal.scope.queues,
        tasks=principal.scope.tasks,
    )
    with acting_for(None):  # each act is checked later, with the authority that the job carries
        task = bulk_act.options(id=job_id, by=principal.name)
        await ledger.enqueue(task, to_do=to_do, jobs=jobs, allowed=allowed)


@task(name=TASK, queue=QUEUE, max_attempts=20)
async def bulk_act(
    context: Context, to_do: ToDo, jobs: list[Job], allowed: ActRights | None = None, by: str = ""
) -> Done | Fail | Snooze:
    """Do an act to each job, with the authority of its asker; a refusal for one job does not stop the others.

    The job's first event names the asker, never its input. Older gateways sent `by`, which is ignored.
    An authority that has ended, such as a revoked key, ends the act; its checkpoint says how far it came. An act with
    a rate pauses between two chunks, and holds no worker meanwhile.
    """
    del by
    kept, ledger = context.checkpoint_value, context.ledger
    so_far = Done() if kept is None else msgspec.convert(kept, Done)
    who = await asker_of(ledger, context.job_id)
    act, rows = act_of(to_do, who), Rows(ledger, Path())  # no file of rows: each job names its queue
    rights = ActRights() if allowed is None else allowed
    scope = Scope(queues=rights.queues, tasks=rights.tasks)
    size = _CHUNK if not to_do.per_minute else max(1, min(_CHUNK, round(to_do.per_minute * _PAUSE_S / 60)))
    while so_far.next < len(jobs):
        chunk = jobs[so_far.next : so_far.next + size]
        try:
            authority = await authority_of(
                ledger.log, who, ledger.clock.now(), allowed=rights.permissions, scope=scope
            )
        except AccessDeniedError as error:
            return Fail(f"{error}; {so_far.done:,} of {len(jobs):,} were done")
        with acting_for(authority):
            outcomes = await perform(rows, act, [_chosen(job) for job in chunk], plan=False)
        again = await _done_before(ledger, outcomes, context.job_id)
        so_far = _after(so_far, outcomes, again)
        context.progress(so_far.next, len(jobs))
        await context.checkpoint(msgspec.to_builtins(so_far))
        if to_do.per_minute and so_far.next < len(jobs):  # a snooze, so that no worker is held
            return Snooze(delay_s=60 * size / to_do.per_minute)
    return so_far


def _chosen(job: Job) -> ChosenJob:
    return ChosenJob(ref=JobRef(queue=job.queue, job_id=job.id), task=job.task)


async def _done_before(ledger: Ledger, outcomes: Sequence[ActResult], job_id: str) -> set[JobRef]:
    """Return the jobs that refuse the act because an earlier attempt of this very job did it to them."""
    found: set[JobRef] = set()
    for each in outcomes:
        if each.result == "refused":
            history = await ledger.log.read_chain(ledger.names.chain(each.chosen.ref))
            if any(stored.event.causation == job_id for stored in history):
                found.add(each.chosen.ref)
    return found


def _after(before: Done, outcomes: Sequence[ActResult], again: set[JobRef]) -> Done:
    results = ["done" if each.chosen.ref in again else each.result for each in outcomes]
    others = [
        Outcome(
            queue=each.chosen.ref.queue,
            id=each.chosen.ref.job_id,
            result=each.result,
            message=each.message,
        )
        for each, result in zip(outcomes, results, strict=True)
        if result != "done"
    ]
    return Done(
        next=before.next + len(outcomes),
        done=before.done + results.count("done"),
        refused=before.refused + results.count("refused"),
        invalid=before.invalid + results.count("invalid"),
        others=(*before.others, *others)[:NAMED_MAX],
    )
