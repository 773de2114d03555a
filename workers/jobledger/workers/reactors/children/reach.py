"""The effect of a run's end or pause on its children: they are cancelled or paused with it.

A process that ends or pauses a run appends only to the run. The reactor reads this and does the same to open children;
a process that enqueues more children reads the run afterwards, and does the same to them. So no child is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from jobledger.ledger.children import child_ref
from jobledger.ledger.handle import tell
from jobledger.ledger.model.chain import JobView, catch_up, load
from jobledger.ledger.model.commands import CancelJob, Command, RequestPause, ResumeJob
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.orders import WITH_ITS_RUN, items_of
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.protocols import Client

#: Most children that are read and changed at a time.
_AT_ONCE: Final = 64
#: How often a run may change while its children follow it; after that the caller tries again later.
_LOOKS_MAX: Final = 8

#: The state of a run for its children: it goes on, a person paused it, or it has ended.
Course = Literal["goes on", "paused", "ended"]

#: Items of a run's steps: by key, a number in which bit i stands for item i.
Open = Mapping[str, int]

_WHY: Final = {
    JobState.COMPLETED: "completed",
    JobState.CANCELLED: "was cancelled",
    JobState.DEAD_LETTERED: "is a dead letter",
    JobState.DISCARDED: "was discarded",
}


def ends_children(job: Job) -> bool:
    """Return whether the state of a run ends its open children.

    A run that diverged keeps them: after its code is corrected, a requeue lets it go on with all recorded steps.
    """
    return job.is_final and not (job.state is JobState.DEAD_LETTERED and job.dead_reason == "diverged")


def open_items(job: Job) -> dict[str, int]:
    """Return the children that may exist and did not end, of the steps whose children follow the run."""
    return {
        key: step.open
        for key, step in job.steps.items()
        if step.order is not None and step.order.on_parent_end == "cancel" and step.open
    }


class ChildFollower:
    """Lets children follow their run; several processes may do so at once, since each append is conditional."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def follow(
        self, parent: JobRef, view: JobView, items: Open | None = None, *, again: bool = False
    ) -> JobView:
        """Cancel, pause or resume children like their run, and return the run as it was at the last look.

        `items`: the children; all open ones by default. `again`: an earlier caller may have died half-way, so paused
        children are resumed if the run goes on.

        Raises: UnreachableError, LedgerFullError; WrongSequenceError if a replica lags: call it again later.
        """
        done: Course | None = None if again else "goes on"
        for _ in range(_LOOKS_MAX):
            view, course = await self._look(parent, view)
            if course == done:
                return view
            assert view.job is not None, "a run that has children"
            await self._act(parent, view.job, open_items(view.job) if items is None else items, course)
            done = course
        raise WrongSequenceError(self._client.log.names.chain(parent), view.last_sequence)

    async def cancel(self, parent: JobRef, job: Job, items: Open, *, reason: str) -> None:
        """Cancel these children, running ones by request; children that have ended or do not exist are left alone.

        Raises: as `follow`.
        """
        await self._each(
            parent, job, items, lambda child: self._tell(parent, child, CancelJob(reason=reason))
        )

    async def resume(self, parent: JobRef, job: Job) -> None:
        """Resume the open children that were paused because their run was.

        Call it before the run itself is resumed: after a crash in between, the run can be resumed again.

        Raises: as `follow`.
        """
        await self._act(parent, job, open_items(job), "goes on")

    async def _look(self, parent: JobRef, view: JobView) -> tuple[JobView, Course]:
        """Return the run from its chain on the stream's leader, and its state for its children."""
        log = self._client.log
        chain = log.names.chain(parent)
        newest = await log.newest_sequence(chain)
        if not newest:
            return view, "ended"  # all of it is in an archive
        if newest > view.last_sequence:
            view = await catch_up(log, parent, view)
        if newest > view.last_sequence:
            raise WrongSequenceError(chain, view.last_sequence)  # a replica that lags
        job = view.job
        if job is None or ends_children(job):
            return view, "ended"
        return view, "paused" if job.state is JobState.PAUSED else "goes on"

    async def _act(self, parent: JobRef, job: Job, items: Open, course: Course) -> None:
        if course == "ended":
            await self.cancel(
                parent, job, items, reason=f"its run {parent.job_id} {_WHY.get(job.state, 'has ended')}"
            )
        elif course == "paused":
            pause = RequestPause(reason=_paused_with(parent))
            await self._each(parent, job, items, lambda child: self._tell(parent, child, pause))
        else:
            await self._each(parent, job, items, lambda child: self._go_on(parent, child))

    async def _each(
        self, parent: JobRef, job: Job, items: Open, act: Callable[[JobRef], Awaitable[None]]
    ) -> None:
        children = [
            child_ref(parent, job.steps[key], item)
            for key, some in items.items()
            if (order := job.steps[key].order) is not None and order.on_parent_end == "cancel"
            for item in items_of(some)
        ]
        for start in range(0, len(children), _AT_ONCE):
            acts = [act(child) for child in children[start : start + _AT_ONCE]]
            for outcome in await asyncio.gather(*acts, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _tell(self, parent: JobRef, child: JobRef, command: Command) -> None:
        """Send a command to a child; if it does not exist yet, the process that enqueues it reads the run's state."""
        await tell(self._client, child, command, of=parent)

    async def _go_on(self, parent: JobRef, child: JobRef) -> None:
        """Resume a child that was paused because of its run; a child that a person paused stays paused."""
        job = (await load(self._client.log, child)).job
        if job is not None and job.state is JobState.PAUSED and job.pause_reason == _paused_with(parent):
            await self._tell(parent, child, ResumeJob(reason="its run goes on"))


def _paused_with(parent: JobRef) -> str:
    return f"{WITH_ITS_RUN}{parent.job_id} is paused"
