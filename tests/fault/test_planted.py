"""The suite can fail: what it promises to find is planted, and the same check finds it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, load_tasks
from tests.support.proof import prove
from tests.support.watch import Watch

from jobledger.ledger import Ledger
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import encode
from jobledger.ledger.model.events import Completed, JobEvent, Queued, Started
from jobledger.ledger.model.subjects import JobRef

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(60)]

TASKS = load_tasks()
JOBS = 30


async def _forge(ledger: Ledger, event: JobEvent) -> None:
    """Publish past every rule, with the right link and on the right condition, as a broken worker would."""
    ref = JobRef(queue=event.queue, job_id=event.job)
    chain = await load(ledger.log, ref)
    data = encode(msgspec.structs.replace(event, prev=chain.last_hash))
    client = await nats.connect(ledger.config.url)
    try:
        condition = {
            "Nats-Expected-Last-Subject-Sequence": str(chain.last_sequence),
            "Nats-Expected-Last-Subject-Sequence-Subject": ledger.names.chain(ref),
        }
        await client.jetstream().publish(ledger.names.event(event), data, headers=condition)
    finally:
        await client.close()


def _event(kind: type[Any], job: str, **fields: Any) -> Any:
    task = TASKS["nap"].name
    return kind(job=job, queue="work", task=task, at=datetime.now(UTC), by="forger", **fields)


def _add(trace: Path, *lines: str) -> None:
    with trace.open("a", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in lines)


@pytest.mark.unsound_ledger("events are planted")
async def test_every_kind_of_violation_is_found_after_a_run(
    ledger: Ledger, fleet: Fleet, secret: str, record: Recorder
) -> None:
    async with Watch.following(ledger) as watch:
        await fleet.start()
        jobs = [await ledger.enqueue(TASKS["nap"].options(id=f"n-{n}"), 0.01) for n in range(JOBS)]
        await watch.until_ended(JOBS)
        assert await fleet.stop() == [0]
    enqueued = [("work", job.id) for job in jobs]
    logs: dict[str, Any] = {"trace": fleet.trace, "logs": fleet.logs, "secrets": [secret]}
    sound = (await prove(ledger, enqueued=enqueued, **logs)).hold()

    await _forge(ledger, _event(Completed, "n-0", attempt=1))
    await _forge(ledger, _event(Started, "n-1", attempt=2, worker="forger", lease_s=1.0))
    await _forge(ledger, _event(Queued, "nobody", cause="new", max_attempts=1))
    now = time.monotonic_ns()
    _add(fleet.trace, f"start n-2 1 77 1 {now}", f"start n-3 2 77 1 {now}")
    _add(fleet.trace, f"start n-4 7 77 1 {now}", f"start n-4 8 78 1 {now + 1}", f"end n-4 7 77 1 {now + 2}")
    _add(fleet.logs[0], f"WARNING: cannot greet {secret}")
    found = await prove(ledger, enqueued=[*enqueued, ("work", "vanished")], within_s=0.5, **logs)
    with pytest.raises(AssertionError, match="problems"):
        found.hold()
    assert found.report.broken == {"outcome": 1, "transition": 1, "enqueue": 2, "final": 2, "consumer": 1}
    kinds = {problem.split(" ")[0] for problem in found.problems if not problem.startswith("[")}
    assert kinds == {"overlap:", "repeated:", "unrecorded:", "secret:"}
    record(
        "planted",
        "a second outcome, a claim on a finished job, a job that nobody enqueued, one that vanished, an execution "
        "without claim, one twice, two at a time, a secret in a log",
        faults=f"{len(found.problems)} findings, nothing found before they were planted",
        jobs=sound.report.jobs,
        events=found.report.events,
        now=time.monotonic(),
    )
