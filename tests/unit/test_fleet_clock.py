"""The fleet's time: what a process believes of the server's clock, whatever its machine's clock shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobledger.ledger.nats.fleet_clock import FleetClock, apart_s, apart_since
from jobledger.testing import MovableClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Machine:
    """A machine whose wall clock is wrong by `ahead_s`."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.seconds = 50.0
        self.ahead_s = ahead_s

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds - 50 + self.ahead_s)

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize("ahead_s", [0.0, 300.0, -300.0, 86_400.0])
def test_time_is_the_servers_whatever_the_machines_clock_shows(ahead_s: float) -> None:
    machine = Machine(ahead_s)
    clock = FleetClock(machine)
    assert clock.now() == machine.now()  # nothing else is known yet
    clock.compared(NOON, sent=49.99, received=50.01)
    assert clock.now() == NOON
    assert clock.apart_s == pytest.approx(ahead_s)
    machine.seconds += 7
    machine.ahead_s += 1_000  # somebody sets it
    assert clock.now() == NOON + timedelta(seconds=7)


def test_an_answer_that_contradicts_nothing_moves_nothing() -> None:
    machine = Machine()
    clock = FleetClock(machine)
    clock.compared(NOON, sent=49.99, received=50.01)
    for late_s in (0.0, 0.4, 0.9):  # the answer's way back took longer
        clock.compared(NOON, sent=50.0 - 1e-6, received=50.0 + late_s)
        assert clock.now() == NOON


def test_a_server_whose_clock_was_set_is_followed_both_ways() -> None:
    clock = FleetClock(Machine())
    clock.compared(NOON, sent=50.0, received=50.0)
    for moved in (timedelta(hours=2), -timedelta(minutes=5)):
        clock.compared(NOON + moved, sent=49.95, received=50.05)
        assert abs(clock.now() - NOON - moved) < timedelta(milliseconds=60)


def test_an_answer_that_took_for_ever_corrects_nothing_that_is_known() -> None:
    clock = FleetClock(Machine())
    clock.compared(NOON, sent=50.0, received=50.0)
    clock.compared(NOON + timedelta(hours=1), sent=20.0, received=50.0)
    assert clock.now() == NOON


def test_a_clock_is_apart_since_it_was_seen_so_until_it_is_set_right() -> None:
    machine = Machine()
    clock = FleetClock(machine)
    clock.compared(NOON, sent=50.0, received=50.0)
    assert apart_since(clock) is None
    for ahead_s, at_s, since_s in (
        (4.0, 51, None),
        (300.0, 52, 52),
        (-300.0, 60, 52),
        (2.0, 70, None),
        (9.0, 75, 75),
    ):
        machine.ahead_s, machine.seconds = ahead_s, at_s
        expected = None if since_s is None else NOON + timedelta(seconds=since_s - 50)
        assert apart_since(clock) == expected, (ahead_s, at_s)


def test_a_clock_that_a_test_owns_is_never_apart() -> None:
    assert apart_s(MovableClock(NOON)) == 0.0
    assert apart_since(MovableClock(NOON)) is None
