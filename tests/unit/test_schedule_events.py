"""Schedules as facts: their wire form, what follows from which command, and what a check finds in made-up chains."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.tables import each_row

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.errors import (
    InvalidInputError,
    InvalidTokenError,
    LedgerError,
    RefusedError,
    ScheduleExistsError,
    ScheduleNotFoundError,
)
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.schedules.decisions import (
    TICKS_MAX,
    Backfill,
    Carry,
    Declare,
    Pause,
    Reset,
    Resume,
    ScheduleCommand,
    Tick,
    Trigger,
    decide,
    due_at,
)
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.model.schedules.events import Schedule, ScheduleEvent, Ticked, evolve
from jobledger.ledger.model.schedules.jobs import jobs_of, tick_job_id
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.schedules.ticks import Spec
from jobledger.ledger.model.subjects import Names

GOLDEN = Path(__file__).parent / "golden" / "schedules"
LINES = [line for release in sorted(GOLDEN.glob("*.jsonl")) for line in release.read_bytes().splitlines()]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOURLY = Definition(spec=Spec(cron="0 * * * *"), task="report", queue="reports")
NAME = "nightly"


def stamp(at: datetime = NOON, by: str = "ann") -> Stamp:
    return Stamp(at=at, by=by)


def after(hours: float = 0, seconds: float = 0) -> datetime:
    return NOON + timedelta(hours=hours, seconds=seconds)


def run(*steps: tuple[float, ScheduleCommand]) -> tuple[Schedule, list[ScheduleEvent]]:
    """Return the schedule and its events after commands, each given with its hours after noon."""
    schedule: Schedule | None = None
    events: list[ScheduleEvent] = []
    for hours, command in steps:
        event = decide(NAME, schedule, command, stamp(after(hours)))
        if event is not None:
            events.append(event)
            schedule = evolve(schedule, event, len(events))
    assert schedule is not None
    return schedule, events


def declared(definition: Definition = HOURLY, **changes: Any) -> tuple[float, Declare]:
    return (0, Declare(definition=replace(definition, **changes)))


def late(hours: float, **changes: Any) -> Ticked:
    """Return what follows when the tick of 13:00 is looked at `hours` hours after noon."""
    event = run(declared(**changes), (hours, Tick()))[1][-1]
    assert isinstance(event, Ticked)
    return event


def stored(line: bytes) -> Message:
    return Message(data=line, stream_sequence=9, stored_at=NOON, subject="ledger.schedule.nightly.ticked")


@each_row("line", LINES, ids=lambda line: line[9:20].decode())
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    event = SCHEDULE.decode(stored(line))
    assert msgspec.json.encode(event) == line
    assert SCHEDULE.subject(Names(), event) == f"ledger.schedule.nightly.{SCHEDULE.type_of(event)}"


def test_every_field_of_every_event_has_a_golden_line() -> None:
    written: dict[type[ScheduleEvent], set[str]] = {}
    for line in LINES:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        written.setdefault(type(SCHEDULE.decode(stored(line))), set()).update(fields)
    state = set[str]().union(*written.values()).intersection(Schedule.__struct_fields__)
    for cls in SCHEDULE.types.values():
        assert written[cls] | state == {"type", *cls.__struct_fields__}, cls
    assert state == set(Schedule.__struct_fields__) - {"removed"}


# One line per case: what was done, the command, hours after noon, and fields of the event (None: no event), or the
# refusal.
PAUSED = (1.0, Pause())
AS_CODE = replace(HOURLY, source="code", code_version="2")
OTHER = replace(HOURLY, task="other")
DECISIONS: list[tuple[list[tuple[float, ScheduleCommand]], ScheduleCommand, float, Any]] = [
    ([], Declare(definition=HOURLY), 0, {"type": "declared", "next_tick": after(1), "next_at": after(1)}),
    ([], Declare(definition=replace(HOURLY, spec=Spec(at=after(-1)))), 0, InvalidInputError),
    ([], Declare(definition=replace(HOURLY, ends_at=after(0.5))), 0, InvalidInputError),
    ([], Declare(definition=replace(AS_CODE, ends_at=after(0.5))), 0, {"type": "declared", "next_at": None}),
    ([], Tick(), 0, ScheduleNotFoundError),
    ([declared(), (0, Remove())], Trigger(), 0, ScheduleNotFoundError),
    ([declared(), (1, Tick()), (2, Remove())], Declare(definition=OTHER), 0.5,
     {"type": "declared", "next_tick": after(1), "number": 1, "tick": None}),  # the clock was set back
    ([declared(), (1, Tick()), (2, Remove())], Declare(definition=OTHER), 1.2,
     {"type": "declared", "next_tick": after(2), "number": 1, "tick": after(1)}),
    # What is declared again.
    ([declared()], Declare(definition=HOURLY), 5, None),
    ([declared()], Declare(definition=replace(HOURLY, source="code", code_version="1")), 5, None),
    ([declared()], Declare(definition=OTHER), 0.5, ScheduleExistsError),
    ([declared()], Declare(definition=OTHER, replace=True), 0.5, {"type": "declared", "next_tick": after(1)}),
    ([declared()], Declare(definition=replace(HOURLY, spec=Spec(every_s=60)), replace=True), 0.5,
     {"next_tick": after(0.5, 60)}),
    ([declared()], Declare(definition=replace(HOURLY, spec=Spec(every_s=60)), replace=True), 1.5,
     {"next_tick": after(1)}),  # the tick that is due is not forgotten
    ([declared()], Declare(definition=replace(OTHER, source="code", code_version="3")), 0.5, None),
    ([(0, Declare(definition=AS_CODE))], Declare(definition=replace(OTHER, source="code", code_version="3")), 0.5,
     {"type": "declared", "superseded": ("2",)}),
    ([(0, Declare(definition=AS_CODE)), (0, Declare(definition=replace(OTHER, source="code", code_version="3")))],
     Declare(definition=AS_CODE), 0.5, None),  # a deploy goes on: the older version does not win it back
    ([(0, Declare(definition=AS_CODE)), (0, Declare(definition=replace(OTHER, source="code", code_version="3"))),
      (0, Reset())], Declare(definition=AS_CODE), 0.5, {"type": "declared", "definition": AS_CODE}),
    ([declared(), (0, Reset())], Declare(definition=replace(OTHER, source="code", code_version="3")), 0.5,
     {"type": "declared"}),
    ([(0, Declare(definition=AS_CODE)), PAUSED], Declare(definition=replace(OTHER, source="code", code_version="3")),
     2, {"type": "declared", "paused": True, "next_tick": None}),
    # Ticks.
    ([declared()], Tick(), 1, {"type": "ticked", "tick": after(1), "next_tick": after(2), "number": 1, "runs": 1,
                               "job": "nightly-20260301T130000Z", "ran": after(1), "missed": 0, "skipped": ""}),
    ([declared()], Tick(ended=False), 1, {"skipped": "running", "job": "", "ran": None, "runs": 0, "number": 1}),
    ([declared(overlap="allow")], Tick(ended=False), 1, {"skipped": "", "job": "nightly-20260301T130000Z"}),
    ([declared()], Tick(), 0.9, {"tick": after(1)}),  # a clock that was set back
    ([declared(ends_at=after(1))], Tick(), 1, {"tick": after(1), "next_tick": None, "next_at": None}),
    ([declared(ends_at=after(1)), (1, Tick())], Tick(), 1, RefusedError),
    ([declared(), PAUSED], Tick(), 2, RefusedError),
    # What people do.
    ([declared()], Trigger(reason="now"), 0.5, {"type": "triggered", "reason": "now", "next_tick": after(1)}),
    ([declared(), PAUSED], Trigger(), 2, {"type": "triggered", "paused": True, "next_at": None}),
    ([declared()], Pause(reason="audit"), 0.5, {"type": "paused", "paused": True, "next_at": None, "reason": "audit"}),
    ([declared(), PAUSED], Pause(), 2, RefusedError),
    ([declared(), PAUSED], Resume(), 5.5, {"type": "resumed", "paused": False, "next_tick": after(6)}),
    ([declared()], Resume(), 2, RefusedError),
    ([declared(), (1, Tick())], Carry(through=7), 1.5,
     {"type": "carried", "through": 7, "tick": after(1), "next_tick": after(2), "number": 1}),
    ([declared(), (0, Remove())], Carry(through=7), 1, ScheduleNotFoundError),
    ([declared()], Remove(reason="done"), 2, {"type": "removed", "next_at": None, "reason": "done"}),
    ([declared()], Backfill(from_at=after(-3), to_at=after(-1)), 0,
     {"type": "backfilled", "ticks": (after(-3), after(-2), after(-1)), "next_tick": after(1), "number": 0}),
    ([declared(ends_at=after(2))], Backfill(from_at=after(1), to_at=after(5)), 6,
     {"type": "backfilled", "ticks": (after(1), after(2)), "to_at": after(5)}),
    ([declared(ends_at=after(2))], Backfill(from_at=after(3), to_at=after(5)), 6, InvalidInputError),
    ([declared()], Backfill(from_at=after(-3), to_at=after(1)), 0, InvalidInputError),
    ([declared()], Backfill(from_at=after(-0.5), to_at=after(-0.4)), 0, InvalidInputError),
    ([declared()], Backfill(from_at=after(-1000), to_at=after(-1)), 0, {"type": "backfilled"}),
    ([declared()], Backfill(from_at=after(-1001), to_at=after(-1)), 0, InvalidInputError),
]  # fmt: skip


@each_row(("steps", "command", "hours", "expected"), DECISIONS)
def test_decide(
    steps: list[tuple[float, ScheduleCommand]], command: ScheduleCommand, hours: float, expected: Any
) -> None:
    before = run(*steps)[0] if steps else None
    if isinstance(expected, type):
        assert issubclass(expected, LedgerError)
        with pytest.raises(expected):
            decide(NAME, before, command, stamp(after(hours)))
        return
    event = decide(NAME, before, command, stamp(after(hours)))
    if expected is None:
        assert event is None
        return
    assert event is not None
    said = {"type": SCHEDULE.type_of(event), **msgspec.structs.asdict(event)}
    assert {name: said[name] for name in expected} == expected
    assert (event.schedule, event.at, event.by) == (NAME, after(hours), "ann")


# What becomes of ticks from 13:00 on: settings, hours after noon of the look, then tick, jobs, missed, why none.
CAUGHT_UP: list[tuple[dict[str, Any], float, tuple[float, int, int, str]]] = [
    ({}, 1 + 59 / 3600, (1, 1, 0, "")),  # late, not missed
    ({}, 1.5, (1, 1, 0, "")),
    ({}, 5.5, (5, 1, 4, "")),
    ({}, 5.0, (5, 1, 4, "")),
    ({"catchup": "none"}, 1.5, (1, 0, 1, "late")),
    ({"catchup": "none"}, 5.5, (5, 0, 5, "late")),
    ({"catchup": "none"}, 5.0, (4, 0, 4, "late")),  # the one of 17:00 is on time
    ({"catchup": "all"}, 5.5, (5, 5, 0, "")),
    ({"catchup": "all", "window_s": 7200}, 5.5, (5, 2, 3, "")),
    ({"catchup": "all", "window_s": 600}, 5.5, (5, 0, 5, "late")),
    ({"catchup": "all"}, 100.5, (100, 24, 76, "")),
    ({"ends_at": after(3)}, 50, (3, 1, 2, "")),
    ({"catchup": "all", "ends_at": after(3)}, 5, (3, 3, 0, "")),
    ({"spec": Spec(every_s=1)}, 2, (2, 1, TICKS_MAX, "")),
    ({"spec": Spec(every_s=3600)}, 24 * 365, (24 * 365, 1, TICKS_MAX, "")),
    ({"spec": Spec(cron="* * * * *")}, 24 * 365, (24 * 365, 1, TICKS_MAX, "")),
    ({"spec": Spec(at=after(2))}, 500, (2, 1, 0, "")),
]


@each_row(("changes", "hours", "expected"), CAUGHT_UP)
def test_missed_ticks_are_caught_up_as_the_schedule_says(
    changes: dict[str, Any], hours: float, expected: tuple[float, int, int, str]
) -> None:
    event = late(hours, **changes)
    tick, jobs, missed, skipped = expected
    assert (event.tick, event.missed, event.skipped) == (after(tick), missed, skipped)
    made = jobs_of(event, 5)
    assert len(made) == jobs == event.runs
    assert event.next_tick is None or event.next_tick > after(tick)
    if jobs:
        assert (made[-1].ref.job_id, event.ran) == (event.job, after(tick))


@each_row(("catchup", "jobs", "skipped"), [("latest", (1,), ""), ("none", (), "late"), ("all", (2, 1), "")])
def test_a_tick_that_its_jitter_makes_due_later_is_neither_missed_nor_early(
    catchup: str, jobs: tuple[int, ...], skipped: str
) -> None:
    definition = replace(HOURLY, jitter_s=1800)
    hour = next(h for h in range(3, 99) if due_at(NAME, definition, after(h)) > after(h, 90))
    schedule, events = run(
        declared(definition, catchup=catchup, window_s=2 * 3600 + 90), (hour + 61 / 3600, Tick())
    )
    ticked = events[-1]
    assert isinstance(ticked, Ticked)
    assert (ticked.tick, ticked.skipped) == (after(hour - 1), skipped)
    assert [each.ref.job_id for each in jobs_of(ticked, 5)] == [
        tick_job_id(NAME, after(hour - ago)) for ago in jobs
    ]
    assert schedule.next_tick == after(hour)
    assert schedule.next_at == due_at(NAME, definition, after(hour)) > after(hour, 61)


def test_at_most_a_thousand_ticks_are_caught_up_at_once_and_the_rest_right_after() -> None:
    schedule, events = run(declared(spec=Spec(every_s=1), catchup="all"), (1, Tick()))
    jobs = jobs_of(events[-1], 2)
    while schedule.next_at is not None and schedule.next_at <= after(1):
        event = decide(NAME, schedule, Tick(), stamp(after(1)))
        assert isinstance(event, Ticked)
        assert len(event.ticks) <= TICKS_MAX
        jobs += jobs_of(event, 3)
        schedule = evolve(schedule, event, 3)
    names = [each.ref.job_id for each in jobs]
    assert names == [tick_job_id(NAME, after(0, second)) for second in range(1, 3601)]
    assert schedule.runs == 3600


def test_a_catch_up_of_several_ticks_does_not_ask_whether_the_last_job_ended() -> None:
    late_by_three = run(declared(catchup="all"), (3.5, Tick(ended=False)))[1][-1]
    assert isinstance(late_by_three, Ticked)
    assert (late_by_three.skipped, len(late_by_three.ticks)) == ("", 3)


def test_a_tick_that_was_skipped_leaves_the_job_that_runs_the_one_to_wait_for() -> None:
    schedule, _ = run(declared(), (1, Tick()), (2, Tick(ended=False)), (3, Tick(ended=False)))
    assert (schedule.ran, schedule.tick, schedule.runs, schedule.number) == (after(1), after(3), 1, 3)


def test_jitter_is_bounded_and_the_same_for_everybody() -> None:
    jittery = replace(HOURLY, jitter_s=600)
    due = [due_at(NAME, jittery, after(hour)) - after(hour) for hour in range(200)]
    assert due == [due_at(NAME, jittery, after(hour)) - after(hour) for hour in range(200)]
    assert all(timedelta() <= each <= timedelta(seconds=600) for each in due)
    assert len(set(due)) > 190
    assert max(due) - min(due) > timedelta(seconds=500)
    assert due_at("other", jittery, after(0)) != due_at(NAME, jittery, after(0))
    schedule, _ = run((0, Declare(definition=jittery)))
    assert schedule.next_tick == after(1)
    assert schedule.next_at == due_at(NAME, jittery, after(1)) > after(1)


def test_the_jobs_of_an_event_have_the_schedules_order_and_ids_of_their_own() -> None:
    order = Order(priority="high", max_attempts=3, tenant="acme")
    schedule, events = run(declared(order=order), (1, Tick()), (1, Trigger()))
    (ticked,) = jobs_of(events[1], 7)
    (manual,) = jobs_of(events[2], 8)
    assert (ticked.ref.queue, ticked.ref.job_id, ticked.task) == (
        "reports",
        "nightly-20260301T130000Z",
        "report",
    )
    assert ticked.order == replace(order, tick="nightly-20260301T130000Z")
    assert (manual.ref.job_id, manual.order.tick) == ("nightly-manual-8", "nightly-manual-8")
    assert jobs_of(events[0], 1) == []
    assert schedule.ran == after(1)
    long = tick_job_id("n" * 60, NOON)
    assert (len(long), long[0]) == (41, "t")
    assert long != tick_job_id("n" * 60, after(1))


def test_two_moments_within_one_second_are_two_ticks() -> None:
    moments = [after(seconds=each) for each in (5, 5.25, 5.75)]
    assert [tick_job_id(NAME, each) for each in moments] == [
        "nightly-20260301T120005Z",
        "nightly-20260301T120005250000Z",
        "nightly-20260301T120005750000Z",
    ]
    events = run(
        declared(spec=Spec(at=moments[1])),
        (6 / 3600, Tick()),
        (7 / 3600, Declare(definition=replace(HOURLY, spec=Spec(at=after(1, 0.75))), replace=True)),
        (2, Tick()),
    )[1]
    assert broken(*events) == []


@each_row(
    ("changes", "error"),
    [
        ({"spec": Spec()}, InvalidInputError),
        ({"spec": Spec(cron="* * * * *", every_s=5)}, InvalidInputError),
        ({"spec": Spec(every_s=5, timezone="Europe/Berlin")}, InvalidInputError),
        ({"spec": Spec(every_s=5, on_demand=True)}, InvalidInputError),
        ({"spec": Spec(every_s=10**9)}, InvalidInputError),
        ({"spec": Spec(cron="* * * * *", timezone="Europe/Bielefeld")}, InvalidInputError),
        ({"spec": Spec(cron="* * * * *", timezone="../../etc/passwd")}, InvalidInputError),
        ({"spec": Spec(cron="* * * * *", timezone="Europe")}, InvalidInputError),
        ({"overlap": "buffer"}, InvalidInputError),
        ({"catchup": "some"}, InvalidInputError),
        ({"source": "code"}, InvalidInputError),
        ({"jitter_s": -1}, InvalidInputError),
        ({"window_s": 10**9}, InvalidInputError),
        ({"code_version": "v" * 65}, InvalidInputError),
        ({"task": "a.b"}, InvalidTokenError),
        ({"queue": "*"}, InvalidTokenError),
    ],
)
def test_a_definition_that_cannot_tick_is_refused(changes: dict[str, Any], error: type[LedgerError]) -> None:
    with pytest.raises(error):
        Declare(definition=replace(HOURLY, **changes))


def test_a_schedule_on_demand_never_ticks_and_makes_jobs_when_it_is_triggered() -> None:
    paused, resumed, triggered = (1, Pause()), (2, Resume()), (3, Trigger())
    schedule, events = run(declared(spec=Spec(on_demand=True)), paused, resumed, triggered)
    assert (schedule.next_tick, schedule.next_at, len(events)) == (None, None, 4)
    assert broken(*events) == []
    with pytest.raises(RefusedError, match="has no tick to come"):
        decide(NAME, schedule, Tick(), stamp(after(4)))


def broken(*events: ScheduleEvent) -> list[str]:
    """Return what a check finds in a chain."""
    found: list[str] = []
    schedule: Schedule | None = None
    assert SCHEDULE.check is not None
    for number, event in enumerate(events, 1):
        found += [sentence for _, sentence in SCHEDULE.check(schedule, event, number)]
        schedule = SCHEDULE.evolve(schedule, event, number)
    return found


def test_whatever_is_decided_keeps_the_rules_that_a_check_knows() -> None:
    for steps, command, hours, expected in DECISIONS:
        if isinstance(expected, dict):
            _, events = run(*steps, (hours, command))
            assert broken(*events) == [], (steps, command)
    for changes, hours, _ in CAUGHT_UP:
        assert broken(*run(declared(**changes), (hours, Tick()), (hours, Trigger()))[1]) == []


FIRST, SECOND, THIRD = run(declared(), (1, Tick()), (2, Tick()))[1]
CARRIED = run(declared(), (1, Tick()), (1.5, Carry(through=1)))[1][-1]
assert isinstance(SECOND, Ticked)
assert isinstance(THIRD, Ticked)


@each_row(
    ("events", "sentence"),
    [
        ((SECOND,), "of a schedule that nobody declared"),
        ((FIRST, SECOND, SECOND), "ticks must grow"),
        ((FIRST, THIRD, SECOND), "ticks must grow"),
        ((FIRST, replace(SECOND, number=2)), "tick number 2 follows number 0"),
        ((FIRST, SECOND, replace(FIRST, number=0)), "what they do not say"),
        ((FIRST, replace(SECOND, tick=after(1.5))), "is no tick of 0 * * * *"),
        ((FIRST, replace(SECOND, tick=after(0))), "and 2026-03-01 13:00:00.000Z was the next one"),
        ((FIRST, replace(SECOND, job="another")), "'another' is not that of its tick"),
        ((FIRST, replace(SECOND, skipped="running")), "is not that of its tick"),
        ((FIRST, replace(SECOND, next_tick=after(1))), "is not after"),
        ((FIRST, replace(SECOND, ticks=(after(2), after(1)))), "do not grow up to its own"),
        ((FIRST, replace(FIRST, next_tick=None), SECOND), "that had none to come"),
        (
            (FIRST, SECOND, replace(CARRIED, next_tick=after(5))),
            "does not say what the events before it add up to",
        ),
    ],
)
def test_a_check_finds_what_no_version_would_decide(events: tuple[ScheduleEvent, ...], sentence: str) -> None:
    assert any(sentence in each for each in broken(*events)), broken(*events)


@each_row(
    "command",
    [
        Resume(),
        Declare(definition=replace(HOURLY, task="other"), replace=True),
        Declare(definition=replace(HOURLY, source="code", code_version="2")),
    ],
)
def test_what_a_person_or_code_says_plans_from_now_on_after_ticks_of_the_future(
    command: ScheduleCommand,
) -> None:
    """A clock that was a day ahead made the ticks of a day; then the clock was set right."""
    source = command.definition.source if isinstance(command, Declare) else "operator"
    first = (
        0,
        Declare(definition=replace(HOURLY, source=source, code_version="1" if source == "code" else "")),
    )
    steps: list[tuple[float, ScheduleCommand]] = [first, (24.0, Tick())]
    if isinstance(command, Resume):
        steps.append((0.4, Pause()))
    before, _ = run(*steps)
    assert before.tick == after(24)
    schedule, events = run(*steps, (0.5, command), (1.0, Tick()))
    assert (schedule.tick, schedule.next_tick) == (after(1), after(2))
    found: Schedule | None = None
    for number, event in enumerate(events, 1):
        assert SCHEDULE.check is not None
        assert list(SCHEDULE.check(found, event, number)) == []
        found = evolve(found, event, number)


def test_a_schedule_that_is_on_time_keeps_its_ticks_when_it_is_declared_again() -> None:
    schedule, _ = run(
        declared(), (1.0, Tick()), (1.001, Declare(definition=replace(HOURLY, task="b"), replace=True))
    )
    assert (schedule.tick, schedule.next_tick) == (after(1), after(2))
