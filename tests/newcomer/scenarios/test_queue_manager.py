"""A manager of queues: cron jobs that look for flags, locks, callbacks, a choice of queues, pauses, an end in order."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.newcomer.scenarios.conftest import Place

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

DOCUMENTS = ("acme-yearly", "acme-daily", "acme-weekly", "globex-daily")


def test_a_manager_of_cron_jobs_queues_and_locks(place: Place) -> None:
    shutil.copy(Path(__file__).with_name("queue_manager.py"), place.folder / "manager.py")
    place.gateway("manager")
    _asked(place)
    _some_queues_only(place)
    workers = place.workers("manager")
    _locked_by_one_who_dies(place)
    _done_once_under_its_lock(place)
    _managed(place)
    _told(place)
    place.verify(workers)


def _asked(place: Place) -> None:
    """Ask for flags and imports before there is any worker: each answer says that it is in the ledger."""
    for document in DOCUMENTS:
        wanted = {"task": "flag", "input": {"document": document, "version": 1}}
        assert place.ask("/v1/jobs", wanted)[0] == 202
    imports = [("acme", ["ann"]), ("broken", ["nobody"]), ("globex", ["bob", "eve"])]
    lines = "\n".join(
        json.dumps({"task": "import_contacts", "input": {"account": account, "names": names}, "id": account})
        for account, names in imports
    )
    made = place.ask("/v1/jobs/bulk", lines.encode(), content_type="application/x-ndjson")[1]
    assert made["created"] == len(imports), made


def _counts(place: Place, queue: str) -> dict[str, int]:
    """Return how many jobs of a queue are in which state, without those that are none."""
    status, shown = place.ask(f"/v1/queues/{queue}")
    return {state: count for state, count in shown["counts"].items() if count} if status == 200 else {}


def _some_queues_only(place: Place) -> None:
    """Workers of three of the queues leave the fourth alone, and end in order with what they run."""
    some = place.workers("manager", "--queue", "contacts", "--queue", "crons", "--queue", "triggers")
    assert place.result("contacts", "globex") == 2
    place.until(lambda: _counts(place, "reports") == {"queued": len(DOCUMENTS)}, "flags became jobs")

    def told() -> bool:
        found = place.ask("/v1/diagnoses")[1]["items"]
        return any(each["kind"] == "queue_without_worker" and each["queue"] == "reports" for each in found)

    place.until(told, "the queue without a worker is told")
    slow = {"task": "import_contacts", "input": {"account": "slow", "names": ["ann"]}, "id": "slow"}
    assert place.ask("/v1/jobs", slow)[0] == 202
    place.until((place.folder / "slow").exists, "the import runs")
    assert [each.end(signal.SIGTERM) for each in some] == [0, 0]
    assert place.ask("/v1/jobs/contacts/slow")[1]["status"] == "completed"
    assert len(place.ask("/v1/jobs/contacts/slow/attempts")[1]["items"]) == 1


def _locked_by_one_who_dies(place: Place) -> None:
    """The lock of an account has a holder that others can see; its process is killed, and the lock is free."""
    place.until((place.folder / "held").exists, "a report is under way")
    (lock,) = place.ask("/v1/locks")[1]["items"]
    assert (lock["scope"], lock["lock"], lock["is_alive"]) == ("account", "acme", True)
    place.kill_who_wrote("held")
    assert place.result("reports", "acme-yearly-1") > lock["fencing_number"]
    for document in DOCUMENTS:
        assert place.result("reports", f"{document}-1") > 0
    assert place.ask("/v1/locks")[1]["items"] == []


def _done_once_under_its_lock(place: Place) -> None:
    """At no moment two jobs of an account were at work, and each ended once."""
    lines = (place.folder / "work-acme").read_text().splitlines()
    lines.remove("begins acme-yearly-1")  # of the worker that was killed
    pairs = [lines[number : number + 2] for number in range(0, len(lines), 2)]
    assert sorted(pairs) == [
        [f"begins {document}-1", f"ends {document}-1"] for document in sorted(DOCUMENTS) if "acme" in document
    ]


def _managed(place: Place) -> None:
    """Pause, resume, retry and trigger over HTTP."""
    assert place.ask("/v1/queues/contacts/pause", {"reason": "the provider is down"})[0] == 200
    later = {"task": "import_contacts", "input": {"account": "later", "names": ["ada"]}, "id": "later"}
    assert place.ask("/v1/jobs", later)[0] == 202
    mended = {"edit": {"names": ["somebody"]}, "reason": "a typo"}
    assert place.ask("/v1/jobs/contacts/broken/requeue", mended)[0] == 200
    assert "paused" in place.ask("/v1/jobs/contacts/later/why")[1]["sentence"]
    assert place.ask("/v1/jobs/contacts/later")[1]["status"] == "queued"
    assert place.ask("/v1/queues/contacts/resume", {})[0] == 200
    assert place.result("contacts", "later") == 1
    assert place.result("contacts", "broken") == 1

    status, made = place.ask("/v1/schedules/queue_flagged/trigger", {"reason": "at once"})
    assert status == 202, made
    assert place.result(made["queue"], made["id"]) == 0


def _told(place: Place) -> None:
    """Callbacks were called, the schedule was declared once, and the figures of each queue are right."""
    told: list[Any] = (place.folder / "callbacks").read_text().splitlines()
    assert {"failed broken", "stalled acme-yearly-1", "completed acme-yearly-1"} <= set(told)
    ticks = [each["id"] for each in place.ask("/v1/jobs?queue=crons&limit=500")[1]["items"]]
    assert len(ticks) == len(set(ticks)) >= 2
    (declared,) = place.events("declared")
    assert declared["schedule"] == "queue_flagged"
    place.until(lambda: _counts(place, "contacts") == {"completed": 5}, "the figures are those of the end")
    assert _counts(place, "reports") == {"completed": len(DOCUMENTS)}
    status, metrics = place.ask("/metrics")
    assert status == 200
    assert 'queue="reports"' in metrics
