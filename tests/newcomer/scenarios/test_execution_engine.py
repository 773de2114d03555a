"""An execution engine with outcome events: jobs over HTTP, a pool of slots, backoff, dead letters, one trace for all."""

from __future__ import annotations

import itertools
import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.newcomer.scenarios.conftest import Place

pytestmark = [pytest.mark.walk, pytest.mark.timeout(90)]

TRACE = "0af7651916cd43dd8448eb211c80319c"
ENDS = ("completed", "dead_lettered")


def test_an_execution_engine_with_outcome_events(place: Place) -> None:
    shutil.copy(Path(__file__).with_name("execution_engine.py"), place.folder / "engine.py")
    place.gateway("engine")
    _asked(place)
    workers = place.workers("engine", "--concurrency", "12")
    place.kill_who_wrote("held")

    plain = place.result("run-job", "plain")
    assert plain["steps"] == 2
    assert plain["attempt"] in {1, 2}, "the second, where the worker that was killed had it"
    assert place.result("run-job", "flaky") == {"steps": 3, "attempt": 2}
    assert [place.result("run-job", f"many-{number}")["steps"] for number in range(30)] == [1] * 30
    _failed_for_good(place)
    assert place.result("run-job", "later") == {"steps": 1, "attempt": 1}
    assert place.result("run-job", "hung") == {"steps": 1, "attempt": 2}
    _one_outcome_each(place)
    place.verify(workers)


def _asked(place: Place) -> None:
    """Add jobs before there is any worker; each answer names job and trace, and the same key makes no second job."""
    context = f"00-{TRACE}-b7ad6b7169203331-01"
    for job, steps in {
        "plain": ["a", "b"],
        "flaky": ["a", "fail once", "c"],
        "hopeless": ["fail"],
        "hung": ["hang"],
    }.items():
        body: dict[str, Any] = {"task": "simulate", "input": {"steps": steps}, "id": job}
        status, made = place.ask("/v1/jobs", body, traceparent=context)
        assert (status, made["trace_id"]) == (202, TRACE)
    keyed: dict[str, Any] = {"task": "simulate", "input": {"steps": []}}
    first, again = (place.ask("/v1/jobs", keyed, idempotency_key="order-7") for _ in range(2))
    assert (first[0], again[0], first[1]["id"]) == (202, 200, again[1]["id"])
    other = {"task": "simulate", "input": {"steps": ["x"]}}
    assert place.ask("/v1/jobs", {**other, "id": "plain"})[1]["code"] == "INPUT_MISMATCH"
    assert place.ask("/v1/jobs", {**other, "id": "later", "delay_s": 1.5})[0] == 202
    lines = "\n".join(json.dumps({**other, "id": f"many-{number}"}) for number in range(30))
    made = place.ask("/v1/jobs/bulk", lines.encode(), content_type="application/x-ndjson")
    assert made[1]["created"] == 30, made
    shown = place.ask("/v1/jobs/run-job/plain")[1]
    assert shown["status"] == "queued"


def _failed_for_good(place: Place) -> None:
    """The attempts of a hopeless job stood apart by the backoff; it is a dead letter that somebody discards."""
    status, refused = place.ended("run-job", "hopeless")
    assert (status, refused["code"]) == (500, "JOB_EXECUTION_ERROR")
    attempts = place.ask("/v1/jobs/run-job/hopeless/attempts")[1]["items"]
    begun = [datetime.fromisoformat(each["started_at"]) for each in attempts]
    assert len(begun) == 3
    assert all((after - before).total_seconds() >= 0.1 for before, after in itertools.pairwise(begun))
    (dead,) = place.until(
        lambda: place.ask("/v1/dead-letters?queue=run-job")[1]["items"], "the dead letter is listed"
    )
    assert (dead["job_id"], dead["reason"]) == ("hopeless", "exhausted")
    assert place.ask("/v1/jobs/run-job/hopeless/discard", {"reason": "as it should"})[0] == 200


def _one_outcome_each(place: Place) -> None:
    """A reader of outcome events got one of each job, with the trace of whoever asked for it."""
    outcomes = place.events(*ENDS)
    assert sorted(each["job"] for each in outcomes) == sorted({each["job"] for each in outcomes})
    assert len(outcomes) == 36
    ended = {each["job"]: each["type"] for each in outcomes}
    assert {job for job, kind in ended.items() if kind == "dead_lettered"} == {"hopeless"}
    assert place.ask("/v1/jobs/run-job/hung")[1]["status"] == "completed"
    (asked,) = [each for each in place.events("queued") if each["job"] == "hung"]
    assert TRACE in asked["trace"]
