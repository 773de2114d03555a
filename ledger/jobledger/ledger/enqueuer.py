"""The code that adds jobs, one or many: it checks and stores the input, decides the first event, and appends it.

It does the work of `Ledger.enqueue` and `Ledger.enqueue_many`, and nothing with a job after its first event.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, ParamSpec, TypeVar, cast

import msgspec

from jobledger.ledger.additions.bulk import Bulk, BulkResult, OrderedJob, numbered
from jobledger.ledger.additions.comparison import Compare, require_same, require_same_task
from jobledger.ledger.additions.kind import Kind
from jobledger.ledger.children import Children
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.job_orders import (
    NamedLimits,
    command_of,
    identified,
    limits_named,
    new_job_id,
    plain_command,
    sealed_order,
    wish_of,
)
from jobledger.ledger.model.chain import JobView, first_entry, link, retry_raced
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    AppendOutcomeUnknownError,
    ConfigurationError,
    InvalidError,
    InvalidInputError,
    KeyUnavailableError,
    LedgerThrottledError,
    NotFoundError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import JobEvent, Member, order_at_first
from jobledger.ledger.model.forms import SEALED_FORM
from jobledger.ledger.model.log import ChainEvents, Entry
from jobledger.ledger.model.runs.orders import BATCH_STEP, BUILT_IN_QUEUE, ITEMS_MAX, RUN_BATCH, child_id
from jobledger.ledger.model.seals import OWNER_DEFAULT, ValueKey, kept_keys, seal_value
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.options import Options
from jobledger.ledger.protocols import AnyJob, Client, job_name
from jobledger.ledger.schedules.in_code import AnyTask
from jobledger.ledger.signature import ReadsInput
from jobledger.ledger.tasks import Task, TaskWithInput, TaskWithOptions
from jobledger.ledger.throttle import Throttle
from jobledger.ledger.tracing import UNTRACED, Tracing
from jobledger.ledger.unique.jobs import UniqueJobs
from jobledger.ledger.unique.keys import Wish, sealed_wish
from jobledger.ledger.unique.rule import Unique
from jobledger.ledger.written_orders import WrittenOrder

P = ParamSpec("P")
T = TypeVar("T")
#: The effect of an enqueue's append on its job, in the words of an error.
_DOING: Final = "was enqueued"
#: Returns the reader of the input of a task.
SignatureOf = Callable[[str], Awaitable[ReadsInput]]
#: Pauses before a chain is read again that a lagging replica does not show yet.
_LAGS_S: Final = (0.02, 0.05, 0.1, 0.3, 1.0)


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
        """`children`: of the job whose code adds jobs here; None for any other client."""
        self._client = client
        self._children = children
        self._log = client.log
        self._config = config
        self._clock = clock
        self._tracing = tracing
        self._seals_all = config.seal == "all"
        self._kept = kept_keys(client.keys)
        self._unique = UniqueJobs(self._log, client.stamp, self._begin_unique)

    def one(
        self, task: Task[P, Any] | TaskWithOptions[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, JobHandle[Any]]:
        """Add one job; see `Ledger.enqueue`. This call raises errors of the input, the awaited result all others."""
        plain, options = unpack(task)
        return self.one_of(plain, options, plain.signature.encode(args, kwargs))

    async def one_of(self, plain: Kind, options: Options, text: bytes) -> JobHandle[Any]:
        """Add one job with an input that was checked; see `Ledger.enqueue`."""
        client = self._client
        if options.id_template:
            options = self._identified(plain, options, text)
        notify = client.hints.inbox
        job_id = self._job_id(plain, options)  # before any await, so that ids follow the order of the calls
        throttle = client.throttle
        if throttle is not None and not throttle.passes(len(text)):
            await self._require_room(throttle, options, job_id, len(text))
        is_small = client.inputs.fits_inline(text, what=plain.signature.what)
        if is_small and self._is_plain(plain, options):
            command = plain_command(plain, options, job_id, text, notify)
        elif (
            is_small
            and self._is_plain(plain, options, is_owned=True)
            and (sealed := self._sealed_at_once(plain, options, job_id, text, notify))
        ):
            command = sealed
        else:
            order = functools.partial(self._order, plain, options, job_id, text, notify=notify)
            # A large input is stored first, and so is the definition of a limit that the code declares; for others the
            # permission to name it is checked.
            needs_server = (
                not is_small
                or options.limits
                or options.declared
                or options.declared_queue is not None
                or plain.callbacks
                or self._owner(plain, options, text)
            )
            command = await (client.patience.read(order) if needs_server else order())
        if options.unique is not None:
            wish = await self._wish(plain, options, command, text)
            return await self._one_of_its_kind(plain, options, wish)
        if self._tracing is None:
            sequence, created = await self._begun(plain, options, command)
        else:
            with self._tracing.enqueuing(plain.name, options.queue, job_id):
                sequence, created = await self._begun(plain, options, command)
        return JobHandle(client, command.ref, created=created, sequence=sequence, reader=plain.signature)

    async def one_written(self, written: WrittenOrder, signature_of: SignatureOf) -> tuple[JobRef, bool]:
        """Add a job that was ordered earlier, perhaps by another process; return its name, and whether it is new.

        The same order may come any number of times: its job is made once. `signature_of` reads the input of a task for
        the comparison with a job that has the id already.

        Values of a job that has an owner are sealed here.

        Raises: as `Ledger.enqueue`; LedgerThrottledError after a wait for room; KeyUnavailableError also without a master
            key: another process may have it.
        """
        client, text = self._client, bytes(written.order.input)
        key = None
        if written.owner or self._seals_all:
            key = await client.patience.read(lambda: self._key_of_written(written))
        throttle = client.throttle
        if throttle is not None and not throttle.passes(len(text)):
            await throttle.require(len(text), waits=True)
        what = f"input of task {written.task}"
        large = None
        if key is not None or not client.inputs.fits_inline(text, what=what):
            key_id = "" if key is None else key.id
            large = await client.patience.read(lambda: client.inputs.put(text, what=what, key=key_id))
        if written.limits:
            await client.patience.read(lambda: self._ensure(written.limits))
        command = written.command(large)
        if key is not None:
            command = msgspec.structs.replace(command, order=sealed_order(command.order, key))

        async def compare(command: Enqueue, first: JobEvent) -> None:
            await require_same(client.inputs, await signature_of(command.task), "", command, first)

        async def attempt() -> tuple[JobRef, bool]:
            comparing = compare if written.compares else None
            if written.rule is None:
                _, created = await self.begin(command, written.by, comparing)
                return command.ref, created
            wish = written.wish(command)
            ref, _, created = await self._unique.enqueue(wish if key is None else sealed_wish(wish, key))
            if not created and comparing is not None and ref == command.ref:
                await self._existing(command, comparing)
            return ref, created

        return await client.patience.append(attempt, job_id=command.ref.job_id, doing=_DOING)

    async def _key_of_written(self, written: WrittenOrder) -> ValueKey:
        """Return the key that seals the values of a written order. Raises: as `one_written`."""
        written.check_sealable()
        try:
            return await self._key(written.task, written.owner or OWNER_DEFAULT)
        except ConfigurationError as error:
            raise KeyUnavailableError(str(error)) from error

    async def _require_room(self, throttle: Throttle, options: Options, job_id: str, size: int) -> None:
        """Return once a new job may be appended, or if a job has the given id, since then nothing will be appended.

        Raises: LedgerThrottledError.
        """
        try:
            await throttle.require(size, of_job=self._children is not None)
        except LedgerThrottledError:
            chain = self._log.names.chain(JobRef(queue=options.queue, job_id=job_id))
            if options.id is None or await self._client.patience.read(lambda: self._log.last(chain)) is None:
                raise

    async def _begun(self, task: Kind, options: Options, command: Enqueue) -> tuple[int, bool]:
        """Begin a job, as `begin` does, within the client's patience."""
        patience, by, job_id = self._client.patience, options.by, command.ref.job_id
        waits = patience.deadlines()
        if waits is None:
            compare = self.comparing(task, options, is_named=options.id is not None)
            return await patience.append(
                lambda: self.begin(command, by, compare), job_id=job_id, doing=_DOING
            )
        outcome = self._log.submit(self._seal_first(command, by))
        waits.begin(outcome)
        try:
            return await outcome, True
        except WrongSequenceError:
            compare = self.comparing(task, options, is_named=options.id is not None)
            return await patience.append(
                lambda: self._begin_again(command, by, compare),
                job_id=job_id,
                doing=_DOING,
                ends_at=waits.end(outcome),
            )
        except AppendOutcomeUnknownError as error:  # the log's own limit was reached
            error.job_id = job_id
            raise
        except TimeoutError as error:
            raise patience.unknown(job_id, _DOING) from error
        finally:
            waits.end(outcome)

    def beginning(
        self, start: TaskWithInput, job: AnyJob, queue: str | None, by: str = ""
    ) -> tuple[JobRef, Callable[[], Awaitable[JobHandle[Any]]]]:
        """Return the name of the job that is made if it is missing, and the function that makes it.

        Raises: InvalidInputError for another job's name, for a unique job, and for a task without an input.
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

    async def like(self, task: AnyTask, values: Mapping[str, Any] | None) -> Enqueue:
        """Return the command that would enqueue a job of this input now, to declare later jobs; store a large input.

        `values` None: each job's input is known later, and with it a tenant, an owner and keys of limits that are
        arguments. Where the owner is one, the command has the default owner.

        Raises: InvalidInputError, PayloadTooLargeError, LedgerFullError, UnreachableError.
        """
        plain, options = unpack(cast("Task[..., Any]", task))
        if values is None:
            owner = OWNER_DEFAULT if "{" in options.owner else options.owner
            options = msgspec.structs.replace(
                options, tenant_template="", declared=(), declared_queue=None, owner=owner
            )
            text = b"{}"
        else:
            text = plain.signature.encode((), values)
        return await self._client.patience.read(lambda: self._order(plain, options, "like", text, notify=""))

    def _is_plain(self, task: Kind, options: Options, *, is_owned: bool = False) -> bool:
        """Return whether `plain_command` suffices for a job with a small input, so that `_order` is not needed.

        `is_owned`: ask about a job that has an owner, by whose key its input is sealed then.
        """
        return self._children is None and not (
            (not is_owned and (options.owner or self._seals_all))
            or options.tenant_template
            or options.limits
            or options.declared
            or options.declared_queue is not None
            or options.delay_s is not None
            or options.run_at is not None
            or options.debounce_s is not None
            or task.version
            or task.callbacks
            or task.deadline_s is not None
        )

    def _sealed_at_once(
        self, task: Kind, options: Options, job_id: str | None, text: bytes, notify: str = ""
    ) -> Enqueue | None:
        """Return the command that begins a job with an owner and a small input; None if `_order` has more to do.

        It suffices if `_is_plain` says so, the key is in memory, and the sealed input is small, too.
        """
        key = None if self._kept is None else self._kept(self._owner(task, options, text))
        if key is None:
            return None
        sealed = seal_value(key, text)
        if not self._client.inputs.fits_inline(sealed, what=task.signature.what):
            return None
        named = job_id or self._job_id(task, options)
        return plain_command(task, options, named, sealed, notify, key=key)

    async def _wish(self, task: Kind, options: Options, command: Enqueue, text: bytes) -> Wish:
        key = command.order.key
        seals = await self._client.keys.key(key) if key else None
        return wish_of(task, options, command, text, self._clock, seals=seals)

    async def _one_of_its_kind(self, task: Kind, options: Options, wish: Wish) -> JobHandle[Any]:
        job_id = wish.command.ref.job_id
        with self._enqueuing(task, wish.command.ref.queue, job_id):
            ref, sequence, created = await self._client.patience.append(
                lambda: self._unique.enqueue(wish), job_id=job_id, doing=_DOING
            )
        # An id stands for one input; a key may have jobs of several inputs, and a debounced job takes the input of
        # each call.
        if not created and options.id is not None and ref == wish.command.ref and options.debounce_s is None:
            compare = self.comparing(task, options, is_named=True)
            await self._client.patience.read(lambda: self._existing(wish.command, compare))
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
        """Add a job for each input; see `Ledger.enqueue_many`. `batch_max`: the number of jobs in a closed batch."""
        plain, options = unpack(task)
        if options.id is not None:
            message = "enqueue_many cannot give one id to many jobs: pass ids=, a function of the input"
            raise InvalidInputError(message)
        if options.unique is not None:
            refuse_in_bulk(plain, options.unique, ids)

        is_named = ids is not None or bool(batch or options.id_template)
        compare = self.comparing(plain, options, is_named=is_named)

        is_one = not (batch or options.id_template or options.unique)
        is_plain = is_one and self._is_plain(plain, options)
        is_owned = is_one and not is_plain and self._is_plain(plain, options, is_owned=True)
        signature, fits_inline = plain.signature, self._client.inputs.fits_inline

        def order(values: Mapping[str, Any], number: int) -> OrderedJob | Awaitable[OrderedJob]:
            text = signature.encode((), values)
            job_id = None if ids is None else check_token("job id", ids(values))
            if is_plain and fits_inline(text, what=signature.what):
                named = self._job_id(plain, options) if job_id is None else job_id
                return OrderedJob(plain_command(plain, options, named, text, ""), compare)
            if is_owned and fits_inline(text, what=signature.what):
                command = self._sealed_at_once(plain, options, job_id, text)
                if command is not None:
                    return OrderedJob(command, compare)
            return order_other(job_id, text, number)

        async def order_other(job_id: str | None, text: bytes, number: int) -> OrderedJob:
            command = await self.bulk_order(plain, options, job_id, text)
            return OrderedJob(of_batch(command, batch, number, batch_max) if batch else command, compare)

        with self._enqueuing(plain, options.queue):
            return await self.stream(inputs, order, self.begin_again(options.by), options.by, on_progress)

    async def stream(
        self,
        inputs: Iterable[T] | AsyncIterable[T],
        order: Callable[[T, int], OrderedJob | Awaitable[OrderedJob]],
        begin_again: Callable[[OrderedJob], Awaitable[tuple[int, bool]]],
        by: str,
        on_progress: Callable[[int], None] | None,
    ) -> BulkResult:
        """Begin the job that `order` makes of each input and its number, with a bounded number of appends in flight.

        `begin_again` is called if a job's id is taken. Raises: the errors of both, after the earlier jobs are in the
        ledger; an InvalidError and a NotFoundError then name the input. An InputMismatchError comes last, after every
        other input was added: it is about the first mismatched input, and has the others.
        """
        config = self._config
        throttle = self._client.throttle
        bulk = Bulk(config.enqueue_in_flight_max, config.append_timeout_s, begin_again, on_progress)
        try:
            async with contextlib.aclosing(numbered(inputs)) as counted:
                async for number, values in counted:
                    try:
                        ordered = order(values, number)
                        if not isinstance(ordered, OrderedJob):  # else the order was ready without a wait
                            ordered = await ordered
                        if throttle is not None and not throttle.passes(len(ordered.command.order.input)):
                            size = len(ordered.command.order.input)
                            await throttle.require(size, waits=True, of_job=self._children is not None)
                    except (InvalidError, NotFoundError, LedgerThrottledError) as error:
                        error.args = (f"input {number}: {error} (enqueued before it: {number:,})",)
                        raise
                    if bulk.is_full:
                        await bulk.make_room()
                    bulk.add(ordered, self._log.submit(self._seal_first(ordered.command, by)))
        except (
            InvalidError,
            NotFoundError,
            LedgerThrottledError,
        ):  # the text says that the jobs before it are enqueued, if all of them were
            await bulk.drain()
            raise
        except (
            BaseException
        ) as error:  # also when cancelled: wait for sent appends, then raise the first error
            await bulk.abandon(error)
            raise
        await bulk.drain()
        bulk.require_matching()
        return bulk.result()

    def _enqueuing(
        self, task: Kind, queue: str, job_id: str = ""
    ) -> contextlib.AbstractContextManager[object]:
        return UNTRACED if self._tracing is None else self._tracing.enqueuing(task.name, queue, job_id)

    def _identified(self, task: Kind, options: Options, text: bytes) -> Options:
        return identified(task, options, text, "" if self._children is None else self._children.parent.tenant)

    def _job_id(self, task: Kind, options: Options) -> str:
        if options.name:
            raise InvalidInputError(
                f"a job of task {task.name} has no name={options.name!r} but in a run or a graph: give it an id"
            )
        if options.id is not None:
            return options.id
        return new_job_id() if self._children is None else self._children.next_id(task.name)

    def new_id(self, task: str) -> str:
        """Return an id for a job of a task; in the code of a job it is the same in every attempt."""
        return new_job_id() if self._children is None else self._children.next_id(task)

    async def _order(self, task: Kind, options: Options, job_id: str, text: bytes, *, notify: str) -> Enqueue:
        """Return the command that begins a job, after its large input and the code's limits are stored.

        Raises: AccessDeniedError for a limit that the job may not name; as `command_of`, `Payloads.put` and
            `KeyHolder.key_for`.
        """
        inputs, what = self._client.inputs, task.signature.what
        owner = self._owner(task, options, text)
        key = await self._key(task.name, owner) if owner else None
        # Nearly all inputs are small, and this saves them a coroutine.
        if key is None and inputs.fits_inline(text, what=what):
            stored = None
        else:
            stored = await inputs.put(text, what=what, key="" if key is None else key.id)
        inherit = None if self._children is None else self._children.inherit
        command = command_of(
            task, options, job_id, text, self._clock, stored=stored, notify=notify, inherit=inherit, key=key
        )
        await self._ensure(limits_named(task, options))
        return command

    def _owner(self, task: Kind, options: Options, text: bytes) -> str:
        """Return the owner of the job's data, "" if none was given. Raises: InvalidInputError."""
        if options.owner:
            if "{" not in options.owner:
                return options.owner
            from jobledger.ledger.owner_names import owner_named  # noqa: PLC0415 - others need nothing of it

            return owner_named(task, options, text)
        owner = self.owner
        return "" if owner and task.name == RUN_BATCH else owner  # counts and names are all that it holds

    @property
    def owner(self) -> str:
        """Whose data a job holds that names no owner; "": nobody's."""
        inherited = "" if self._children is None else self._children.parent.owner
        return inherited or (OWNER_DEFAULT if self._seals_all else "")

    async def _key(self, task: str, owner: str) -> ValueKey:
        """Return the key that seals the values of a new job. Raises: as `KeyHolder.key_for`; RefusedError."""
        if self._client.form < SEALED_FORM:
            self._client.stamp().require_form(SEALED_FORM, f"the owner of a job of task {task}")
        return await self._client.keys.key_for(owner)

    async def _ensure(self, named: Iterable[NamedLimits]) -> None:
        """Write the limits that the code of jobs defines to the ledger. Raises: as `CodeLimits.ensure`."""
        for each in named:
            await self._client.code_limits.ensure(each, each.task, each.own)

    def comparing(self, task: Kind, options: Options, *, is_named: bool) -> Compare | None:
        """Return the comparison of a job with the existing job of its id; None if there is nothing to compare.

        `is_named`: the caller gave the id; an id made here can be taken only by an earlier attempt of the same job.
        """
        if options.unique is not None and options.unique.is_by_id:
            return require_same_task
        parent_id = "" if is_named or self._children is None else self._children.parent.job_id
        if options.on_other_input == "keep" or not (is_named or parent_id):
            return None
        return functools.partial(require_same, self._client.inputs, task.signature, parent_id)

    async def begin(self, command: Enqueue, by: str = "", compare: Compare | None = None) -> tuple[int, bool]:
        """Append the first event of a job; an existing job does not change. Return its sequence, and whether it is new.

        Raises: LedgerFullError, UnreachableError; the errors of `compare` for an existing job.
        """
        try:
            sequence = await self._log.append(self._seal_first(command, by))
        except WrongSequenceError:
            return await self._begin_again(command, by, compare)
        return sequence, True

    async def _begin_unique(self, command: Enqueue, by: str) -> tuple[int, bool]:
        """Append the first event of a unique job; without a key in its order its id follows from its period.

        Raises: as `begin`; InputMismatchError if a job of another task has that id.
        """
        return await self.begin(command, by, None if command.order.unique else require_same_task)

    def begin_again(self, by: str) -> Callable[[OrderedJob], Awaitable[tuple[int, bool]]]:
        """Return a function that finds the job that has an id, or begins it; for `stream`."""
        return lambda ordered: self._begin_again(ordered.command, by, ordered.compare)

    async def _begin_again(self, command: Enqueue, by: str, compare: Compare | None) -> tuple[int, bool]:
        """Find the job that has the id; begin it if its chain has only messages that are no events."""

        async def attempt() -> tuple[int, bool]:
            existing = await self._existing(command, compare)
            # A replica that lags may answer that it has nothing yet.
            if existing or not existing.last_sequence:
                return (existing[0].stream_sequence if existing else 0), False
            chain = JobView(last_sequence=existing.last_sequence)
            events = decide(None, command, self._client.stamp(by))
            return await self._log.append(link(chain, events, self._log.names).entries), True

        return await retry_raced(attempt)

    async def _existing(self, command: Enqueue, compare: Compare | None) -> ChainEvents:
        """Return the chain of the job that has the id, if it may stand for the new one.

        Raises: InvalidInputError as `require_member`; the errors of `compare`; UnreachableError if a job to compare
        cannot be read yet.
        """
        chain, member = self._log.names.chain(command.ref), command.order.member
        events = await self._log.read_chain(chain)
        for lag_s in () if compare is None else _LAGS_S:
            if events.last_sequence:
                break
            await asyncio.sleep(lag_s)
            events = await self._log.read_chain(chain)
        if events and member is not None:
            require_member(command.ref, member, events[0].event)
        if compare is not None:
            if not events.last_sequence:
                raise UnreachableError(f"job {command.ref.job_id} exists and cannot be read yet: try again")
            if events:
                await compare(command, events[0].event)
        return events

    def _seal_first(self, command: Enqueue, by: str) -> tuple[Entry]:
        (event,) = decide(None, command, self._client.stamp(by))
        return (first_entry(event, self._log.names),)

    def bulk_order(self, task: Kind, options: Options, job_id: str | None, text: bytes) -> Awaitable[Enqueue]:
        """Return the command that begins one of many jobs; its id may be declared by its task, or new.

        Raises: as `enqueue`.
        """
        if job_id is None:
            if options.id_template:
                options = self._identified(task, options, text)
            job_id = self._job_id(task, options)
        ordered = self._order(task, options, job_id, text, notify="")  # one call less for each of many jobs
        return ordered if options.unique is None else self._unique_order(task, options, ordered, text)

    async def _unique_order(
        self, task: Kind, options: Options, ordered: Awaitable[Enqueue], text: bytes
    ) -> Enqueue:
        assert options.unique is not None
        return (await self._wish(task, options, await ordered, text)).command


def of_batch(command: Enqueue, batch: str, number: int, batch_max: int | None) -> Enqueue:
    """Return the order of a job with its number in a batch. Raises: InvalidInputError."""
    if batch_max is not None and number >= batch_max:
        raise InvalidInputError(
            f"batch {batch} is closed and has {batch_max:,} jobs: add more to another one"
        )
    if number >= ITEMS_MAX:
        raise InvalidInputError(f"a batch has at most {ITEMS_MAX:,} jobs: make several batches")
    ref = JobRef(queue=command.ref.queue, job_id=child_id(batch, 1, number))
    member = Member(queue=BUILT_IN_QUEUE, job=batch, step=BATCH_STEP, item=number)
    order = msgspec.structs.replace(command.order, batch=batch, member=member)
    return msgspec.structs.replace(command, ref=ref, order=order)


def require_member(ref: JobRef, member: Member, first: JobEvent) -> None:
    """Refuse a foreign job under an id of a batch: the batch would wait for that job, or enqueue nothing at its end.

    Raises: InvalidInputError.
    """
    known = order_at_first(first).member
    if known is None or (known.job, known.item) != (member.job, member.item):
        raise InvalidInputError(
            f"job {ref.job_id} of queue {ref.queue} is there and none of batch {member.job}: give the batch another name"
        )


def refuse_in_bulk(task: Kind, unique: Unique, ids: object) -> None:
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

    Raises: InvalidInputError for an object that is no task.
    """
    try:
        return task.unpacked
    except AttributeError as error:
        raise InvalidInputError(f"{task!r} is not a task: decorate the function with @task") from error
