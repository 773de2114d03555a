"""What a worker is told: queues with weights from the command line, the limits of its settings, restart pauses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.tables import each_row

from jobledger.cli.errors import UsageError
from jobledger.cli.processes.options import weighted
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.workers import WorkerConfig
from jobledger.workers.processes.child import how_ended
from jobledger.workers.supervision.supervisor import SupervisorConfig


@each_row(
    ("given", "queues", "weights"),
    [
        (None, (), {}),
        (["email"], ("email",), {}),
        (["email=3"], ("email",), {"email": 3}),
        (["email=3,reports=1", "other"], ("email", "reports", "other"), {"email": 3, "reports": 1}),
        (["email=3,", "reports"], ("email", "reports"), {"email": 3}),  # as a variable with a space is split
        (["a", "a=2", "a=2"], ("a",), {"a": 2}),
    ],
)
def test_queues_are_read_with_their_weights(
    given: list[str] | None, queues: tuple[str, ...], weights: dict[str, int]
) -> None:
    assert weighted(given) == (queues, weights)


@each_row("word", ["email=", "email=x", "email=-1", "email=1.5", "email==2", "email=1000", "a=2,a=3"])
def test_a_weight_that_cannot_be_is_refused_with_a_sentence(word: str) -> None:
    with pytest.raises(UsageError, match=r"--queue .*(whole number from 1 to 100|two weights)"):
        weighted([word])


@pytest.mark.parametrize(
    "settings",
    [
        {"queues": ("a",), "weights": {"a": 0}},
        {"queues": ("a",), "weights": {"a": 101}},
        {"queues": ("a",), "weights": {"a": True}},
        {"queues": ("a",), "weights": {"b": 1}},
    ],
)
def test_a_worker_refuses_weights_that_cannot_work(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WorkerConfig(**settings)


@pytest.mark.parametrize(
    "settings", [{"processes": 0}, {"processes": 257}, {"restart_s_first": 0}, {"restart_s_first": 31.0}]
)
def test_a_supervisor_refuses_settings_that_cannot_work(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SupervisorConfig(**settings)


def test_pauses_double_up_to_their_limit_and_begin_again_after_a_good_life() -> None:
    restarts = SupervisorConfig().restarts()
    pauses = [restarts.pause_s() for _ in range(100)]
    assert pauses[:4] + pauses[8:10] + pauses[-1:] == [0.1, 0.2, 0.4, 0.8, 25.6, 30.0, 30.0]
    assert [restarts.pause_s(lived_s) for lived_s in (9.9, 10.0, 9.9)] == [30.0, 0.1, 0.2]
    restarts.forget()
    assert restarts.pause_s() == 0.1
    restarts.ends = 10**6
    assert restarts.pause_s() == 30.0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with code 0"),
        (3, "ended with code 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_exit_code_is_told_in_words(code: int, words: str) -> None:
    assert how_ended(code) == words
