"""A ledger in memory that is archived: jobs in every state, writes that can be made to fail, what must hold afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from tests.support.orders import enqueue_of

from jobledger.audit.archive import ArchiveDeps, Archiver, Done, OnProgress
from jobledger.audit.archive.chain import open_archive
from jobledger.audit.archive.plan import Unread
from jobledger.audit.verify import verify
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.chain import load, transact
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Command,
    Complete,
    Discard,
    Fail,
    Fence,
    Pause,
    Snooze,
    Stamp,
)
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.lock import LOCK, Acquire, Lock, Release, decide
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, LockRef
from jobledger.ledger.timers import Timer

OLD = datetime(2026, 1, 2, tzinfo=UTC)
BEFORE = OLD + timedelta(days=1)
NEW = OLD + timedelta(days=2)
DUE = OLD + timedelta(days=9)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom", traceback="File x")
CLAIM = Claim(worker="w1", lease_s=15.0)


class Clock:
    """A clock that stands where the test put it; every look moves it by a microsecond."""

    def __init__(self) -> None:
        self.at = OLD

    def now(self) -> datetime:
        self.at += timedelta(microseconds=1)
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()


class CrashError(Exception):
    """The process is gone."""


class CrashingLog(MemoryLog):
    """Dies at one of its writes, before it is made or after; then it writes again, as for the next process."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.writes = 0
        self.crash_at = 0  #: the write, counted from 1; negative: after it was made
        self.crashed = False

    def crash(self, at: int) -> None:
        self.writes, self.crash_at, self.crashed = 0, at, False

    async def append(self, entries: Sequence[Entry]) -> int:
        self._die(1)
        sequence = await super().append(entries)
        self._die(-1)
        return sequence

    async def purge(self, through: int) -> None:
        self._die(1)
        await super().purge(through)
        self._die(-1)

    def _die(self, side: int) -> None:
        self.writes += side > 0
        if self.crash_at and self.writes * side == self.crash_at:
            self.crashed = True
        if self.crashed:
            raise CrashError


def _no_progress(_step: str, _done: int, _total: int) -> None:
    return


class Holders:
    """Who lives."""

    def __init__(self, *alive: str) -> None:
        self.alive = alive

    async def find(self, worker: str) -> object | None:
        return worker if worker in self.alive else None


class World:
    """A ledger in memory, and what a test does to it."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.log = CrashingLog(self.clock)
        self.folder = folder
        self.timers: list[Timer] = []
        self.behind: list[Unread] = []
        self.alive: tuple[str, ...] = ()

    def stamp(self) -> Stamp:
        return Stamp(at=self.clock.now(), by="alice")

    async def do(self, job_id: str, *commands: Command) -> Job:
        job: Job | None = None
        for command in commands:
            ref = JobRef(queue="email", job_id=job_id)
            if hasattr(command, "epoch") and not isinstance(command, Fence):
                epoch = (await self.job(job_id)).claim_epoch
                command = msgspec.structs.replace(command, epoch=epoch)  # noqa: PLW2901
            job = (await transact(self.log, ref, command, self.stamp)).job
        assert job is not None
        return job

    async def enqueue(self, job_id: str, *commands: Command, **options: Any) -> Job:
        ref = JobRef(queue="email", job_id=job_id)
        order: dict[str, Any] = {
            "max_attempts": 3,
            "input": msgspec.Raw(b'{"n":7}'),
        } | options
        return await self.do(job_id, enqueue_of(ref, **order), *commands)

    async def job(self, job_id: str) -> Job:
        job = (await load(self.log, JobRef(queue="email", job_id=job_id))).job
        assert job is not None
        return job

    async def lock(self, view: View[Lock] | None, command: Acquire | Release) -> View[Lock]:
        ref = LockRef(scope="account", lock_id="7")
        view = view or View()
        event = decide(ref, view.state, command, self.stamp())
        entry = LOCK.link(self.log.names, [event], view)[0]
        return LOCK.advance(entry, event, await self.log.append([entry]))

    def archiver(self, folder: Path | None = None, on_progress: OnProgress = _no_progress) -> Archiver:
        async def unread(_through: int) -> list[Unread]:
            return self.behind

        async def set_timer(timer: Timer) -> None:
            self.timers.append(timer)

        async def carry_schedule(name: str, through: int) -> None:
            raise AssertionError(f"there is no schedule {name} to be carried up to {through}")

        deps = ArchiveDeps(
            clock=self.clock,
            stamp=self.stamp,
            leases=Holders(*self.alive),
            unread=unread,
            set_timer=set_timer,
            carry_schedule=carry_schedule,
            on_progress=on_progress,
        )
        return Archiver(self.log, folder or self.folder, deps)

    async def archive(self, before: datetime = BEFORE, *, force: bool = False) -> Done:
        return await self.archiver().run(before, force=force)

    async def check(self) -> None:
        """The ledger is sound by itself, and with its archive in front of it."""
        alone = await verify(self.log)
        assert alone.sound, alone.text()
        joined = await verify(await open_archive(self.log, self.folder))
        assert joined.sound, joined.text()
        assert joined.head_sequence == alone.head_sequence
        assert joined.events == joined.head_sequence, "every event there ever was is in the one or the other"


#: Jobs whose every event is older than what is kept, and how they got where they are.
OLD_JOBS: dict[str, tuple[Command, ...]] = {
    "queued": (),
    "running": (CLAIM,),
    "last_attempt": (CLAIM, Fail(epoch=0, error=BOOM), CLAIM, Fail(epoch=0, error=BOOM), CLAIM),
    "retrying": (CLAIM, Fail(epoch=0, error=BOOM, retry_at=DUE)),
    "snoozed": (CLAIM, Snooze(epoch=0, until=DUE)),
    "paused": (CLAIM, Pause(epoch=0, event="paid")),
    "dead": (CLAIM, Fail(epoch=0, error=BOOM, give_up="rejected")),
    "cancelling": (CLAIM, CancelJob(reason="no")),
}
OVER: dict[str, tuple[Command, ...]] = {
    "completed": (CLAIM, Complete(epoch=0, result=msgspec.Raw(b"1"))),
    "cancelled": (CancelJob(),),
    "discarded": (CLAIM, Fail(epoch=0, error=BOOM, give_up="rejected"), Discard()),
}


async def populate(world: World) -> dict[str, Job]:
    """Fill a ledger with jobs in every state, a day before and a day after the moment; return those that stay."""
    for job_id, commands in (OVER | OLD_JOBS).items():
        await world.enqueue(job_id, *commands)
    await world.enqueue("scheduled", run_at=DUE)
    await world.enqueue("held", limits=("api",))
    for job_id in ("finishes_later", "starts_later", "fenced_later"):
        await world.enqueue(job_id)
    stale = (await world.do("fenced_later", CLAIM)).claim_epoch
    await world.do("fenced_later", Complete(epoch=0))
    view = await world.lock(None, Acquire(holder="w1", lease_s=15.0))
    await world.lock(view, Release(fencing_number=view.last_sequence))
    world.clock.at = NEW
    await world.do("finishes_later", CLAIM, Complete(epoch=0))
    await world.do("starts_later", CLAIM)
    await world.enqueue("new", CLAIM, Complete(epoch=0))
    # A worker that lost its claim, and was so late that its job is long over. Forged, since only a takeover does it.
    job = await world.job("fenced_later")
    assert stale == job.attempts[0].epoch
    await world.do("fenced_later", Fence(epoch=stale, attempt=1, worker="w1", outcome="failed"))
    stay = [*OLD_JOBS, "scheduled", "held", "finishes_later", "starts_later", "fenced_later", "new"]
    return {job_id: await world.job(job_id) for job_id in stay}


def unmoved(job: Job) -> Job:
    """The job without what an archive run moves on."""
    return msgspec.structs.replace(job, last_sequence=0, carried_sequence=0, dispatch_sequence=0)
