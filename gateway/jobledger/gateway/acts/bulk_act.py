"""`bulk_act`: the built-in task that does an act to many jobs, each with an outcome of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from jobledger.admin.bulk import ActResult, perform
from jobledger.admin.choice import Chosen
from jobledger.admin.rows import Rows
from jobledger.gateway.acts.asked import NAMED_MAX, QUEUE, TASK, Done, Job, Outcome, ToDo, act_of
from jobledger.ledger import Context, Ledger, task
from jobledger.ledger.model.subjects import JobRef

#: Jobs between two checkpoints; an attempt that begins again repeats at most this number.
_CHUNK: Final = 500


@task(name=TASK, queue=QUEUE, max_attempts=20)
async def bulk_act(context: Context, to_do: ToDo, jobs: list[Job], by: str) -> Done:
    """Do an act to each job, in the name of whoever asked for it; one that is refused does not stop the others."""
    kept = context.checkpoint_value
    so_far = Done() if kept is None else msgspec.convert(kept, Done)
    act, rows = act_of(to_do, by), Rows(context.ledger, Path())  # it is told of each job where that is
    while so_far.next < len(jobs):
        chunk = jobs[so_far.next : so_far.next + _CHUNK]
        outcomes = await perform(rows, act, [_chosen(job) for job in chunk], plan=False)
        again = await _done_before(context.ledger, outcomes, context.job_id)
        so_far = _after(so_far, outcomes, again)
        context.progress(so_far.next, len(jobs))
        await context.checkpoint(msgspec.to_builtins(so_far))
    return so_far


def _chosen(job: Job) -> Chosen:
    return Chosen(ref=JobRef(queue=job.queue, job_id=job.id), task=job.task)


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
