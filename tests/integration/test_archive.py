"""An archive run on the log in memory: what goes, what is carried, and a crash between any two of its writes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobledger.ledger.archive import Archiver, Done, OnProgress, Tools
from jobledger.ledger.archive_chain import open_archive
from jobledger.ledger.archive_survey import Unread
from jobledger.ledger.audit import verify
from jobledger.ledger.chain import fold, load, transact
from jobledger.ledger.codec import encode
from jobledger.ledger.commands import (
    CancelJob,
    Claim,
    Command,
    Complete,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    Fence,
    Pause,
    Requeue,
    Snooze,
    Stamp,
    TakeOver,
)
from jobledger.ledger.errors import (
    ArchiveIncompleteError,
    ArchiveRefusedError,
    ExportDamagedError,
    ExportExistsError,
    InvalidInputError,
    JobNotFoundError,
    RefusedError,
    WrongSequenceError,
)
from jobledger.ledger.events import Carried, ErrorInfo, Queued, Started
from jobledger.ledger.job import CLOSED_STATES, Job, JobState
from jobledger.ledger.lock_events import Acquire, LockView, Release, advance, decide, seal
from jobledger.ledger.log import Entry
from jobledger.ledger.memory import MemoryLog
from jobledger.ledger.reactor_events import SEALS, SealRecorded, seal_reactor_event
from jobledger.ledger.subjects import JobRef, LockRef
from jobledger.ledger.timers import Timer
from jobledger.projections import Projector
from jobledger.projections.errors import PositionArchivedError

pytestmark = pytest.mark.anyio

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
            "task": "send",
            "max_attempts": 3,
            "input": msgspec.Raw(b'{"n":7}'),
        } | options
        return await self.do(job_id, Enqueue(ref=ref, **order), *commands)

    async def job(self, job_id: str) -> Job:
        job = (await load(self.log, JobRef(queue="email", job_id=job_id))).job
        assert job is not None
        return job

    async def lock(self, view: LockView | None, command: Acquire | Release) -> LockView:
        ref = LockRef(scope="account", lock_id="7")
        view = view or LockView()
        event = decide(ref, view.lock, command, self.stamp())
        entry = seal(view, event, self.log.names)
        return advance(entry, event, await self.log.append([entry]))

    def archiver(self, folder: Path | None = None, on_progress: OnProgress = _no_progress) -> Archiver:
        async def unread(_through: int) -> list[Unread]:
            return self.behind

        async def set_timer(timer: Timer) -> None:
            self.timers.append(timer)

        tools = Tools(
            clock=self.clock,
            stamp=self.stamp,
            leases=Holders(*self.alive),
            unread=unread,
            set_timer=set_timer,
            on_progress=on_progress,
        )
        return Archiver(self.log, folder or self.folder, tools)

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


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "archive")


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


async def test_jobs_that_are_over_go_and_all_others_stay_what_they_are(world: World) -> None:
    before = await populate(world)
    head = await world.log.head()
    plan = await world.archiver().plan(BEFORE)
    assert await world.log.head() == head, "a plan changes nothing"
    assert not world.folder.exists()
    done = await world.archive()
    assert (plan.first_sequence, plan.jobs_archived, plan.jobs_carried) == (1, 4, 12)
    assert (plan.events, done.events) == (done.first_sequence - 1,) * 2
    assert (done.jobs_archived, done.jobs_carried) == (3, 13)  # and the one whose receipt came late
    assert (await world.log.head()).first_sequence == plan.through_sequence + 1
    for job_id, job in before.items():
        after = await world.job(job_id)
        assert unmoved(after) == unmoved(job), job_id
        work_item_kept = job.dispatch_sequence >= done.first_sequence
        assert after.dispatch_sequence == job.dispatch_sequence or not work_item_kept
        if after.state in (JobState.QUEUED, JobState.RUNNING):
            dispatch = await world.log.get(after.dispatch_sequence)
            assert dispatch is not None, f"{job_id} has a work item"
    for job_id in OVER:
        assert (await load(world.log, JobRef(queue="email", job_id=job_id))).job is None
    assert {timer.job_id: (timer.asked_by, timer.due_at) for timer in world.timers} == {
        job_id: (before[job_id].wait_sequence, DUE) for job_id in ("scheduled", "retrying", "snoozed")
    }
    await world.check()

    # Nothing more to do: not even an event is written.
    head = await world.log.head()
    again = await world.archive()
    assert (again.events, again.jobs_carried, again.exports) == (0, 0, ())
    assert await world.log.head() == head


async def test_jobs_go_on_after_a_run_and_a_later_run_takes_the_rest(world: World) -> None:
    await populate(world)
    await world.archive()
    for job_id in ("running", "last_attempt", "starts_later"):
        assert (await world.do(job_id, Complete(epoch=0))).state is JobState.COMPLETED
    await world.do("queued", CLAIM, Complete(epoch=0))
    await world.enqueue("completed", CLAIM, Complete(epoch=0))  # an id that is free again
    view = await world.lock(None, Acquire(holder="w2", lease_s=15.0))  # a lock of which nothing is held
    await world.lock(view, Release(fencing_number=view.last_sequence))
    await world.check()
    world.clock.at = NEW + timedelta(days=2)
    done = await world.archive(NEW + timedelta(days=1))
    assert len(done.exports) == 1
    assert done.jobs_archived >= 5
    await world.check()
    for job_id in ("running", "queued", "completed", "finishes_later", "fenced_later", "new"):
        assert (await load(world.log, JobRef(queue="email", job_id=job_id))).job is None, job_id
    kept = [each.name for each in sorted(world.folder.iterdir())]
    assert len(kept) == 2
    assert kept[0][21:] < kept[1][:20]


async def test_a_run_that_dies_at_any_write_is_finished_by_the_next(tmp_path: Path) -> None:
    calm = World(tmp_path / "calm")
    before = await populate(calm)
    calm.log.crash(0)
    await calm.archive()
    writes = calm.log.writes
    assert writes > 14
    for at in (*range(1, writes + 1), *range(-writes, 0)):
        world = World(tmp_path / f"crash{at}")
        await populate(world)
        world.log.crash(at)
        with pytest.raises(CrashError):
            await world.archive()
        world.log.crash(0)
        await world.check()  # as it lies there
        done = await world.archive()
        assert done.first_sequence == (await calm.log.head()).first_sequence, at
        await world.check()
        for job_id, job in before.items():
            assert unmoved(await world.job(job_id)).state == job.state
            chain = await world.log.read_chain(world.log.names.chain(JobRef(queue="email", job_id=job_id)))
            carried = [each for each in chain if isinstance(each.event, Carried)]
            assert len(carried) <= 1, "a job that was carried is not carried again"
        assert (await world.archive()).events == 0


async def test_a_run_that_dies_while_it_writes_files_leaves_none_of_them(
    world: World, monkeypatch: Any
) -> None:
    await populate(world)

    def die(step: str, done: int, _total: int) -> None:
        if step == "export" and done:
            raise CrashError

    with pytest.raises(CrashError):
        await world.archiver(on_progress=die).run(BEFORE)
    assert not [each for each in world.folder.iterdir() if not each.name.startswith(".")]
    assert (await world.log.head()).first_sequence == 1
    await world.archive()
    await world.check()


async def test_an_unfinished_run_is_finished_before_a_later_one_begins(world: World) -> None:
    await populate(world)
    world.log.crash(1)
    with pytest.raises(CrashError):
        await world.archive()
    world.log.crash(0)
    assert (await world.archiver().plan(BEFORE)).unfinished > 1
    with pytest.raises(ArchiveRefusedError, match="unfinished run up to stream sequence"):
        await world.archive(OLD)
    world.clock.at = NEW + timedelta(days=1)
    done = await world.archive(NEW)
    assert (
        len(done.exports) == 1
    )  # the moment after the first export and before the second are the same event
    world.clock.at = NEW + timedelta(days=3)
    assert len((await world.archive(NEW + timedelta(hours=12))).exports) == 1
    await world.check()


@pytest.mark.parametrize("same_folder", [True, False])
async def test_of_two_runs_at_once_nothing_is_lost(world: World, tmp_path: Path, same_folder: bool) -> None:
    before = await populate(world)
    other = world.folder if same_folder else tmp_path / "other"
    outcomes = await asyncio.gather(
        world.archiver().run(BEFORE), world.archiver(other).run(BEFORE), return_exceptions=True
    )
    failed = [each for each in outcomes if isinstance(each, BaseException)]
    assert len(failed) <= 1
    assert all(
        isinstance(each, ArchiveRefusedError | ArchiveIncompleteError | ExportExistsError) for each in failed
    ), failed
    if not same_folder:
        assert failed
    if isinstance(outcomes[0], BaseException):
        world.folder = other
    await world.check()
    for job_id, job in before.items():
        assert (await world.job(job_id)).state == job.state


async def test_a_held_lock_and_what_is_not_sealed_stay(world: World) -> None:
    await world.enqueue("a", CLAIM, Complete(epoch=0))
    view = await world.lock(None, Acquire(holder="w9", lease_s=15.0))
    await world.enqueue("b", CLAIM, Complete(epoch=0))
    world.clock.at = NEW
    world.alive = ("w9",)
    plan = await world.archiver().plan(BEFORE)
    assert (plan.through_sequence, plan.held_back_by) == (
        3,
        "lock account/7, which w9 holds since stream sequence 4",
    )
    done = await world.archive()
    assert (done.first_sequence, done.held_back_by) == (4, plan.held_back_by)
    world.alive = ()  # its lease is over: whoever comes next takes it over, or finds it free
    event = SealRecorded(
        reactor=SEALS,
        at=NEW,
        by="s",
        from_sequence=1,
        to_sequence=5,
        merkle_root="",
        head_hash="",
        key="",
        signature="",
    )
    await world.log.append([seal_reactor_event(event, None, world.log.names)])
    done = await world.archive()
    assert (done.first_sequence, done.held_back_by) == (
        6,
        "the newest seal, which goes up to stream sequence 5",
    )
    with pytest.raises(WrongSequenceError):
        await world.lock(view, Release(fencing_number=view.last_sequence))


async def test_nothing_goes_that_somebody_has_not_read_unless_forced(world: World) -> None:
    await populate(world)
    world.behind = [Unread(consumer="events_billing", settled_through=3, sequence=4)]
    head = await world.log.head()
    with pytest.raises(ArchiveRefusedError, match=r"events_billing \(from stream sequence 4 on\)"):
        await world.archive()
    assert await world.log.head() == head
    await world.archive(force=True)
    await world.check()


async def test_a_ledger_that_is_not_sound_is_not_purged_unless_forced(world: World) -> None:
    await world.enqueue("a", CLAIM, Complete(epoch=0))
    started = Started(job="b", queue="email", task="send", at=OLD, by="f", attempt=1, worker="f", lease_s=1)
    ref = JobRef(queue="email", job_id="b")
    await world.log.append(
        [Entry(world.log.names.event(started), encode(started), world.log.names.chain(ref), 0)]
    )
    world.clock.at = NEW
    with pytest.raises(ArchiveRefusedError, match="not sound: `started` is its first event"):
        await world.archive()
    assert (await world.log.head()).first_sequence == 1
    assert (await world.archive(force=True)).jobs_carried == 1


async def test_damage_to_the_archive_is_found_and_nothing_is_taken_away(world: World) -> None:
    await populate(world)
    world.log.crash(1)
    with pytest.raises(CrashError):
        await world.archive()
    world.log.crash(0)
    (export,) = world.folder.iterdir()
    file = next(export.glob("events-*"))
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"by":"alice"', b'"by":"alicf"', 1))
    with pytest.raises(ExportDamagedError, match=r"events-.*jsonl"):
        await world.archive()
    assert (await world.log.head()).first_sequence == 1
    file.write_bytes(data)
    await world.archive()
    export.rename(world.folder.parent / "elsewhere")
    world.clock.at = NEW + timedelta(days=3)
    with pytest.raises(ArchiveIncompleteError, match="lacks the export whose manifest has the sha256"):
        await world.archive(NEW + timedelta(days=1))


async def test_a_receipt_at_the_moment_of_the_purge_is_put_right(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose job is long over says so between the last look and the purge."""
    await populate(world)
    stale = (await world.job("completed")).attempts[0].epoch
    purge = world.log.purge

    async def late(through: int) -> None:
        fence = Fence(epoch=stale, attempt=1, worker="w1", outcome="failed")
        await world.do("completed", fence)
        await purge(through)

    monkeypatch.setattr(world.log, "purge", late)
    await world.archive()
    monkeypatch.undo()
    job = await world.job("completed")
    assert (job.state, job.result, job.fenced_count) == (JobState.COMPLETED, msgspec.Raw(b"1"), 1)
    await world.check()
    with pytest.raises(JobNotFoundError):
        await world.do("cancelled", Fence(epoch=1, attempt=1, worker="w1", outcome="failed"))


async def test_a_job_with_more_tracebacks_than_fit_is_carried_without_them(world: World) -> None:
    huge = ErrorInfo(kind="exception", type="E", message="m", traceback="t" * 16_000)
    commands: list[Command] = []
    for _ in range(70):
        commands += [CLAIM, Fail(epoch=0, error=huge)]
    await world.enqueue("often", *commands, max_attempts=100)
    world.clock.at = NEW
    await world.archive()
    job = await world.job("often")
    assert (len(job.attempts), job.attempts[0].error, job.error) == (
        70,
        msgspec.structs.replace(huge, traceback=""),
        huge,
    )
    await world.check()


async def test_a_time_that_cannot_be_is_refused(world: World) -> None:
    with pytest.raises(InvalidInputError, match="is still to come"):
        await world.archive(NEW)
    with pytest.raises(InvalidInputError, match="no time zone"):
        await world.archive(datetime(2026, 1, 1))  # noqa: DTZ001
    assert (await world.archive(OLD)).events == 0  # an empty ledger
    assert not world.folder.exists()


async def test_a_ledger_purged_by_hand_is_not_archived_over(world: World) -> None:
    await populate(world)
    await world.log.purge(3)
    with pytest.raises(ArchiveRefusedError, match="somebody purged it by hand"):
        await world.archive()


async def test_a_fresh_work_item_is_one_for_each_job_that_waits_or_runs(world: World) -> None:
    await populate(world)
    await world.archive()
    found: dict[str, list[str]] = {}
    async for batch in world.log.read(subject=world.log.names.all_dispatches):
        for stored in batch:
            assert isinstance(stored.event, Queued)
            found.setdefault(stored.event.job, []).append(stored.event.cause)
    assert found == {
        **{each: ["carried"] for each in ("queued", "running", "last_attempt", "cancelling", "starts_later")},
        "new": ["new"],
    }


#: Of events that a projection made afterwards never saw: it takes what the job says of itself, or what is held.
_SERVER_TIMES = {"first_us", "since_us"}


def _rows(path: Path, table: str) -> dict[str, dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
    return {str(row["id"]): row for row in found}


async def test_a_projection_of_what_is_left_says_the_same_of_the_jobs_that_live(
    world: World, tmp_path: Path
) -> None:
    before = await populate(world)
    followed, fresh, behind = tmp_path / "followed.db", tmp_path / "fresh.db", tmp_path / "behind.db"
    with Projector(world.log, behind) as projector:
        await projector.catch_up(until=3)
    with Projector(world.log, followed) as projector:
        await projector.catch_up()
    await world.archive()
    with Projector(world.log, followed) as projector:
        await projector.catch_up()
    with Projector(world.log, fresh) as projector:
        position = await projector.catch_up()
    assert position.begins_at == (await world.log.head()).first_sequence
    with pytest.raises(PositionArchivedError), Projector(world.log, behind) as projector:
        await projector.catch_up()
    for table in ("jobs", "attempts"):
        known, made = _rows(followed, table), _rows(fresh, table)
        assert made
        differing = {
            (key, name, known[key][name], made[key][name])
            for key in made
            for name in made[key]
            if known[key][name] != made[key][name] and name not in _SERVER_TIMES
        }
        assert not differing
    assert _rows(fresh, "jobs").keys() == before.keys()


async def test_a_run_that_goes_further_gives_a_work_item_that_an_earlier_one_left(world: World) -> None:
    """As when each day takes away the events of a day a month ago: what was carried yesterday stands far behind."""
    await world.enqueue("early", CLAIM, Fail(epoch=0, error=BOOM, retry_at=DUE))
    world.clock.at = OLD + timedelta(days=1)
    await world.do("early", Dispatch(cause="retried", reason="by hand"))
    world.clock.at = NEW
    await world.archive(OLD + timedelta(hours=12))
    job = await world.job("early")
    assert (job.dispatch_sequence, job.carried_sequence) == (4, 5)
    await world.archive(OLD + timedelta(days=1, hours=12))
    job = await world.job("early")
    assert (job.dispatch_sequence, job.carried_sequence, job.dispatches) == (8, 7, 1)
    await world.check()


async def _step(world: World, draw: random.Random, jobs: list[str]) -> None:
    """Let something happen to some job."""
    world.clock.at += timedelta(minutes=draw.randrange(30))
    if len(jobs) < 3 or draw.random() < 0.25:
        jobs.append(f"j{len(jobs)}")
        await world.enqueue(jobs[-1], run_at=draw.choice([None, None, DUE]))
        return
    job_id = draw.choice(jobs)
    commands: list[Command] = [
        CLAIM,
        CLAIM,
        Complete(epoch=0),
        Fail(epoch=0, error=BOOM),
        Fail(epoch=0, error=BOOM, retry_at=DUE),
        Dispatch(cause="retried", reason="by hand"),
        Dispatch(cause="due", reason="by hand"),
        Snooze(epoch=0, until=DUE),
        TakeOver(worker="w2", lease_s=1.0, lost_epoch=0),
        Fence(epoch=0, attempt=1, worker="w1", outcome="failed"),
        CancelJob(),
        Requeue(),
        Discard(),
    ]
    command = draw.choice(commands)
    job = (await load(world.log, JobRef(queue="email", job_id=job_id))).job
    if job is not None and isinstance(command, TakeOver):
        command = msgspec.structs.replace(command, lost_epoch=job.claim_epoch)
    if job is not None and isinstance(command, Fence) and job.attempts:
        command = msgspec.structs.replace(command, epoch=job.attempts[0].epoch)
    if job is not None:
        with contextlib.suppress(RefusedError):
            await world.do(job_id, command)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_between_runs_the_jobs_are_what_their_whole_chains_make_them(
    world: World, seed: int
) -> None:
    draw = random.Random(seed)
    jobs: list[str] = []
    for _ in range(8):
        for _ in range(draw.randrange(5, 40)):
            await _step(world, draw, jobs)
        await world.archive(OLD + (world.clock.at - OLD) * draw.random())
        await world.check()
        joined = await open_archive(world.log, world.folder)
        first = (await world.log.head()).first_sequence
        for job_id in jobs:
            ref = JobRef(queue="email", job_id=job_id)
            job = (await load(world.log, ref)).job
            whole = fold(await joined.read_chain(world.log.names.chain(ref))).job
            assert job == whole or (job is None and whole is not None and whole.state in CLOSED_STATES)
            if job is not None and job.state in (JobState.QUEUED, JobState.RUNNING):
                assert job.dispatch_sequence >= first, f"{job_id} has a work item"
