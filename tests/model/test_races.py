"""Cancel, retry, complete, take over and the rest race for one job, in every order that a seed comes up with."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Sequence

import pytest
from tests.support.races import Races

from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog

SEED = int(os.environ.get("JOBLEDGER_FAULT_SEED") or secrets.randbelow(1 << 31))
PER_LEDGER = 1_000


def play(seed: int, count: int, *, log_is_broken: bool = False) -> Races:
    races = Races(random.Random(seed), log_is_broken=log_is_broken)
    for _ in range(count):
        races.play()
    return races


@pytest.mark.parametrize("ledgers", [1, pytest.param(5, marks=pytest.mark.fault)])
def test_races_have_one_winner_and_no_illegal_step(ledgers: int) -> None:
    for number in range(ledgers):
        races = play(SEED + number, PER_LEDGER)
        report = races.check()
        assert report.sound, f"seed {SEED + number}: {report.text()}"
        assert set(races.ends()) == {1}, f"seed {SEED + number}"
        assert min(races.accepted["CancelJob"], races.accepted["Complete"], races.refused["Complete"]) > 0


def test_a_seed_plays_the_same_races_again() -> None:
    assert play(7, 50).check().digest == play(7, 50).check().digest


def test_a_planted_second_winner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a log that does not look at conditions, as a broken server would not."""

    def look_away(_log: MemoryLog, _entries: Sequence[Entry]) -> None:
        pass

    monkeypatch.setattr(MemoryLog, "_check", look_away)
    report = play(SEED, 300, log_is_broken=True).check()
    assert not report.sound
    assert {"chain", "outcome"} & set(report.broken), report.text()
