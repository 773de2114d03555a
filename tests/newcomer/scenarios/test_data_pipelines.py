"""Data pipelines: tables and queries, checkpoints of steps, pages and items, waits, isolation, and what is shown of it."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.newcomer.scenarios.conftest import Place

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

QUEUE = "pipelines"
ITEMS = 40


def test_data_pipelines_with_checkpoints(place: Place) -> None:
    shutil.copy(Path(__file__).with_name("data_pipelines.py"), place.folder / "pipelines.py")
    place.gateway("pipelines")
    for account in ("acme", "globex", "broken", "initech"):
        wanted = {"task": "totals", "input": {"account": account}, "id": account}
        assert place.ask("/v1/jobs", wanted)[0] == 202
        assert _status(place, account) == "queued"
    workers = place.workers("pipelines", "--concurrency", "4")
    place.until((place.folder / "held").exists, "a step of a run is under way")
    assert _status(place, "acme") == "running"
    place.kill_who_wrote("held")

    _waits(place, "globex")
    assert _published(place, "globex") == _totals("globex")
    _waits(place, "initech")
    assert place.ask(f"/v1/jobs/{QUEUE}/initech/cancel", {"reason": "not needed"})[0] == 200
    assert _status(place, "initech") == "cancelled"
    _failed(place)
    _waits(place, "acme")
    assert _published(place, "acme") == _totals("acme")
    _nothing_twice_before_the_checkpoint(place)
    _shown(place)
    place.verify(workers)


def _status(place: Place, job: str) -> str:
    return str(place.ask(f"/v1/jobs/{QUEUE}/{job}")[1]["status"])


def _waits(place: Place, account: str) -> None:
    place.until(lambda: _status(place, account) == "waiting", f"run {account} waits")


def _published(place: Place, account: str) -> Any:
    """Send the signal that the run waits for; a value of another type is refused at the door."""
    signals = f"/v1/jobs/{QUEUE}/{account}/signals/publish"
    assert place.ask(signals, "perhaps")[0] == 400
    sent = [place.ask(f"{signals}?id=click-1", True)[1]["is_new"] for _ in range(2)]
    assert sent == [True, False]
    return place.result(QUEUE, account)


def _totals(account: str) -> list[dict[str, Any]]:
    """What the tables of this run give, and those of no other: the rows of each account differ."""
    counts = Counter(number % 3 for number in range(ITEMS))
    return [{"sku": f"sku-{sku}", "cents": counts[sku] * len(account), "goal": 10 * sku} for sku in range(3)]


def _failed(place: Place) -> None:
    """A step that failed after its tries fails its run, as often as the run may begin again."""
    status, refused = place.ended(QUEUE, "broken")
    assert (status, refused["code"]) == (500, "JOB_EXECUTION_ERROR")
    assert "no price for item" in refused["detail"]
    assert len(_done(place, "items-broken")) >= 2


def _done(place: Place, what: str) -> list[int]:
    return [int(line) for line in (place.folder / what).read_text().split()]


def _nothing_twice_before_the_checkpoint(place: Place) -> None:
    """Pages went on behind the failed one, items with the chunk that the killed worker had not ended."""
    assert _done(place, "pages-acme") == [1, 2, 3, 3, 4]
    times = Counter(_done(place, "items-acme"))
    assert set(times) == set(range(ITEMS))
    assert times[25] == 2
    again = [number for number in times if times[number] > 1]
    assert max(times.values()) == 2
    assert len({number // 10 for number in again}) <= 2  # no more than the chunks that were under way
    attempts = place.ask(f"/v1/jobs/{QUEUE}/acme/attempts")[1]["items"]
    assert len(attempts) >= 2
    assert len({each["worker"] for each in attempts}) >= 2


def _shown(place: Place) -> None:
    """Steps with their rows and times, tables with their life, logs, and past runs with their outcomes."""
    steps = {each["key"]: each for each in place.ask(f"/v1/jobs/{QUEUE}/acme/steps")[1]["steps"]}
    assert {each["status"] for each in steps.values()} == {"completed"}
    assert {key: each["rows"] for key, each in steps.items() if each["kind"] == "table"} == {
        "set_goals/goals": 3,
        "sales": ITEMS,
        "sums": 3,
    }
    assert all(each["duration_ms"] >= 0 for each in steps.values())
    assert steps["read/fetch"]["items_completed"] == 1

    status, tables = place.ask("/v1/tables?run=acme")
    assert (status, len(tables["items"])) == (200, 3)
    for each in tables["items"]:
        made_at, expires_at = (datetime.fromisoformat(each[name]) for name in ("made_at", "expires_at"))
        assert timedelta(hours=47) < expires_at - made_at <= timedelta(hours=48)

    logs = place.ask("/v1/jobs/pages/acme-1-0-of-pipelines/logs")[1]["items"]
    assert [(each["attempt"], each["text"]) for each in logs] == [(2, "all pages of acme are read")]

    newest = place.ask(f"/v1/jobs/{QUEUE}/acme")[1]["last_sequence"]
    past = place.ask(f"/v1/jobs?queue={QUEUE}&min_sequence={newest}")[1]["items"]
    assert {each["id"]: each["status"] for each in past} == {
        "acme": "completed",
        "globex": "completed",
        "broken": "dead_lettered",
        "initech": "cancelled",
    }
    assert all(each["started_at"] < each["completed_at"] for each in past)
