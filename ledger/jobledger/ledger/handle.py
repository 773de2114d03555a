"""One job seen from outside: its state, its history, its result. Always read from its chain, so always up to date."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import msgspec

from jobledger.ledger.model.attempts import Progress
from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, extend, fold, load, transact
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import CancelJob, Command, Requeue, Reschedule
from jobledger.ledger.model.decisions import decide, retry_command
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    ResultTimeoutError,
    WrongSequenceError,
)
from jobledger.ledger.model.event_words import error_words
from jobledger.ledger.model.events import Completed, ErrorInfo
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.attempt_logs import JobLogs
from jobledger.ledger.outcome import moment_of
from jobledger.ledger.protocols import Client
from jobledger.ledger.unique.holders import requeue

R_co = TypeVar("R_co", covariant=True)

#: Without a hint the chain is read again after these times, since a hint may be lost, but never an event.
_LOOK_AGAIN_FIRST_S: Final = 0.02
_LOOK_AGAIN_MAX_S: Final = 1.0
_LOOKS_UNTIL_DOUBT: Final = 8
_LOOK_S_MIN: Final = 1.0  # time that one look may take, however little of the limit is left


class ReadsResults(Protocol):
    """A task's signature, as a handle uses it."""

    def read_result(self, text: bytes, job_id: str) -> Any:
        """Return a result as the task's return annotation says."""
        ...


class JobHandle(Generic[R_co]):
    """A job by its name; `created` is True if the call that returned the handle made the job.

    `reader` None: the job's task is not known here, and a result is returned as plain JSON values.
    """

    def __init__(
        self,
        client: Client,
        ref: JobRef,
        *,
        created: bool = False,
        sequence: int = 0,
        reader: ReadsResults | None = None,
    ) -> None:
        self._client = client
        self.reader = reader
        self.ref = ref
        self.created = created
        self.sequence = sequence  #: stream sequence of the job's first event; 0: not known

    @property
    def id(self) -> str:
        """The job's id."""
        return self.ref.job_id

    @property
    def queue(self) -> str:
        """The queue that is part of the job's name."""
        return self.ref.queue

    def __repr__(self) -> str:
        """Show id and queue."""
        return f"<job {self.id} in {self.queue}>"

    async def history(self) -> list[StoredEvent]:
        """Return every event of the job, oldest first.

        Raises: JobNotFoundError, UnreachableError.
        """
        return await self._client.patience.read(self._read)

    async def _read(self) -> list[StoredEvent]:
        log = self._client.log
        events = await log.read_chain(log.names.chain(self.ref))
        if not events:
            raise JobNotFoundError(self.id)
        return events

    async def snapshot(self) -> Job:
        """Return the whole job as it is now.

        Raises: JobNotFoundError, UnreachableError.
        """
        job = fold(await self.history()).job
        assert job is not None, "a history is not empty"
        return job

    async def state(self) -> JobState:
        """Return the job's state as it is now.

        Raises: JobNotFoundError, UnreachableError.
        """
        return (await self.snapshot()).state

    async def progress(self) -> Progress | None:
        """Return the newest progress of the job's newest attempt, at most some seconds old; None: none was reported.

        Raises: JobNotFoundError, UnreachableError.
        """
        return (await self.snapshot()).progress

    async def logs(self, *, attempt: int | None = None, step: str | None = None) -> JobLogs:
        """Return the log lines of the job's attempts, of one attempt, or of one step of a run; some lines are not kept.

        The newest 64 KiB of each attempt are kept for 7 days; those of a running attempt are about a second old. They
        are not part of the ledger, and nothing depends on them.

        Raises: UnreachableError.
        """
        client = self._client
        return await client.patience.read(lambda: client.read_logs(self.ref, attempt=attempt, step=step))

    async def cancel(self, *, reason: str = "", by: str = "") -> Job:
        """End the job if it waits; ask it to end if it runs. Return the job after that.

        A running job ends a moment later, or when it is taken over from a dead worker: `wait` for it. A job that
        completes before it learns of the request stays completed.

        Raises: JobNotFoundError, IllegalTransitionError if the job has ended or was asked before, UnreachableError.
        """
        after = await execute(self._client, self.ref, CancelJob(reason=reason), by=by)
        if after.state is JobState.RUNNING:
            self._client.hints.tell_cancel(self.ref)
        return after

    async def retry(self, *, reason: str = "", by: str = "") -> Job:
        """Queue the job now if it waits for a time; give a dead letter one more attempt.

        Raises: JobNotFoundError, IllegalTransitionError for a job in another state, UniqueKeyTakenError for a dead
        letter whose key another job got meanwhile, UnreachableError.
        """
        client = self._client
        chain = await client.patience.read(lambda: load(client.log, self.ref))
        command = retry_command(chain.job, self.ref.job_id, reason)
        if not isinstance(command, Requeue):
            return await execute(client, self.ref, command, by=by)
        return await client.patience.append(
            lambda: requeue(client.log, self.ref, command, lambda: client.stamp(by)),
            job_id=self.id,
            doing="was requeued",
        )

    async def reschedule(
        self,
        *,
        run_at: datetime | None = None,
        delay_s: float | None = None,
        reason: str = "",
        by: str = "",
    ) -> Job:
        """Move the job to another time, a moment or seconds from now, if it is scheduled or waits for a retry.

        Raises: JobNotFoundError, IllegalTransitionError for a job that waits for no time, InvalidError, UnreachableError.
        """
        now = self._client.stamp(by).at
        moment = moment_of(run_at, delay_s, now)
        # A reason tells a person's wish from a further call of a debounced job.
        command = Reschedule(run_at=moment, reason=reason or "rescheduled by hand")
        return await execute(self._client, self.ref, command, by=by)

    async def transitions(self, *, timeout_s: float | None = None) -> AsyncGenerator[StoredEvent, None]:
        """Yield the job's events from the first on as they are recorded, until it is final.

        Raises: ResultTimeoutError after `timeout_s` (None waits for ever), JobNotFoundError, UnreachableError.
        """
        async with contextlib.aclosing(self._followed(timeout_s)) as followed:
            async for stored, _ in followed:
                yield stored

    async def _followed(self, timeout_s: float | None) -> AsyncGenerator[tuple[StoredEvent, JobView], None]:
        """Yield each event with the job after it, in the manner of `transitions`."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        view, looks = EMPTY_CHAIN, 0
        pause = _LOOK_AGAIN_FIRST_S
        with self._client.hints.watch(self.ref) as hinted:
            while True:
                hinted.clear()
                events = await self._look(deadline, view.last_sequence, looks)
                for stored in events:
                    view = extend(view, stored)
                    pause = _LOOK_AGAIN_FIRST_S
                    yield stored, view
                if view.job is not None and view.job.is_final:
                    return
                looks += 1
                pause = await self._wait(hinted, pause, deadline)

    async def _look(self, deadline: float | None, seen: int, looks: int) -> list[StoredEvent]:
        """Read newer events within the limit; one look is allowed even when the limit is over."""
        if deadline is None:
            return await self._newer(seen, looks)
        left = deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(left, _LOOK_S_MIN)):
                return await self._newer(seen, looks)
        except TimeoutError as error:
            raise self._too_late() from error

    async def _newer(self, seen: int, looks: int) -> list[StoredEvent]:
        """Return the events after a sequence; now and then check that the job was not archived meanwhile."""
        if not seen:
            return await self._read()
        log = self._client.log
        chain = log.names.chain(self.ref)
        events = await log.read_on(chain, seen)
        if not events and looks % _LOOKS_UNTIL_DOUBT == 0 and not await log.newest_sequence(chain):
            raise JobNotFoundError(self.id)
        return events

    def _too_late(self) -> ResultTimeoutError:
        message = (
            f"job {self.id} has not ended within the time given; it goes on: `jobledger jobs show {self.id}`"
        )
        return ResultTimeoutError(message)

    async def _wait(self, hinted: asyncio.Event, pause: float, deadline: float | None) -> float:
        """Wait for a hint, for the time to look again, or for the limit; return the next pause."""
        loop = asyncio.get_running_loop()
        limit = pause if deadline is None else min(pause, deadline - loop.time())
        if limit <= 0:
            raise self._too_late()
        try:
            async with asyncio.timeout(limit):
                await hinted.wait()
        except TimeoutError:
            return min(2 * pause, _LOOK_AGAIN_MAX_S)
        return pause

    async def wait(self, *, timeout_s: float | None = None) -> Job:
        """Return the job once it is final (a dead letter counts as final).

        Raises: ResultTimeoutError, JobNotFoundError, UnreachableError.
        """
        return (await self._end(timeout_s))[0]

    async def _end(self, timeout_s: float | None) -> tuple[Job, str]:
        """Return the job once it is final, and the id of the run that continues it, if there is one."""
        view, successor = EMPTY_CHAIN, ""
        async for followed in self._followed(timeout_s):
            stored, view = followed
            if isinstance(stored.event, Completed):
                successor = stored.event.successor
        assert view.job is not None, "a history is not empty"
        return view.job, successor

    async def result(self, *, timeout_s: float | None = None) -> R_co:
        """Wait for the end and return the task's result, in the type of its return annotation.

        Without an annotation, or if the task is not known here, the result is plain JSON values. For a run that
        continued in others, it is the result of the last run.

        Raises: JobFailedError for a dead letter, JobCancelledError, ResultTimeoutError, ResultMismatchError,
        JobNotFoundError, PayloadMissingError, UnreachableError.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        job, successor = await self._end(timeout_s)
        while successor:
            left_s = None if deadline is None else max(deadline - loop.time(), 0.0)
            ref = JobRef(queue=self.queue, job_id=successor)
            job, successor = await JobHandle[Any](self._client, ref)._end(left_s)  # noqa: SLF001 - the next one
        if job.state is JobState.COMPLETED:
            results = self._client.results if job.order.member is None else self._client.inputs
            text = await self._client.patience.read(
                lambda: results.get(job.result, job.result_ref, key=job.order.key)
            )
            reader = self.reader
            value = msgspec.json.decode(text) if reader is None else reader.read_result(text, job.id)
            return cast("R_co", value)
        if job.state is JobState.DEAD_LETTERED:
            error = job.error
            if job.order.key:
                from jobledger.ledger.opened_jobs import opened_error  # noqa: PLC0415 - others need nothing of it

                error = await opened_error(self._client.keys, job.order.key, error)
            raise JobFailedError(job.id, _sentence(error), error)
        message = f"job {job.id} was {job.state.value}{': ' + job.cancel_reason if job.cancel_reason else ''}"
        raise JobCancelledError(message)


def _sentence(error: ErrorInfo | None) -> str:
    return "no reason recorded" if error is None else error_words(error)


async def execute(client: Client, ref: JobRef, command: Command, *, by: str = "") -> Job:
    """Decide a command on the newest view of a job, record its events, and return the job after them.

    Raises: JobNotFoundError, IllegalTransitionError and its kin, UnreachableError.
    """
    chain = await client.patience.append(
        lambda: transact(client.log, ref, command, lambda: client.stamp(by)),
        job_id=ref.job_id,
        doing="was changed",
    )
    assert chain.job is not None, "a command that was accepted left a job"
    return chain.job


async def tell(client: Client, ref: JobRef, command: Command, *, of: JobRef) -> bool:
    """Decide a command on a child that may be missing, or may have ended by now; return whether the child exists.

    `of`: the child's parent. A foreign job that has the child's id is left alone.

    Raises: WrongSequenceError if a replica does not show the job yet: try again later; LedgerFullError,
        UnreachableError.
    """
    view = await load(client.log, ref)
    member = None if view.job is None else view.job.member
    if view.job is not None and (member is None or (member.queue, member.job) != (of.queue, of.job_id)):
        return False
    try:
        await transact(client.log, ref, command, client.stamp, known=view)
    except IllegalTransitionError:
        return True  # it has ended, or got the command before
    except JobNotFoundError:
        chain = client.log.names.chain(ref)
        if await client.log.newest_sequence(chain):
            raise WrongSequenceError(chain, 0) from None
        return False
    if isinstance(command, CancelJob):
        client.hints.tell_cancel(ref)
    return True


async def would_accept(client: Client, ref: JobRef, command: Command) -> Job:
    """Return the job if it would accept a command now; nothing is written.

    Raises: JobNotFoundError, IllegalTransitionError and its kin, UnreachableError.
    """
    job = (await load(client.log, ref)).job
    if job is None:
        raise JobNotFoundError(ref.job_id)
    decide(job, command, client.stamp())
    return job
