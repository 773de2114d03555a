"""Children of runs across an archive run: one that has ended is carried as long as its run may read its end.

A run reads its children's results when the last child of the step has ended, perhaps months after the first one. Until the
run has recorded the end of the step, nobody else has these results. Source: ADR 011.
"""

from __future__ import annotations

import msgspec

from jobledger.audit.errors import ArchiveRefusedError
from jobledger.audit.verify.runs.families import Items
from jobledger.ledger.children import child_ref
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.events import Cancelled, Carried, Completed, Discarded, JobEvent
from jobledger.ledger.model.job import CLOSED_STATES, Job
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.runs.orders import items_of
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef

_ENDS = (Completed, Cancelled, Discarded)


class _EndedChildren(msgspec.Struct, gc=False):
    """The children of one step that have ended."""

    items: Items = msgspec.field(default_factory=Items)
    here: Items = msgspec.field(default_factory=Items)  #: of them those whose end is an event of the prefix


class NeededChildren(msgspec.Struct):
    """The children that have ended and must be carried."""

    refs: list[JobRef] = []
    ended_here: int = 0  #: how many of them came to their end in the prefix


class Members:
    """The children that have ended in a prefix; memory grows with the steps whose end is not in it, a bit for each child."""

    def __init__(self) -> None:
        self._runs: dict[JobRef, dict[str, _EndedChildren]] = {}

    def take(self, ref: JobRef, event: JobEvent, job: Job) -> None:
        """Take in an event that closed a job: a child, or a run, which then reads nothing any more."""
        self._runs.pop(ref, None)
        # The beginning of the job may be in an earlier export: then its end names its run.
        member = job.member or (event.member if isinstance(event, _ENDS) else None)
        if member is None:
            return
        steps = self._runs.setdefault(JobRef(queue=member.queue, job_id=member.job), {})
        ended = steps.setdefault(member.step, _EndedChildren())
        ended.items.add(member.item)
        if not isinstance(event, Carried):
            ended.here.add(member.item)

    def forget(self, run: JobRef, step: str) -> None:
        """Forget the children of a step whose end is recorded: their run has read them."""
        self._runs.get(run, {}).pop(step, None)

    async def needed(self, log: Log) -> NeededChildren:
        """Return the children whose ends their runs may still read, by the runs' present state.

        Raises: ArchiveRefusedError where a run has not counted an end yet, CorruptLedgerError, UnreachableError.
        """
        found = NeededChildren()
        for run, steps in self._runs.items():
            job = (await load(log, run)).job if steps else None
            if job is None or job.state in CLOSED_STATES:
                continue
            for key, ended in steps.items():
                step = job.steps.get(key)
                if step is None or step.order is None or step.has_ended:
                    continue
                _check_counted(run, step, ended.items.number)
                items = ended.items.number & step.ended
                if step.order.is_open and step.count is not None:
                    # A batch that is closed reads no results, and nobody enqueues its jobs a second time.
                    items &= step.failed
                found.refs += [child_ref(run, step, item) for item in items_of(items)]
                found.ended_here += (items & ended.here.number).bit_count()
        return found


def _check_counted(run: JobRef, step: Step, ended: int) -> None:
    """Refuse to archive the end of a child that its run has not counted: the run would wait for it for ever.

    Raises: ArchiveRefusedError.
    """
    may_end = ended if step.count is None else ended & step.opened
    uncounted = (may_end & ~step.ended).bit_count()
    if uncounted:
        raise ArchiveRefusedError(
            f"run {run.job_id} of {run.queue} has not counted yet that {uncounted:,} of the children of its step "
            f"{step.key!r} ended, and would wait for them for ever: start a worker, which counts them, and run this again"
        )
