"""Timers without a server: which events ask for one, what is sent, and what two clocks make of a moment."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger import MemoryLog
from jobledger.ledger.model.chain import transact
from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Claim,
    Command,
    Dispatch,
    Enqueue,
    Remove,
    Snooze,
    Stamp,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import MalformedEventError
from jobledger.ledger.model.events import (
    ErrorInfo,
    Failed,
    JobEvent,
    Paused,
    Queued,
    Scheduled,
    Snoozed,
    Started,
)
from jobledger.ledger.model.job import evolve
from jobledger.ledger.model.log import ChainEvents
from jobledger.ledger.model.schedules.decisions import (
    Backfill,
    Declare,
    Pause,
    ScheduleCommand,
    Tick,
    Trigger,
)
from jobledger.ledger.model.schedules.decisions import decide as decide_schedule
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.schedules.ticks import Spec
from jobledger.ledger.model.subjects import JobRef, Names
from jobledger.ledger.nats.fleet_clock import FleetClock
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.nats.timer_stream import id_of
from jobledger.ledger.timers import (
    DeadlineTimer,
    KnownWaits,
    ScheduleTimer,
    Timer,
    deadline_of,
    read_timer,
    read_timers,
    schedule_headers,
    schedule_timer,
    timer_of,
)
from jobledger.workers.reactors.timers import TwoClocks

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)
_COMMON: dict[str, Any] = {"job": "j1", "queue": "email", "task": "t", "at": NOW, "by": "w"}
_ERROR = ErrorInfo(kind="exception", type="ValueError", message="no")


@each_row(
    ("event", "cause", "due_at"),
    [
        (Scheduled(**_COMMON, run_at=LATER), "due", LATER),
        (Snoozed(**_COMMON, attempt=1, until=LATER), "due", LATER),
        (Snoozed(**_COMMON, attempt=1, until=NOW), "due", NOW),  # nothing else would ever move it
        (Paused(**_COMMON, attempt=1, until=LATER), "due", LATER),
        (Paused(**_COMMON, attempt=1, event="paid"), None, None),
        (Failed(**_COMMON, attempt=1, error=_ERROR, retry_at=LATER), "retried", LATER),
        (Failed(**_COMMON, attempt=1, error=_ERROR, retry_at=NOW), None, None),  # queued in the same batch
        (Failed(**_COMMON, attempt=1, error=_ERROR), None, None),
        (Queued(**_COMMON), None, None),
        (Started(**_COMMON, attempt=1, worker="w", lease_s=15.0), None, None),
    ],
)
def test_events_that_name_a_moment_ask_for_a_timer(
    event: JobEvent, cause: str | None, due_at: datetime | None
) -> None:
    timer = timer_of(event, 42)
    if due_at is None:
        assert timer is None
        return
    assert timer is not None
    assert (timer.queue, timer.job_id, timer.asked_by, timer.cause, timer.due_at) == (
        "email",
        "j1",
        42,
        cause,
        due_at,
    )


def test_the_first_event_of_a_run_and_what_carries_it_ask_for_the_timer_of_its_deadline() -> None:
    first = Scheduled(**_COMMON, run_at=NOW, deadline_s=60.0)
    timer = deadline_of(first, 42)
    assert timer is not None
    assert timer == DeadlineTimer(
        queue="email", job_id="j1", asked_by=42, deadline_at=first.at + timedelta(minutes=1)
    )
    assert read_timers(msgspec.json.encode([timer_of(first, 42), timer])) == [timer_of(first, 42), timer]
    run = evolve(None, first, 42)
    carried = decide(run, Carry(through=42), Stamp(at=LATER, by="me"))[0]
    again = deadline_of(carried, 99)
    assert again is not None
    assert (again.asked_by, again.due_at) == (99, timer.due_at)
    for event in (Scheduled(**_COMMON, run_at=LATER), Queued(**_COMMON)):
        assert deadline_of(event, 42) is None
    ended = decide(run, CancelJob(), Stamp(at=LATER, by="me"))[0]
    over = decide(evolve(run, ended, 43), Carry(through=42), Stamp(at=LATER, by="me"))[0]
    assert deadline_of(over, 99) is None
    headers = schedule_headers(Names("staging"), timer, NOW)
    assert headers.endswith("Nats-Schedule-Target: staging_timer.due.job.email.j1.deadline\r\n")


_EVERY_MINUTE = Definition(spec=Spec(every_s=60), task="add", queue="cron")


def _timer(due_at: datetime) -> Timer:
    return Timer(queue="email", job_id="j1", asked_by=42, cause="due", due_at=due_at)


def _headers(names: Names, due_at: datetime) -> dict[str, str]:
    *lines, end = schedule_headers(names, _timer(due_at), NOW).split("\r\n")
    assert end == ""
    return dict(line.split(": ", 1) for line in lines)


def test_the_message_names_half_a_second_before_the_moment_and_where_to_fire() -> None:
    assert _headers(Names("staging"), LATER) == {
        "Nats-Schedule": "@at 2026-01-02T03:05:05.178901Z",
        "Nats-Schedule-Target": "staging_timer.due.job.email.j1.42",
    }
    assert Names("staging").timer_at(_timer(LATER).chain, 42) == "staging_timer.at.job.email.j1.42"


@pytest.mark.parametrize(
    ("due_at", "shown"),
    [
        (datetime(2026, 1, 2, 5, 5, 6, tzinfo=timezone(timedelta(hours=2))), "2026-01-02T03:05:05.500000Z"),
        (datetime(2020, 1, 1, tzinfo=UTC), "2026-01-02T03:04:05.178901Z"),  # past: at once
        (datetime.max.replace(tzinfo=UTC), "2035-12-31T03:04:05.178901Z"),  # 10 years, and then again
        (datetime.min.replace(tzinfo=UTC), "2026-01-02T03:04:05.178901Z"),
    ],
)
def test_whatever_the_moment_the_server_gets_one_that_it_can_hold(due_at: datetime, shown: str) -> None:
    assert _headers(Names(), due_at)["Nats-Schedule"] == f"@at {shown}"


def test_a_timer_survives_its_bytes_and_nothing_else_is_one() -> None:
    timer = _timer(LATER)
    assert read_timer(msgspec.json.encode(timer)) == timer
    for broken in (b"", b"{}", b"null", b"\xff", b'{"queue": 1}'):
        with pytest.raises(MalformedEventError, match="no timer"):
            read_timer(broken)


def test_ids_sort_by_the_time_their_stream_was_made() -> None:
    created = [
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05.000000001Z",
        "2026-01-02T03:04:05.1Z",
        "2026-01-02T03:04:05.12345678Z",
        "2026-01-02T03:04:06Z",
        "2026-11-02T03:04:05.9Z",
    ]
    ids = [id_of(each) for each in created]
    assert ids == sorted(ids)
    assert {(len(each), each.isdigit()) for each in ids} == {(23, True)}


class _Clock:
    def __init__(self) -> None:
        self.wall = NOW
        self.elapsed = 0.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.elapsed


def _stamped(offset_s: float, delivered: int = 1) -> Delivery:
    stored_ns = int(NOW.timestamp()) * 1_000_000_000 + 678_901_000 + int(offset_s * 1_000_000) * 1_000
    return Delivery(b"", "", 1, delivered, stored_ns, 0)


def test_a_moment_has_come_when_both_clocks_say_so() -> None:
    clock = _Clock()
    clocks = TwoClocks(clock)
    assert clocks.wait_s(NOW) == 5.0  # nothing is known of the server's clock yet
    clocks.heard(_stamped(-60))
    assert clocks.wait_s(NOW) == 5.0  # an old stamp says nothing
    clocks.heard(_stamped(-2))
    assert clocks.wait_s(NOW) == pytest.approx(
        2.0
    )  # the server's clock is behind ours, by two seconds at most
    clocks.heard(_stamped(-0.001))
    clocks.heard(_stamped(-3))
    assert clocks.wait_s(NOW) == pytest.approx(0.001)  # a late delivery does not set it back
    clocks.heard(_stamped(30))
    assert clocks.wait_s(NOW + timedelta(seconds=1)) == 1.0  # a server ahead of us does not make us early
    assert clocks.wait_s(NOW - timedelta(seconds=1)) == -1.0


def test_a_clock_that_was_told_the_servers_time_is_a_second_ahead_of_it_at_most() -> None:
    machine = _Clock()
    told = FleetClock(machine)
    clocks = TwoClocks(told)
    assert clocks.wait_s(NOW) == 5.0  # nobody told it yet
    told.compared(NOW, 0.0, 3.0)
    assert clocks.wait_s(NOW) == 5.0  # an answer that was long on its way says too little
    told.compared(NOW, 0.0, 0.0)
    assert clocks.wait_s(NOW) == 1.0  # also before anything was heard, as where a timer was handed out before
    clocks.heard(_stamped(-60))
    assert clocks.wait_s(NOW) == 1.0
    clocks.heard(_stamped(-0.2))
    assert clocks.wait_s(NOW) == pytest.approx(0.2)


def test_what_is_known_of_the_servers_clock_is_forgotten_after_a_minute() -> None:
    clock = _Clock()
    clocks = TwoClocks(clock)
    clocks.heard(_stamped(0))
    clock.elapsed = 61.0
    clocks.heard(_stamped(-4, delivered=2))  # delivered again: stamped long ago
    assert clocks.wait_s(NOW) == 0.0
    clocks.heard(_stamped(-4))  # the server's clock was set back
    assert clocks.wait_s(NOW) == pytest.approx(4.0)


class CountingLog(MemoryLog):
    reads = 0

    async def read_chain(self, chain: str) -> ChainEvents:
        self.reads += 1
        return await super().read_chain(chain)


@each_row(
    ("command", "moment"),
    [
        (Declare(definition=_EVERY_MINUTE), "next_at"),
        (Tick(), "next_at"),
        (Trigger(), "at"),  # for its job, which nobody else may be left to make
        (Backfill(from_at=NOW - timedelta(minutes=5), to_at=NOW), "at"),
        (Pause(), None),
        (Remove(), None),
    ],
)
def test_events_of_schedules_ask_for_the_timer_of_the_next_tick_or_for_their_jobs(
    command: ScheduleCommand, moment: str | None
) -> None:
    stamp = Stamp(at=NOW, by="w")
    declared = decide_schedule("nightly", None, Declare(definition=_EVERY_MINUTE), stamp)
    assert declared is not None
    before = None if isinstance(command, Declare) else SCHEDULE.evolve(None, declared, 1)
    event = decide_schedule("nightly", before, command, stamp)
    assert event is not None
    timer = schedule_timer(event, 42)
    if moment is None:
        assert timer is None
        return
    assert timer is not None
    assert timer == ScheduleTimer(schedule="nightly", asked_by=42, due_at=getattr(event, moment))
    assert read_timer(msgspec.json.encode(timer)) == timer
    assert Names("staging").timer_at(timer.chain, 42) == "staging_timer.at.schedule.nightly.42"


@pytest.mark.anyio
async def test_a_job_that_waited_often_is_read_once_for_all_its_timers() -> None:
    log, ref = CountingLog(), JobRef(queue="email", job_id="j1")

    async def act(command: Command) -> int:
        chain = await transact(log, ref, command, lambda: Stamp(at=NOW, by="w"))
        assert chain.job is not None
        return chain.job.claim_epoch

    await act(Enqueue(ref=ref, task="t", run_at=LATER))
    for _ in range(50):
        await act(Dispatch(cause="due"))
        epoch = await act(Claim(worker="w", lease_s=15.0))
        await act(Snooze(epoch=epoch, until=LATER))
    history = await log.read_chain(log.names.chain(ref))
    found = [timer_of(stored.event, stored.stream_sequence) for stored in history]
    timers = [timer for timer in found if timer is not None]
    assert len(timers) == 51

    known, log.reads = KnownWaits(log), 0
    chains = await asyncio.gather(*map(known.chain, timers))
    assert log.reads == 2  # for the first, and for the one that is not over
    assert [chain is None for chain in chains] == [False, *49 * [True], False]
    await act(Dispatch(cause="due"))
    assert await known.chain(timers[-1]) is not None  # one that was not seen to be over is looked at again
    assert await known.chain(timers[-1]) is None
