"""Jobs of a content system: run in requests or by workers, retries, concurrency by key, cron with hooks, access."""

from __future__ import annotations

import itertools
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.newcomer.scenarios.conftest import Place

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


def test_jobs_of_a_content_system(place: Place) -> None:
    shutil.copy(Path(__file__).with_name("content_jobs.py"), place.folder / "content.py")
    place.gateway("content")
    _refused(place)
    _run_in_requests(place)
    _asked(place)
    workers = place.workers("content")
    place.kill_who_wrote("held")

    assert place.result("posts", "huge") == {"slug": "my-post", "picture": "huge-640"}
    assert place.result("posts", "flaky") == {"slug": "my-post", "picture": "flaky-640"}
    assert place.ended("posts", "torn")[1]["code"] == "JOB_EXECUTION_ERROR"
    _tried_apart(place)
    _by_key(place)
    _scheduled(place)
    _told(place)
    _access(place)
    place.verify(workers)


def _add(place: Place, task: str, job: str, **given: Any) -> Any:
    options = {name: given.pop(name) for name in ("run_at", "delay_s", "priority") if name in given}
    status, made = place.ask("/v1/jobs", {"task": task, "input": given, "id": job, **options})
    assert status == 202, made
    return made


def _refused(place: Place) -> None:
    """What is no job, no task or no input of it is refused with a code."""
    assert place.ask("/v1/jobs/mail/nobody")[1]["code"] == "JOB_NOT_FOUND"
    assert place.ask("/v1/jobs", {"task": "sendd", "input": {}})[1]["code"] == "TASK_NOT_FOUND"
    status, wrong = place.ask("/v1/jobs", {"task": "send", "input": {"too": "ann"}})
    assert (status, wrong["code"]) == (400, "JOB_INVALID_INPUT")


def _run_in_requests(place: Place) -> None:
    """Without a worker a request runs one job past the others, or those of a queue, the first first."""
    for number in range(4):
        _add(place, "send", f"mail-{number}", to=f"reader {number}")
    status, ran = place.ask("/v1/jobs/mail/mail-3/run", {})
    assert (status, ran["status"], ran["result"]) == (200, "completed", "sent to reader 3")
    status, done = place.ask("/v1/run?queue=mail&limit=2")
    assert status == 200, done
    assert place.ask("/v1/jobs/mail/mail-2")[1]["status"] == "queued"
    begun = [each["job"] for each in place.events("started") if each["queue"] == "mail"]
    assert begun == ["mail-3", "mail-0", "mail-1"]
    assert place.ask("/v1/jobs/mail/mail-2/cancel", {"reason": "unsubscribed"})[0] == 200
    assert place.ask("/v1/jobs/mail/mail-2/result")[1]["code"] == "JOB_CANCELLED"


def _asked(place: Place) -> None:
    """Ask for posts, for a mail that waits for its time, and for several jobs of one document."""
    for image in ("huge", "flaky", "torn"):
        _add(place, "create_post", image, title="My Post", image=image)
    due = datetime.now(UTC) + timedelta(seconds=1)
    _add(place, "send", "later", to="ann", run_at=due.isoformat())
    assert place.ask("/v1/jobs/mail/later")[1]["status"] == "scheduled"
    for version in range(3):
        _add(place, "publish", f"publish-{version}", document="home", version=version)
        _add(place, "preview", f"preview-{version}", document="home", version=version)


def _tried_apart(place: Place) -> None:
    """A sub-task has attempts of its own, each behind the fixed backoff."""
    attempts = place.ask("/v1/jobs/media/flaky-2-0-of-posts/attempts")[1]["items"]
    begun = [datetime.fromisoformat(each["started_at"]) for each in attempts]
    assert len(begun) == 3
    assert all((one - other).total_seconds() >= 0.2 for other, one in itertools.pairwise(begun))


def _by_key(place: Place) -> None:
    """Jobs of one key ran one after the other; of those where the newest counts, the older ones were cancelled."""
    assert [place.result("documents", f"publish-{version}") for version in range(3)] == [0, 1, 2]
    running: set[str] = set()
    for event in place.events("started", "completed"):
        if event["job"].startswith("publish-"):
            (running.add if event["type"] == "started" else running.discard)(event["job"])
        assert len(running) <= 1
    assert place.result("documents", "preview-2") == 2
    older = [place.ask(f"/v1/jobs/documents/preview-{version}")[1]["status"] for version in range(2)]
    assert older == ["cancelled", "cancelled"]


def _scheduled(place: Place) -> None:
    """A job by hand of the nightly schedule is made between its hooks; the other one ticks by itself."""
    status, hooks = place.ask("/v1/schedules/nightly/trigger", {"reason": "try it once"})
    assert status == 202, hooks
    place.result(hooks["queue"], hooks["id"])
    job = hooks["id"].removesuffix("-hooks")
    assert place.result("upkeep", job) == datetime.now(UTC).date().isoformat()
    assert (place.folder / "scheduled").read_text() == f"nightly {job}\n"
    ticks = place.ask("/v1/schedules/nightly/next?count=3")[1]["items"]
    assert [datetime.fromisoformat(each).strftime("%H:%M") for each in ticks] == ["02:30"] * 3
    place.until(lambda: place.ask("/v1/schedules/often")[1]["last_job"], "the schedule has a last run")


def _told(place: Place) -> None:
    """Each run told its end once, and a reader of events got what became of each job."""
    assert place.result("mail", "later") == "sent to ann"
    ends = {post: place.result("mail", f"{post}-end-of-posts") for post in ("huge", "flaky", "torn")}
    assert ends == {"huge": "huge completed", "flaky": "flaky completed", "torn": "torn dead_lettered"}
    told: dict[str, list[str]] = {}
    for event in place.events("queued", "started", "completed", "failed", "cancelled"):
        told.setdefault(event["job"], []).append(event["type"])
    assert told["mail-0"] == ["queued", "started", "completed"]
    assert told["mail-2"] == ["queued", "cancelled"]
    assert told["flaky-2-0-of-posts"].count("failed") == 2


def _access(place: Place) -> None:
    """With the first key nobody may do anything without one, and each permission allows what it says."""
    keys: dict[str, str] = {}
    for name, *words in (
        ("boss", "--role", "admin"),
        ("adds", "--permission", "queue"),
        ("runs", "--permission", "run"),
        ("ends", "--permission", "cancel"),
    ):
        made = place.start("keys", "create", name, *words)
        assert made.end() == 0, made.errors
        keys[name] = f"Bearer {made.rest()[0].strip()}"
    wanted = {"task": "send", "input": {"to": "eve"}, "id": "keyed", "delay_s": 600}
    place.until(lambda: place.ask("/v1/jobs", wanted)[0] == 401, "a key is asked for")
    for name, status in {"runs": 403, "ends": 403, "adds": 202, "boss": 200}.items():
        assert place.ask("/v1/jobs", wanted, authorization=keys[name])[0] == status, name
    for name, status in {"adds": 403, "ends": 403, "runs": 200}.items():
        assert place.ask("/v1/run?queue=upkeep", authorization=keys[name])[0] == status, name
    for name, status in {"adds": 403, "runs": 403, "ends": 200}.items():
        code, answer = place.ask("/v1/jobs/mail/keyed/cancel", {}, authorization=keys[name])
        assert code == status, json.dumps(answer)
        assert status == 200 or answer["code"] == "JOB_ACCESS_DENIED"
