"""Deploys: workers that began with other code than those beside them, as leases tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jobledger.admin.workers import deploys
from jobledger.ledger.nats.leases import WorkerInfo

BEGIN = datetime(2026, 11, 10, 10, tzinfo=UTC)
END = BEGIN + timedelta(hours=1)


def worker(name: str, minutes: int, **given: Any) -> WorkerInfo:
    """Return a worker that began so long after `BEGIN`."""
    at = BEGIN + timedelta(minutes=minutes)
    known: dict[str, Any] = {
        "host": "web-1",
        "queues": ("mail",),
        "tasks": ("send",),
        "version": "0.1",
        **given,
    }
    return WorkerInfo(worker=name, pid=1, started_at=at, renewed_at=at, **known)


def test_workers_with_other_code_are_one_deploy_and_a_restart_is_none() -> None:
    old = worker("a", -5, release="2.4.0", stopped=True)
    new = [
        worker(name, 10, release="2.4.1", host=host, tasks=("send", "pay@2"))
        for name, host in (("b", "web-2"), ("c", "web-1"))
    ]
    (found,) = deploys([*new, old], BEGIN, END)
    assert (found.at, found.workers, found.hosts) == (new[0].started_at, 2, ("web-1", "web-2"))
    assert found.words == "release 2.4.1 after 2.4.0; new: pay@2"
    assert deploys([old, worker("b", 10, release="2.4.0")], BEGIN, END) == []
    assert deploys([*new, old], BEGIN - timedelta(hours=1), BEGIN - timedelta(minutes=30)) == []


def test_without_a_release_the_code_of_workers_beside_tells() -> None:
    old, new = worker("a", -5, tasks=("send", "pay"), stopped=True), worker("b", 10)
    assert [each.words for each in deploys([old, new], BEGIN, END)] == ["gone: pay"]
    (found,) = deploys([worker("a", -5, tasks=("send", "pay")), new], BEGIN, END)
    assert found.gone_tasks == ()  # it is still there
    assert deploys([new], BEGIN, END) == []  # nobody knows what ran before
    assert deploys([worker("a", -5, queues=("other",)), new], BEGIN, END) == []
    (found,) = deploys([worker("a", -5, limits={}), new], BEGIN, END)
    assert found.words == "other schedules, limits or version of jobledger"
    assert deploys([worker("a", -5, kind="client", tasks=None), new], BEGIN, END) == []
    (found,) = deploys([worker("b", 10, release="2.4.1")], BEGIN, END)
    assert (found.words, found.gone_tasks) == ("release 2.4.1", ())
