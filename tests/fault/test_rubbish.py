"""Any app of the account publishes what is no event, everywhere below the ledger, while all that reads it is at work."""

from __future__ import annotations

import random
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import nats
import pytest
from nats.aio.client import Client
from tests.integration.conftest import Process
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, load_tasks
from tests.support.limits import LIMIT_S
from tests.support.proof import prove

from jobledger.admin.unreadable import acknowledge_message
from jobledger.audit.verify import CheckOptions, verify
from jobledger.ledger import JobHandle, Ledger
from jobledger.projections import Store

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(180)]

TASKS = load_tasks()
JOBS = 200
RUBBISH = 300
KINDS: list[Callable[[str], bytes]] = [
    lambda _: b"",
    lambda _: b"\xff\x00\x80",
    lambda _: b"[" * 5_000,
    lambda _: b'{"type":"escalated"}',
    lambda job: event(job, "completed", attempt=2**64),
    lambda job: event(job, "completed", at="0001-01-01T00:00:00Z", attempt=1),
    lambda job: event(f"{job}-other", "completed", attempt=1),
    lambda job: event(job, "started", attempt="one"),
]
ENDS = (
    "job.work.{}.completed",
    "job.work.{}.started",
    "job.work.{}.queued.normal",
    "job.work.{}.cancel_requested",
    "job.work.{}.any.thing",
    "job.*.{}.completed",
    "lock.a.{}.acquired",
    "reactor.seals.sealed",
    "reactor.archive.archived",
    "unreadable.{}.acknowledged",
    "nothing.like.it",
)
READERS = (
    ("metrics", "--port", "0"),
    ("projection", "run", "--projection", "followed.db"),
    ("events", "tail", "--from", "1", "--follow"),
)


def event(job: str, kind: str, **fields: object) -> bytes:
    envelope = {"type": kind, "v": 1, "at": "2026-01-02T00:00:00Z", "by": "anybody", "prev": ""}
    return _json({**envelope, "job": job, "queue": "work", "task": "nap", **fields})


def _json(value: dict[str, object]) -> bytes:
    text = {
        name: b"%d" % each if isinstance(each, int) else msgspec.json.encode(each)
        for name, each in value.items()
    }
    return b"{%s}" % b",".join(b'"%s":%s' % (name.encode(), each) for name, each in text.items())


async def _litter(client: Client, root: str, chance: random.Random) -> list[int]:
    """Publish rubbish of each kind at each kind of subject, some of it before the jobs of these ids are enqueued."""
    stored: list[int] = []
    for number in range(RUBBISH):
        job = f"n-{chance.randrange(JOBS)}"
        end = ENDS[number % len(ENDS)].format(job)
        answer = await client.jetstream().publish(f"{root}.{end}", KINDS[number % len(KINDS)](job))
        stored.append(answer.seq)
        await anyio.sleep(chance.uniform(0.0, 0.02))
    return stored


def _metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }


async def _until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(LIMIT_S):
        while not await anyio.to_thread.run_sync(holds):
            await anyio.sleep(0.1)


def _counted(url: str) -> tuple[float, float]:
    """Return the jobs that completed and the messages that nobody accepted, as the exporter has them."""
    found = _metrics(url)
    done = sum(value for name, value in found.items() if name.startswith("jobledger_jobs_completed_total{"))
    return done, found['jobledger_unreadable_messages{acknowledged="no"}']


async def _run(
    ledger: Ledger, fleet: Fleet, client: Client, stored: list[int], chance: random.Random
) -> list[JobHandle[int]]:
    """Enqueue and finish all jobs while more rubbish comes; its stream sequences are added."""

    async def litter() -> None:
        stored.extend(await _litter(client, ledger.names.ledger_root, chance))

    jobs: list[JobHandle[int]] = []
    for _ in range(2):
        await fleet.start("--concurrency", "8")
    async with anyio.create_task_group() as group:
        group.start_soon(litter)
        tasks = [TASKS["nap"].options(id=f"n-{number}") for number in range(JOBS)]
        jobs += [await ledger.enqueue(task, 0.02) for task in tasks]
    for job in jobs:
        assert job.created
        await job.result(timeout_s=LIMIT_S)
    return jobs


async def _check_named(ledger: Ledger, tail: Process, stored: list[int]) -> None:
    """Hold what the tail shows and what a check names to what was stored."""
    head = (await ledger.log.head()).last_sequence
    shown = [tail.line() for _ in range(head)]
    assert [each["stream_sequence"] for each in shown] == list(range(1, head + 1))
    assert [each["stream_sequence"] for each in shown if "unreadable" in each] == stored
    report = await verify(ledger.log, options=CheckOptions(violations_max=len(stored) + 1))
    assert report.broken == {"readable": len(stored)}
    assert [each.stream_sequence for each in report.violations] == stored


def _completed(path: Path, until: int) -> int | None:
    """Return how many jobs completed by a projection that has read so far; None while it has not."""
    with Store.open(path) as store, store.one_moment():
        if store.position().stream_sequence < until:
            return None
        counts = {str(state): count for state, count in store.counts_by_state().items() if count}
    assert set(counts) == {"completed"}
    return counts["completed"]


async def test_rubbish_everywhere_stops_nothing(
    ledger: Ledger, fleet: Fleet, tmp_path: Path, chance: random.Random, record: Recorder
) -> None:
    """Row rubbish: workers, projector, exporter and tail go on, counts agree, a check names each message."""
    variables = {"JOBLEDGER_URL": ledger.config.url, "JOBLEDGER_ENVIRONMENT": ledger.names.environment}
    made: list[Process] = []
    client = await nats.connect(ledger.config.url)
    try:
        stored = await _litter(client, ledger.names.ledger_root, chance)
        made.extend(Process(tmp_path, *words, "--json", variables=variables) for words in READERS)
        exporter, _, tail = made
        url = str(exporter.line()["metrics"])
        jobs = await _run(ledger, fleet, client, stored, chance)
        await _until(lambda: _counted(url) == (JOBS, len(stored)))
        await _check_named(ledger, tail, stored)
        for sequence in stored:
            await acknowledge_message(ledger, sequence, reason="the row's own", by="tester")
        enqueued = [("work", job.id) for job in jobs]
        proof = (await prove(ledger, enqueued=enqueued, trace=fleet.trace, faults=fleet.faults)).hold()
        assert proof.report.acknowledged_count == len(stored)
        await _until(lambda: _counted(url) == (JOBS, 0))
        end = (await ledger.log.head()).last_sequence
        await _until(lambda: _completed(tmp_path / "followed.db", end) == JOBS)
        assert [process.child.poll() for process in made] == [None] * len(made)
        assert await fleet.stop() == [0, 0]
    finally:
        await client.close()
        for process in reversed(made):
            process.close()
    record(
        "rubbish",
        "messages that are no events, of 8 kinds at 11 kinds of subjects, under workers, projector, exporter and tail",
        faults=f"{len(stored)} messages, each named by the check, then acknowledged; all went on",
        jobs=JOBS,
        events=proof.report.events,
        now=time.monotonic(),
    )
