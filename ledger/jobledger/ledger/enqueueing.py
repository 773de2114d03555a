"""Adding jobs, one or a stream of them: input checked and put away, first event decided, appended.

`Ledger.enqueue` and `Ledger.enqueue_many` are the verbs; what they do is here. What becomes of the job then is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable, Mapping
from datetime import datetime
from typing import Any, ParamSpec, cast

import msgspec
import uuid_utils

from jobledger.ledger.children import Children
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.limits.keys import Keyed, with_limits
from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, Linked, link, retry_raced
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    InputMismatchError,
    InvalidError,
    InvalidInputError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import Member, Order, order_at_first
from jobledger.ledger.model.runs.orders import BATCH_STEP, BUILT_IN_QUEUE, ITEMS_MAX, Callback, child_id
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.options import Options
from jobledger.ledger.outcome import moment_of
from jobledger.ledger.parts import AnyJob, Client, job_name
from jobledger.ledger.schedules.in_code import AnyTask
from jobledger.ledger.tasks import Task, TaskWithInput, TaskWithOptions
from jobledger.ledger.tracing import UNTRACED, Tracing
from jobledger.ledger.unique.enqueueing import UniqueJobs
from jobledger.ledger.unique.keys import Wish, wish_for
from jobledger.ledger.unique.rule import Unique

P = ParamSpec("P")


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `enqueue_many` did."""

    created: int
    existing: int  #: ids that were in the queue already
    last_sequence: int  #: highest stream sequence among the created; 0 when none was


class Enqueuer:
    """Adds jobs for one client."""

    def __init__(
        self,
        client: Client,
        *,
        config: LedgerConfig,
        clock: Clock,
        tracing: Tracing | None,
        children: Children | None = None,
    ) -> None:
        """`children`: what is added here is made by a job; None for any other client."""
        self._client = client
        self._children = children
        self._log = client.log
        self._config = config
        self._clock = clock
        self._tracing = tracing
        self._unique = UniqueJobs(self._log, client.stamp, self.begin)

    async def one(
        self, task: Task[P, Any] | TaskWithOptions[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[Any]:
        """Add one job; see `Ledger.enqueue`."""
        plain, options = unpack(task)
        text = plain.signature.encode(args, kwargs)
        client, patience = self._client, self._client.patience
        notify = client.hints.inbox
        job_id = self._job_id(plain, options)  # before anything is awaited: ids follow the order of the calls
        order = functools.partial(self._order, plain, options, job_id, text, notify=notify)
        is_small = client.inputs.fits_inline(text, what=plain.signature.what)
        # A large input is stored first, and so is the definition of a limit that the code declares.
        needs_server = (
            not is_small or options.declared or options.declared_queue is not None or plain.callbacks
        )
        command = await (patience.read(order) if needs_server else order())
        if options.unique is not None:
            wish = self._wish(plain, options, options.unique, command, text)
            return await self._one_of_its_kind(plain, wish)
        with self._enqueuing(plain, options.queue, job_id):
            sequence, created = await patience.append(
                lambda: self.begin(command, options.by), job_id=job_id, doing="was enqueued"
            )
        if not created and options.id is None:
            await patience.read(lambda: self._require_same(plain, command))
        return JobHandle(client, command.ref, created=created, sequence=sequence, reader=plain.signature)

    def beginning(
        self, start: TaskWithInput, job: AnyJob, queue: str | None, by: str = ""
    ) -> tuple[JobRef, Callable[[], Awaitable[JobHandle[Any]]]]:
        """Return the name of the job that is to be made where it is missing, and what makes it.

        Raises: InvalidInputError for a name that is not that job's, for a job that is unique, and for a task alone.
        """
        if not isinstance(cast("object", start), TaskWithInput):
            raise InvalidInputError(
                f"start={start!r} has no input: give what with_input(...) of the task returns"
            )
        job_id, queue = job_name(job, queue)
        if queue not in (None, start.queue):
            raise InvalidInputError(f"job {job_id} would be in queue {start.queue}, not in {queue}")
        task = start.named(job_id, by)
        ref = JobRef(queue=start.queue, job_id=job_id)
        return ref, lambda: self.one(task, *start.args, **start.kwargs)

    async def like(self, task: AnyTask, values: Mapping[str, Any]) -> Enqueue:
        """Return what would enqueue a job of this input now, for whoever declares jobs to come; stores a large input.

        Raises: InvalidInputError, PayloadTooLargeError, LedgerFullError, UnreachableError.
        """
        plain, options = unpack(cast("Task[..., Any]", task))
        text = plain.signature.encode((), values)
        return await self._client.patience.read(lambda: self._order(plain, options, "like", text, notify=""))

    def _wish(
        self, task: Task[Any, Any], options: Options, unique: Unique, command: Enqueue, text: bytes
    ) -> Wish:
        debounce_s, max_wait_s = options.debounce_s, options.max_wait_s
        return wish_for(
            task.signature,
            unique,
            command,
            text,
            now=self._clock.now(),
            debounce_s=debounce_s,
            max_wait_s=max_wait_s,
            by=options.by,
        )

    async def _one_of_its_kind(self, task: Task[Any, Any], wish: Wish) -> JobHandle[Any]:
        job_id = wish.command.ref.job_id
        with self._enqueuing(task, wish.command.ref.queue, job_id):
            ref, sequence, created = await self._client.patience.append(
                lambda: self._unique.enqueue(wish), job_id=job_id, doing="was enqueued"
            )
        return JobHandle(self._client, ref, created=created, sequence=sequence, reader=task.signature)

    async def many(
        self,
        task: Task[..., Any] | TaskWithOptions[..., Any],
        inputs: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        ids: Callable[[Mapping[str, Any]], str] | None,
        on_progress: Callable[[int], None] | None,
        batch: str = "",
        batch_max: int | None = None,
    ) -> BulkResult:
        """Add a job for each input; see `Ledger.enqueue_many`. `batch_max`: how many a batch has that is closed."""
        plain, options = unpack(task)
        if options.id is not None:
            message = "enqueue_many cannot give one id to many jobs: pass ids=, a function of the input"
            raise InvalidInputError(message)
        if options.unique is not None:
            _refuse_in_bulk(plain, options.unique, ids)

        async def begin_again(command: Enqueue) -> tuple[int, bool]:
            sequence, created = await self._begin_again(command, options.by)
            if not created and ids is None and options.unique is None and not batch:
                await self._require_same(plain, command)
            return sequence, created

        bulk = _Bulk(self._config.enqueue_in_flight_max, begin_again, on_progress)
        with self._enqueuing(plain, options.queue):
            try:
                async with contextlib.aclosing(_numbered(inputs)) as numbered:
                    async for number, values in numbered:
                        command = await self._bulk_order(plain, options, values, number, ids)
                        if batch:
                            command = _of_batch(command, batch, number, batch_max)
                        if bulk.is_full:
                            await bulk.make_room()
                        bulk.add(command, self._log.submit(self._seal_first(command, by=options.by).entries))
            except InvalidError:  # it says that those before it are enqueued: unless one of them could not be
                await bulk.drain()
                raise
            except BaseException:
                await bulk.abandon()  # the error under way is the one that counts
                raise
            await bulk.drain()
        return bulk.result()

    def _enqueuing(
        self, task: Task[Any, Any], queue: str, job_id: str = ""
    ) -> contextlib.AbstractContextManager[object]:
        return UNTRACED if self._tracing is None else self._tracing.enqueuing(task.name, queue, job_id)

    def _job_id(self, task: Task[Any, Any], options: Options) -> str:
        if options.id is not None:
            return options.id
        return self.new_id(task.name)

    def new_id(self, task: str) -> str:
        """Return an id for a job of a task; in the code of a job it is the same in every attempt."""
        return new_job_id() if self._children is None else self._children.next_id(task)

    async def _order(
        self, task: Task[Any, Any], options: Options, job_id: str, text: bytes, *, notify: str
    ) -> Enqueue:
        value, reference = await self._client.inputs.put(text, what=task.signature.what)
        order = Order(
            input=value,
            input_ref=reference,
            priority=options.priority,
            max_attempts=options.max_attempts,
            timeout_s=options.timeout_s,
            notify=notify,
            tenant=options.tenant,
            limits=options.limits,
            correlation=options.correlation,
            metadata=options.metadata,
            version=task.version,
            on_end=await self._callbacks(task, options) if task.callbacks else (),
            deadline_s=task.deadline_s,
        )
        if self._children is not None:
            order = self._children.inherit(order)
        if options.declared or options.declared_queue is not None:
            order = await self._limited(task, options, order, text)
        return Enqueue(
            ref=JobRef(queue=options.queue, job_id=job_id),
            task=task.name,
            run_at=self._due(options),
            order=order,
        )

    async def _callbacks(self, task: Task[Any, Any], options: Options) -> tuple[Callback, ...]:
        """Return what a run's end is told to, after the limits that the code of those tasks defines are in the ledger."""
        from jobledger.ledger.runs.nodes import callbacks_of  # noqa: PLC0415 - others need nothing of it

        for _, callback in task.callbacks:
            plain, chosen = callback.unpacked
            if chosen.limits_in_code:
                await self._client.code_limits.ensure(chosen.limits_in_code, plain.name, chosen.queue)
        return callbacks_of(task, options.tenant)

    async def _limited(self, task: Task[Any, Any], options: Options, order: Order, text: bytes) -> Order:
        """Return the order with its limits and their keys, after the code's definitions of them are in the ledger."""
        arguments = functools.cache(lambda: task.signature.decode(text))
        job = Keyed(task.name, options.queue, order, arguments)
        found = with_limits(job, options.declared, options.declared_queue)
        await self._client.code_limits.ensure(options.limits_in_code, task.name, options.queue)
        return found

    async def _require_same(self, task: Task[Any, Any], command: Enqueue) -> None:
        """Compare a job of an id that was made here with the one that has it already.

        Raises: InputMismatchError; UnreachableError where the server cannot show that job yet.
        """
        if self._children is None:
            return  # an id that nobody has had
        events = await self._log.read_chain(self._log.names.chain(command.ref))
        if not events:  # a replica that lags
            raise UnreachableError(f"job {command.ref.job_id} exists and cannot be read yet: try again")
        first, ref = events[0].event, command.ref
        differing = ["task"]
        if first.task == command.task:
            differing = await self._differing(task, order_at_first(first), command.order)
        if differing:
            raise InputMismatchError(ref.job_id, ref.queue, self._children.parent.job_id, differing)

    async def _differing(self, task: Task[Any, Any], stored: Order, given: Order) -> list[str]:
        """Return the names of the arguments that differ, as the task would get them."""
        before, now = [
            await self._client.inputs.get(order.input, order.input_ref) for order in (stored, given)
        ]
        if before == now:
            return []
        try:
            old, new = task.signature.decode(before), task.signature.decode(now)
        except InvalidInputError:  # of another version of the task
            old, new = _plain(before), _plain(now)
        return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))

    def _due(self, options: Options) -> datetime | None:
        """Return when the job may run first; None: at once."""
        delay_s = options.delay_s if options.debounce_s is None else options.debounce_s
        return options.run_at if delay_s is None else moment_of(None, delay_s, self._clock.now())

    async def begin(self, command: Enqueue, by: str = "") -> tuple[int, bool]:
        """Append the first event of a job; one that exists stays as it is. Return its sequence, and whether it is new.

        Raises: LedgerFullError, UnreachableError.
        """
        try:
            sequence = await self._log.append(self._seal_first(command, by=by).entries)
        except WrongSequenceError:
            return await self._begin_again(command, by)
        return sequence, True

    async def _begin_again(self, command: Enqueue, by: str = "") -> tuple[int, bool]:
        """Find the job that has the id; or begin it behind what somebody stored under its subjects and is no event."""

        async def attempt() -> tuple[int, bool]:
            existing = await self._log.read_chain(self._log.names.chain(command.ref))
            # A replica that lags may answer that it has nothing yet.
            if existing or not existing.last_sequence:
                return (existing[0].stream_sequence if existing else 0), False
            linked = self._seal_first(command, JobView(last_sequence=existing.last_sequence), by)
            return await self._log.append(linked.entries), True

        return await retry_raced(attempt)

    def _seal_first(self, command: Enqueue, chain: JobView = EMPTY_CHAIN, by: str = "") -> Linked:
        return link(chain, decide(None, command, self._client.stamp(by)), self._log.names)

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
            job_id = self._job_id(task, options) if ids is None else check_token("job id", ids(values))
            command = await self._order(task, options, job_id, text, notify="")
            if options.unique is not None:
                command = self._wish(task, options, options.unique, command, text).command
        except InvalidError as error:
            error.args = (f"input {number}: {error} (the {number} before it are enqueued)",)
            raise
        return command


def _of_batch(command: Enqueue, batch: str, number: int, batch_max: int | None) -> Enqueue:
    """Return the order of a job as the one of its batch with that number. Raises: InvalidInputError."""
    if batch_max is not None and number >= batch_max:
        raise InvalidInputError(f"input {number}: batch {batch} is closed and has {batch_max:,} jobs")
    if number >= ITEMS_MAX:
        raise InvalidInputError(
            f"input {number}: a batch has at most {ITEMS_MAX:,} jobs: make several batches"
        )
    ref = JobRef(queue=command.ref.queue, job_id=child_id(batch, 1, number))
    member = Member(queue=BUILT_IN_QUEUE, job=batch, step=BATCH_STEP, item=number)
    order = msgspec.structs.replace(command.order, batch=batch, member=member)
    return msgspec.structs.replace(command, ref=ref, order=order)


class _Bulk:
    """The appends of one `enqueue_many` that have no answer yet, the oldest first, at most `in_flight_max`.

    An append that lost its race usually means that the job exists.
    """

    def __init__(
        self,
        in_flight_max: int,
        begin_again: Callable[[Enqueue], Awaitable[tuple[int, bool]]],
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._in_flight_max = in_flight_max
        self._begin_again = begin_again
        self._on_progress = on_progress
        self._waiting: deque[tuple[Enqueue, asyncio.Future[int]]] = deque()
        self._created = 0
        self._existing = 0
        self._last_sequence = 0

    @property
    def is_full(self) -> bool:
        """Whether no more may be submitted before there is room."""
        return len(self._waiting) >= self._in_flight_max

    async def make_room(self) -> None:
        """Wait until more may be submitted."""
        await self._collect(self._in_flight_max // 2)

    def add(self, command: Enqueue, appended: asyncio.Future[int]) -> None:
        """Keep count of one job's first event, which was submitted."""
        self._waiting.append((command, appended))

    async def _collect(self, count: int) -> None:
        refused: list[Enqueue] = []
        for _ in range(min(count, len(self._waiting))):
            command, appended = self._waiting.popleft()
            try:
                sequence = await appended
            except WrongSequenceError:
                refused.append(command)
                continue
            self._created += 1
            self._last_sequence = max(self._last_sequence, sequence)
        for found in await asyncio.gather(*map(self._begin_again, refused), return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            sequence, created = found
            self._created += created
            self._existing += not created
            if created:
                self._last_sequence = max(self._last_sequence, sequence)
        if self._on_progress is not None:
            self._on_progress(self._created + self._existing)

    async def drain(self) -> None:
        """Wait for the rest."""
        try:
            await self._collect(len(self._waiting))
        except BaseException:
            await self.abandon()
            raise

    async def abandon(self) -> None:
        """Wait until nothing is in flight, whatever comes of it; cancel nothing, since what was sent may be stored."""
        rest = [appended for _, appended in self._waiting]
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


def _refuse_in_bulk(task: Task[Any, Any], unique: Unique, ids: object) -> None:
    """Raise InvalidInputError for unique jobs that cannot be added many at a time."""
    if not unique.is_by_id or unique.on_conflict != "return":
        raise InvalidInputError(
            f"enqueue_many adds unique jobs only with Unique(for_s=...), whose period gives them their ids, and "
            f"on_conflict='return': enqueue those of task {task.name} one by one"
        )
    if ids is not None:
        raise InvalidInputError(
            "give ids or Unique(for_s=...), not both: the period gives the jobs their ids"
        )


def unpack(task: Task[Any, Any] | TaskWithOptions[Any, Any]) -> tuple[Task[Any, Any], Options]:
    """Return the task itself, and the options that a job of it has.

    Raises: InvalidInputError for what is no task.
    """
    try:
        return task.unpacked
    except AttributeError as error:
        raise InvalidInputError(f"{task!r} is not a task: decorate the function with @task") from error


def _plain(text: bytes) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])


def new_job_id() -> str:
    """Return a UUIDv7: sortable by time of creation."""
    return str(uuid_utils.uuid7())
