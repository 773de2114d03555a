"""What the processes of one schedule share: the log in memory, time, and which ends of children wait to be dealt with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from heapq import heappop
from random import Random
from typing import Any, Final, cast

import msgspec
from tests.model.simulation.loop import Process, World

from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, fold
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.events import PayloadRef, Queued
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.log import ChainEvents, Entry, Head, JobReads
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, Names, filter_pattern
from jobledger.ledger.protocols import Client

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
RUN: Final = JobRef(queue="runs", job_id="r")
_STALE_MESSAGES_MAX: Final = 3
_NAMES: Final = Names()
_TO_REACTOR: Final = tuple(filter_pattern(each) for each in _NAMES.ends_of_children)


class Delivered(msgspec.Struct):
    """An event that the reactor's consumer hands out until it is acknowledged."""

    stored: StoredEvent
    times: int = 0
    in_hands_of: list[Process] = []


class Stage:
    """One schedule's ledger, clock and chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"runs {seed}")
        self.world = World(self.random)
        self.log = ReadOnceLog(names=_NAMES, clock=self)
        self.stored: list[StoredEvent] = []  # also those that an archive run took away
        self.jobs: dict[JobRef, Job] = {}
        self.waiting: dict[int, Delivered] = {}  # by stream sequence
        self.requeued: set[JobRef] = set()  # by a person, whatever their run has become
        self.acks = 0
        self.offset_s = 0.0
        pick = self.random.choice
        self.death = pick((0.0, 0.0, 0.01, 0.03, 0.06))  # at each await
        self.freeze = pick((0.0, 0.02, 0.05))  # at each await
        self.frozen: list[tuple[int, Process]] = []  # with the number of turns that each still sleeps
        self.stale = pick((0.0, 0.0, 0.0, 0.1))  # how many reads a replica answers that lags behind
        self.hurry = pick((0.0, 0.4))  # how often whoever began last goes first
        self.errors: list[str] = []
        self._began: dict[Process, int] = {}  # stream sequence
        self._count = 0

    # A clock, for the log and whoever decides.

    def now(self) -> datetime:
        return START + timedelta(seconds=self.world.now + self.offset_s, microseconds=len(self.stored))

    def monotonic(self) -> float:
        return self.world.now

    # What is stored.

    def take_in(self) -> None:
        """Fold what is new, and hand it to the reactor's consumer where its filters say so."""
        kept = self.log._kept
        for index in range(len(self.stored), len(kept)):
            message = self.log._message(index)
            assert isinstance(message, StoredEvent), "only jobs are here"
            self.stored.append(message)
            ref = JobRef(queue=message.event.queue, job_id=message.event.job)
            self.jobs[ref] = evolve(self.jobs.get(ref), message.event, message.stream_sequence)
            if isinstance(message.event, Queued) and message.event.cause == "requeued":
                self.requeued.add(ref)
            if any(each.fullmatch(message.subject) for each in _TO_REACTOR):
                self.waiting[message.stream_sequence] = Delivered(message, in_hands_of=[])

    @property
    def run(self) -> Job:
        return self.jobs[RUN]

    @property
    def children(self) -> dict[JobRef, Job]:
        return {ref: job for ref, job in self.jobs.items() if job.member is not None}

    @property
    def dead(self) -> list[JobRef]:
        """The children that are dead letters."""
        return [ref for ref, job in self.children.items() if job.state is JobState.DEAD_LETTERED]

    def is_mended(self, ref: JobRef) -> bool:
        """Whether a child that failed does so no more: mostly, once a person requeued it."""
        return ref in self.requeued and self.random.random() < 0.7

    # Processes.

    def process(self, name: str) -> tuple[Process, Client]:
        self._count += 1
        process = Process(self.world, f"{name}{self._count}")
        self._began[process] = len(self.stored)
        return process, cast("Client", SimClient(self, process))

    def known_to_all(self) -> int:
        """Return the sequence up to which everybody who is at work knows the ledger: whoever archives waits that long."""
        asleep = [process for _, process in self.frozen]
        return min((self._began[each] for each in (*self.world.runnable, *asleep)), default=len(self.stored))

    def start(self, process: Process, main: Coroutine[Any, Any, None]) -> None:
        """Let a process do one thing; what it raises is a finding."""

        def on_end(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.errors.append(f"{process.name} raised {error!r}")

        process.create_task(main).add_done_callback(on_end)

    def thaw(self, *, all_of_them: bool = False) -> None:
        """Count a turn for those that are frozen, and let go on whose time has come."""
        self.frozen = [(left - 1, process) for left, process in self.frozen]
        for left, process in self.frozen:
            if left <= 0 or all_of_them:
                process.thaw()
        self.frozen = [(left, process) for left, process in self.frozen if process.frozen]

    def step(self) -> bool:
        """Let somebody take a step, or time pass; return whether there was anything to do."""
        runnable = self.world.runnable
        if runnable:
            chance = self.random.random
            at = -1 if chance() < self.hurry else int(chance() * len(runnable))
            runnable[at].step()
            return True
        return self.pass_time()

    def pass_time(self) -> bool:
        """Let the next timer of a process come."""
        world = self.world
        while world.future:
            when, _, handle = heappop(world.future)
            owner, callback = handle.process, handle.callback
            if callback is not None and owner is not None and owner.alive:
                world.now = max(world.now, when)
                owner.take(handle, callback)
                return True
        return False

    def drain(self) -> None:
        """Let everybody come to an end."""
        while self.step():
            pass


class ReadOnceLog(MemoryLog):
    """The log in memory, which decodes a message once: all processes read the same few again and again."""

    def __init__(self, *, names: Names, clock: Clock) -> None:
        super().__init__(names=names, clock=clock)
        self._decoded: dict[int, Message] = {}

    def _message(self, index: int) -> Message:
        found = self._decoded.get(index)
        if found is None:
            found = self._decoded[index] = super()._message(index)
        return found


class Folds:
    """What chains of one schedule add up to, by their first and their last event: processes fold the same ones over and over."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], JobView] = {}

    def fold(self, stored: Sequence[StoredEvent], chain: JobView = EMPTY_CHAIN) -> JobView:
        """Return what `chain.fold` returns."""
        if chain is not EMPTY_CHAIN or not stored:
            return fold(stored, chain)
        first, last = stored[0].stream_sequence, stored[-1].stream_sequence
        found = self._known.get((first, last))
        if found is None:
            before = self._known.get((first, stored[-2].stream_sequence)) if len(stored) > 1 else None
            found = fold(stored) if before is None else fold(stored[-1:], before)
            self._known[first, last] = found
        return found


class SimLog(JobReads):
    """The log as one process reaches it: at each call others may be faster, and it may die before or after what it does."""

    def __init__(self, stage: Stage, process: Process) -> None:
        self.names = stage.log.names
        self._stage = stage
        self._process = process

    async def _turn(self) -> None:
        stage, process = self._stage, self._process
        if stage.random.random() < stage.death:
            process.kill()
        elif stage.random.random() < stage.freeze:
            process.freeze()
            stage.frozen.append((stage.random.randint(2, 40), process))
        await asyncio.sleep(0)

    async def append(self, entries: Sequence[Entry]) -> int:
        await self._turn()
        sequence = await self._stage.log.append(entries)
        self._stage.take_in()
        await self._turn()
        return sequence

    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        return asyncio.ensure_future(self.append(entries))

    async def read_chain(self, chain: str) -> ChainEvents:
        await self._turn()
        found = await self._stage.log.read_chain(chain)
        if self._stage.random.random() < self._stage.stale:
            found = ChainEvents(
                found[: max(0, len(found) - self._stage.random.randint(1, _STALE_MESSAGES_MAX))]
            )
        await self._turn()
        return found

    async def last(self, chain: str) -> Message | None:
        await self._turn()
        return await self._stage.log.last(chain)

    async def present(self, subjects: Sequence[str]) -> set[str]:
        await self._turn()
        found = await self._stage.log.present(subjects)
        return {each for each in sorted(found) if self._stage.random.random() >= self._stage.stale}

    async def head(self) -> Head:
        return await self._stage.log.head()

    async def purge(self, through: int) -> None:
        await self._stage.log.purge(through)

    def read_messages(self, **_: Any) -> AsyncGenerator[list[Message], None]:
        raise AssertionError("nobody here reads the whole ledger")


class Inline:
    """Values that events carry themselves."""

    def fits_inline(self, _text: bytes, *, what: str, of_group: bool = False) -> bool:
        return True

    async def put(
        self, text: bytes, *, what: str, key: str, of_group: bool = False
    ) -> tuple[msgspec.Raw, PayloadRef | None]:
        return msgspec.Raw(text), None

    async def get(self, value: msgspec.Raw, _reference: PayloadRef | None, *, key: str) -> bytes:
        return bytes(value)


class Unheard:
    """Hints that all are lost: they may save time, and nothing depends on them."""

    inbox = ""

    def watch(self, _ref: JobRef) -> AbstractContextManager[asyncio.Event]:
        return contextlib.nullcontext(asyncio.Event())

    def tell_cancel(self, _ref: JobRef) -> None: ...

    def tell_resume(self, _ref: JobRef) -> None: ...


class SimClient:
    """A client of the ledger in one process."""

    def __init__(self, stage: Stage, process: Process) -> None:
        self.log = SimLog(stage, process)
        self.hints = Unheard()
        self.inputs = self.results = Inline()
        self.throttle = None
        self._stage = stage
        self._name = process.name

    def stamp(self, by: str = "") -> Stamp:
        return Stamp(at=self._stage.now(), by=by or self._name)
