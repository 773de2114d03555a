"""Children of a rerun that are runs themselves: each begins with what the same child of the source had completed.

Only in a rerun of what failed: there a child that failed half-way does not begin from its start either.
"""

from __future__ import annotations

from jobledger.ledger.children import child_ref
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import InvalidError, JobNotFoundError, RefusedError, WrongSequenceError
from jobledger.ledger.model.events import RerunOf
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.reruns import has_copied
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.parts import Client
from jobledger.ledger.reruns.plans import plan_rerun


async def rerun_of_child(client: Client, run: Job, step: Step, item: int) -> RerunOf | None:
    """Return the run that a rerun's child begins again, the same child of the source; None where that had done nothing.

    Raises: UnreachableError; WrongSequenceError where a replica does not show the source's child yet.
    """
    source = run.order.rerun_of
    while source is not None and not source.from_step:
        ref = JobRef(queue=source.queue, job_id=source.job)
        before = (await load(client.log, ref)).job
        asked = None if before is None else before.steps.get(step.key)
        if before is None or (asked is not None and not _is_same(asked, step)):
            return None
        if asked is not None and asked.opened >> item & 1:
            child = child_ref(ref, asked, item)
            if await client.log.newest_sequence(client.log.names.chain(child)):
                return await _planned(client, child, source.reason)
        source = before.order.rerun_of  # it ended before it made that child
    return None


def _is_same(asked: Step, step: Step) -> bool:
    """Return whether two runs asked for the same children."""
    return asked.order is not None and (asked.kind, asked.target, asked.input_sha256) == (
        step.kind,
        step.target,
        step.input_sha256,
    )


async def _planned(client: Client, child: JobRef, reason: str) -> RerunOf | None:
    job = (await load(client.log, child)).job
    copies = None if job is None else job.order.rerun_of
    if job is not None and copies is not None and not has_copied(copies, job.steps):
        return copies  # it ended before it had copied all steps: the child copies from its source instead
    try:
        plan = await plan_rerun(client, child, failed=True, reason=reason)
    except WrongSequenceError:
        raise
    except (
        InvalidError,
        JobNotFoundError,
        RefusedError,
    ):  # a job without steps, or nothing of it can be copied
        return None
    # A run without steps to copy may have child runs that have such steps, and is needed to find them.
    has_runs_below = any(step.order is not None for step in plan.again)
    return plan.rerun_of if plan.rerun_of.steps or has_runs_below else None
