"""A person requeues dead children of runs at random moments, while workers are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from tests.fault.apps import mended as app
from tests.support import drawn_runs
from tests.support.drawn_runs import jobs
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, WorkerProcess
from tests.support.proof import Proof, prove
from tests.support.watch import make_consumers

from jobledger.audit.archive import Archiver, archive_deps
from jobledger.audit.verify import verify
from jobledger.ledger import Graph, IllegalTransitionError, Job, JobHandle, JobState, Ledger, UnreachableError
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import CHILDREN_CONSUMER, JobRef
from jobledger.ledger.nats.durables import ensure_consumer, reactor_consumer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(300)]

APP: Final = Path(app.__file__)
QUEUES: Final = ("kids", "ears", "one", "two", BUILT_IN_QUEUE)
ITEMS, NODES, WORKERS, SHAPES = 60, 20, 2, 15
HARM_S: Final = 20.0
END_S: Final = 120.0
_SHOWN_MAX: Final = 20
NAMES: Final = tuple(f"order-{n}" for n in range(15))


@pytest.fixture
def durability() -> str:
    return "process"


async def begin(fleet: Fleet, ledger: Ledger, file: Path = APP) -> list[WorkerProcess]:
    fleet.app = file
    for queue in QUEUES:
        await make_consumers(ledger, queue, ack_wait_s=2.0)
    config = reactor_consumer(ledger.names.ends_of_children, ack_wait_s=2.0)
    await ensure_consumer(ledger.inbox, ledger.names.ledger_stream, CHILDREN_CONSUMER, config)
    return [await fleet.begin("--concurrency", "20") for _ in range(WORKERS)]


async def mend(ledger: Ledger, chance: random.Random, counts: dict[str, int]) -> None:
    """Requeue dead children one after the other, each at a moment of its own, for ever."""
    while True:
        dead = [ref for ref, job in (await jobs(ledger)).items() if job.state is JobState.DEAD_LETTERED]
        for ref in chance.sample(dead, len(dead)):
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            with contextlib.suppress(UnreachableError, IllegalTransitionError):
                await ledger.handle_of(ref).retry()
                counts["requeued"] += 1
        await asyncio.sleep(0.1)


async def kill(
    fleet: Fleet,
    workers: list[WorkerProcess],
    chance: random.Random,
    counts: dict[str, int],
    *,
    seconds: float = HARM_S,
) -> None:
    """Kill workers, and start others, for a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(chance.uniform(0.3, 2.0))
        index = chance.randrange(len(workers))
        fleet.kill(workers[index].pid)
        await workers[index].process.wait()
        workers[index] = await fleet.begin("--concurrency", "20")
        counts["killed"] += 1


async def ended(ledger: Ledger, mending: asyncio.Task[None]) -> dict[JobRef, Job]:
    """Wait until every job has ended for good, and return all of them."""
    until = time.monotonic() + END_S
    while True:
        found = await jobs(ledger)
        left = [job for job in found.values() if not job.is_final or job.state is JobState.DEAD_LETTERED]
        if not left:
            mending.cancel()
            return found
        if mending.done():
            mending.result()  # raises why nobody requeues any more
        if time.monotonic() > until:
            told = (f"{job.id} of {job.queue}: {job.state}, {job.attempts[-1:]}" for job in left[:_SHOWN_MAX])
            raise AssertionError(f"{len(left)} jobs have not ended:\n" + "\n".join(told))
        await asyncio.sleep(0.2)


async def proven(ledger: Ledger, fleet: Fleet, folder: Path) -> Proof:
    """Check the ledger, archive it, and check it once more."""
    proof = (await prove(ledger, enqueued=None, faults=fleet.faults)).hold()
    deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    await Archiver(ledger.log, folder, deps).run(datetime.now(UTC))
    report = await verify(ledger.log)
    assert report.sound, report.text()
    return proof


async def test_the_requeue_of_dead_children_goes_on_with_their_runs_while_workers_are_killed(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder, tmp_path: Path
) -> None:
    counts = {"requeued": 0, "killed": 0}
    workers = await begin(fleet, ledger)
    graph = Graph("nightly", limit=5)
    nodes: list[Any] = [graph.add(app.sheet, n) for n in range(NODES)]
    graph.after(*nodes).add(app.sheet, NODES)
    mapped, drawn = await ledger.enqueue(app.maps, ITEMS), await ledger.run_graph(graph)
    settled = await ledger.enqueue(app.settles, ITEMS)
    called = [await ledger.enqueue(app.calls) for _ in range(10)]
    await ledger.enqueue_many(app.sheet, [{"n": n} for n in range(ITEMS)], batch="b")
    batch: JobHandle[Any] = await ledger.job("b", queue=BUILT_IN_QUEUE)
    mending = asyncio.create_task(mend(ledger, chance, counts))
    await kill(fleet, workers, chance, counts)
    found = await ended(ledger, mending)
    assert await mapped.result() == sum(range(ITEMS))
    assert sorted((await drawn.result()).values()) == list(range(NODES + 1))
    assert [await run.result() for run in called] == [sum(range(app.CALLS))] * len(called)
    states = await settled.result()
    assert len(states) == ITEMS
    assert {"completed", "dead_lettered"} >= set(states)
    assert sum((await batch.result()).values()) == ITEMS
    made = sum(job.task == app.sheet.name for job in found.values())
    assert made == 3 * ITEMS + NODES + 1 + app.CALLS * len(called)
    assert not any(
        attempt.state == "failed" for job in found.values() if job.steps for attempt in job.attempts
    )
    await fleet.stop()
    proof = await proven(ledger, fleet, tmp_path / "archive")
    record(
        "R4",
        "dead children requeued at random moments, in a map, a settled map, calls, a batch and a graph, while workers "
        "are killed",
        faults=f"{counts['requeued']} requeued, {counts['killed']} workers killed; every run ended, no child made twice",
        jobs=len(found),
        events=proof.report.events,
        now=time.monotonic(),
    )


async def test_runs_of_one_id_in_two_queues_are_each_told_of_once_while_workers_are_killed(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder, tmp_path: Path
) -> None:
    counts = {"requeued": 0, "killed": 0}
    workers = await begin(fleet, ledger)
    for name in NAMES:
        await ledger.enqueue(app.maps.options(id=name), app.CALLS)
        await ledger.enqueue(app.calls.options(id=name))
    mending = asyncio.create_task(mend(ledger, chance, counts))
    await kill(fleet, workers, chance, counts)
    found = await ended(ledger, mending)
    heard = sorted(bytes(job.result) for job in found.values() if job.task == app.told.name)
    assert heard == sorted(f'"{queue}/{name}"'.encode() for queue in ("one", "two") for name in NAMES)
    assert sum(job.task == app.sheet.name for job in found.values()) == 2 * app.CALLS * len(NAMES)
    await fleet.stop()
    proof = await proven(ledger, fleet, tmp_path / "archive")
    record(
        "R5",
        "runs of one id in two queues, whose children share a third one and whose callbacks a fourth, while workers are "
        "killed and dead children requeued",
        faults=f"{counts['killed']} workers killed, {counts['requeued']} requeued; each of {2 * len(NAMES)} runs told of once",
        jobs=len(found),
        events=proof.report.events,
        now=time.monotonic(),
    )


async def test_runs_of_any_shape_complete_by_requeues_or_begun_again_while_workers_are_killed(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder, tmp_path: Path
) -> None:
    counts, broken = {"requeued": 0, "killed": 0}, tmp_path / "broken"
    broken.touch()
    fleet.variables = {drawn_runs.BROKEN: str(broken)}
    workers = await begin(fleet, ledger, drawn_runs.FILE)

    @contextlib.asynccontextmanager
    async def killing() -> AsyncGenerator[None, None]:
        harm = asyncio.create_task(kill(fleet, workers, chance, counts))
        yield
        await harm

    shapes = drawn_runs.draw(chance, SHAPES)
    copied = await drawn_runs.fail_and_mend(ledger, chance, shapes, broken, killing)
    assert copied > 0
    found = await jobs(ledger)
    await fleet.stop()
    proof = await proven(ledger, fleet, tmp_path / "archive")
    begun_again = sum(job.order.rerun_of is not None and job.member is None for job in found.values())
    record(
        "R6",
        "runs and graphs of random shapes (calls, maps, settled maps, steps, branches and runs below each other) of which "
        "one to all items fail, mended by requeues of what is dead or by reruns of what failed, while workers are killed",
        faults=f"{counts['killed']} workers killed, {begun_again} reruns; {copied} ends copied, each item done by one job",
        jobs=len(found),
        events=proof.report.events,
        now=time.monotonic(),
    )
