"""The channel behind a task's `Context`: checkpoints and progress, for the ledger and for watching processes.

Progress is rate-limited: watchers get a hint a few times a second, the ledger gets an event every few seconds, and the
newest report with the outcome. The appends of one attempt follow each other and are conditional on its claim, so a
worker that lost the claim appends nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from jobledger.ledger import sync
from jobledger.ledger.children import Parent
from jobledger.ledger.client import Ledger
from jobledger.ledger.context import done
from jobledger.ledger.loop_thread import require_outside, wait_for
from jobledger.ledger.model.chain import (
    Addition,
    JobView,
    catch_up,
    commit,
    load,
    retry_raced,
    transact,
    transact_all,
)
from jobledger.ledger.model.commands import Checkpoint, Command, Enqueue, ReportProgress
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    InvalidInputError,
    JobExistsError,
    LedgerError,
    NotFoundError,
    RefusedError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.job import evolve
from jobledger.ledger.model.json_text import check_text, encode_value
from jobledger.ledger.model.seals import ValueKey, seal_word
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.attempt.retry_store import LIMIT_S, retry_store
from jobledger.workers.pool.messages import Report
from jobledger.workers.surroundings import Surroundings

# The verbs of the ledger for a task in a thread: they run on the worker's loop, and end when the attempt is told to
# stop.

R = TypeVar("R")


class ThreadCalls:
    """Calls from the thread of one attempt; a `Caller` for `sync.Ledger`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ledger: Ledger, stop_reason: Callable[[], str]
    ) -> None:
        """`stop_reason` returns "" until the attempt is told to stop."""
        self._loop = loop
        self._ledger = ledger
        self._stop_reason = stop_reason
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, verb: Callable[[Ledger], Awaitable[R]]) -> concurrent.futures.Future[R]:
        """Begin a call; its future raises AttemptStoppedError as soon as the attempt is told to stop.

        Raises: InvalidInputError on the worker's own loop.
        """
        require_outside(self._loop)
        return asyncio.run_coroutine_threadsafe(self._run(verb), self._loop)

    def call(self, verb: Callable[[Ledger], Awaitable[R]]) -> R:
        """Run a verb and wait for its end. Raises: AttemptStoppedError, and any error of the verb."""
        return wait_for(self.start(verb))

    def give_back(self, verb: Callable[[Ledger], Awaitable[R]]) -> R:
        """Run a verb that gives something back, even in an attempt that was told to stop."""

        async def run() -> R:
            return await verb(self._ledger)

        require_outside(self._loop)
        return wait_for(asyncio.run_coroutine_threadsafe(run(), self._loop))

    def stop(self) -> None:
        """End the running calls; called on the loop. Their appends may be in the ledger."""
        for task in self._running:
            task.cancel()

    def close(self) -> None:
        """Do nothing: the connection is the worker's."""

    async def _run(self, verb: Callable[[Ledger], Awaitable[R]]) -> R:
        self._require_going_on()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._running.add(task)
        try:
            return await verb(self._ledger)
        except asyncio.CancelledError:
            self._require_going_on()
            raise
        finally:
            self._running.discard(task)

    def _require_going_on(self) -> None:
        if reason := self._stop_reason():
            raise AttemptStoppedError(reason)


_HINT_EVERY_S: Final = 0.25
_LEDGER_EVERY_S: Final = 5.0
#: Checkpoints are paced, since in a chain that grows all the time others, such as an operator's cancel, lose every
#: race.
_CHECKPOINT_EVERY_S: Final = 0.05
#: How long an attempt that has ended waits for checkpoints that its task did not await.
_LAST_CHECKPOINTS_S: Final = 5.0


class AttemptChannel:
    """The channel of one attempt's context. Instantiated on the loop; a task in a thread may call the three verbs."""

    def __init__(
        self,
        ledger: Surroundings,
        chain: JobView,
        identity: str,
        *,
        on_pause: Callable[[], None] = lambda: None,
        key: ValueKey | None = None,
    ) -> None:
        """`on_pause` is called when a checkpoint was stored for a job that somebody asked to pause."""
        job = chain.job
        assert job is not None, "a claimed chain has a job"
        self._ledger = ledger
        self._loop = ledger.loop
        self._loop_thread = threading.get_ident()
        self._ref = JobRef(queue=job.queue, job_id=job.id)
        self._epoch = job.claim_epoch
        self._identity = identity
        self._on_pause = on_pause
        self._key = key  #: the key of the job's owner
        self._job = job
        self._appending = asyncio.Lock()
        self._report: Report | None = None
        self._told: Report | None = None  #: the last report to watchers
        self._stored: Report | None = None
        self._telling: asyncio.Task[None] | None = None
        self._keeping: set[asyncio.Task[None]] = set()
        self._pacing = asyncio.Lock()
        self._checkpoint_at = 0.0  #: the earliest loop time of the next checkpoint
        self._stored_at = -_LEDGER_EVERY_S
        self.chain = chain  #: the newest view; the outcome is decided on it
        self.heard_at = ledger.clock.monotonic()  #: when the task last gave a sign of life
        self._stop_reason = ""
        self._own_ledger: Ledger | None = None
        self._thread_calls: ThreadCalls | None = None

    @property
    def stop_reason(self) -> str:
        """Why the attempt was told to stop, "" if it was not; a task in a thread learns it at its next call."""
        return self._stop_reason

    @stop_reason.setter
    def stop_reason(self, reason: str) -> None:
        self._stop_reason = reason
        if self._thread_calls is not None:
            self._thread_calls.stop()

    # The verbs of a context.

    def heartbeat(self) -> None:
        """See `Context.heartbeat`."""
        self.heard_at = self._ledger.clock.monotonic()
        if self.stop_reason and not self._on_loop():
            raise AttemptStoppedError(self.stop_reason)

    def progress(self, done: float, total: float | None, note: str) -> None:
        """See `Context.progress`."""
        report = Report.of(done, total, note if self._key is None else seal_word(self._key, note))
        self.heartbeat()
        self._report = report
        if self._telling is None:
            if self._on_loop():
                self._tell_soon()
            else:
                self._loop.call_soon_threadsafe(self._tell_soon)

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """See `Context.checkpoint`."""
        self.heartbeat()
        return self.checkpoint_text(encode_value(value, what="checkpoint"))

    def checkpoint_text(self, text: bytes) -> Awaitable[None]:
        """Store a checkpoint that is JSON text already; blocks if it is not called on the loop.

        Raises: InvalidInputError at once for a text that no event can hold; later, when it is awaited or blocks,
        PayloadTooLargeError, StaleClaimError, UnreachableError.
        """
        check_text(text, what="checkpoint")
        if self._on_loop():
            keeping = self._loop.create_task(self._keep(text))
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)
            return keeping
        asyncio.run_coroutine_threadsafe(self._keep(text), self._loop).result(timeout=2 * LIMIT_S)
        self.heartbeat()  # it may have been told to pause
        return done()

    def ledger(self) -> Ledger:
        """See `Context.ledger`."""
        if not self._on_loop():
            raise InvalidInputError(
                "context.ledger is for async tasks: use context.sync_ledger here, whose verbs block"
            )
        return self._on_behalf()

    def sync_ledger(self) -> sync.Ledger:
        """See `Context.sync_ledger`."""
        if self._on_loop():
            raise InvalidInputError(
                "context.sync_ledger would block the event loop of the worker: use context.ledger here, and await it"
            )
        self.heartbeat()
        if self._thread_calls is None:
            self._thread_calls = ThreadCalls(self._loop, self._on_behalf(), lambda: self.stop_reason)
        return sync.Ledger(self._thread_calls)

    def _on_behalf(self) -> Ledger:
        if self._ledger.on_behalf_of is None:
            raise RefusedError(
                f"job {self._ref.job_id} is run here without its ledger, so that nothing is written: "
                "context.ledger cannot be used"
            )
        if self._own_ledger is None:
            self._own_ledger = self._ledger.on_behalf_of(Parent.of(self._job, self._identity))
        return self._own_ledger

    def _on_loop(self) -> bool:
        return threading.get_ident() == self._loop_thread

    # The methods below run on the loop.

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        """Pass reports on until there is no newer one; nothing depends on progress, so an error only ends this loop."""
        try:
            while self._report is not self._stored:
                report = self._report
                assert report is not None, "only a report starts this"
                if report is not self._told:
                    self._told = report
                    self._ledger.tell_progress(self._ref, msgspec.json.encode(report))
                now = self._loop.time()
                if now - self._stored_at >= _LEDGER_EVERY_S:
                    self._stored_at = now
                    await self.append(self._progressed(report))
                    self._stored = report
                await asyncio.sleep(_HINT_EVERY_S)
        except LedgerError:
            pass
        finally:
            self._telling = None

    def _progressed(self, report: Report) -> ReportProgress:
        return ReportProgress(epoch=self._epoch, done=report.done, total=report.total, note=report.note)

    @property
    def unstored(self) -> ReportProgress | None:
        """The newest report if the ledger does not have it: it is stored together with the outcome."""
        report = self._report
        return None if report is None or report is self._stored else self._progressed(report)

    async def _keep(self, text: bytes) -> None:
        async with self._pacing:
            now = self._loop.time()
            pause = self._checkpoint_at - now
            self._checkpoint_at = max(self._checkpoint_at, now) + _CHECKPOINT_EVERY_S
            if pause > 0:
                await asyncio.sleep(pause)
        value, reference = await self._ledger.inputs.put(text, what="checkpoint", key=self._job.order.key)
        command = Checkpoint(epoch=self._epoch, value=value, value_ref=reference)
        what = f"a checkpoint of job {self._ref.job_id}"
        await retry_store(what, lambda: self.append(command), outage=self._ledger.outage)
        # The append was conditional, so the view has every request to pause that came before it.
        if self.chain.job is not None and self.chain.job.pause_requested:
            self._on_pause()

    async def append(self, command: Command) -> None:
        """Append the events of a command of the claim's holder.

        Raises: as `transact`.
        """
        async with self._appending:
            self.chain = await transact(
                self._ledger.log,
                self._ref,
                command,
                lambda: self._ledger.stamp(self._identity),
                known=self.chain,
            )

    async def append_all(self, commands: Sequence[Command]) -> list[int]:
        """Append the events of several commands of the claim's holder as one; return the places of refused commands.

        A refusal may come from an old view; `append` decides on the newest one.

        Raises: WrongSequenceError after too many lost races, and the errors of `Log`; then nothing is stored.
        """
        log = self._ledger.log

        async def attempt() -> list[int]:
            events, refused = self._decided(commands)
            if events:
                try:
                    self.chain = await commit(log, self.chain, events)
                except WrongSequenceError:
                    self.chain = await catch_up(log, self._ref, self.chain)
                    raise
            return refused

        async with self._appending:
            return await retry_raced(attempt)

    def _decided(self, commands: Sequence[Command]) -> tuple[list[JobEvent], list[int]]:
        """Decide each command after the events of the previous one; return all events, and places of refused ones."""
        job, sequence = self.chain.job, self.chain.last_sequence
        events: list[JobEvent] = []
        refused: list[int] = []
        for place, command in enumerate(commands):
            try:
                some = decide(job, command, self._ledger.stamp(self._identity))
            except (NotFoundError, RefusedError):
                refused.append(place)
                continue
            for event in some:  # the sequence is a guess: no decision on a step reads it
                sequence += 1
                job = evolve(job, event, sequence)
            events += some
        return events, refused

    async def append_with(self, command: Command, begin: Enqueue) -> None:
        """Append the events of a command of the claim's holder, and begin another job, as one.

        Raises: JobExistsError if the other job exists; as `transact_all`.
        """
        log = self._ledger.log
        async with self._appending:

            async def decide_both() -> Sequence[Addition]:
                other = await load(log, begin.ref)
                if other.job is not None:
                    raise JobExistsError(begin.ref.job_id)
                self.chain = await catch_up(log, self._ref, self.chain)
                stamp = self._ledger.stamp(self._identity)
                return [
                    (self.chain, decide(self.chain.job, command, stamp)),
                    (other, decide(None, begin, msgspec.structs.replace(stamp, causation=self._ref.job_id))),
                ]

            await transact_all(log, decide_both)
            self.chain = await catch_up(log, self._ref, self.chain)

    async def refresh(self) -> None:
        """Read the events of others. Raises: UnreachableError."""
        async with self._appending:
            self.chain = await catch_up(self._ledger.log, self._ref, self.chain)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is being stored or reported, and nothing has to be before the outcome is appended."""
        return self._telling is None and not self._keeping and self._report is self._stored

    async def close(self) -> None:
        """Store the checkpoints that the task did not await and stop reporting, before the outcome is appended."""
        if self._keeping:
            await asyncio.wait(self._keeping, timeout=_LAST_CHECKPOINTS_S)
        for keeping in list(self._keeping):
            keeping.cancel()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
