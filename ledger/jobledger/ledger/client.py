"""`Ledger`: all acts of an application on jobs, except running them."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, Unpack, overload

import msgspec

from jobledger.ledger.access.current_authority import ACTING_FOR
from jobledger.ledger.additions.bulk import BulkResult
from jobledger.ledger.children import Children, Parent
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.dead_letters import Changes, RequeueOptions, requeue
from jobledger.ledger.enqueuer import Enqueuer, unpack
from jobledger.ledger.event_stream import EventOptions, EventStream, open_events, open_subscription
from jobledger.ledger.handle import JobHandle, ReadsResults, execute
from jobledger.ledger.held_lock import HeldLock
from jobledger.ledger.limits.definitions import CodeLimits
from jobledger.ledger.locks import WAIT_S_DEFAULT, Locks
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Command, Discard, Note, Stamp
from jobledger.ledger.model.errors import AmbiguousIdError, InvalidInputError, JobNotFoundError
from jobledger.ledger.model.forms import FORM
from jobledger.ledger.model.identity import new_identity
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.queue_pause import PauseQueue, QueueCommand, QueueState, ResumeQueue
from jobledger.ledger.model.seals import KeyHolder, check_owner, seal_word
from jobledger.ledger.model.subjects import JobRef, Names, check_token
from jobledger.ledger.nats.attempt_logs import JobLogs, read_logs
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.hints import Hints
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.ledger.nats.leases import JetStreamLeases
from jobledger.ledger.nats.lock_hints import NatsLockHints
from jobledger.ledger.nats.pauses import bring_in_line, queue_state
from jobledger.ledger.nats.payloads import Payloads
from jobledger.ledger.nats.task_book import TaskEntry, find_task, task_names
from jobledger.ledger.outcome import Wish
from jobledger.ledger.patience import Patience
from jobledger.ledger.protocols import AnyJob, job_name
from jobledger.ledger.reader_leases import ReaderLeases
from jobledger.ledger.schedules.verbs import ScheduleVerbs
from jobledger.ledger.sent_signals import AnySignal, give_signal
from jobledger.ledger.subscriptions.consumers import SubscriptionInfo, delete_subscription, list_subscriptions
from jobledger.ledger.subscriptions.options import SubscriptionOptions
from jobledger.ledger.subscriptions.subscription import Subscription
from jobledger.ledger.tasks import Result, Task, TaskWithInput, TaskWithOptions
from jobledger.ledger.throttle import Throttle, waiting_jobs
from jobledger.ledger.tracing import Tracing

if TYPE_CHECKING:
    from jobledger.ledger.graphs.graph import Graph
    from jobledger.ledger.graphs.verbs import GraphVerbs
    from jobledger.ledger.named.book import AnnouncedTasks
    from jobledger.ledger.named.verbs import NamedJob, NamedMany, NamedOptions
    from jobledger.ledger.reruns.plans import Rerun
    from jobledger.ledger.webhooks.receiver import BodyStore, Outcome
    from jobledger.ledger.webhooks.verbs import RouteVerbs

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_MICROSECOND: Final = timedelta(microseconds=1)
_CLOCK_STEP: Final = timedelta(seconds=1)


class Doable(Protocol[T_co]):
    """An act on a ledger, such as each verb of `jobledger.admin.verbs`."""

    async def perform_on(self, ledger: Ledger, *, by: str, projection: Path | None) -> T_co:
        """Perform the act, in the name of `by`. Raises: the errors that the act names."""
        ...


class _Ticks:
    """The time of one client's newest stamp, so that no two are equal; a clock that is set back is followed."""

    def __init__(self) -> None:
        self.last = datetime.min.replace(tzinfo=UTC)


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
        keys: KeyHolder,
        config: LedgerConfig,
        clock: Clock,
    ) -> None:
        self.connection = connection  #: for intake and doctor, not for applications
        self.inbox = inbox
        self.log: Log = log
        self.leases = leases
        self.hints = hints
        self.inputs = inputs
        self.results = results
        self.keys = keys  #: holder of the keys of owners
        self.patience = Patience(connection, config.request_timeout_s)
        # For code of a task, which waits longer, since giving up costs an attempt. One object for all attempts: see
        # `Deadlines`.
        self._patience_of_tasks = Patience(connection, config.append_timeout_s)
        self.config = config
        self.clock = clock
        self.form = FORM  #: the highest form of events that it appends; see `learn_form`
        self.identity = new_identity()  #: the name of this client in the events it appends
        self.tracing = Tracing() if config.tracing else None
        self._ticks = _Ticks()
        self._children: Children | None = None
        self.throttle = Throttle(
            connection,
            log,
            functools.partial(waiting_jobs, inbox, log.names),
            room_timeout_s=config.room_timeout_s,
        )
        self.code_limits = CodeLimits(self.log, self.stamp)
        self._enqueuer = Enqueuer(self, config=config, clock=clock, tracing=self.tracing)
        lock_hints = NatsLockHints(connection, self.names)
        self.schedules = ScheduleVerbs(self, self._enqueuer)
        self.locks = Locks(self.log, leases, lock_hints, clock, self.stamp, outage=connection.outage)
        self.reader_leases = ReaderLeases(leases, clock, connection.outage)

    @property
    def names(self) -> Names:
        """Subjects and streams of this environment."""
        return self.log.names

    async def learn_form(self) -> int:
        """Ask the server for the ledger's form, which only ever rises, and append up to it from now on.

        `connect` does so; a worker asks again while the form is below its own. Raises: UnreachableError,
        LedgerNotFoundError.
        """
        self.form = min(FORM, (await self.log.head()).form)
        return self.form

    def stamp(self, by: str = "") -> Stamp:
        """Return author and time for events decided now; no two stamps of a client are equal.

        A client recognises its own append by the event's bytes, so two decisions within one tick of the clock must
        not make equal events.
        """
        # Written out, without further calls, for speed: every event of every job is stamped.
        ticks, at = self._ticks, self.clock.now()
        if at <= ticks.last < at + _CLOCK_STEP:
            at = ticks.last + _MICROSECOND
        ticks.last = at
        trace = "" if self.tracing is None else self.tracing.current()
        authority = ACTING_FOR.get()
        if authority is not None:
            by = authority.name
        if self._children is None:
            return Stamp(at=at, by=by or self.identity, trace=trace, authority=authority, form=self.form)
        parent, by = self._children.parent, by or self.identity
        trace = trace or parent.trace
        return Stamp(at=at, by=by, trace=trace, causation=parent.job_id, authority=authority, form=self.form)

    def on_behalf_of(self, parent: Parent) -> Ledger:
        """Return this client for the code of one attempt of a job; see `Context.ledger`."""
        own = copy.copy(self)
        own._work_for(Children(parent))  # noqa: SLF001 - a Ledger, too
        return own

    def _work_for(self, children: Children) -> None:
        self.identity = children.parent.worker
        self.patience = self._patience_of_tasks
        self._children = children
        self._enqueuer = Enqueuer(
            self, config=self.config, clock=self.clock, tracing=self.tracing, children=children
        )

    async def enqueue(
        self,
        task: Task[P, Result | Wish] | TaskWithOptions[P, Result | Wish],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobHandle[Result]:
        """Add one job; when this returns, the job is in the ledger.

        If the queue has a job of this id, that job is returned, unchanged, with `created=False`.

        Raises: InputMismatchError where that job has another input or task, unless the option `on_other_input` is "keep";
            InvalidInputError, TaskDefinitionError, PayloadTooLargeError, LedgerFullError; ServerUnreachableError if
            nothing was sent; AppendOutcomeUnknownError if no answer came: another try with its `job_id` is safe.
        """
        return await self._enqueuer.one(task, *args, **kwargs)

    async def enqueue_many(
        self,
        task: Task[..., Any] | TaskWithOptions[..., Any],
        inputs: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        ids: Callable[[Mapping[str, Any]], str] | None = None,
        on_progress: Callable[[int], None] | None = None,
        batch: str | None = None,
        on_end: Task[..., Any] | TaskWithOptions[..., Any] | None = None,
    ) -> BulkResult:
        """Add a job for each input (keyword arguments), as a stream: memory stays bounded whatever its length.

        `ids` derives each job's id from its input, so that another try adds only missing jobs. `on_progress` gets the
        number of finished inputs now and then. With `batch` ids follow from the places in the batch; `on_end` is
        enqueued when all have ended.

        Raises: as `enqueue`; the text names the input. The jobs before it are in the ledger. InputMismatchError
            comes when all other inputs are in the ledger, and has the other mismatched inputs in `others`.
        """
        self.connection.require_here()
        if batch is not None or on_end is not None:
            from jobledger.ledger.graphs.batches import enqueue_batch  # noqa: PLC0415 - others need nothing of it

            return await enqueue_batch(self, self._enqueuer, (batch, on_end), task, inputs, ids, on_progress)
        return await self._enqueuer.many(task, inputs, ids=ids, on_progress=on_progress)

    async def enqueue_named(
        self,
        task: str,
        input: object = msgspec.Raw(b"{}"),  # noqa: A002 - the field's word, and a constant
        **how: Unpack[NamedOptions],
    ) -> JobHandle[Any]:
        """Add one job by the name of its task, as workers announced it; `how` is in `NamedOptions`.

        `input`: the arguments as JSON text (bytes or `msgspec.Raw`), which is stored unchanged, or as a value. The
        announced schema checks the part of it that `additions.schemas` describes; the worker's code checks all of it.

        Raises: TaskNotFoundError with similar names for a task that no worker ever announced; InvalidInputError also
        for a unique task whose key only its code can make; otherwise as `enqueue`.
        """
        from jobledger.ledger.named.verbs import enqueue_named  # noqa: PLC0415 - others need nothing of it

        return await enqueue_named(self.patience, self.announced, self._enqueuer, task, input, **how)

    async def enqueue_named_many(
        self,
        jobs: Iterable[NamedJob] | AsyncIterable[NamedJob],
        **how: Unpack[NamedMany],
    ) -> BulkResult:
        """Add many jobs by the names of their tasks, as a stream: memory stays bounded; `how` is in `NamedMany`.

        Raises: as `enqueue_named`; the text names the job by its number, from 0. The jobs before it are in the ledger.
        """
        from jobledger.ledger.named.verbs import enqueue_named_many  # noqa: PLC0415 - as `enqueue_named`

        self.connection.require_here()
        return await enqueue_named_many(self.patience, self.announced, self._enqueuer, jobs, **how)

    @property
    def announced(self) -> AnnouncedTasks:
        """The tasks that workers ever announced."""
        return self._announced

    @functools.cached_property
    def _announced(self) -> AnnouncedTasks:
        from jobledger.ledger.named.book import AnnouncedTasks  # noqa: PLC0415 - as `enqueue_named`

        return AnnouncedTasks(self.find_task, self.task_names, self.clock)

    async def find_task(self, name: str) -> TaskEntry | None:
        """Return the newest announcement of a task by a worker; None: there is none. Raises: UnreachableError."""
        return await find_task(self.inbox, self.names, name)

    async def task_names(self) -> list[str]:
        """Return the names of all tasks that a worker ever announced, sorted. Raises: UnreachableError."""
        return await task_names(self.inbox, self.names)

    async def read_logs(self, ref: JobRef, *, attempt: int | None = None, step: str | None = None) -> JobLogs:
        """Return the logs of a job's attempts; see `JobHandle.logs`."""
        return await read_logs(self.connection, self.inbox, self.names, ref, attempt=attempt, step=step)

    @property
    def routes(self) -> RouteVerbs:
        """Routes: addresses to which others send webhooks, with the rules that make jobs of these."""
        from jobledger.ledger.webhooks.verbs import RouteVerbs  # noqa: PLC0415 - as `enqueue_named`

        return RouteVerbs(self, self.announced, self._enqueuer, self.bodies)

    @property
    def graphs(self) -> GraphVerbs:
        """Graphs that are stored under their names, and runs of them."""
        from jobledger.ledger.graphs.verbs import GraphVerbs  # noqa: PLC0415 - as `enqueue_named`

        return GraphVerbs(self, self.announced, self._enqueuer)

    @functools.cached_property
    def bodies(self) -> BodyStore:
        """The store of bodies of webhooks."""
        from jobledger.ledger.webhooks.bodies import Bodies  # noqa: PLC0415 - as `enqueue_named`

        config = self.config
        return Bodies(
            self.connection,
            self.inbox,
            self.names,
            self.clock,
            ledger_bytes_max=config.ledger_bytes_max,
            replicas=config.replicas,
        )

    async def do(self, verb: Doable[T], *, by: str = "", projection: Path | None = None) -> T:
        """Perform a verb of `jobledger.admin.verbs`, as the command line does, and return its answer.

        `projection`: the file of the projection, for verbs that read one; it is created if missing, and brought up to
        date.

        Raises: the errors that the verb names.
        """
        return await verb.perform_on(self, by=by, projection=projection)

    async def emit(self, name: str, data: Any, *, by: str = "", id: str | None = None) -> Outcome:  # noqa: A002
        """Hand data to a route as a delivery: `received` and the jobs of its rules are stored together, or not at all.

        `data`: a JSON value; rules see it as the body of a request without headers. `id` names the delivery: a
        repetition makes nothing, and returns the jobs of the first call, with `repeated=True`.

        Raises: RouteNotFoundError, InvalidInputError, PayloadTooLargeError, LedgerFullError; UnreachableError, after
        which the same call with an `id` is safe.
        """
        return await self.routes.emit(name, data, by=by, id=id)

    async def run_graph(
        self,
        graph: Graph,
        *,
        id: str | None = None,  # noqa: A002 - the public name of the option
        by: str = "",
        owner: str = "",
    ) -> JobHandle[dict[str, Any]]:
        """Begin a graph as one job, whose result has those of the nodes by label.

        `owner`: whose data it and its nodes hold; "": as for any job. Raises: as `enqueue`.
        """
        owner = check_owner(owner) if owner else self._enqueuer.owner
        task, values = await graph.as_task(self, owner=owner)
        options = task.options(id=id, by=by, on_other_input="keep", owner=owner or None)
        handle = await self._enqueuer.one(options, **values)
        if not handle.created:
            from jobledger.ledger.graphs.graph import require_same_graph  # noqa: PLC0415 - others need nothing of it

            await require_same_graph(self, handle.ref, graph.spec(owner=owner))
        return handle

    @overload
    async def job(
        self,
        job: AnyJob,
        *,
        task: Task[..., Result | Wish] | TaskWithOptions[..., Result | Wish],
        queue: str | None = None,
    ) -> JobHandle[Result]: ...
    @overload
    async def job(self, job: AnyJob, *, task: None = None, queue: str | None = None) -> JobHandle[Any]: ...
    async def job(
        self,
        job: AnyJob,
        *,
        task: Task[..., Any] | TaskWithOptions[..., Any] | None = None,
        queue: str | None = None,
    ) -> JobHandle[Any]:
        """Return a handle of an existing job; with its `task` the handle returns the result in the task's return type.

        Raises: JobNotFoundError; InvalidInputError when the job runs another task; AmbiguousIdError when several
        queues have the id and `queue` is not given.
        """
        plain = None if task is None else unpack(task)[0]
        job_id, queue = job_name(job, queue)
        events = await self.patience.read(lambda: self.log.read_chain(self.names.chains(job_id, queue)))
        queues = sorted({stored.event.queue for stored in events})
        if not queues:
            raise JobNotFoundError(job_id)
        if len(queues) > 1:
            raise AmbiguousIdError(job_id, [f"{each}/{job_id}" for each in queues])
        first = events[0]
        if plain is not None and first.event.task != plain.name:
            raise InvalidInputError(f"job {job_id} runs task {first.event.task}, not {plain.name}")
        return self.handle_of(
            JobRef(queue=queues[0], job_id=job_id),
            sequence=first.stream_sequence,
            reader=None if plain is None else plain.signature,
        )

    def handle_of(
        self, ref: JobRef, *, created: bool = False, sequence: int = 0, reader: ReadsResults | None = None
    ) -> JobHandle[Any]:
        """Return a handle of a job without checking that it exists."""
        return JobHandle(self, ref, created=created, sequence=sequence, reader=reader)

    async def _named(self, job: AnyJob, queue: str | None) -> JobHandle[Any]:
        """Return a handle; only for an id without a queue the job is looked up."""
        job_id, queue = job_name(job, queue)
        return await self.job(job_id) if queue is None else self.handle_of(JobRef(queue=queue, job_id=job_id))

    async def cancel(self, job: AnyJob, *, queue: str | None = None, reason: str = "", by: str = "") -> Job:
        """End a waiting job at once; ask a running one to end. See `JobHandle.cancel`."""
        return await (await self._named(job, queue)).cancel(reason=reason, by=by)

    async def retry(self, job: AnyJob, *, queue: str | None = None, reason: str = "", by: str = "") -> Job:
        """Queue a job now that waits for a time, or give a dead letter one more attempt. See `JobHandle.retry`."""
        return await (await self._named(job, queue)).retry(reason=reason, by=by)

    async def reschedule(
        self,
        job: AnyJob,
        *,
        run_at: datetime | None = None,
        delay_s: float | None = None,
        queue: str | None = None,
        reason: str = "",
        by: str = "",
    ) -> Job:
        """Change the time of a job that waits for one. See `JobHandle.reschedule`."""
        handle = await self._named(job, queue)
        return await handle.reschedule(run_at=run_at, delay_s=delay_s, reason=reason, by=by)

    async def requeue(
        self, job: AnyJob, *, queue: str | None = None, by: str = "", **changes: Unpack[Changes]
    ) -> Job:
        """Give a dead letter new attempts, perhaps with another input; see `dead_letters.requeue` and `RequeueOptions`."""
        ref = (await self._named(job, queue)).ref
        how = RequeueOptions(**changes)
        done = await self.patience.append(
            lambda: requeue(self, ref, how, by=by), job_id=ref.job_id, doing="was requeued"
        )
        return done.job

    async def discard(self, job: AnyJob, *, queue: str | None = None, reason: str = "", by: str = "") -> Job:
        """Close a dead letter for good; all of it is kept. Raises: JobNotFoundError, IllegalTransitionError."""
        return await self.execute((await self._named(job, queue)).ref, Discard(reason=reason), by=by)

    async def note(self, job: AnyJob, text: str, *, queue: str | None = None, by: str = "") -> Job:
        """Keep a note about a job, whatever its state: at most 4,000 characters; it changes nothing.

        Raises: JobNotFoundError, AmbiguousIdError, InvalidInputError, LedgerFullError, UnreachableError; ErasedError.
        """
        ref, note = (await self._named(job, queue)).ref, Note(text=text)
        known = (await self.patience.read(lambda: load(self.log, ref))).job
        if known is not None and known.order.key:
            key = await self.patience.read(lambda: self.keys.key(known.order.key))
            note = Note(text=text, sealed=seal_word(key, text))
        return await self.execute(ref, note, by=by)

    async def signal(
        self,
        job: AnyJob,
        signal: AnySignal[T],
        value: T,
        /,
        *,
        id: str = "",  # noqa: A002 - the public name of the option
        queue: str | None = None,
        by: str = "",
        start: TaskWithInput | None = None,
    ) -> bool:
        """Send a run a signal, which is kept until the run waits for it; return False if the run had this `id` before.

        `start`: the run to enqueue first if the queue has no job of that id, such as `order.with_input("77", cents=5)`.

        Raises: InvalidInputError for a value that does not fit the type of `signal`, or of a wait of the run's
            workflow that workers announced; JobNotFoundError, AmbiguousIdError, UnknownSignalError if the run has
            ended, RefusedError if the run is one of the ledger's own, UnreachableError. After an UnreachableError the
            signal may have been stored or not: give the same one again, with the same `id`.
        """
        if start is None:
            return await give_signal(self, (await self._named(job, queue)).ref, signal, value, id=id, by=by)
        ref, begin = self._enqueuer.beginning(start, job, queue, by)
        return await give_signal(self, ref, signal, value, id=id, by=by, starts=start.task, begin=begin)

    async def rerun(
        self,
        run: AnyJob,
        *,
        from_step: str | None = None,
        failed: bool = False,
        queue: str | None = None,
        **how: Unpack[Rerun],
    ) -> JobHandle[Any]:
        """Begin a run again as a new job that copies steps of an earlier run; the options are in `Rerun`.

        With `from_step` it copies the steps before that one. With `failed=True`, for a run that has failed or was
        cancelled, it copies all completed steps and children.

        Raises: JobNotFoundError, AmbiguousIdError, InvalidInputError for what cannot be begun with, RefusedError for
            copies of what was undone or archived, and of what failed where the run may go on; ErasedError; UnreachableError,
            after which the same with an `id` is safe.
        """
        from jobledger.ledger.reruns.plans import rerun  # noqa: PLC0415 - others need nothing of it

        ref = (await self._named(run, queue)).ref
        return await rerun(self, self._enqueuer, ref, from_step=from_step, failed=failed, **how)

    async def execute(self, ref: JobRef, command: Command, *, by: str = "") -> Job:
        """Decide a command on a job and record its events; see `handle.execute`."""
        return await execute(self, ref, command, by=by)

    async def pause_queue(
        self,
        queue: str,
        *,
        until: datetime | None = None,
        reason: str = "",
        interrupt: bool = False,
        by: str = "",
    ) -> QueueState:
        """Stop giving workers jobs of a queue until it is resumed or a time comes; return the queue after that.

        Jobs still come in, and timers go on. Attempts that run go on to their end; with `interrupt` they are given back.
        If the queue is paused already, this pause replaces the old one.

        Raises: InvalidTokenError, InvalidInputError for a time that is past or has no zone, LedgerFullError;
            ServerUnreachableError, after which doing the same again is safe.
        """
        return await self._change_queue(
            queue, PauseQueue(until=until, reason=reason, interrupt=interrupt), by
        )

    async def resume_queue(self, queue: str, *, reason: str = "", by: str = "") -> QueueState:
        """Give workers the jobs of a paused queue again; return the queue as it is then.

        Raises: InvalidTokenError, RefusedError for a queue that is not paused, LedgerFullError, ServerUnreachableError.
        """
        return await self._change_queue(queue, ResumeQueue(reason=reason), by)

    async def queue_state(self, queue: str) -> QueueState:
        """Return whether a queue is paused, by whom, until when and why. Raises: InvalidTokenError, UnreachableError."""
        check_token("queue", queue)
        return await self.patience.read(lambda: queue_state(self.log, queue))

    async def _change_queue(self, queue: str, command: QueueCommand, by: str) -> QueueState:
        from jobledger.ledger.queue_pauses import change_queue  # noqa: PLC0415 - as `enqueue_batch`

        return await change_queue(self, queue, command, by=by)

    async def tell_consumers(self, queue: str, known: QueueState | None = None) -> QueueState:
        """Apply a queue's state in the ledger to the server's consumers; see `pauses.bring_in_line`."""
        return await bring_in_line(self.inbox, self.log, queue, known)

    def lock(
        self, scope: str, lock_id: str, *, wait_s: float = WAIT_S_DEFAULT
    ) -> AbstractAsyncContextManager[HeldLock]:
        """Exclude everybody else who takes the same lock, for the length of the block.

        Waits at most `wait_s` seconds while others hold it; 0 tries once. If this process loses its lease inside (it
        was frozen, or cut off from the server), the block is cancelled. Pass `held.fencing_number` to the guarded
        resource, which should refuse a smaller number than it has seen: nothing else stops a process that wakes up
        late.

        Raises: LockTimeoutError, which names the holder; LockReentryError for a task that holds it already; at the
            end of the block LockLostError if others may have had it meanwhile; InvalidError, UnreachableError,
            LedgerFullError.
        """
        return self.locks.hold(scope, lock_id, wait_s=wait_s)

    def events(self, **options: Unpack[EventOptions]) -> EventStream:
        """Return an iterator of stored events, in stream order: all or some, from any point on, to the end or for ever.

        With `durable="billing"` they come from a subscription of that name instead, at least once: each is
        acknowledged when the next one is asked for, and the next reader of that name goes on where this one stopped.

        Raises: InvalidError at once; during the iteration CorruptLedgerError, UnreachableError, and as `subscription`.
        """
        return open_events(self, options)

    def subscription(self, name: str, **options: Unpack[SubscriptionOptions]) -> Subscription:
        """Return a durable subscription to open as a block, whose deliveries are acknowledged one by one, in any order.

        Raises: InvalidError at once; as a block SubscriptionMismatchError, SubscriptionNotFoundError, UnreachableError.
        """
        return open_subscription(self, name, options)

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """Return every durable subscription with its lag. Raises: LedgerError, UnreachableError."""
        self.connection.require_here()
        return await list_subscriptions(self.inbox, self.names)

    async def delete_subscription(self, name: str) -> SubscriptionInfo:
        """Delete a subscription and its position; return its last state. Raises: SubscriptionNotFoundError."""
        self.connection.require_here()
        return await delete_subscription(self.inbox, self.names, name)
