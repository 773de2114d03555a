"""The state as of a past moment is that of a ledger that was really stopped there, with snapshots and without."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.histories import STEPS, SteppedClock, act, memory_history, random_history
from tests.support.limits import LIMIT_S

from jobledger.ledger.model.chain import commit, load
from jobledger.ledger.model.commands import Carry, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import (
    MomentAheadError,
    MomentArchivedError,
    NotAProjectionError,
    PositionMismatchError,
    ProjectionTimeoutError,
    Projector,
    ProjectorConfig,
    SnapshotConfig,
    Snapshots,
    Store,
    as_of,
    difference,
    moment_of,
    rebuild,
)
from jobledger.projections.snapshots import Snapshot, superfluous

pytestmark = pytest.mark.anyio

SMALL = ProjectorConfig(batch_events_max=7, cache_jobs_max=3, linger_s=0.0)
#: A snapshot after every commit that is 20 events on, whatever it costs.
OFTEN = SnapshotConfig(every_events=20, time_share_max=1e9)


def stopped_at(log: MemoryLog, length: int) -> MemoryLog:
    """Return a log that never had more than its first events."""
    stopped = MemoryLog(names=log.names)
    stopped.copy_from(log, through=length)
    return stopped


async def follow(log: MemoryLog, path: Path, snapshots: SnapshotConfig | None = None) -> None:
    kept = Snapshots(path, config=snapshots) if snapshots is not None else None
    with Projector(log, path, config=SMALL, snapshots=kept) as projector:
        await projector.catch_up()


def answers(store: Store) -> Any:
    """Return everything that the commands ask of a store."""
    rows = store.jobs(limit=10_000)
    return (
        rows,
        [store.attempts(row.queue, row.id) for row in rows],
        [store.folded(row.queue, row.id) for row in rows],
        store.dead_letters(limit=10_000),
        store.queues(),
        store.counts_by_state(),
        store.totals(),
        store.position().stream_sequence,
    )


async def assert_as_of(log: MemoryLog, path: Path, length: int, **options: Any) -> None:
    """Every answer, and every row, is that of a projector that followed a ledger which was stopped there."""
    really = path.with_name(f"stopped-{length}-{random.random()}")
    await follow(stopped_at(log, length), really)
    async with as_of(log, path, length, config=SMALL, **options) as then:
        with Store.open(really) as store:
            assert answers(then) == answers(store)
        assert difference(then.path, really) is None
    assert not then.path.exists()


@settings(max_examples=15, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STEPS)), max_size=60),
    moments=st.lists(st.integers(0, 10**6), min_size=1, max_size=3),
    followed=st.booleans(),
)
def test_as_of_equals_a_ledger_that_was_stopped_there(
    moves: list[tuple[int, str]], moments: list[int], *, followed: bool
) -> None:
    async def compare(folder: Path) -> None:
        log, clock, path = MemoryLog(), SteppedClock(), folder / "p"
        for number, step in moves:
            await act(log, number, step, clock)
        head = (await log.head()).last_sequence
        often = SnapshotConfig(every_events=5, time_share_max=1e9, count_max=3)
        if followed:
            await follow(log, path, often)
        for moment in moments:
            await assert_as_of(log, path, moment % (head + 1), snapshots=often)

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(compare, Path(folder))


async def test_snapshots_are_made_used_and_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, path = await memory_history(), tmp_path / "p"
    head = (await log.head()).last_sequence
    config = SnapshotConfig(every_events=20, time_share_max=1e9, count_max=6)
    await follow(log, path, config)
    found = [each.stream_sequence for each in Snapshots(path).found()]
    assert len(found) == 6
    assert found[0] > head - 30
    # The older, the sparser: no gap is smaller than a younger one by more than a step.
    assert found[-2] - found[-1] > found[0] - found[1]
    read_from: list[int] = []
    real = MemoryLog.read_messages

    def reading(self: MemoryLog, *, from_sequence: int = 1, **options: Any) -> Any:
        read_from.append(from_sequence)
        return real(self, from_sequence=from_sequence, **options)

    monkeypatch.setattr(MemoryLog, "read_messages", reading)
    async with as_of(log, path, found[1] + 3, snapshots=config) as store:
        assert store.position().stream_sequence == found[1] + 3
    assert read_from == [found[1] + 1]
    async with as_of(log, path, head) as store:  # the present projection is nearer than any snapshot
        assert store.position().stream_sequence == head
    assert read_from == [found[1] + 1]


async def test_several_who_follow_and_look_back_at_once_disturb_nobody(tmp_path: Path) -> None:
    log, path = MemoryLog(), tmp_path / "p"
    config = SnapshotConfig(every_events=5, time_share_max=1e9, count_max=3)
    with (
        Projector(log, path, config=SMALL, snapshots=Snapshots(path, config=config)) as one,
        Projector(log, path, config=SMALL, snapshots=Snapshots(path, config=config)) as other,
    ):
        async with anyio.create_task_group() as group:
            group.start_soon(one.run)
            group.start_soon(other.run)
            for seed in range(6):
                await random_history(log, seed, jobs=40, steps=20)
                head = (await log.head()).last_sequence
                await one.wait_for(head, timeout_s=LIMIT_S)
                await other.wait_for(head, timeout_s=LIMIT_S)
                for back in (1, 9, 17):
                    await assert_as_of(log, path, head - back, snapshots=config)
            group.cancel_scope.cancel()
    found = Snapshots(path).found()
    assert 1 <= len(found) <= 4  # each thins after its own
    assert {each.name for each in Snapshots(path).folder.iterdir()} == {each.path.name for each in found}


async def test_a_moment_that_took_many_events_to_reach_leaves_a_snapshot(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "nowhere" / "p"
    stingy = SnapshotConfig(every_events=100, time_share_max=1e-9, at_once_s=1e-9)
    told: list[tuple[int, int]] = []

    def tell(done: int, wanted: int) -> None:
        told.append((done, wanted))

    async with as_of(log, path, 120, snapshots=stingy, progress=tell):
        pass
    assert (told, told[-1]) == (sorted(told), (120, 120))
    for moment in (115, 130):  # a little before the moment, so that both are near
        assert [each.stream_sequence for each in Snapshots(path).found()] == [100]
        async with as_of(log, path, moment, snapshots=stingy, progress=tell):
            pass
        assert told[-1] == (moment - 100, moment - 100)
    assert [each.stream_sequence for each in Snapshots(path).found()] == [100]
    assert not path.exists()


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "schema", "foreign"])
async def test_a_snapshot_that_cannot_be_trusted_is_removed_and_never_believed(
    tmp_path: Path, harm: str
) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await follow(log, path, OFTEN)
    newest = Snapshots(path).found()[0]
    data = bytearray(newest.path.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
        newest.path.write_bytes(data)
    elif harm in {"cut", "empty"}:
        newest.path.write_bytes(data[: len(data) // 2 if harm == "cut" else 0])
    else:
        _with_right_checksum(
            newest, "PRAGMA user_version = 1" if harm == "schema" else "PRAGMA application_id = 1"
        )
    path.unlink()
    target = min(newest.stream_sequence + 2, (await log.head()).last_sequence)
    await assert_as_of(log, path, target, snapshots=SnapshotConfig())
    assert newest.stream_sequence not in [each.stream_sequence for each in Snapshots(path).found()]


def _with_right_checksum(snapshot: Snapshot, statement: str) -> None:
    """Change a snapshot behind its checksum's back, as an older version would have made it."""
    import zlib  # noqa: PLC0415 - only here

    connection = sqlite3.connect(snapshot.path, isolation_level=None)
    connection.execute(statement)
    connection.close()
    checksum = zlib.crc32(snapshot.path.read_bytes())
    snapshot.path.rename(snapshot.path.with_name(f"{snapshot.path.name[:-11]}{checksum:08x}.db"))


async def test_snapshots_of_another_past_are_removed(tmp_path: Path) -> None:
    log, other, path = await memory_history(seed=1), await memory_history(seed=2), tmp_path / "p"
    await follow(log, path, OFTEN)
    assert Snapshots(path).found()
    await assert_as_of(other, path, 150, snapshots=SnapshotConfig())
    assert [each for each in Snapshots(path).found() if each.stream_sequence <= 150] == []
    with Projector(other, path) as projector, pytest.raises(PositionMismatchError):
        await projector.catch_up()  # the projection itself was left alone
    await rebuild(other, path)
    assert Snapshots(path).found() == []
    assert not Snapshots(path).folder.exists()


async def test_a_moment_is_found_by_its_time(tmp_path: Path) -> None:
    log = await memory_history()
    head = (await log.head()).last_sequence
    times = [stored.stored_at async for batch in log.read_messages() for stored in batch]
    for sequence in (1, 2, head // 2, head):
        stored = await log.get(sequence)
        assert stored is not None
        for at in (stored.stored_at, stored.stored_at - timedelta(microseconds=1)):
            moment = await moment_of(log, at=at)
            assert (moment.stream_sequence, moment.at) == (sum(each <= at for each in times), at)
        assert (await moment_of(log, stream_sequence=sequence)).at == stored.stored_at
    before = await moment_of(log, at=datetime(2024, 1, 1, tzinfo=UTC))
    assert before.stream_sequence == 0
    async with as_of(log, tmp_path / "p", 0) as store:
        assert (store.jobs(), store.queues(), store.position().stream_sequence) == ([], [], 0)
    assert (await moment_of(log, stream_sequence=0)).at is None
    assert (await moment_of(MemoryLog(), at=datetime(2024, 1, 1, tzinfo=UTC))).stream_sequence == 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"stream_sequence": 10**6}, "stream sequence 1000000 is still to come: the ledger ends at "),
        ({"stream_sequence": -1}, "sequences begin at 1"),
        (
            {"at": datetime(2999, 1, 1, tzinfo=UTC)},
            "2999-01-01T00:00:00.* is still to come: ask for a past time",
        ),
    ],
)
async def test_what_is_still_to_come_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(MomentAheadError, match=words):
        await moment_of(await memory_history(steps=20), **asked)


async def archived_history(path: Path, through: int) -> tuple[MemoryLog, int]:
    """Return a ledger whose first events went into an archive, and the sequence of the archive's own event."""
    log, clock = await memory_history(steps=200), SteppedClock()
    await follow(log, path, OFTEN)
    async with contextlib.aclosing(log.read()) as batches:
        begun = {
            (s.event.queue, s.event.job)
            async for batch in batches
            for s in batch
            if s.stream_sequence <= through
        }
    for queue, job_id in sorted(begun):
        chain = await load(log, JobRef(queue=queue, job_id=job_id))
        if chain.job is not None and not chain.job.is_final and chain.job.carried_sequence <= through:
            await commit(
                log, chain, decide(chain.job, Carry(through=through), Stamp(at=clock.now(), by="archive"))
            )
    fact = Archived(
        reactor=ARCHIVE,
        at=clock.now(),
        by="test",
        through_sequence=through,
        manifest_sha256="",
        head_hash="",
        digest="",
        count=through,
    )
    whole = await log.append(REACTOR.link(log.names, [fact], REACTOR.view(None)))
    await log.purge(through)
    await random_history(log, 5, jobs=20, steps=60)
    return log, whole


async def test_after_an_archive_the_past_begins_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "p"
    log, whole = await archived_history(path, 100)
    assert Snapshots(path).found()
    head = (await log.head()).last_sequence
    gone: list[dict[str, Any]] = [{"stream_sequence": 100}, {"at": datetime(2024, 1, 1, tzinfo=UTC)}]
    for asked in gone:
        with pytest.raises(MomentArchivedError, match="the ledger begins at stream sequence 101"):
            await moment_of(log, **asked)
    for sequence in (0, 101, whole - 1):
        with pytest.raises(
            MomentArchivedError, match=f"its state can be told from stream sequence {whole} on"
        ):
            async with as_of(log, path, sequence):
                pass
    await follow(log, path, OFTEN)  # goes on in the rows of before, from which no snapshot is made any more
    for sequence in (whole, whole + 30, head):
        await assert_as_of(log, path, sequence, snapshots=OFTEN)
    assert {each.begins_at for each in Snapshots(path).found()} == {101}


async def test_a_file_of_another_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(NotAProjectionError):
        async with as_of(await memory_history(steps=20), path, 5):
            pass
    assert not Snapshots(path).folder.exists()


async def test_snapshots_cost_no_more_than_their_share(tmp_path: Path) -> None:
    class Idle(SteppedClock):
        time_s = 0.0

        def monotonic(self) -> float:
            return self.time_s

    log, path, clock = await memory_history(), tmp_path / "p", Idle()
    await follow(log, path)
    kept = Snapshots(
        path, config=SnapshotConfig(every_events=20, time_share_max=0.01, at_once_s=1e-9), clock=clock
    )
    head = (await log.head()).last_sequence
    await kept.consider(path, head)
    assert kept.found() == []  # no time has gone by of which it could have a share
    clock.time_s = 1_000.0
    await kept.consider(path, head)
    assert [each.stream_sequence for each in kept.found()] == [head]


async def test_snapshots_may_take_a_moment_before_they_have_a_share(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await follow(log, path, SnapshotConfig(every_events=50, time_share_max=1e-9, at_once_s=60.0))
    assert len(Snapshots(path).found()) == (await log.head()).last_sequence // 50


async def test_a_disk_that_refuses_snapshots_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, path = await memory_history(), tmp_path / "p"
    Snapshots(path).folder.write_text("in the way", encoding="utf-8")
    await follow(log, path, OFTEN)
    assert "no snapshot of the projection was made" in caplog.text
    await assert_as_of(log, path, 100, snapshots=OFTEN)


async def test_drafts_of_dead_processes_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    folder = Snapshots(path).folder
    folder.mkdir()
    child = await anyio.open_process(["true"])
    await child.wait()
    dead, alive = folder / f"draft-{child.pid}-x.db", folder / f"draft-{os.getppid()}-x.db"
    for each in (dead, alive):
        each.write_bytes(b"half")
    await follow(log, path, OFTEN)
    assert (dead.exists(), alive.exists()) == (False, True)


async def test_snapshots_take_their_share_of_the_free_disk_and_no_more(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    await follow(log, path, msgspec.structs.replace(OFTEN, free_share_max=1e-12))
    assert Snapshots(path).found() == [], "one copy would take more"
    size, free = path.stat().st_size, shutil.disk_usage(tmp_path).free
    path.unlink()
    # Three copies and a half, also where others use the disk meanwhile.
    await follow(log, path, msgspec.structs.replace(OFTEN, free_share_max=3.5 * size / free))
    taken = sum(each.size_bytes for each in Snapshots(path).found())
    assert 2.5 * size < taken < 3.6 * size


@given(
    sequences=st.lists(st.integers(1, 10**6), unique=True, max_size=40),
    count_max=st.integers(1, 10),
    bytes_max=st.integers(1, 60),
)
def test_thinning_keeps_the_bounds_and_the_newest(
    sequences: list[int], count_max: int, bytes_max: int
) -> None:
    found = [
        Snapshot(path=Path(str(each)), stream_sequence=each, begins_at=1, checksum=0, size_bytes=3)
        for each in sequences
    ]
    gone = superfluous(found, count_max=count_max, bytes_max=bytes_max)
    kept = [each for each in found if each not in gone]
    assert len(kept) == min(len(found), count_max, bytes_max // 3)
    if kept:
        assert max(sequences) in [each.stream_sequence for each in kept]


async def test_a_reader_waits_for_what_another_projector_writes(tmp_path: Path) -> None:
    log, clock, path = await memory_history(), SteppedClock(), tmp_path / "p"
    await follow(log, path)
    with Store.open(path) as store, Projector(log, path) as projector:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(projector.run())
            assert await act(log, 9_000, "claim", clock)
            head = (await log.head()).last_sequence
            assert (await store.wait_for(head, timeout_s=LIMIT_S)).stream_sequence >= head
            assert store.find("job-09000")
            following.cancel()
        assert await act(log, 9_001, "claim", clock)
        await rebuild(log, path)  # the reader goes on in the new file
        assert (await store.wait_for(head + 1, timeout_s=LIMIT_S)).stream_sequence == head + 1
        with pytest.raises(
            ProjectionTimeoutError, match=f"did not reach stream sequence {head + 2} within 0.05 s"
        ):
            await store.wait_for(head + 2, timeout_s=0.05)
