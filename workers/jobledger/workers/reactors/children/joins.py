"""Counting ends of children in their run's chain: all waiting ends of one run go into one append.

Ends that arrive during an append go with the next one: there is no timer. Two processes that count for one run race for
its chain; the loser reads the new events, and counts the remaining ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, catch_up, commit, retry_raced, transact
from jobledger.ledger.model.commands import Dispatch, Join
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import IllegalTransitionError, JobNotFoundError, WrongSequenceError
from jobledger.ledger.model.events import Held, JobEvent, JoinFact, Queued
from jobledger.ledger.model.job import CLOSED_STATES, Job, JobState
from jobledger.ledger.model.runs.events import Joined
from jobledger.ledger.model.runs.orders import RUN_BATCH, bits, bits_of, ranges_of
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.protocols import Client
from jobledger.workers.reactors.children.creation import ChildIdTakenError, ChildOpener
from jobledger.workers.reactors.children.ends import EndState
from jobledger.workers.reactors.children.reach import ChildFollower

logger = logging.getLogger("jobledger.workers.reactors.children")

#: Most chains of runs that are kept without waiting ends, and most bytes of results and items of such a run.
_KEPT_MAX: Final = 64
_KEPT_BYTES_MAX: Final = 1 << 20
_END_STATES: Final[tuple[EndState, ...]] = get_args(EndState)
#: Pause before a chain is read again because a known event was not in it.
_LAG_S: Final = 0.02


class End(msgspec.Struct, eq=False):
    """The end of one child, to be counted."""

    step: str
    item: int
    end_as: EndState
    asked: int = 0  #: as in `Member`
    is_settled: bool = False
    error: Exception | None = None  #: why the end could not be counted


class _Run:
    """The known state of one run, and the ends of its children that wait to be counted."""

    def __init__(self, ref: JobRef) -> None:
        self.ref = ref
        self.view: JobView = EMPTY_CHAIN
        self.waiting: list[End] = []
        self.turn = asyncio.Lock()
        self.users = 0

    def is_worth_keeping(self) -> bool:
        job = self.view.job
        if job is None or job.is_final:
            return False
        sizes = (len(bytes(step.result)) + len(bytes(step.items)) for step in job.steps.values())
        return sum(sizes) <= _KEPT_BYTES_MAX


class Joiner:
    """Counts ends for every run, with one append at a time for each; one object per process."""

    def __init__(self, client: Client, opening: ChildOpener) -> None:
        self._client = client
        self._opening = opening
        self._reaching = ChildFollower(client)
        self._runs: OrderedDict[JobRef, _Run] = OrderedDict()
        self.joins = 0  #: number of appends that counted ends here

    async def count(self, parent: JobRef, end: End) -> None:
        """Return once the end is counted, and the children that it admits are stored.

        Raises: WrongSequenceError if another process was faster too often or a replica lags; NotBegunError,
            ChildIdTakenError, and as `Log` and the store of payloads.
        """
        run = self._runs.setdefault(parent, _Run(parent))
        self._runs.move_to_end(parent)
        run.waiting.append(end)
        run.users += 1
        try:
            async with run.turn:
                if not end.is_settled:
                    await asyncio.sleep(0)  # so that ends of the same read are counted together
                    await self._settle(run)
        finally:
            run.users -= 1
            self._forget()
        if end.error is not None:
            raise end.error

    def _forget(self) -> None:
        """Forget the least recently used runs without waiting ends."""
        for ref, run in list(self._runs.items())[: len(self._runs) - _KEPT_MAX]:
            if not run.users:
                del self._runs[ref]

    async def _settle(self, run: _Run) -> None:
        """Count all waiting ends; a cancelled call leaves them to the next one."""
        some, run.waiting = run.waiting, []
        try:
            for key in dict.fromkeys(end.step for end in some):
                await self._count(run, key, [end for end in some if end.step == key])
        except Exception as error:  # noqa: BLE001 - `count` raises it for each of these ends
            run.view = EMPTY_CHAIN
            for end in some:
                end.error = error
        except BaseException:  # this call was cancelled: the next one counts them
            run.waiting = some + run.waiting
            raise
        for end in some:
            end.is_settled = True
        if not run.is_worth_keeping():
            run.view = EMPTY_CHAIN

    async def _count(self, run: _Run, key: str, ends: Sequence[End]) -> None:
        if not run.view.last_sequence:
            run.view = await catch_up(self._client.log, run.ref, EMPTY_CHAIN)
        ends = [end for end in ends if _is_awaited(run.view.job, end)]
        said = {state: bits(end.item for end in ends if end.end_as == state) for state in _END_STATES}
        command = Join(
            step=key,
            completed=ranges_of(said["completed"]),
            failed=ranges_of(said["failed"]),
            dead=ranges_of(said["dead"]),
        )
        before, events = await retry_raced(lambda: self._join(run, command))
        job = run.view.job
        known = 0 if before is None or key not in before.steps else before.steps[key].ended
        # The process that counted them may have died before it made the next children, or cancelled others.
        told = any(known & items for items in said.values())
        if job is None or job.state in CLOSED_STATES:
            if told:
                run.view = await self._reaching.follow(run.ref, run.view, again=True)
            return
        step = job.steps.get(key)
        if step is None:
            self._missed(run, key, job)
            return
        if job.state is JobState.RUNNING and step.is_joined:
            self._client.hints.tell_resume(run.ref)  # its worker may wait for this end with the run in memory
        items = step.open if told else _opened(events)
        if told or events:
            await self._open(run, key, items, again=told)

    async def _open(self, run: _Run, key: str, items: int, *, again: bool) -> None:
        """Make children; if the id of one is taken, wake its run, since that child would never end.

        The run's code then asks for the child itself, and the run becomes a dead letter that names the reason; so does
        a run that is claimed later.

        Raises: WrongSequenceError if the run is running and may wait in memory: try again once it has paused; as
            `ChildOpener.open`.
        """
        try:
            run.view = await self._opening.open(run.ref, run.view, key, items, again=again)
        except ChildIdTakenError as error:
            log, job = self._client.log, run.view.job
            assert job is not None, "only a run has children"
            if job.state is JobState.RUNNING:
                raise WrongSequenceError(log.names.chain(run.ref), run.view.last_sequence) from error
            logger.error("run %s: %s", run.ref.job_id, error)  # noqa: TRY400 - a sentence
            if job.state is not JobState.WAITING:
                return
            wake = Dispatch(
                cause="resumed",
                asked_by=job.wait_sequence,
                reason=f"another job has the id {error.child.job_id}",
            )
            with contextlib.suppress(IllegalTransitionError):  # another process woke it, or it has ended
                run.view = await transact(log, run.ref, wake, self._client.stamp, known=run.view)

    async def _join(self, run: _Run, command: Join) -> tuple[Job | None, tuple[JobEvent, ...]]:
        """Append the join of the ends; return the run before it and the events, none if the ends were counted before.

        Raises: WrongSequenceError if another process was faster, whose events are known then.
        """
        log = self._client.log
        before = run.view
        try:
            events = decide(before.job, command, self._client.stamp())
        except (IllegalTransitionError, JobNotFoundError):
            await self._require_newest(run)
            return before.job, ()
        try:
            run.view = await commit(log, before, events)
        except WrongSequenceError:
            await self._catch_up(run)
            raise
        self.joins += 1
        return before.job, events

    async def _require_newest(self, run: _Run) -> None:
        """Make sure that a refusal follows from the present run, and not from a lagging replica.

        Raises: WrongSequenceError if it did not.
        """
        chain = self._client.log.names.chain(run.ref)
        known = run.view.last_sequence
        if await self._client.log.newest_sequence(chain) > known:
            await self._catch_up(run)
            raise WrongSequenceError(chain, known)

    async def _catch_up(self, run: _Run) -> None:
        known = run.view.last_sequence
        run.view = await catch_up(self._client.log, run.ref, run.view)
        if run.view.last_sequence == known:
            await asyncio.sleep(_LAG_S)

    def _missed(self, run: _Run, key: str, job: Job) -> None:
        """Report ends of jobs that no step of the run asked for.

        Raises: NotBegunError for a job of a batch whose run has not begun.
        """
        if job.task == RUN_BATCH:
            raise NotBegunError(f"batch {job.id} has not begun: ends of its jobs wait to be counted")
        logger.warning(
            "jobs say that they are children of run %s by its step %r, which asked for none: not counted",
            run.ref.job_id,
            key,
        )


def _is_awaited(job: Job | None, end: End) -> bool:
    """Return whether this run may have asked for the child, rather than an earlier run with its id."""
    step = None if job is None else job.steps.get(end.step)
    return step is None or step.has_ended or end.asked in (0, step.sequence)


class NotBegunError(WrongSequenceError):
    """Jobs of a batch ended before its run began, and only that run counts them."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)


def _opened(events: Sequence[JobEvent]) -> int:
    """Return the items whose children these events admit."""
    found = 0
    for event in events:
        fact = event.joined if isinstance(event, Queued | Held) else event
        if isinstance(fact, Joined | JoinFact):
            found |= bits_of(fact.opened)
    return found
