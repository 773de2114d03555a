"""Children of the runs that are made here: opened by the run that asks for them, and read once they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from jobledger.ledger.children import asked_there, child_ref
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import JobView, fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import (
    ErasedError,
    OwnerErasingError,
    PayloadTooLargeError,
    UnreachableError,
)
from jobledger.ledger.model.events import Cancelled, Completed, DeadLettered, Discarded, PayloadRef
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.runs.orders import bits, bits_of, items_of
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.seals import ValueKey, unseal_error
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.options import Options
from jobledger.ledger.runs.ends import RunEnd, callback_for
from jobledger.ledger.runs.errors import RerunSourceError
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.tasks import Task
from jobledger.workers.reactors.children.creation import ChildOpener
from jobledger.workers.reactors.children.reach import ChildFollower

#: Up to this number children are read one by one; more are found by the id of their run.
_ONE_BY_ONE_MAX: Final = 8
_AT_ONCE: Final = 32
#: A counted end is in the ledger; a replica that lags may not show it yet.
_LOOKS_MAX: Final = 8
_LAG_S: Final = 0.02


class _ChildEnds(dict[int, MemberEnd]):
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
    """The acts of one worker's runs on their children."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._opening = ChildOpener(ledger)
        self._reaching = ChildFollower(ledger)

    async def ensure_limits(self, task: Task[Any, Any], options: Options) -> None:
        """Store in the ledger the limits that the code of a task and of its callbacks defines, unless they are there.

        Raises: ConfigurationError; AccessDeniedError for a limit that the children may not name.
        """
        for plain, chosen in ((task, options), *(each.unpacked for _, each in task.callbacks)):
            await self._ledger.code_limits.ensure(chosen, plain.name, chosen.limits)

    async def callback(self, run: Job, end: RunEnd) -> Enqueue | None:
        """Return the command that enqueues the callback of a run's end; see `callback_for`. None, too, for erased data."""
        try:
            return await callback_for(self._ledger, run, end)
        except (ErasedError, OwnerErasingError):
            return None

    async def open(self, ref: JobRef, view: JobView, key: str, *, again: bool) -> None:
        """Make the open children of a step: those that may exist and have not ended. Raises: as `ChildOpener.open`."""
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

        Raises: UnreachableError if one cannot be read yet, PayloadMissingError, PayloadTooLargeError;
            RerunSourceError if one that was copied is in an archive by now.
        """
        step = job.steps[key]
        wanted = items_of(step.opened if items is None else items)
        found = _ChildEnds(f"result of step {key}", self._ledger.inputs.group_bytes_max)
        for look in range(_LOOKS_MAX):
            missing = [item for item in wanted if item not in found]
            if not missing:
                return [found[item] for item in wanted]
            await asyncio.sleep(_LAG_S * look)
            for run, asked, some in _by_origin(ref, step, bits(missing)):
                await self._find(run, asked, some, found)
        await self._check_held(ref, step, [item for item in wanted if item not in found])
        raise UnreachableError(
            f"{len(wanted) - len(found)} ends of children of step {key!r} of run {ref.job_id} cannot be read yet"
        )

    async def _check_held(self, ref: JobRef, step: Step, missing: Sequence[int]) -> None:
        """Refuse to wait for copied ends that are in an archive by now. Raises: RerunSourceError."""
        log = self._ledger.log
        for run, asked, some in _by_origin(ref, step, bits(missing)):
            child = child_ref(run, asked, some[0])
            if run != ref and not await log.newest_sequence(log.names.chain(child)):
                raise RerunSourceError(run.job_id, asked.sequence)

    async def _find(self, ref: JobRef, step: Step, items: list[int], found: _ChildEnds) -> None:
        completed = [item for item in items if not step.failed >> item & 1]
        if len(completed) > _ONE_BY_ONE_MAX:
            await self._find_many(ref, step, set(completed), found)
            # Children that an archive run carried over have no `completed` any more: read them one by one.
            items = [item for item in items if item not in found]
        for start in range(0, len(items), _AT_ONCE):
            some = items[start : start + _AT_ONCE]
            ends = await asyncio.gather(*(self._read(ref, step, item) for item in some))
            for item, end in zip(some, ends, strict=True):
                if end is not None:
                    found[item] = end

    async def _read(self, ref: JobRef, step: Step, item: int) -> MemberEnd | None:
        """Return how a counted child ended; None while its events do not show an end yet.

        The counted end stays, even if a dead letter was requeued or discarded since.
        """
        log = self._ledger.log
        events = await log.read_chain(log.names.chain(child_ref(ref, step, item)))
        if step.failed >> item & 1:
            assert step.order is not None, "only a group has children"
            for_good = step.order.on_dead_letter == "wait"
            return failed_end(events, is_for_good=for_good, key=await self._key(events))
        job = fold(events).job
        if job is None or job.state is not JobState.COMPLETED:
            return None
        result = await self._result(job.result, job.result_ref, job.order.key)
        return MemberEnd(state="completed", result=result)

    async def _key(self, events: Sequence[StoredEvent]) -> ValueKey | None:
        """Return the key of a child's owner. Raises: ErasedError, KeyUnavailableError."""
        key = events[0].event.key if events else ""
        return await self._ledger.keys.key(key) if key else None

    async def _find_many(self, ref: JobRef, step: Step, items: set[int], found: _ChildEnds) -> None:
        """Read the results of many children by the name of their run, which their ends have in their subjects."""
        log, names = self._ledger.log, self._ledger.names
        assert step.order is not None, "only a group has children"
        for queue in {step.order.node(item).queue for item in items}:
            for leaf in ("", ".limited"):
                chain = f"{names.jobs_root}{queue}.*.completed.child.{ref.job_id}{leaf}"
                for stored in await log.read_on(chain, step.sequence):
                    event = stored.event
                    member = event.member if isinstance(event, Completed) else None
                    if member is None or (member.queue, member.step) != (ref.queue, step.key):
                        continue
                    if member.item not in items or member.asked not in (0, step.sequence):
                        continue
                    assert isinstance(event, Completed), "it has a member"
                    result = await self._result(event.result, event.result_ref, event.key)
                    found[member.item] = MemberEnd(state="completed", result=result)

    async def _result(self, result: msgspec.Raw, reference: PayloadRef | None, key: str) -> msgspec.Raw:
        if reference is None and not key:
            return result
        return msgspec.Raw(await self._ledger.inputs.get(result, reference, key=key))


def failed_end(
    events: Sequence[StoredEvent], *, is_for_good: bool, key: ValueKey | None = None
) -> MemberEnd | None:
    """Return the first end other than `completed` of a child that was counted as failed; None without one.

    `is_for_good`: a dead letter does not count as an end. An end that an archive run took away is read from `carried`.
    `key`: that of the child's owner.
    """
    job: Job | None = None
    dead: MemberEnd | None = None
    for stored in events:
        job = evolve(job, stored.event, stored.stream_sequence)
        if isinstance(stored.event, Cancelled | Discarded):
            return _failed_end(job, job.state, key)
        if isinstance(stored.event, DeadLettered):
            dead = dead or _failed_end(job, job.state, key)
            if not is_for_good:
                return dead
    if dead is not None:  # a worker of an older release counted the dead letter as an end
        return dead
    if job is None or not (job.is_final or job.carried_sequence):
        return None
    gone = job.state not in (JobState.CANCELLED, JobState.DISCARDED)
    return _failed_end(job, JobState.DEAD_LETTERED if gone else job.state, key)


def _failed_end(job: Job, state: JobState, key: ValueKey | None) -> MemberEnd:
    error = job.error or next((each.error for each in reversed(job.attempts) if each.error), None)
    if error is not None and key is not None:
        error = unseal_error(key, error)
    failed = "" if error is None else f"{error.type}: {error.message}"
    if state is JobState.DEAD_LETTERED:
        return MemberEnd(state="dead_lettered", error=failed or "no reason recorded")
    sentence = f"it was {state.value}"
    if job.cancel_reason:
        sentence = f"{sentence}: {job.cancel_reason}"
    if state is JobState.CANCELLED:
        return MemberEnd(state="cancelled", error=sentence)
    return MemberEnd(state="discarded", error=f"{sentence}: {failed}" if failed else sentence)


def _by_origin(ref: JobRef, step: Step, items: int) -> Iterator[tuple[JobRef, Step, list[int]]]:
    """Yield each run that made children of a step, with the step as that run asked for it, and the items it made."""
    for origin in step.origins:
        copied = bits_of(origin.items) & items
        if copied:
            run = JobRef(queue=origin.queue, job_id=origin.job)
            yield run, asked_there(step, origin), items_of(copied)
            items &= ~copied
    if items:
        yield ref, step, items_of(items)
