"""Counters over an archive run: a projection made anew of what is left counts what one that was there all along counts."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.test_projection_statistics import JumpyClock
from tests.support.histories import STEPS, WEIGHTS, SteppedClock, act, ref_of
from tests.support.projections import SMALL, finish

from jobledger.audit.counts import Counts, append_counts, counted_parts, counts_before
from jobledger.audit.errors import ArchiveRefusedError
from jobledger.audit.export import ExportLog, JoinedLog, write_export
from jobledger.audit.verify import verify as audit
from jobledger.ledger.model.chain import link, load
from jobledger.ledger.model.commands import Carry, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import JobNotFoundError, RefusedError, WrongSequenceError
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived, CountedTask
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import Projector, Store, difference, rebuild, verify
from jobledger.projections.early_counts import counting
from jobledger.projections.statistics.archived_counts import begin_with
from jobledger.projections.statistics.spread import install

pytestmark = pytest.mark.anyio

JOBS = 40


class History:
    """A ledger to which things happen, and which is archived as an archive run does it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.log = MemoryLog(clock=JumpyClock(seed))
        self.clock = SteppedClock()
        self.folder = folder
        self.exports: list[ExportLog] = []
        self._chance = random.Random(seed)

    async def goes_on(self, events: int) -> None:
        for _ in range(events):
            number = self._chance.randrange(JOBS)
            for step in self._chance.choices(STEPS, list(WEIGHTS.values()), k=8):
                if await act(self.log, number, step, self.clock):
                    break

    async def archive(self, *, busy: int = 40, counted: bool = True, from_file: str = "followed") -> int:
        """Take away half of what is held; meanwhile `busy` things happen after each step."""
        head = await self.log.head()
        first, through = head.first_sequence, (head.first_sequence + head.last_sequence) // 2
        export = self.folder / f"{first}-{through}"
        previous = self.exports[-1].previous if self.exports else None
        manifest = await write_export(self.log, export, first=first, last=through, previous=previous)
        self.exports.append(ExportLog(export, self.log.names))
        await self.goes_on(busy)
        stamp = Stamp(at=self.clock.now(), by="archive")
        for number in range(JOBS):
            chain = await load(self.log, ref_of(number))
            try:
                carried = decide(chain.job, Carry(through=through), stamp)
            except (RefusedError, JobNotFoundError):
                continue
            await self.log.append(link(chain, carried, self.log.names).entries)
        await self.goes_on(busy)
        if counted:
            counts = await counting(self.log, self.folder / from_file, past=self.whole)(ignore)
            await self.goes_on(busy)
            await append_counts(self.log, counted_parts(counts, through, stamp))
        archived = Archived(
            reactor=ARCHIVE,
            at=self.clock.now(),
            by="archive",
            through_sequence=through,
            manifest_sha256="a" * 64,
            head_hash=manifest.head_hash,
            digest=manifest.digest,
            count=manifest.count,
        )
        last = await self.log.last(REACTOR.chain(self.log.names, ARCHIVE))
        await self.log.append(REACTOR.link(self.log.names, [archived], REACTOR.view(last)))
        await self.log.purge(through)
        return through

    async def whole(self) -> JoinedLog:
        return self.past()

    def past(self) -> JoinedLog:
        return JoinedLog(self.exports, self.log)


def ignore(_done: int, _total: int) -> None:
    return


def counters(path: Path) -> list[list[Any]]:
    """Return everything that the exporter's counters come from, in the order that decides which have series."""
    with closing(sqlite3.connect(path)) as connection:
        tables = ("SELECT * FROM totals ORDER BY rowid", "SELECT * FROM failures ORDER BY rowid")
        times = "SELECT id, queue, first_us, since_us FROM jobs WHERE status NOT IN ('completed', 'cancelled', 'discarded') ORDER BY id"
        return [connection.execute(sql).fetchall() for sql in tables] + [
            sorted(connection.execute(times).fetchall())
        ]


async def test_counts_of_an_older_archive_run_are_read_though_they_had_no_spreads(tmp_path: Path) -> None:
    history = History(3, tmp_path)
    await finish(history.log, tmp_path / "p")
    old = Counts(
        through_sequence=0,
        begins_at=1,
        columns=(
            "enqueued",
            "run_le_5m",
            "run_le_15m",
            "run_le_1h",
            "run_le_6h",
            "run_le_1d",
            "run_count",
            "run_us",
        ),
        totals=(CountedTask(queue="mail", task="send", counts=(5, 0, 3, 3, 3, 3, 4, 90_000_000_000)),),
        failure_columns=(),
        failures=(),
        jobs=(),
    )
    with closing(sqlite3.connect(tmp_path / "p", isolation_level=None)) as connection:
        install(connection)
        begin_with(connection, old)
    with Store.open(tmp_path / "p") as store:
        (row,) = store.totals()
    assert (row.enqueued, row.run.count, row.run.sum_s, row.wait.count) == (5, 4, 90_000.0, 0)
    assert row.run.counts == (*([0] * 12), 3, 3, 3, 3)
    assert 300 < (row.run.quantile_s(0.5) or 0) <= 900
    assert (row.run.quantile_s(1.0) or 0) > 86_400


async def assert_jobs_are_what_their_chains_say(log: MemoryLog, path: Path) -> None:
    """Also where an id was used again after its job was archived: nothing of that one is left in the rows."""
    held = 0
    with Store.open(path) as store:
        for row in store.jobs(limit=1_000):
            job = (await load(log, JobRef(queue=row.queue, job_id=row.id))).job
            if job is not None:
                held += 1
                assert store.folded(row.queue, row.id) == job
                assert len(store.attempts(row.queue, row.id)) == len(job.attempts)
    assert held


@pytest.mark.parametrize("seed", range(4))
async def test_counters_of_a_projection_made_anew_after_an_archive_are_those_of_one_that_saw_all(
    tmp_path: Path, seed: int
) -> None:
    history = History(seed, tmp_path)
    followed, fresh = tmp_path / "followed", tmp_path / "fresh"
    await history.goes_on(350)
    for run in range(3):
        await finish(history.log, followed)
        through = await history.archive(busy=40 * (run % 2))
        await finish(history.log, followed)
        await rebuild(history.log, fresh)
        small = tmp_path / f"small-{run}"
        await finish(history.log, small, SMALL)
        assert difference(small, fresh) is None
        with Store.open(fresh) as store:
            position = store.position()
            assert (position.begins_at, position.counts_begin_at, position.missing) == (through + 1, 1, "")
        assert counters(fresh) == counters(followed)
        await history.goes_on(80)
        for path in (followed, fresh, small):
            await finish(history.log, path)
        assert counters(fresh) == counters(followed)
        assert difference(small, fresh) is None
        assert (await verify(history.log, fresh))[1] is None
    report = await audit(history.past())
    assert report.broken.keys() <= {"timer"}, report.text()  # these jobs' due times are long past
    await rebuild(history.past(), tmp_path / "whole")
    assert difference(tmp_path / "whole", followed) is None
    await assert_jobs_are_what_their_chains_say(history.log, followed)


async def test_without_a_count_it_is_said_where_counters_begin_and_the_archive_brings_them_back(
    tmp_path: Path,
) -> None:
    history = History(7, tmp_path)
    await history.goes_on(400)
    await finish(history.log, tmp_path / "followed")
    through = await history.archive(counted=False)
    with Projector(history.log, tmp_path / "fresh") as projector:
        position = await projector.catch_up()
    assert position.counts_begin_at == through + 1
    assert f"begin at stream sequence {through + 1}" in position.missing
    assert "--archive" in position.missing
    found = difference(tmp_path / "fresh", tmp_path / "followed")
    assert found is not None
    assert "begins_at" in found

    # The next run counts what its own machine's file does not, from the archive itself.
    await history.goes_on(200)
    await history.archive(from_file="fresh")
    await finish(history.log, tmp_path / "followed")
    await finish(history.log, tmp_path / "second")
    assert counters(tmp_path / "second") == counters(tmp_path / "followed")


async def test_a_count_that_was_not_finished_or_is_of_another_run_is_none(tmp_path: Path) -> None:
    history = History(3, tmp_path)
    log = history.log
    await history.goes_on(300)
    counts = await counting(log, tmp_path / "followed")(ignore)
    stamp = Stamp(at=history.clock.now(), by="a")

    replace = msgspec.structs.replace
    assert len(counted_parts(counts, 1, stamp)) == 1
    large = replace(counts, totals=counts.totals * (1 + 1_200 // len(counts.totals)))
    parts = counted_parts(large, 50, stamp)
    assert len(parts) > 2
    await append_counts(log, parts[:-1])  # and dies
    with pytest.raises(WrongSequenceError):
        await append_counts(log, parts[1:])  # nothing may come between its parts
    await log.append([await archived(history, 50)])
    assert await counts_before(log, 51) is None

    await append_counts(log, parts)
    await log.append([await archived(history, 60)])
    assert await counts_before(log, 61) is None, "it was counted for another archive"
    assert await counts_before(log, 51) is None

    ahead = replace(large, through_sequence=10**9)  # it would never be reached
    narrow = replace(large, columns=large.columns[1:])
    for number, wrong in enumerate((ahead, narrow), start=62):
        await append_counts(log, counted_parts(wrong, number, stamp))
        await log.append([await archived(history, number)])
        assert await counts_before(log, number + 1) is None

    parts = counted_parts(large, 70, stamp)
    await append_counts(log, parts[:2])  # dies, and the next run counts anew
    await append_counts(log, parts)
    await log.append([await archived(history, 70)])
    found = await counts_before(log, 71)
    assert found is not None
    assert (found.totals, found.failures, found.jobs) == (large.totals, large.failures, large.jobs)


async def archived(history: History, through: int) -> Any:
    last = await history.log.last(REACTOR.chain(history.log.names, ARCHIVE))
    event = Archived(
        reactor=ARCHIVE,
        at=history.clock.now(),
        by="archive",
        through_sequence=through,
        manifest_sha256="a" * 64,
        head_hash="b" * 64,
        digest="c" * 64,
        count=through,
    )
    return REACTOR.link(history.log.names, [event], REACTOR.view(last))[0]


async def test_a_projection_that_cannot_count_stops_the_run(tmp_path: Path) -> None:
    history = History(5, tmp_path)
    await history.goes_on(50)
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0" + bytes(500))
    with pytest.raises(ArchiveRefusedError, match="--force"):
        await counting(history.log, tmp_path / "other.db")(ignore)


async def test_a_file_that_begins_again_after_another_archive_counts_nothing_twice(tmp_path: Path) -> None:
    """Also where nothing was carried, and nothing came after what went away."""
    log, clock, empty = MemoryLog(clock=JumpyClock(1)), SteppedClock(), tmp_path / "empty"
    await finish(log, tmp_path / "followed")
    for run in range(1, 3):
        for step in ("enqueue", "claim", "complete"):
            assert await act(log, run, step, clock)
        through = (await log.head()).last_sequence
        first = (await log.head()).first_sequence
        counts = await counting(log, tmp_path / "followed")(ignore)
        assert counts.through_sequence == through
        await append_counts(log, counted_parts(counts, through, Stamp(at=clock.now(), by="a")))
        last = await log.last(REACTOR.chain(log.names, ARCHIVE))
        event = Archived(
            reactor=ARCHIVE,
            at=clock.now(),
            by="a",
            through_sequence=through,
            manifest_sha256="a" * 64,
            head_hash="b" * 64,
            digest="c" * 64,
            count=through - first + 1,
        )
        await log.append(REACTOR.link(log.names, [event], REACTOR.view(last)))
        await log.purge(through)
        with Projector(log, empty) as projector:  # it begins, and reads nothing
            position = await projector.prepare()
        assert (position.begins_at, position.counts_begin_at) == (through + 1, 1)
        assert counters(empty)[:2] == counters(tmp_path / "followed")[:2]
    await finish(log, empty)
    await finish(log, tmp_path / "followed")
    assert counters(empty) == counters(tmp_path / "followed")
    with Store.open(empty) as store:
        assert [(row.enqueued, row.completed) for row in store.totals()] == [(1, 1), (1, 1)]
