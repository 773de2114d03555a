"""An outage takes few lines: one at once, one a minute, one when it is over."""

from __future__ import annotations

import logging

import pytest

from jobledger.ledger.model.errors import KeyUnavailableError, LedgerFullError, ServerUnreachableError
from jobledger.ledger.nats.outage import Outage


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_an_hour_without_the_server_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outage = Outage(clock)
    outage.over()
    for _ in range(7_200):
        outage.note("no answer")
        clock.now += 0.5
    outage.over()
    outage.over()
    told = [each.message for each in caplog.records]
    assert told[:2] == [
        "the server is away, trying again: no answer",
        "the server has been away for 60 s: no answer",
    ]
    assert told[-1] == "the server is back after 3600.0 s"
    assert len(told) == 1 + 59 + 1


def test_a_connection_that_comes_and_goes_is_not_told_each_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outage = Outage(clock)
    for _ in range(1_000):
        outage.note("it is lost")
        clock.now += 0.01
        outage.over()
        clock.now += 0.01
    # 20 seconds: each pair of lines is followed by five quiet seconds.
    assert 4 <= len(caplog.records) <= 10


def test_only_what_fails_for_want_of_the_server_is_quiet_meanwhile() -> None:
    clock = Clock()
    outage = Outage(clock)
    away, full = ServerUnreachableError("no answer"), LedgerFullError("no room")
    assert outage.level(away) == logging.WARNING
    outage.note("no answer")
    assert outage.level(away) == logging.DEBUG
    outage.over()
    assert outage.level(away) == logging.WARNING
    assert [outage.level(full) for _ in range(3)] == [logging.ERROR, logging.DEBUG, logging.DEBUG]
    no_key = KeyUnavailableError("no master key")
    assert [outage.level(no_key) for _ in range(3)] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    clock.now += 60.0
    assert (outage.level(full), outage.level(no_key)) == (logging.ERROR, logging.WARNING)
