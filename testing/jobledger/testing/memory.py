"""`MemoryLedger`: the verbs of a ledger on a log in memory, and the attempts of a worker to run what is due."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn, ParamSpec, Self, Unpack, cast

from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.additions.bulk import BulkResult
from jobledger.ledger.children import Children
from jobledger.ledger.client import Ledger
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.enqueuer import Enqueuer
from jobledger.ledger.event_stream import EventOptions, EventStream
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.locks import Locks
from jobledger.ledger.model.codec import StoredEvent, digest
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import ConfigurationError, KeyUnavailableError, PayloadMissingError
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import only_jobs
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.model.seals import KeyHolder, ValueKey, check_owner
from jobledger.ledger.model.subjects import Names, filter_pattern
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.hints import Hints
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.ledger.nats.leases import JetStreamLeases, LeaseLostError, WorkerInfo
from jobledger.ledger.nats.lock_hints import NatsLockHints
from jobledger.ledger.nats.outage import Outage
from jobledger.ledger.nats.pauses import queue_state
from jobledger.ledger.nats.payloads import Payloads
from jobledger.ledger.nats.task_book import TaskEntry
from jobledger.ledger.patience import Patience
from jobledger.ledger.schedules.in_code import AnyTask, Schedule
from jobledger.ledger.schedules.verbs import ScheduleVerbs
from jobledger.ledger.subscriptions.options import SubscriptionConfig, configured
from jobledger.ledger.tasks import Task, TaskRegistry, TaskWithOptions
from jobledger.testing.backlog import Backlog
from jobledger.testing.clock import MovableClock
from jobledger.testing.mortal_log import MortalLog
from jobledger.workers.reactors.schedules.declarations import ScheduleDeclarer
from jobledger.workers.reactors.schedules.hooks import with_hooks

# What a ledger stands on, without a server: hints that stay in the process, leases and large values in memory.

_OnMessage = Callable[[bytes, bytes, bytes, bytes], None]


class Loopback:
    """The part of a connection that hints use: what is sent reaches those in this process who listen."""

    is_closed = False

    def __init__(self) -> None:
        self._listening: dict[int, tuple[re.Pattern[str], _OnMessage]] = {}
        self._count = 0
        self.outage = Outage()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs here."""
        return asyncio.get_running_loop()

    def require_here(self) -> None:
        """Allow every loop: nothing of this one belongs to another."""

    async def listen(self, subject: str, on_message: _OnMessage) -> int:
        """Call `on_message` for what is sent to a subject or to those that a filter names; return what ends it."""
        self._count += 1
        self._listening[self._count] = filter_pattern(subject), on_message
        return self._count

    async def unlisten(self, subscription: int) -> None:
        """End it."""
        self._listening.pop(subscription, None)

    def send(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Tell those who listen, after what runs now."""
        for pattern, on_message in tuple(self._listening.values()):
            if pattern.fullmatch(subject):
                self.loop.call_soon(on_message, subject.encode(), reply.encode(), data, headers)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what only a server can do."""
        raise ConfigurationError(
            f"a ledger in memory has no server to ask ({name}): use the fixture server_ledger for this test"
        )


class MemoryLeases:
    """Leases of those who work in this process; they end when they are given back."""

    user = ""

    def __init__(self, duration_s: float = 3600.0) -> None:
        self._duration_s = duration_s
        self.keys: dict[str, tuple[WorkerInfo, int]] = {}
        self._revision = 0

    async def duration_s(self) -> float:
        """See `Leases.duration_s`."""
        return self._duration_s

    async def renew(self, info: WorkerInfo, revision: int) -> int:
        """Write a key on condition of its revision; see `Leases.renew`."""
        if revision != (self.keys[info.worker][1] if info.worker in self.keys else 0):
            raise LeaseLostError(info.worker)
        self._revision += 1
        self.keys[info.worker] = (info, self._revision)
        return self._revision

    async def find(self, worker: str) -> WorkerInfo | None:
        """Return who lives; see `Leases.find`."""
        found = self.keys.get(worker)
        return None if found is None or found[0].stopped else found[0]

    async def all(self) -> list[WorkerInfo]:
        """Return every key."""
        return [info for info, _ in self.keys.values()]


class MemoryKeys:
    """Keys of owners in this process: each owner has one, which is gone with the process."""

    def __init__(self) -> None:
        self._kept: dict[str, ValueKey] = {}

    async def key_for(self, owner: str) -> ValueKey:
        """Return the owner's key; see `KeyHolder.key_for`."""
        from jobledger.ledger.owner_key import SECRET_BYTES, OwnerKey  # noqa: PLC0415 - an extra

        key_id = f"{check_owner(owner)}/1"
        if key_id not in self._kept:
            self._kept[key_id] = OwnerKey(key_id, secrets.token_bytes(SECRET_BYTES), "")
        return self._kept[key_id]

    async def key(self, key_id: str) -> ValueKey:
        """Return the key that an event names; see `KeyHolder.key`."""
        try:
            return self._kept[key_id]
        except KeyError:
            raise KeyUnavailableError(f"the key {key_id} was never made in this process") from None


class _MemoryValues(Payloads):
    """Large inputs and results, with the limits that a server's ledger has; kept as long as the ledger in memory."""

    def __init__(self, connection: Connection, config: LedgerConfig, keys: KeyHolder) -> None:
        super().__init__(
            connection,
            "memory",
            keys=keys,
            inline_bytes_max=config.inline_bytes_max,
            payload_bytes_max=config.payload_bytes_max,
        )
        self._values: dict[str, bytes] = {}

    async def _store_value(self, name: str, text: bytes, *, what: str) -> None:  # noqa: ARG002 - as `Payloads`
        self._values[name] = text

    async def stored(self, reference: PayloadRef) -> bytes:
        """Return what an event refers to; see `Payloads.stored`."""
        try:
            return self._values[reference.sha256]
        except KeyError:
            raise self._gone(reference) from None

    async def remove(self, reference: PayloadRef) -> None:
        """Let go of a value; see `Payloads.remove`."""
        self._values.pop(reference.sha256, None)


class _MemoryBodies:
    """Bodies of webhooks in this process; whoever asks for one knows how long it was to be kept."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def keep(self, body: bytes, life_s: float) -> None:  # noqa: ARG002 - as `Bodies`
        """Keep a body under its sha256; see `Bodies.keep`."""
        self._kept[digest(body)] = body

    async def body(self, sha256: str) -> bytes:
        """Return a body; see `Bodies.body`."""
        try:
            return self._kept[sha256]
        except KeyError as error:
            raise PayloadMissingError(f"the body {sha256[:12]}... was never kept", state="gone") from error


P = ParamSpec("P")

#: Jobs that one `run_pending` runs at most, so that tasks which enqueue each other for ever end in an error.
JOBS_MAX: Final = 1_000
#: Moments at which one `advance` stops at most.
MOMENTS_MAX: Final = 10_000


class MemoryLedger(Ledger):
    """A ledger that exists in this process alone, for tests: enqueue, look, cancel, retry, lock as on a server.

    Nothing runs by itself: `run_pending` runs what is queued or due, with the same code as a worker. Durable
    subscriptions and workers need a server (the fixture `server_ledger`).
    """

    clock: MovableClock

    def __init__(
        self, *tasks: Task[..., Any] | Schedule, clock: MovableClock | None = None, tracing: bool = False
    ) -> None:
        """`tasks`: as of `add`; those that are enqueued through this object are remembered anyway."""
        config = LedgerConfig(tracing=tracing)
        clock = clock or MovableClock()
        connection, leases = cast("Connection", Loopback()), cast("JetStreamLeases", MemoryLeases())
        keys = MemoryKeys()
        self.memory = log = MortalLog(names=Names(), clock=clock)
        super().__init__(
            connection=connection,
            inbox=cast("Inbox", connection),
            log=cast("JetStreamLog", log),
            leases=leases,
            hints=Hints(connection, log.names),
            inputs=_MemoryValues(connection, config, keys),
            results=_MemoryValues(connection, config, keys),
            keys=keys,
            config=config,
            clock=clock,
        )
        self.patience = Patience(None, config.request_timeout_s)
        self.bodies = _MemoryBodies()
        self.tasks: dict[str, Task[..., Any]] = {}
        self._schedules: dict[str, Schedule] = {}  #: as code declares them
        self._declared: set[str] = set()
        self.add(*tasks)
        self._enqueuer = _TaskMemory(self, self.tasks, config=config, clock=clock, tracing=self.tracing)
        self.schedules = ScheduleVerbs(self, self._enqueuer)
        self.locks = Locks(log, leases, NatsLockHints(connection, log.names), clock, self.stamp)

    def add(self, *found: Task[..., Any] | Schedule) -> None:
        """Give it tasks that jobs may need, and schedules; that of a task (`@task(schedule=...)`) comes with it.

        Raises: ConfigurationError for two schedules of one name; InvalidInputError, TaskDefinitionError.
        """
        registry = TaskRegistry()
        for each in found:
            if isinstance(each, Schedule):
                registry.add_schedule(each)
                if each.task is not None:  # else it was refused
                    registry.add(each.task.unpacked[0])
            else:
                registry.add(each)
        self._schedules |= registry.schedules
        self.tasks |= {task.name: task for task in with_hooks(registry)} if len(registry) else {}

    async def _declare(self) -> None:
        """Declare the schedules that were added and are not declared yet, as a worker does at its start."""
        for task in list(self.tasks.values()):
            if task.schedule is not None and task.schedule.name not in self._schedules:
                self.add(task)
        new = [each for name, each in self._schedules.items() if name not in self._declared]
        if new:
            await ScheduleDeclarer(self, new, [each.queue for each in new]).declare(new)
            self._declared |= {each.name for each in new}

    def _work_for(self, children: Children) -> None:
        super()._work_for(children)
        self.patience = Patience(None, self.config.append_timeout_s)
        self._enqueuer = _TaskMemory(
            self, self.tasks, config=self.config, clock=self.clock, tracing=self.tracing, children=children
        )

    async def find_task(self, name: str) -> TaskEntry | None:
        """Return what a worker would announce of a task that was given or enqueued here."""
        task = self.tasks.get(name)
        return None if task is None else entry_of(task, worker=self.identity, at=self.clock.now())

    async def task_names(self) -> list[str]:
        """Return the names of the tasks that were given or enqueued here, sorted."""
        return sorted(self.tasks)

    async def tell_consumers(self, queue: str, known: QueueState | None = None) -> QueueState:
        """Return the queue as it is: there are no consumers, and `run_pending` leaves the jobs of a paused one."""
        return known or await queue_state(self.log, queue)

    async def run_pending(self, *, jobs_max: int = JOBS_MAX) -> list[Job]:
        """Run every job that is queued or due, and those that they enqueue, one after the other; return them as they ended.

        A job that is retried at once is there twice. Jobs of a paused queue or with a later time stay: move `clock`
        first, or use `advance`. Tasks for the process pool run in a thread.

        Raises: UnknownTaskError for a job whose task was neither given nor enqueued here; ConfigurationError when there
            is no end after `jobs_max` of them.
        """
        await self._declare()
        return await Backlog(self, self.memory, self.tasks).run(jobs_max)

    async def advance(self, by: timedelta | float) -> list[Job]:
        """Move the time forward by a span or by seconds, and run what is due on the way, all of it at its moment.

        Schedules known here tick, too. The clock stops where a job is due, a schedule ticks or a rate admits a job.

        Raises: as `run_pending`; ConfigurationError after 10,000 such moments.
        """
        await self._declare()
        end = self.clock.now() + (by if isinstance(by, timedelta) else timedelta(seconds=by))
        pending = Backlog(self, self.memory, self.tasks)
        ran = await pending.run(JOBS_MAX)
        for _ in range(MOMENTS_MAX):
            wake_at = await pending.look()
            if wake_at is None or wake_at >= end:
                self.clock.move_to(end)
                return ran + await pending.run(JOBS_MAX)
            self.clock.move_to(max(wake_at, self.clock.now()))
            ran += await pending.run(JOBS_MAX)
        raise ConfigurationError(
            f"jobs, schedules and rates have more than {MOMENTS_MAX:,} moments until {end.isoformat()}: advance by less"
        )

    def events(self, **options: Unpack[EventOptions]) -> EventStream:
        """Return stored events to iterate; see `Ledger.events`. Raises: ConfigurationError for a durable one."""
        chosen: dict[str, Any] = dict(options)
        if chosen.pop("durable", None) is not None:
            raise ConfigurationError(
                "a durable subscription needs a server: use the fixture server_ledger for this test"
            )
        config = configured(chosen)

        async def begin(_: contextlib.AsyncExitStack) -> AsyncGenerator[StoredEvent, None]:
            head = (await self.log.head()).last_sequence
            return self._chosen(config, head + 1 if config.start.live else config.start.from_sequence or 1)

        return EventStream(begin)

    async def _chosen(self, config: SubscriptionConfig, first: int) -> AsyncGenerator[StoredEvent, None]:
        """Yield what a server would let through."""
        patterns = [filter_pattern(subject) for subject in config.filter.subjects(self.names)]
        since: datetime | None = config.start.since
        batches = (
            self.log.read_messages(from_time=since, follow=config.follow)
            if since is not None
            else self.log.read_messages(from_sequence=first, follow=config.follow)
        )
        async with contextlib.aclosing(only_jobs(batches)) as jobs:
            async for batch in jobs:
                for stored in batch:
                    if config.filter.fits(stored) and any(
                        each.fullmatch(stored.subject) for each in patterns
                    ):
                        yield stored

    async def __aenter__(self) -> Self:
        """Be usable where `connect` is: `async with MemoryLedger() as ledger`."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: there is nothing to close."""


class _TaskMemory(Enqueuer):
    """Adds jobs, and remembers their tasks, so that `run_pending` knows them."""

    def __init__(self, ledger: Ledger, tasks: dict[str, Task[..., Any]], **settings: Any) -> None:
        super().__init__(ledger, **settings)
        self._tasks = tasks

    async def one(
        self, task: Task[P, Any] | TaskWithOptions[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[Any]:
        self._remember(task)
        return await super().one(task, *args, **kwargs)

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
        self._remember(task)
        return await super().many(
            task, inputs, ids=ids, on_progress=on_progress, batch=batch, batch_max=batch_max
        )

    async def like(self, task: AnyTask, values: Mapping[str, Any] | None) -> Enqueue:
        self._remember(cast("Task[..., Any]", task))
        return await super().like(task, values)

    def _remember(self, task: Task[..., Any] | TaskWithOptions[..., Any]) -> None:
        plain = task.task if isinstance(task, TaskWithOptions) else task
        self._tasks[plain.name] = plain
