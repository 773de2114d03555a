"""Parts of the reactor of the limits that need no server: who hosts it, its snapshots, and what is put aside on disk."""

from __future__ import annotations

import asyncio
import logging
import resource
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.audit.errors import ScratchSpaceError
from jobledger.audit.verify import store
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import ServerUnreachableError
from jobledger.ledger.model.events import Cancelled, Completed, Held, JobEvent, Paused
from jobledger.ledger.model.limits.definition import LimitSet
from jobledger.ledger.model.limits.flow import Granted, GrantedJob
from jobledger.ledger.model.limits.grants import Granter
from jobledger.ledger.model.limits.holders import JobKey, JobSlots
from jobledger.ledger.model.limits.lines import SpilledJob
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.workers.reactors.flow.admission import Admitter
from jobledger.workers.reactors.flow.fold import DiskSpill, GrantFold
from jobledger.workers.reactors.flow.seats import Fleet, fleet_of
from jobledger.workers.reactors.flow.snapshots import FlowState, prepare, restore, state_of, waiting_of
from jobledger.workers.reactors.timers import TwoClocks

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def lease(worker: str, **said: object) -> WorkerInfo:
    base = WorkerInfo(
        worker=worker, host="h", pid=1, queues=("a",), started_at=NOW, renewed_at=NOW, reactors=True
    )
    return msgspec.structs.replace(base, **said)


@each_row(
    ("infos", "hosts", "served"),
    [
        ([], (), {}),
        ([lease("w3"), lease("w1"), lease("w2")], ("w1", "w2"), {"a": 3}),
        ([lease("w1", stopped=True), lease("w2", concurrency=7)], ("w2",), {"a": 7}),
        ([lease("w1", reactors=False, queues=("b",)), lease("w2", queues=())], ("w2",), {"b": 1}),
    ],
)
def test_the_two_smallest_names_among_living_workers_with_reactors_host_it(
    infos: list[WorkerInfo], hosts: tuple[str, ...], served: dict[str, int]
) -> None:
    fleet = fleet_of(infos)
    assert isinstance(fleet, Fleet)
    assert (fleet.hosts, fleet.served) == (hosts, served)


def test_jobs_put_aside_come_back_in_the_order_of_their_line() -> None:
    spill = DiskSpill()
    for held in range(1, 10_001):
        spill.put(held % 3, (held, "q", f"j{held}", ("all", f"tenant:{held % 3}")))
    assert spill.find(("q", "j10000")) == (1, (10_000, "q", "j10000", ("all", "tenant:1")))  # in memory yet
    assert spill.find(("q", "j2")) == (2, (2, "q", "j2", ("all", "tenant:2")))
    page = spill.page(1, 3, 3)
    assert [job[0] for job in page] == [4, 7, 10]
    assert page[0] == (4, "q", "j4", ("all", "tenant:1"))
    assert spill.find(("q", "j7")) == (1, (7, "q", "j7", ("all", "tenant:1")))
    assert spill.find(("other", "j7")) is None
    spill.remove(1, 7)
    spill.drop(1, 4)
    assert spill.find(("q", "j7")) is None
    assert [job[0] for job in spill.page(1, 0, 2)] == [10, 13]
    spill.close()
    assert spill.page(1, 0, 2) == []


def test_a_job_that_was_put_aside_names_all_its_limits_again() -> None:
    granter = Granter(spill := DiskSpill(), heads_max=1)
    granter.limit(defined("a", slots=9, keep="job"), 1)
    granter.limit(defined("b", slots=9), 2)
    for number in (1, 2, 3):
        granter.job(held(number, "a", "b"), 2 + number)
    for number in (1, 2, 3):  # as after an attempt that failed: each has kept its slot of one limit
        granter.holders.put(("q", f"k{number}"), JobSlots(("a",), ("a",)))
        granter.wait(("q", f"k{number}"), (1, "q", "", ("a", "b")), 5 + number)
    assert granter.lines.spilled == 4
    assert {each.job: each.limits for each, _ in granter.lines.oldest()} == {
        f"{kind}{number}": ("a", "b") for kind in "jk" for number in (1, 2, 3)
    }
    aside = granter.lines.find(("q", "k3")), granter.lines.find(("q", "j3"))
    assert [each and each.limits for each in aside] == [("a", "b"), ("a", "b")]
    assert len(granter.decide(NOW).grants) == 6
    assert {each.limits for each in granter.holders.jobs.values()} == {("a", "b")}
    spill.close()


def test_a_full_disk_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAGES_MAX", 4)
    spill = DiskSpill()
    for held in range(1, 4_096):  # of one transaction
        spill.put(1, (held, "q", f"j{held}", ("all",)))
    with pytest.raises(
        ScratchSpaceError, match=r"^jobs that wait .* disk is full; make room there, or set TMPDIR"
    ):
        spill.put(1, (4_096, "q", "j4096", ("all",)))
    for _ in range(2):  # not of the transaction that is still open, nor that there is nothing
        with pytest.raises(ScratchSpaceError, match="disk is full"):
            spill.page(1, 0, 2)
    with pytest.raises(ScratchSpaceError, match="disk is full"):
        spill.find(("q", "j1"))
    spill.close()


def test_a_disk_that_is_full_gets_its_room_back_and_another_spill_works() -> None:
    before = _temporary_files()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    spill = DiskSpill()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))  # of a file; then EFBIG
    try:
        with pytest.raises(ScratchSpaceError, match=r"^jobs that wait .* make room there, or set TMPDIR"):
            _put(spill, 200_000)
        assert _temporary_files() == before
        with pytest.raises(ScratchSpaceError, match=r"^jobs that wait .* make room there, or set TMPDIR"):
            spill.drop(1, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    again = DiskSpill()
    _put(again, 100_000)
    assert [job[0] for job in again.page(1, 0, 2)] == [1, 2]
    assert _temporary_files() == before + 1
    again.close()
    assert _temporary_files() == before


def _put(spill: DiskSpill, count: int) -> None:
    for number in range(1, count + 1):
        spill.put(1, (number, "q", f"{number:064}", ("all",)))


def _temporary_files() -> int:
    """Return how many temporary files of SQLite this process has open; they have no name any more."""
    links = Path("/proc/self/fd").iterdir()
    return sum("etilqs_" in str(link.readlink()) for link in links if link.is_symlink())


class NotLookedInto(DiskSpill):
    """A spill in which nobody may look for a job."""

    def find(self, job: JobKey) -> tuple[int, SpilledJob] | None:
        """Fail."""
        raise AssertionError(f"{job} was looked for")


def test_a_job_that_is_new_is_not_looked_for_among_those_that_wait() -> None:
    granter = Granter(NotLookedInto(), heads_max=1)
    for number in range(1, 4):
        granter.job(held(number, "all"), number)
    assert (len(granter.lines), granter.lines.spilled) == (3, 2)
    with pytest.raises(AssertionError, match="j3"):
        granter.job(held(3, "all", cause="ungranted"), 4)


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()


def test_clocks_are_apart_where_the_server_says_so_and_not_before_it_said_anything() -> None:
    clock = Clock()
    clocks = TwoClocks(clock)
    found = [clocks.are_apart]
    for ahead_s in (4.9, 5.1, 0.0, -6.0, -1.0):
        clock.at += timedelta(seconds=120)
        clocks.told(clock.at + timedelta(seconds=ahead_s))
        found.append(clocks.are_apart)
    assert found == [False, False, True, False, True, False]


# Snapshots: a granter that begins with one goes on as the one that made it would.


def held(number: int, *limits: str, cause: str = "new") -> Held:
    return Held(job=f"j{number}", queue="q", task="t", at=NOW, by="x", limits=limits, cause=cause)  # type: ignore[arg-type]


def defined(limit: str, **terms: object) -> LimitSet:
    return LimitSet(limit=limit, source="code", at=NOW, by="x", **terms)  # type: ignore[arg-type]


def over(number: int) -> JobEvent:
    return Completed(job=f"j{number}", queue="q", task="t", at=NOW, by="x", attempt=1, limited=True)


def grant(granter: Granter, sequence: int) -> Granted:
    decision = granter.decide(NOW + timedelta(seconds=sequence))
    if decision.grants:
        granter.confirm(sequence)
    jobs = tuple(GrantedJob(queue=each.queue, job=each.job, held=each.held) for each in decision.grants)
    return Granted(shard="main", by="x", at=decision.at, through=decision.through, jobs=jobs)


def test_a_granter_that_begins_with_a_snapshot_grants_as_the_one_that_made_it() -> None:
    limits = [(defined("all", slots=4), 1), (defined("t", slots=2, rate=1.0), 2)]
    events = [(held(n, "all", f"t:{n % 3}"), 10 + n) for n in range(30)]
    one = Granter()
    for limit, sequence in limits:
        one.limit(limit, sequence)
    for event, sequence in events:
        one.job(event, sequence)
    granted = grant(one, 50)
    first = [each.job for each in granted.jobs]
    assert len(first) == 3
    one.job(Cancelled(job="j29", queue="q", task="t", at=NOW, by="x"), 51)
    one.job(over(int(first[0][1:])), 52)
    named, low = waiting_of(one)
    assert (named, low) == ((), min(10 + n for n in range(30) if f"j{n}" not in first))
    state = msgspec.json.decode(msgspec.json.encode(state_of(one)), type=FlowState)
    other = Granter()
    for limit, sequence in limits:
        other.limit(limit, sequence)
    prepare(other, state)
    for event, sequence in events:
        if sequence >= low:
            other.job(event, sequence)
    other.granted(granted, 50)
    other.job(Cancelled(job="j29", queue="q", task="t", at=NOW, by="x"), 51)
    restore(other, state, 52)
    assert {job for _, job in other.holders.jobs} == set(first[1:])
    assert len(other.lines) == len(one.lines)
    for granter in (one, other):
        for job in first[1:]:
            granter.started(("q", job))
    for step in range(60, 400, 10):
        granted = grant(one, step)
        assert granted.jobs == grant(other, step).jobs
        for each in granted.jobs:
            for granter in (one, other):
                granter.started(("q", each.job))
                granter.job(over(int(each.job[1:])), step + 1)
    assert not len(one.lines)


def test_a_job_that_left_while_it_waited_for_a_retry_is_forgotten() -> None:
    """One of the same id is then new, and no chain is read to know whether it has started."""
    folding = GrantFold(cast("Any", None))  # no grant is read
    left = Cancelled(job="j1", queue="q", task="t", at=NOW, by="x")
    again = [held(number, "api", cause="retried") for number in (1, 2)]
    events: list[JobEvent] = [*again, left, held(1, "api")]
    for sequence, event in enumerate(events, 1):
        folding.fold(StoredEvent(event=event, data=b"", stream_sequence=sequence, stored_at=NOW))
    assert [folding.is_first("q", job) for job in ("j1", "j2")] == [True, False]


def test_a_held_job_that_a_person_paused_waits_in_no_line_until_it_is_resumed() -> None:
    granter = Granter()
    granter.limit(defined("api", slots=1), 1)
    granter.job(held(1, "api"), 2)
    job = (held(1, "api").queue, held(1, "api").job)
    assert granter.lines.find(job) is not None
    paused = Paused(job=job[1], queue=job[0], task="t", at=NOW, by="ann", attempt=0, event="operator")
    granter.job(paused, 3)
    assert granter.lines.find(job) is None
    granter.job(held(1, "api"), 4)
    assert granter.lines.find(job) is not None


def test_a_snapshot_names_the_few_that_wait_for_very_long() -> None:
    granter = Granter()
    for number in range(3):
        granter.job(held(number, "undefined"), number + 1)
    granter.limit(defined("all", slots=1), 50_000)
    named, low = waiting_of(granter)
    assert [each.held for each in named] == [1, 2, 3]
    assert low == 50_001


@pytest.mark.anyio
async def test_one_line_tells_of_all_jobs_that_could_not_be_queued(caplog: pytest.LogCaptureFixture) -> None:
    def appended(number: int, error: Exception | None) -> None:
        outcome = asyncio.get_running_loop().create_future()
        outcome.set_result(1) if error is None else outcome.set_exception(error)
        admitting._on_outcome(GrantedJob(queue="a", job=f"j{number}", held=number), 9, outcome)

    admitting = Admitter(cast("Any", None))  # nothing is sent here
    away = ServerUnreachableError("no answer")
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            appended(number, away)
        assert (len(admitting.owed), [record.args for record in caplog.records]) == (100, [("j0", away)])
        appended(100, None)
        appended(101, away)
    assert len(caplog.records) == 2
