"""When schedules tick: a table by hand, two oracles that look at every minute, and a simulated year of 200 schedules."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from tests.support.tables import each_row

from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.schedules.decisions import Declare, Tick, decide
from jobledger.ledger.model.schedules.definition import Catchup, Definition
from jobledger.ledger.model.schedules.events import Schedule, Ticked, evolve
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.schedules.ticks import (
    Spec,
    check_spec,
    is_tick,
    newest_tick,
    next_tick,
    ticks_from,
)

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def ticks(spec: Spec, after: datetime, count: int) -> list[datetime]:
    first = next_tick(spec, after)
    return [] if first is None else ticks_from(spec, first, first + 36_600 * DAY, count)


# By hand: expression, zone, after (UTC), and the wall times that follow, with their offsets from UTC.
TABLE: Final = [
    # A gap: 29 March 2026 has no 02:00 to 02:59 in Berlin. What is named there runs once, right after it.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00Z", "28T02:30+01 29T03:00+02 30T02:30+02"),
    ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T20:00Z", "29T03:00+02 30T02:00+02 30T02:30+02"),
    ("30 2,3 * * *", "Europe/Berlin", "2026-03-28T20:00Z", "29T03:00+02 29T03:30+02 30T02:30+02"),
    ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T20:00Z", "29T03:00+02 30T02:00+02 30T03:00+02"),
    ("*/15 2 * * *", "Europe/Berlin", "2026-03-28T20:00Z", "29T03:00+02 30T02:00+02 30T02:15+02"),
    # Who counts hours is not given another one for the hour that there is not.
    ("0 */2 * * *", "Europe/Berlin", "2026-03-28T22:00Z", "29T00:00+01 29T04:00+02 29T06:00+02"),
    ("30 * * * *", "Europe/Berlin", "2026-03-29T00:00Z", "29T01:30+01 29T03:30+02 29T04:30+02"),
    # A repeat: 25 October 2026 has 02:00 to 02:59 twice. What names the hour runs the first time.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T20:00Z", "25T02:30+02 26T02:30+01 27T02:30+01"),
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:45Z", "26T02:30+01"),  # between the two
    ("*/20 2 * * *", "Europe/Berlin", "2026-10-24T20:00Z", "25T02:00+02 25T02:20+02 25T02:40+02 26T02:00+01"),
    ("0 1,2,3 * * *", "Europe/Berlin", "2026-10-24T20:00Z", "25T01:00+02 25T02:00+02 25T03:00+01 26T01:00+01"),
    # Who counts hours runs in both.
    ("0 * * * *", "Europe/Berlin", "2026-10-24T22:30Z", "25T01:00+02 25T02:00+02 25T02:00+01 25T03:00+01"),
    ("0 */2 * * *", "Europe/Berlin", "2026-10-24T21:30Z", "25T00:00+02 25T02:00+02 25T02:00+01 25T04:00+01"),
    ("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:10Z", "25T02:30+02 25T02:00+01 25T02:30+01 25T03:00+01"),
    # Half an hour, in Lord Howe: 02:00 to 02:29 is left out on 4 October, 01:30 to 01:59 repeats on 5 April.
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", "04T02:30+11 05T02:15+11"),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00Z", "05T01:45+11 06T01:45+10:30"),
    ("*/20 * * * *", "Australia/Lord_Howe", "2026-04-04T14:10Z", "05T01:20+11 05T01:40+11 05T01:40+10:30 05T02:00+10:30"),
    ("*/20 * * * *", "Australia/Lord_Howe", "2026-10-03T15:00Z", "04T01:40+10:30 04T02:40+11 04T03:00+11"),
    # Offsets that are no whole hours, without changes.
    ("0 9 * * *", "Asia/Kolkata", "2026-01-01T00:00Z", "01T09:00+05:30 02T09:00+05:30"),
    ("30 */6 * * *", "Asia/Kathmandu", "2026-01-01T00:00Z", "01T06:30+05:45 01T12:30+05:45"),
    # Days that begin at 01:00.
    ("0 0 * * *", "Asia/Beirut", "2026-03-27T23:00Z", "29T01:00+03 30T00:00+03"),
    ("30 0 * * *", "Asia/Beirut", "2026-03-27T23:00Z", "29T01:00+03 30T00:30+03"),
    ("0 0 * * sun", "Asia/Beirut", "2026-03-27T23:00Z", "29T01:00+03 05T00:00+03"),
    ("0 0 * * *", "America/Santiago", "2026-09-05T12:00Z", "06T01:00-03 07T00:00-03"),
    ("0 * * * *", "America/Santiago", "2026-09-06T02:30Z", "05T23:00-04 06T01:00-03 06T02:00-03"),
    # A day that repeats its last hour: 23:00 to 23:59 in Santiago, 4 April.
    ("30 23 * * *", "America/Santiago", "2026-04-04T12:00Z", "04T23:30-03 05T23:30-04"),
    ("0 0 * * *", "America/Santiago", "2026-04-04T12:00Z", "05T00:00-04 06T00:00-04"),
    # A whole day left out: 30 December 2011 in Apia.
    ("0 12 * * *", "Pacific/Apia", "2011-12-29T20:00Z", "29T12:00-10 31T00:00+14 31T12:00+14"),
    # A month in which clocks are set back, in between: Casablanca's Ramadan.
    ("30 2 * * *", "Africa/Casablanca", "2026-02-14T12:00Z", "15T02:30+01 16T02:30+00"),
    ("30 2 * * *", "Africa/Casablanca", "2026-03-21T12:00Z", "22T03:00+01 23T02:30+01"),
    # Months and their ends.
    ("0 0 31 * *", "UTC", "2026-01-31T00:00Z", "03-31T00:00+00 05-31T00:00+00 07-31T00:00+00 08-31T00:00+00"),
    ("0 0 30 * *", "UTC", "2026-01-31T00:00Z", "03-30T00:00+00 04-30T00:00+00"),
    ("0 0 L * *", "UTC", "2026-01-31T00:00Z", "02-28T00:00+00 03-31T00:00+00 04-30T00:00+00"),
    ("0 0 l 2 *", "UTC", "2026-03-01T00:00Z", "2027-02-28T00:00+00 2028-02-29T00:00+00"),
    ("59 23 31 12 *", "Europe/Berlin", "2026-01-01T00:00Z", "12-31T23:59+01 2027-12-31T23:59+01"),
    ("0 0 29 2 *", "UTC", "2026-01-01T00:00Z", "2028-02-29T00:00+00 2032-02-29T00:00+00"),
    ("0 0 29 2 *", "Europe/Berlin", "2096-03-01T00:00Z", "2104-02-29T00:00+01"),
    ("0 * 29 2 *", "Europe/Berlin", "2026-01-01T00:00Z", "2028-02-29T00:00+01 2028-02-29T01:00+01"),
    # Days of the month or of the week; both, where one begins with *.
    ("0 0 13 * fri", "UTC", "2026-02-07T00:00Z", "13T00:00+00 20T00:00+00"),
    ("0 0 10 * fri", "UTC", "2026-02-07T00:00Z", "10T00:00+00 13T00:00+00"),
    ("0 0 */2 * fri", "UTC", "2026-02-07T00:00Z", "13T00:00+00 27T00:00+00"),
    ("0 0 1 * */2", "UTC", "2026-02-02T00:00Z", "03-01T00:00+00 2026-08-01T00:00+00 2026-09-01T00:00+00"),
    ("0 0 31 2 fri", "UTC", "2026-01-01T00:00Z", "02-06T00:00+00 02-13T00:00+00"),
    ("0 12 * * 7", "UTC", "2026-02-07T00:00Z", "08T12:00+00 15T12:00+00"),
    ("0 12 * * 5-7", "UTC", "2026-02-03T00:00Z", "06T12:00+00 07T12:00+00 08T12:00+00 13T12:00+00"),
    ("0 12 * * sat-sun", "UTC", "2026-02-03T00:00Z", "07T12:00+00 08T12:00+00 14T12:00+00"),
    ("0 12 * * MON-FRI", "UTC", "2026-02-06T13:00Z", "09T12:00+00 10T12:00+00"),
    ("0 12 * JAN,Mar-apr 1", "UTC", "2026-01-20T13:00Z", "26T12:00+00 03-02T12:00+00"),
    ("0 9 * * fri#2", "UTC", "2026-02-01T00:00Z", "13T09:00+00 03-13T09:00+00"),
    ("0 9 * * 2#1,2#3", "UTC", "2026-02-01T00:00Z", "03T09:00+00 17T09:00+00 03-03T09:00+00"),
    ("0 9 * * L5", "UTC", "2026-02-01T00:00Z", "27T09:00+00 03-27T09:00+00"),
    # Lists, ranges and steps.
    ("5,10-12,50-59/5 1-3/2 * * *", "UTC", "2026-02-01T01:11Z", "01T01:12+00 01T01:50+00 01T01:55+00 01T03:05+00"),
    ("  0\t12 * *  1 ", "UTC", "2026-02-01T00:00Z", "02T12:00+00"),
    # From within a minute.
    ("* * * * *", "UTC", "2026-02-01T00:00:00.000001Z", "01T00:01+00 01T00:02+00"),
    ("0 12 * * *", "UTC", "2026-02-01T11:59:59.999999Z", "01T12:00+00 02T12:00+00"),
    ("0 12 * * *", "UTC", "2026-02-01T12:00Z", "02T12:00+00"),
]  # fmt: skip


@each_row(("cron", "zone", "after", "expected"), TABLE)
def test_the_table_by_hand(cron: str, zone: str, after: str, expected: str) -> None:
    spec = Spec(cron=cron, timezone=zone)
    check_spec(spec)
    words = expected.split()
    found = ticks(spec, utc(after), len(words))
    shown = [tick.astimezone(ZoneInfo(zone)) for tick in found]
    assert [_written(at, word) for at, word in zip(shown, words, strict=True)] == words
    assert all(tick.tzinfo is UTC and is_tick(spec, tick) for tick in found)
    assert not any(is_tick(spec, tick + timedelta(seconds=1)) for tick in found)


def _written(at: datetime, like: str) -> str:
    """Return a time in the form of another one, which may leave out year, month and the minutes of its offset."""
    day = like.partition("T")[0]
    form = {2: "%d", 5: "%m-%d", 10: "%Y-%m-%d"}[len(day)]
    offset = at.strftime("%z")
    minutes = "" if offset.endswith("00") else f":{offset[3:]}"
    return f"{at.strftime(form)}T{at:%H:%M}{offset[:3]}{minutes}"


@each_row(
    ("spec", "after", "expected"),
    [
        (Spec(every_s=90), "2026-01-01T00:00Z", "2026-01-01T00:01:30Z"),
        (Spec(every_s=90), "2026-01-01T00:01:29.999999Z", "2026-01-01T00:01:30Z"),
        (Spec(every_s=86_400), "2026-01-01T00:00Z", "2026-01-02T00:00Z"),
        (Spec(every_s=1), "1969-01-01T00:00Z", "1970-01-01T00:00Z"),
        (Spec(at=utc("2026-05-05T05:05:05.5Z")), "2026-01-01T00:00Z", "2026-05-05T05:05:05.5Z"),
        (Spec(at=utc("2026-05-05T05:05:05.5Z")), "2026-05-05T05:05:05.5Z", None),
        (Spec(cron="* * * * *"), "9999-12-31T23:59Z", None),
        (Spec(cron="0 0 29 2 *", timezone="Europe/Berlin"), "9997-12-31T23:59Z", None),
        (Spec(cron="0 * * * *", timezone="Europe/Berlin"), "9999-12-31T23:30Z", None),
        (Spec(every_s=60), "9999-12-31T23:59:30Z", None),
    ],
)
def test_intervals_moments_and_the_end_of_time(spec: Spec, after: str, expected: str | None) -> None:
    assert next_tick(spec, utc(after)) == (None if expected is None else utc(expected))


ABSURD: Final = [
    "0 0 1--100000000 * *",
    "0 0 1-100000000 * *",
    "0 0 */100000000 * *",
    " ".join(["*"] * 1_000),
    ",".join(["1"] * 100_000) + " * * * *",
    "* " * 200,
    "0 0 31 2 *",
    "0 0 30 2 *",
    "0 0 31 4,6,9,11 *",
    "0 0 31 2 */2",
    "R * * * *",
    "R(0-10) * * * *",
    "H * * * *",
    "0 0 ? * *",
    "0 0 * * ?",
    "0 0 0 * * *",
    "0 0 0 1 1 * 2026",
    "* * * *",
    "@daily",
    "0 0 15W * *",
    "60 * * * *",
    "* 24 * * *",
    "* * 0 * *",
    "* * 32 * *",
    "* * * 13 *",
    "* * * 0 *",
    "* * * * 8",
    "* * * foo *",
    "* * * * foo",
    "mon * * * *",
    "*/0 * * * *",
    "*/60 * * * *",
    "5/15 * * * *",
    "5-5 * * * *",
    "7-3 * * * *",
    "1-5/9 * * * *",
    "-5 * * * *",
    "1,,2 * * * *",
    ", * * * *",
    "1.5 * * * *",
    "* * * * 5#6",
    "* * 1 * 5#1",
    "* * * * 1,5#1",
    "* * L,1 * *",
    "\u0661 * * * *",
    "*\u00a0* * * *",
    "* * * * *\x00",
    "*\n* * * *; rm",
]


@each_row("cron", ABSURD, ids=lambda cron: cron[:40])
def test_what_is_absurd_is_refused_at_once(cron: str) -> None:
    """Within a millisecond: the best of some, since others use this machine, too."""
    took: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        with pytest.raises(InvalidInputError, match=r"^.{20,600}$"):
            check_spec(Spec(cron=cron))
        took.append(time.perf_counter() - started)
    assert min(took) < 0.001, f"took {min(took) * 1000:.3f} ms"


@each_row("cron", ["0 0 1--100000000 * *", "0 0 1-100000000 * *", "R * * * *", "", "* 5-5 * * *"])
def test_an_expression_that_somebody_stored_unchecked_holds_up_nobody(cron: str) -> None:
    for zone in ("UTC", "Europe/Berlin"):
        with pytest.raises(InvalidInputError):
            next_tick(Spec(cron=cron, timezone=zone), utc("2026-01-01T00:00Z"))


def test_clock_steps_neither_double_nor_skip_a_tick() -> None:
    """Whoever records a tick may be an hour behind or ahead: the tick is the planned moment, and the next one follows."""
    hourly = Definition(spec=Spec(cron="0 * * * *"), task="t", queue="q", catchup="all")
    event = decide("s", None, Declare(definition=hourly), Stamp(at=utc("2026-01-01T00:30Z"), by="a"))
    schedule: Schedule | None = None
    ran: list[datetime] = []
    for clock in ("01:00", "00:30", "03:00", "03:00", "02:10", "05:00", "05:00", "07:59"):
        assert event is not None
        schedule = evolve(schedule, event, 1)
        event = decide("s", schedule, Tick(), Stamp(at=utc(f"2026-01-01T{clock}Z"), by="a"))
        assert isinstance(event, Ticked)
        ran += [tick for tick in event.ticks or (event.tick,) if tick is not None]
    assert ran == [utc("2026-01-01T01:00Z") + timedelta(hours=n) for n in range(len(ran))]
    assert len(ran) >= 8


@each_row(
    ("zone", "is_known"),
    [
        ("UTC", True),
        ("Europe/Berlin", True),
        ("America/Argentina/Buenos_Aires", True),
        ("Etc/GMT+5", True),
        ("Mars/Olympus", False),
        ("", False),
        ("Europe", False),
        ("../Europe/Berlin", False),
        ("/etc/localtime", False),
        ("A" * 10_000, False),
        ("Europe/Berlin\x00", False),
    ],
)
def test_a_time_zone_is_a_name_that_this_machine_knows(zone: str, *, is_known: bool) -> None:
    if is_known:
        check_spec(Spec(cron="0 0 * * *", timezone=zone))
        return
    with pytest.raises(InvalidInputError, match="there is no time zone"):
        check_spec(Spec(cron="0 0 * * *", timezone=zone))


# The oracles: an expression as five sets of numbers, asked of every minute.

_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def _some_field(randomly: random.Random, least: int, most: int) -> tuple[str, set[int]]:
    """Return a field as text, and the numbers that it names."""
    every = range(least, most + 1)
    kind = randomly.randrange(5)
    if kind == 0:
        return "*", set(every)
    if kind == 1:
        step = randomly.randint(1, most - least)
        return f"*/{step}", set(every[::step])
    if kind == 2:
        first, last = sorted(randomly.sample(every, 2))
        step = randomly.randint(1, last - first)
        return f"{first}-{last}/{step}", set(range(first, last + 1, step))
    few = randomly.sample(every, randomly.randint(1, 3))
    return ",".join(map(str, few)), set(few)


def _some_cron(randomly: random.Random) -> tuple[str, list[set[int]]] | None:
    fields = [_some_field(randomly, *bounds) for bounds in _RANGES]
    text = " ".join(text for text, _ in fields)
    try:
        check_spec(Spec(cron=text))
    except InvalidInputError:
        return None  # a day that does not exist
    return text, [numbers for _, numbers in fields]


def _names_day(text: str, numbers: list[set[int]], day: date) -> bool:
    _, _, days, _, weekdays = text.split()
    fits = (day.day in numbers[2], day.isoweekday() % 7 in numbers[4])
    both = days.startswith("*") or weekdays.startswith("*")
    return day.month in numbers[3] and (all(fits) if both else any(fits))


def _wall_times(text: str, numbers: list[set[int]], first: date, days: int) -> Iterator[datetime]:
    for number in range(days):
        day = first + number * DAY
        if _names_day(text, numbers, day):
            for hour in sorted(numbers[1]):
                for minute in sorted(numbers[0]):
                    yield datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - a wall time


def test_random_expressions_name_what_five_sets_of_numbers_say() -> None:
    randomly = random.Random(7)
    looked_at = 0
    for _ in range(400):
        made = _some_cron(randomly)
        if made is None:
            continue
        first = date(2026, 1, 1) + randomly.randrange(1_000) * DAY
        after = datetime(first.year, first.month, first.day, tzinfo=UTC) - MINUTE
        expected: list[datetime] = []
        for wall in _wall_times(*made, first, 400):
            expected.append(wall.replace(tzinfo=UTC))
            if len(expected) == 12:
                break
        spec = Spec(cron=made[0])
        assert ticks(spec, after, 12)[: len(expected)] == expected, made[0]
        looked_at += 1
    assert looked_at > 300


#: A zone and the day before one of its changes.
_CHANGES: Final = [
    ("Europe/Berlin", date(2026, 3, 28)),
    ("Europe/Berlin", date(2026, 10, 24)),
    ("Australia/Lord_Howe", date(2026, 4, 4)),
    ("Australia/Lord_Howe", date(2026, 10, 3)),
    ("Asia/Beirut", date(2026, 3, 28)),
    ("Asia/Beirut", date(2026, 10, 24)),
    ("America/Santiago", date(2026, 4, 4)),
    ("America/Santiago", date(2026, 9, 5)),
    ("Africa/Casablanca", date(2026, 2, 14)),
    ("Africa/Casablanca", date(2026, 3, 21)),
    ("America/St_Johns", date(2026, 11, 1)),
    ("Antarctica/Troll", date(2026, 3, 28)),  # by two hours
    ("Antarctica/Troll", date(2026, 10, 24)),
]


def _by_every_minute(text: str, numbers: list[set[int]], zone: ZoneInfo, first: date) -> list[datetime]:
    """Return the ticks of three days, found by looking at what clocks show at each minute."""
    begin = datetime(first.year, first.month, first.day, tzinfo=zone).astimezone(UTC)
    shown = [
        (at, at.astimezone(zone).replace(tzinfo=None))
        for at in (begin + n * MINUTE for n in range(3 * 24 * 60))
    ]
    wanted = set(_wall_times(text, numbers, first, 4))
    if text.split()[1].startswith("*"):
        return [at for at, wall in shown if wall in wanted]
    found: set[datetime] = set()
    newest = shown[0][1] - MINUTE  # the latest wall time that was shown or left out
    for at, wall in shown:
        passed = (newest + n * MINUTE for n in range(1, int((wall - newest) / MINUTE) + 1))
        if any(each in wanted for each in passed):
            found.add(at)
        newest = max(newest, wall)
    return sorted(found)


def test_random_expressions_keep_the_rules_where_clocks_change() -> None:
    randomly = random.Random(11)
    for number in range(4 * len(_CHANGES)):
        zone_name, first = _CHANGES[number % len(_CHANGES)]
        zone = ZoneInfo(zone_name)
        fields = [_some_field(randomly, 0, 59), _some_field(randomly, 0, 5), ("*", set(range(1, 32)))]
        fields += [("*", set(range(1, 13))), ("*", set(range(7)))]
        text, numbers = " ".join(text for text, _ in fields), [numbers for _, numbers in fields]
        if fields[1][0].startswith("*"):
            step = int(fields[1][0].partition("/")[2] or 1)
            numbers[1] = set(range(0, 24, step))
        expected = _by_every_minute(text, numbers, zone, first)[:150]
        begin = datetime(first.year, first.month, first.day, tzinfo=zone) - MINUTE
        found = ticks(Spec(cron=text, timezone=zone_name), begin.astimezone(UTC), len(expected))
        assert found == expected, (text, zone_name)


@each_row(
    "spec",
    [
        Spec(cron="*/10 * * * *"),
        Spec(cron="30 2 * * *", timezone="Europe/Berlin"),
        Spec(cron="0 0 L 1-3 *", timezone="America/Santiago"),
        Spec(cron="* 3 1 * *"),
        Spec(every_s=7_000),
    ],
)
def test_the_newest_tick_is_the_last_of_those_from_the_first_on(spec: Spec) -> None:
    first = next_tick(spec, utc("2026-01-01T00:00Z"))
    assert first is not None
    all_of_them = ticks_from(spec, first, first + 60 * DAY, 10_000)
    for until in [first, first + MINUTE, *(first + number * DAY for number in range(1, 60, 9))]:
        assert newest_tick(spec, first, until) == max(tick for tick in all_of_them if tick <= until)


# A simulated year.

_ZONES: Final = (
    "UTC",
    "Europe/Berlin",
    "America/Santiago",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
)
_KINDS: Final[tuple[Callable[[random.Random], str], ...]] = (
    lambda r: f"{r.randrange(60)} {r.randrange(24)} * * {r.randrange(7)}",
    lambda r: f"{r.randrange(60)} {r.randrange(24)} * * {r.randrange(7)}",
    lambda r: f"{r.randrange(60)} {r.randrange(24)} {r.randrange(1, 32)} * *",
    lambda r: f"{r.randrange(60)} {r.randrange(4)} 1,11,21 * *",
    lambda r: f"{r.randrange(60)} */12 L * *",
)
_OUTAGES: Final = [(40, 43.5), (90.2, 90.3), (150, 180), (300, 301)]  # days at which nobody works
_BEGIN: Final = utc("2026-01-01T00:00Z")


def _looked_at(due: datetime, randomly: random.Random) -> datetime:
    """Return when somebody looks at a tick that is due: soon, or when the outage is over."""
    at = due + timedelta(seconds=randomly.choice((0, 0.02, 3, 59)))
    for first, last in _OUTAGES:
        if _BEGIN + first * DAY <= at < _BEGIN + last * DAY:
            return _BEGIN + last * DAY
    return at


def _year_of(spec: Spec, catchup: Catchup, number: int) -> tuple[Schedule, list[Ticked]]:
    """Let a schedule tick for a year; clocks are now and then an hour wrong, one way or the other."""
    randomly, name = random.Random(number), f"s{number}"
    definition = Definition(
        spec=spec, task="t", queue="q", catchup=catchup, window_s=30 * 86_400, jitter_s=number % 3
    )
    schedule: Schedule | None = None
    event = decide(name, None, Declare(definition=definition), Stamp(at=_BEGIN, by="a"))
    made: list[Ticked] = []
    now = _BEGIN
    while True:
        assert event is not None
        assert SCHEDULE.check is not None
        assert list(SCHEDULE.check(schedule, event, len(made) + 1)) == []
        schedule = evolve(schedule, event, len(made) + 1)
        assert schedule.next_at is not None
        now = max(now, _looked_at(schedule.next_at, randomly))
        if now >= _BEGIN + 365 * DAY:
            return schedule, made
        wrong = timedelta(hours=randomly.choice((0, 0, 0, 0, 0, -1)))  # a clock ahead would make ticks missed
        event = decide(name, schedule, Tick(), Stamp(at=now + wrong, by="a"))
        assert isinstance(event, Ticked)
        made.append(event)


def test_a_year_of_200_schedules_neither_doubles_nor_forgets_a_tick() -> None:
    randomly = random.Random(3)
    catch_ups: tuple[Catchup, ...] = ("latest", "none", "all")
    for number in range(200):
        spec = Spec(cron=_KINDS[number % len(_KINDS)](randomly), timezone=randomly.choice(_ZONES))
        schedule, made = _year_of(spec, catch_ups[number % 3], number)
        expected = ticks_from(spec, next_tick(spec, _BEGIN) or _BEGIN, made[-1].tick or _BEGIN, 10_000)
        ran = [tick for event in made if not event.skipped for tick in event.ticks or (event.tick,)]
        assert len(set(ran)) == len(ran) == schedule.runs
        assert set(ran) <= set(expected)
        assert len(ran) + sum(event.missed for event in made) == len(expected), spec
        if catch_ups[number % 3] == "all":
            assert ran == expected
        in_an_outage = [
            tick for tick in expected if any(_BEGIN + a * DAY <= tick < _BEGIN + b * DAY for a, b in _OUTAGES)
        ]
        assert set(expected) - set(ran) <= set(in_an_outage)
