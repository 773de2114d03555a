"""Children of the runs that are made here: opened by who asks for them, and read once they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from jobledger.ledger.children import child_ref
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import JobView, load
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import PayloadTooLargeError, UnreachableError
from jobledger.ledger.model.events import Completed, PayloadRef
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.orders import items_of
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.options import Options
from jobledger.ledger.runs.ending import RunEnd, callback_for
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.tasks import Task
from jobledger.workers.reactors.children.opening import Opening
from jobledger.workers.reactors.children.reaching import Reaching

#: Up to this number children are read one by one; more are found by the id of their run.
_ONE_BY_ONE_MAX: Final = 8
_AT_ONCE: Final = 32
#: An end that is counted is in the ledger; a replica that lags may not show it yet.
_LOOKS_MAX: Final = 8
_LAG_S: Final = 0.02


class _Found(dict[int, MemberEnd]):
    """How children of a step ended, by their items: at most as much as a run may read at once."""

    def __init__(self, what: str, bytes_max: int) -> None:
        super().__init__()
        self._what = what
        self._bytes_max = bytes_max
        self._bytes = 0

    def __setitem__(self, item: int, end: MemberEnd) -> None:
        """Keep an end. Raises: PayloadTooLargeError."""
        self._bytes += len(bytes(end.result))
        if self._bytes > self._bytes_max:
            raise PayloadTooLargeError(self._what, self._bytes, self._bytes_max)
        super().__setitem__(item, end)


class ChildJobs:
    """What the runs of one worker do with their children."""

    def __init__(self, ledger: Ledger, opening: Opening) -> None:
        self._ledger = ledger
        self._opening = opening
        self._reaching = Reaching(ledger)

    async def ensure_limits(self, task: Task[Any, Any], options: Options) -> None:
        """See to it that what a task's code, and that of its callbacks, defines of limits is in the ledger.

        Raises: ConfigurationError.
        """
        for plain, chosen in ((task, options), *(each.unpacked for _, each in task.callbacks)):
            await self._ledger.code_limits.ensure(chosen.limits_in_code, plain.name, chosen.queue)

    async def callback(self, run: Job, end: RunEnd) -> Enqueue | None:
        """Return what enqueues the job that is told of the end of a run; see `callback_for`."""
        return await callback_for(self._ledger, run, end)

    async def open(self, ref: JobRef, view: JobView, key: str, *, again: bool) -> None:
        """Make the children of a step that may exist. Raises: as `Opening.open`."""
        job = view.job
        assert job is not None, "only a run has children"
        await self._opening.open(ref, view, key, job.steps[key].open, again=again)

    async def cancel(self, ref: JobRef, view: JobView, items: Mapping[str, int]) -> None:
        """Cancel open children of a run that goes on without them."""
        job = view.job
        assert job is not None, "only a run has children"
        await self._reaching.cancel(ref, job, items, reason="the branch that asked for it lost a race")

    async def ends(self, ref: JobRef, job: Job, key: str, items: int | None) -> list[MemberEnd]:
        """Return how children ended, in the order of their items.

        Raises: UnreachableError where one cannot be read yet, PayloadMissingError, PayloadTooLargeError.
        """
        step = job.steps[key]
        wanted = items_of(step.opened if items is None else items)
        found = _Found(f"result of step {key}", self._ledger.inputs.group_bytes_max)
        for look in range(_LOOKS_MAX):
            missing = [item for item in wanted if item not in found]
            if not missing:
                return [found[item] for item in wanted]
            await asyncio.sleep(_LAG_S * look)
            await self._find(ref, step, missing, found)
        raise UnreachableError(
            f"{len(wanted) - len(found)} ends of children of step {key!r} of run {ref.job_id} cannot be read yet"
        )

    async def _find(self, ref: JobRef, step: Step, items: list[int], found: _Found) -> None:
        completed = [item for item in items if not step.failed >> item & 1]
        if len(completed) > _ONE_BY_ONE_MAX:
            await self._find_many(ref, step, set(completed), found)
            # What those say that were carried over by an archive run is in no `completed` any more.
            items = [item for item in items if item not in found]
        for start in range(0, len(items), _AT_ONCE):
            some = items[start : start + _AT_ONCE]
            views = await asyncio.gather(
                *(load(self._ledger.log, child_ref(ref, step, item)) for item in some)
            )
            for item, view in zip(some, views, strict=True):
                if view.job is not None and view.job.is_final:
                    found[item] = await self._end_of(view.job)

    async def _find_many(self, ref: JobRef, step: Step, items: set[int], found: _Found) -> None:
        """Read the results of many children by the name of their run, which their ends have in their subjects."""
        log, names = self._ledger.log, self._ledger.names
        assert step.order is not None, "only a group has children"
        for queue in {step.order.node(item).queue for item in items}:
            for leaf in ("", ".limited"):
                chain = f"{names.jobs_root}{queue}.*.completed.child.{ref.job_id}{leaf}"
                for stored in await log.read_on(chain, step.sequence):
                    event = stored.event
                    member = event.member if isinstance(event, Completed) else None
                    if member is None or member.step != step.key or member.item not in items:
                        continue
                    assert isinstance(event, Completed), "it has a member"
                    result = await self._result(event.result, event.result_ref)
                    found[member.item] = MemberEnd(state="completed", result=result)

    async def _end_of(self, child: Job) -> MemberEnd:
        if child.state is JobState.COMPLETED:
            return MemberEnd(state="completed", result=await self._result(child.result, child.result_ref))
        if child.state is JobState.DEAD_LETTERED:
            error = child.error
            sentence = "no reason recorded" if error is None else f"{error.type}: {error.message}"
            return MemberEnd(state="dead_lettered", error=sentence)
        sentence = f"it was {child.state.value}"
        if child.cancel_reason:
            sentence = f"{sentence}: {child.cancel_reason}"
        return MemberEnd(
            state="cancelled" if child.state is JobState.CANCELLED else "discarded", error=sentence
        )

    async def _result(self, result: msgspec.Raw, reference: PayloadRef | None) -> msgspec.Raw:
        if reference is None:
            return result
        return msgspec.Raw(await self._ledger.inputs.get(result, reference))
