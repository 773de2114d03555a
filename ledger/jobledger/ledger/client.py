"""`connect` and `Ledger`: what an application does with jobs, short of running them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack

import msgspec
import uuid_utils

from jobledger.ledger.chain import EMPTY_CHAIN, Sealed, load, seal, transact
from jobledger.ledger.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.commands import CancelJob, Command, Discard, Enqueue, Stamp
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.connection import Connection, open_connection
from jobledger.ledger.dead_letters import Changes, Requeuing, requeue
from jobledger.ledger.decisions import decide, retry_command
from jobledger.ledger.errors import (
    AmbiguousIdError,
    InvalidError,
    InvalidInputError,
    JobNotFoundError,
    WrongSequenceError,
)
from jobledger.ledger.event_stream import EventOptions, EventStream, open_events, open_subscription
from jobledger.ledger.handle import JobHandle, Sources
from jobledger.ledger.held_lock import HeldLock
from jobledger.ledger.hints import Hints
from jobledger.ledger.identity import new_identity
from jobledger.ledger.inbox import Inbox
from jobledger.ledger.jetstream import JetStreamLog
from jobledger.ledger.job import Job, JobState
from jobledger.ledger.leases import JetStreamLeases
from jobledger.ledger.lock_hints import NatsLockHints
from jobledger.ledger.locks import WAIT_S_DEFAULT, Locks
from jobledger.ledger.options import Options
from jobledger.ledger.payloads import Payloads
from jobledger.ledger.publisher import Publisher
from jobledger.ledger.streams import RESULTS_LIFE_S, ensure_streams, specifications
from jobledger.ledger.subjects import JobRef, Names, check_token
from jobledger.ledger.subscription import Subscription
from jobledger.ledger.subscription_options import SubscriptionOptions
from jobledger.ledger.subscriptions import SubscriptionInfo, delete_subscription, list_subscriptions
from jobledger.ledger.tasks import Task, TaskWithOptions
from jobledger.ledger.tracing import UNTRACED, Tracing

if TYPE_CHECKING:
    from jobledger.ledger.log import Log

P = ParamSpec("P")
R = TypeVar("R")
_MICROSECOND: Final = timedelta(microseconds=1)
_CLOCK_STEP: Final = timedelta(seconds=1)


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `enqueue_many` did."""

    created: int
    existing: int  #: ids that were in the queue already
    last_sequence: int  #: highest stream sequence among the created; 0 when none was


class Ledger:
    """A connection to one environment's ledger; made by `connect`."""

    def __init__(
        self,
        *,
        connection: Connection,
        inbox: Inbox,
        log: JetStreamLog,
        leases: JetStreamLeases,
        hints: Hints,
        inputs: Payloads,
        results: Payloads,
        config: LedgerConfig,
        clock: Clock,
    ) -> None:
        self.connection = connection  #: for intake and doctor; applications have no use for it
        self.inbox = inbox
        self.log: Log = log
        self.leases = leases
        self.hints = hints
        self.inputs = inputs
        self.results = results
        self._sources = Sources(self.log, hints, results)
        self.config = config
        self.clock = clock
        self.identity = new_identity()  #: who this client is in the events it appends
        self.tracing = Tracing() if config.tracing else None
        self._stamped_at = datetime.min.replace(tzinfo=UTC)
        self.locks = Locks(self.log, leases, NatsLockHints(connection, self.names), clock, self.stamp)

    @property
    def names(self) -> Names:
        """Subjects and streams of this environment."""
        return self.log.names

    def stamp(self, by: str = "") -> Stamp:
        """Return who and when, for events decided now; no two stamps of a client are equal.

        The bytes of an event tell whose append was accepted, so two decisions within one tick of the clock must
        not come out the same. A clock that is set back by more than a moment is followed.
        """
        at = self.clock.now()
        if at <= self._stamped_at < at + _CLOCK_STEP:
            at = self._stamped_at + _MICROSECOND
        self._stamped_at = at
        trace = "" if self.tracing is None else self.tracing.current()
        return Stamp(at=at, by=by or self.identity, trace=trace)

    async def enqueue(
        self, task: Task[P, R] | TaskWithOptions[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]:
        """Add one job; when this returns, the job is in the ledger.

        An id that the queue has already gives that job, unchanged, with `created=False`.

        Raises: InvalidInputError, PayloadTooLargeError, LedgerFullError, UnreachableError.
        """
        plain, options = _unpack(task)
        text = plain.signature.encode(args, kwargs)
        command = await self._order(plain, options, text, notify=self.hints.inbox)
        with self._enqueuing(plain, options.queue, command.ref.job_id):
            return await self._begin(command)

    def _enqueuing(
        self, task: Task[Any, Any], queue: str, job_id: str = ""
    ) -> contextlib.AbstractContextManager[object]:
        return UNTRACED if self.tracing is None else self.tracing.enqueuing(task.name, queue, job_id)

    async def _order(self, task: Task[Any, Any], options: Options, text: bytes, *, notify: str) -> Enqueue:
        value, reference = await self.inputs.put(text, what=f"input of task {task.name}")
        return Enqueue(
            ref=JobRef(queue=options.queue, job_id=options.id or new_job_id()),
            task=task.name,
            input=value,
            input_ref=reference,
            priority=options.priority,
            max_attempts=options.max_attempts,
            timeout_s=options.timeout_s,
            run_at=self._due(options),
            notify=notify,
        )

    def _due(self, options: Options) -> datetime | None:
        """Return when the job may run first; None: at once."""
        if options.delay_s is None:
            return options.run_at
        try:
            return self.clock.now() + timedelta(seconds=options.delay_s)
        except OverflowError as error:
            raise InvalidInputError(f"delay_s {options.delay_s:g} ends after the year 9999") from error

    async def _begin(self, command: Enqueue) -> JobHandle[Any]:
        sealed = self._seal_first(command)
        try:
            sequence = await self.log.append(sealed.entries)
        except WrongSequenceError:
            existing = await self.log.read_chain(self.names.chain(command.ref))
            # A replica that lags may answer that it has nothing yet.
            sequence = existing[0].stream_sequence if existing else 0
            return JobHandle(self._sources, command.ref, created=False, sequence=sequence)
        return JobHandle(self._sources, command.ref, created=True, sequence=sequence)

    def _seal_first(self, command: Enqueue) -> Sealed:
        return seal(EMPTY_CHAIN, decide(None, command, self.stamp()), self.names)

    async def enqueue_many(
        self,
        task: Task[P, R] | TaskWithOptions[P, R],
        inputs: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        ids: Callable[[Mapping[str, Any]], str] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> BulkResult:
        """Add a job for each input (keyword arguments), as a stream: memory stays bounded whatever its length.

        `ids` names each job after its input, so that doing it all again adds only what was missing.
        `on_progress` gets the number of inputs done, now and then.

        Raises: as `enqueue`; the sentence says at which input. The ones before it are in the ledger.
        """
        plain, options = _unpack(task)
        if options.id is not None:
            message = "enqueue_many cannot give one id to many jobs: pass ids=, a function of the input"
            raise InvalidInputError(message)
        bulk = _Bulk(self.log, self.config.enqueue_in_flight_max, on_progress)
        with self._enqueuing(plain, options.queue):
            try:
                async with contextlib.aclosing(_numbered(inputs)) as numbered:
                    async for number, values in numbered:
                        command = await self._bulk_order(plain, options, values, number, ids)
                        await bulk.add(self._seal_first(command).entries)
            except BaseException:
                await bulk.abandon()  # the error under way is the one that counts
                raise
            await bulk.drain()
        return bulk.result()

    async def _bulk_order(
        self,
        task: Task[Any, Any],
        options: Options,
        values: Mapping[str, Any],
        number: int,
        ids: Callable[[Mapping[str, Any]], str] | None,
    ) -> Enqueue:
        try:
            text = task.signature.encode((), values)
            if ids is not None:
                options = msgspec.structs.replace(options, id=check_token("job id", ids(values)))
            return await self._order(task, options, text, notify="")
        except InvalidError as error:
            error.args = (f"input {number}: {error} (the {number} before it are enqueued)",)
            raise

    async def job(self, job_id: str, *, queue: str | None = None) -> JobHandle[Any]:
        """Return a handle of a job that exists.

        Raises: JobNotFoundError; AmbiguousIdError when several queues have the id and `queue` is not given.
        """
        check_token("job id", job_id)
        if queue is not None:
            ref = JobRef(queue=check_token("queue", queue), job_id=job_id)
            events = await self.log.read_chain(self.names.chain(ref))
        else:
            events = await self.log.read_chain(self.names.chains_of_id(job_id))
        queues = sorted({stored.event.queue for stored in events})
        if not queues:
            raise JobNotFoundError(job_id)
        if len(queues) > 1:
            raise AmbiguousIdError(job_id, [f"{each}/{job_id}" for each in queues])
        return JobHandle(
            self._sources, JobRef(queue=queues[0], job_id=job_id), sequence=events[0].stream_sequence
        )

    async def cancel(self, job: JobRef, *, reason: str = "", by: str = "") -> Job:
        """End a waiting job at once; ask a running one to end, and return the job as it is after that.

        A running job ends a moment later, or when it is taken over from a dead worker: `wait` for it. One that completes before
        it hears of the request stays completed.

        Raises: JobNotFoundError, IllegalTransitionError when it has ended or was asked already, UnreachableError.
        """
        after = await self.execute(job, CancelJob(reason=reason), by=by)
        if after.state is JobState.RUNNING:
            self.hints.tell_cancel(job)
        return after

    async def retry(self, job: JobRef, *, reason: str = "", by: str = "") -> Job:
        """Queue a job that waits for a time without waiting any longer, or give a dead letter one more attempt.

        Raises: JobNotFoundError, IllegalTransitionError for a job that is neither, UnreachableError.
        """
        chain = await load(self.log, job)
        return await self.execute(job, retry_command(chain.job, job.job_id, reason), by=by)

    async def requeue(
        self, job_id: str, *, queue: str | None = None, by: str = "", **changes: Unpack[Changes]
    ) -> Job:
        """Give a dead letter new attempts, perhaps with another input; see `dead_letters.requeue` and `Requeuing`."""
        ref = (await self.job(job_id, queue=queue)).ref
        return (await requeue(self, ref, Requeuing(**changes), by=by)).job

    async def discard(self, job_id: str, *, queue: str | None = None, reason: str = "", by: str = "") -> Job:
        """Close a dead letter for good; all of it is kept. Raises: JobNotFoundError, IllegalTransitionError."""
        return await self.execute((await self.job(job_id, queue=queue)).ref, Discard(reason=reason), by=by)

    async def execute(self, ref: JobRef, command: Command, *, by: str = "") -> Job:
        """Decide a command on the newest view of a job, record what follows, and return the job after it.

        Raises: JobNotFoundError, IllegalTransitionError and its kin, UnreachableError.
        """
        chain = await transact(self.log, ref, command, lambda: self.stamp(by))
        assert chain.job is not None, "a command that was accepted left a job"
        return chain.job

    def lock(
        self, scope: str, lock_id: str, *, wait_s: float = WAIT_S_DEFAULT
    ) -> AbstractAsyncContextManager[HeldLock]:
        """Exclude everybody else who takes the same lock, for the length of the block.

        Waits `wait_s` seconds at the most while others hold it; 0 only tries. If this process loses its lease inside
        (it was frozen, or cut off from the server), the block is cancelled. What the lock guards should be handed
        `held.fencing_number` and refuse a smaller one than it has seen: nothing else stops a process that wakes.

        Raises: LockTimeoutError, which names the holder; LockReentryError for a task that holds it already; at the
            end of the block LockLostError if others may have had it meanwhile; InvalidError, UnreachableError,
            LedgerFullError.
        """
        return self.locks.hold(scope, lock_id, wait_s=wait_s)

    def events(self, **options: Unpack[EventOptions]) -> EventStream:
        """Return stored events to iterate, in stream order: a choice of them, from some point on, for ever or to the end.

        With `durable="billing"` they come from a subscription of that name instead, at least once: each is
        acknowledged when the next is asked for, and the next reader of that name goes on where this one stopped.

        Raises: InvalidError at once; while it is iterated CorruptLedgerError, UnreachableError, and as `subscription`.
        """
        return open_events(self, options)

    def subscription(self, name: str, **options: Unpack[SubscriptionOptions]) -> Subscription:
        """Return a durable subscription to open as a block, whose deliveries are acknowledged one by one, in any order.

        Raises: InvalidError at once; as a block SubscriptionMismatchError, SubscriptionNotFoundError, UnreachableError.
        """
        return open_subscription(self, name, options)

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """Return every durable subscription with its lag. Raises: LedgerError, UnreachableError."""
        return await list_subscriptions(self.inbox, self.names)

    async def delete_subscription(self, name: str) -> SubscriptionInfo:
        """Forget a subscription and its position; return it as it was. Raises: SubscriptionNotFoundError."""
        return await delete_subscription(self.inbox, self.names, name)


class _Bulk:
    """Appends on their way, in order, at most so many; lost races among them are jobs that exist."""

    def __init__(self, log: Log, in_flight_max: int, on_progress: Callable[[int], None] | None) -> None:
        self._log = log
        self._in_flight_max = in_flight_max
        self._on_progress = on_progress
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._created = 0
        self._existing = 0
        self._last_sequence = 0

    async def add(self, entries: Sequence[Any]) -> None:
        """Submit one job's first event, after making room."""
        if len(self._waiting) >= self._in_flight_max:
            await self._settle(self._in_flight_max // 2)
        self._waiting.append(self._log.submit(entries))

    async def _settle(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            try:
                sequence = await self._waiting.popleft()
            except WrongSequenceError:
                self._existing += 1
            else:
                self._created += 1
                self._last_sequence = max(self._last_sequence, sequence)
        if self._on_progress is not None:
            self._on_progress(self._created + self._existing)

    async def drain(self) -> None:
        """Wait for the rest."""
        try:
            await self._settle(len(self._waiting))
        except BaseException:
            await self.abandon()
            raise

    async def abandon(self) -> None:
        """Wait until nothing is in flight, whatever comes of it; cancel nothing, since what was sent may be stored."""
        rest = list(self._waiting)
        self._waiting.clear()
        await asyncio.gather(*rest, return_exceptions=True)

    def result(self) -> BulkResult:
        """Return the counts."""
        return BulkResult(created=self._created, existing=self._existing, last_sequence=self._last_sequence)


async def _numbered(
    inputs: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
) -> AsyncGenerator[tuple[int, Mapping[str, Any]], None]:
    """Count the inputs; a generator among them is closed with this one, so that its own `finally` runs in time."""
    number = 0
    try:
        if isinstance(inputs, AsyncIterable):
            async for values in inputs:
                yield number, values
                number += 1
        else:
            for values in inputs:
                yield number, values
                number += 1
    finally:
        if isinstance(inputs, AsyncGenerator):
            await inputs.aclose()
        elif isinstance(inputs, Generator):
            inputs.close()


def _unpack(task: Task[Any, Any] | TaskWithOptions[Any, Any]) -> tuple[Task[Any, Any], Options]:
    if isinstance(task, TaskWithOptions):
        return task.task, task.chosen
    try:
        return task, task.defaults
    except AttributeError as error:
        raise InvalidInputError(f"{task!r} is not a task: decorate the function with @task") from error


def new_job_id() -> str:
    """Return a UUIDv7: sortable by time of creation."""
    return str(uuid_utils.uuid7())


@contextlib.asynccontextmanager
async def connect(
    url: str | None = None, *, clock: Clock = SYSTEM_CLOCK, **settings: Any
) -> AsyncGenerator[Ledger, None]:
    """Open a ledger for the length of the block; `settings` are those of `LedgerConfig`.

    Streams that are missing are made; those that exist are checked and never changed.

    Raises: ConfigurationError, ServerUnreachableError, UnsupportedServerError, JetStreamDisabledError,
    StreamMismatchError, LedgerFullError.
    """
    try:
        config = LedgerConfig(**settings) if url is None else LedgerConfig(url=url, **settings)
    except TypeError as error:
        raise InvalidInputError(str(error)) from error
    names = Names(config.environment)
    connection = await open_connection(
        config.url,
        name=config.name,
        timeout_s=config.connect_timeout_s,
        inbox_prefix=config.inbox_prefix,
        options=config.nats_options,
    )
    publisher: Publisher | None = None
    try:
        inbox = Inbox(connection)
        await inbox.open()
        publisher = Publisher(connection, inbox)
        await ensure_streams(
            inbox,
            specifications(
                names,
                ledger_bytes_max=config.ledger_bytes_max,
                lease_s=config.lease_s,
                replicas=config.replicas,
            ),
        )
        ledger = await _assemble(connection, inbox, publisher, names, config, clock)
        try:
            yield ledger
        finally:
            await ledger.locks.close()
    finally:
        if publisher is not None:
            publisher.close()
        with contextlib.suppress(Exception):  # the block's own error is the one that counts
            await connection.close()


async def _assemble(  # noqa: PLR0917 - the parts of one client
    connection: Connection,
    inbox: Inbox,
    publisher: Publisher,
    names: Names,
    config: LedgerConfig,
    clock: Clock,
) -> Ledger:
    log = JetStreamLog(
        connection,
        inbox,
        publisher,
        names=names,
        commit=config.commit,
        append_timeout_s=config.append_timeout_s,
    )
    limits = {"inline_bytes_max": config.inline_bytes_max, "payload_bytes_max": config.payload_bytes_max}
    hints = Hints(connection, names)
    await hints.open()
    return Ledger(
        connection=connection,
        inbox=inbox,
        log=log,
        leases=JetStreamLeases(inbox, publisher, names),
        hints=hints,
        inputs=Payloads(connection, names.payloads_bucket, **limits),
        results=Payloads(connection, names.results_bucket, life_s=RESULTS_LIFE_S, **limits),
        config=config,
        clock=clock,
    )
