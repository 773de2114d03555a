"""An archive run on the log in memory: what goes, what is carried, and what the jobs are afterwards."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.archiving import (
    BEFORE,
    BOOM,
    CLAIM,
    DUE,
    NEW,
    OLD,
    OVER,
    World,
    populate,
    unmoved,
)

from jobledger.audit.archive.chain import open_archive
from jobledger.audit.errors import ArchiveRefusedError
from jobledger.ledger.model.chain import fold, load
from jobledger.ledger.model.commands import (
    CancelJob,
    Command,
    Complete,
    Discard,
    Dispatch,
    Fail,
    Fence,
    Requeue,
    Snooze,
    TakeOver,
)
from jobledger.ledger.model.errors import RefusedError, WrongSequenceError
from jobledger.ledger.model.events import ErrorInfo, Queued
from jobledger.ledger.model.job import CLOSED_STATES, JobState
from jobledger.ledger.model.lock import Acquire, Release
from jobledger.ledger.model.reactor import REACTOR, SEALS, SealRecorded
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import Projector
from jobledger.projections.errors import PositionArchivedError

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "archive")


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
    await world.log.append(REACTOR.link(world.log.names, [event], REACTOR.view(None)))
    done = await world.archive()
    assert (done.first_sequence, done.held_back_by) == (
        6,
        "the newest seal, which goes up to stream sequence 5",
    )
    with pytest.raises(WrongSequenceError):
        await world.lock(view, Release(fencing_number=view.last_sequence))


async def test_a_job_with_more_tracebacks_than_fit_is_carried_without_them(world: World) -> None:
    huge = ErrorInfo(kind="exception", type="E", message="m", traceback="t" * 24_000)
    commands: list[Command] = []
    for _ in range(70):
        commands += [CLAIM, Fail(epoch=0, error=huge)]
    await world.enqueue("often", *commands, max_attempts=100)
    world.clock.at = NEW
    await world.archive()
    job = await world.job("often")
    assert (len(job.attempts), job.attempts_count, job.attempts[0].error, job.error) == (
        50,
        70,
        msgspec.structs.replace(huge, traceback=""),
        huge,
    )
    await world.check()


async def test_a_run_that_would_fill_the_ledger_is_refused_before_it_does(world: World) -> None:
    for number in range(300):
        await world.enqueue(f"waits-{number}")
    world.clock.at = NEW
    stored = (await world.log.head()).stored_bytes
    world.log._stored_bytes_max = 2 * stored  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(
        ArchiveRefusedError, match=r"236 more unfinished jobs .* `jobledger ledger resize SIZE`"
    ):
        await world.archive()
    assert (await world.log.head()).stored_bytes < 2 * stored
    world.log._stored_bytes_max = 9 * stored  # pyright: ignore[reportPrivateUsage]
    await world.archive()
    assert (await world.log.head()).first_sequence > 300
    await world.check()


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
