"""Runs with children that failed: a person mends them, and the run goes on, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import drawn_runs
from tests.support.drawn_runs import jobs
from tests.support.proxy import Proxy
from tests.support.working import LIMIT_S, Connect, attempts, becomes, ended, until, working

from jobledger.admin.acts import why
from jobledger.admin.rows import Rows
from jobledger.audit.verify import verify
from jobledger.ledger import (
    ChildFailedError,
    Graph,
    JobHandle,
    JobState,
    Ledger,
    Run,
    RunEnd,
    Task,
    TaskRegistry,
    connect,
    step,
    task,
    workflow,
)
from jobledger.ledger.model.commands import CancelJob, Discard
from jobledger.ledger.model.errors import UnreachableError
from jobledger.ledger.runs.members import MemberEnd
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.runs import journal
from jobledger.workers.runs.children import ChildJobs

pytestmark = pytest.mark.anyio

COUNT: Final = 5
#: Items whose work fails until somebody mends what is wrong.
BROKEN: set[int] = set()
#: Set once children may end that wait for it.
HELD = asyncio.Event()
TOLD: list[str] = []


@pytest.fixture(autouse=True)
def mend() -> None:
    BROKEN.clear()
    HELD.clear()
    TOLD.clear()


@task(queue="kids", max_attempts=1)
async def page(n: int) -> int:
    if n in BROKEN:
        raise ValueError(f"page {n} is gone")
    return 10 * n


@task(queue="kids", max_attempts=1)
async def slow(n: int) -> int:
    await HELD.wait()
    return 10 * n


@task(queue="kids")
async def total(parts: list[int]) -> int:
    return sum(parts)


@step
async def look(n: int) -> int:
    if n in BROKEN:
        raise ValueError(f"page {n} is gone")
    return 10 * n


@task(queue="ears")
async def told(end: RunEnd) -> None:
    TOLD.append(f"{end.queue}/{end.id}")


@workflow(queue="runs", max_attempts=2)
async def gathers(run: Run) -> int:
    async def branch(n: int) -> int:
        return await run.call(page, n)

    return sum(await run.gather(*(functools.partial(branch, n) for n in range(COUNT))))


@workflow(queue="runs", max_attempts=2)
async def maps(run: Run) -> int:
    return sum(await run.map(page, range(COUNT), limit=COUNT))


@workflow(queue="runs", max_attempts=2)
async def starts(run: Run) -> int:
    children = [await run.start(page, n) for n in range(COUNT)]
    return sum([await child.result() for child in children])


@workflow(queue="outer", max_attempts=2)
async def nests(run: Run) -> int:
    return await run.call(maps)


@workflow(queue="runs", max_attempts=1)
async def eaches(run: Run) -> int:
    return sum(await run.each(look, range(COUNT), chunk=2))


def diamond() -> Graph:
    graph = Graph("nightly")
    graph.add(total, [graph.add(page, n) for n in range(COUNT)])
    return graph


WORKFLOWS: Final[dict[str, Task[[], int]]] = {each.name: each for each in (gathers, maps, starts, nests)}
TASKS: Final[tuple[Task[..., Any], ...]] = (*WORKFLOWS.values(), eaches, page, slow, total)
SUM: Final = sum(10 * n for n in range(COUNT))


async def begin(ledger: Ledger, shape: str, job_id: str) -> JobHandle[Any]:
    if shape == "graph":
        return await ledger.run_graph(diamond(), id=job_id)
    return await ledger.enqueue(WORKFLOWS[shape].options(id=job_id))


async def dead(ledger: Ledger, count: int) -> list[JobHandle[Any]]:
    """Wait until this many children are dead letters, and return them."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            known = await jobs(ledger)
            refs = [ref for ref, job in known.items() if job.state is JobState.DEAD_LETTERED and job.member]
            if len(refs) >= count:
                return [ledger.handle_of(ref) for ref in refs]
            await asyncio.sleep(0.05)


async def require_sound(ledger: Ledger) -> None:
    report = await verify(ledger.log)
    assert report.sound, report.text()


@pytest.mark.parametrize("failing", [1, COUNT])
@pytest.mark.parametrize("shape", [*WORKFLOWS, "graph"])
async def test_the_requeue_of_dead_children_goes_on_with_their_run(
    ledger: Ledger, shape: str, failing: int
) -> None:
    BROKEN.update(range(failing))
    async with working(ledger, *TASKS, concurrency=8):
        run = await begin(ledger, shape, "r")
        broken = await dead(ledger, failing)
        await becomes(run, JobState.WAITING)
        BROKEN.clear()
        for child in broken:
            await child.retry(reason="the pages are back")
        result = await run.result(timeout_s=LIMIT_S)
    assert (result["total"] if shape == "graph" else result) == SUM
    counted = Counter(job.task for job in (await jobs(ledger)).values())
    assert counted[page.name] == COUNT
    assert set(await attempts(run)) <= {"paused", "completed"}
    await require_sound(ledger)


async def test_a_run_whose_own_items_failed_goes_on_when_it_is_requeued(ledger: Ledger) -> None:
    BROKEN.add(3)
    async with working(ledger, *TASKS):
        run = await ledger.enqueue(eaches)
        assert (await ended(run)).state is JobState.DEAD_LETTERED
        BROKEN.clear()
        await run.retry()
        assert await run.result(timeout_s=LIMIT_S) == SUM
    await require_sound(ledger)


async def test_what_completed_below_a_run_that_completed_nothing_itself_is_copied(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three runs below each other; the one in the middle has no more than its call, which failed."""
    file = tmp_path / "broken"
    monkeypatch.setenv(drawn_runs.BROKEN, str(file))
    file.write_text("2", encoding="ascii")
    part = drawn_runs.Part(does="map", numbers=(1, 2, 3), on_dead_letter="fail")
    for _ in range(2):
        part = drawn_runs.Part(does="nest", parts=(part,), on_dead_letter="fail")
    async with working(ledger, *drawn_runs.TASKS, concurrency=8):
        run = await ledger.enqueue(drawn_runs.drawn.options(id="r"), (part,))
        assert (await ended(run)).state is JobState.DEAD_LETTERED
        file.write_text("", encoding="ascii")
        again = await ledger.rerun(run, failed=True, id="again")
        assert await again.result(timeout_s=LIMIT_S) == 6
    sheets = [ref.job_id for ref, job in (await jobs(ledger)).items() if job.task == drawn_runs.sheet.name]
    assert sorted(each for each in sheets if each.startswith("again")) == ["again-1-0-1-0-1-1-of-one"]
    await require_sound(ledger)


@workflow(queue="runs", max_attempts=2)
async def catches(run: Run) -> str:
    try:
        return str(await run.map(page, range(COUNT)))
    except ChildFailedError as error:
        return f"item {error.item}: {error.job_id}"


async def test_a_dead_child_that_is_discarded_is_the_failure_that_the_code_sees(ledger: Ledger) -> None:
    BROKEN.add(2)
    async with working(ledger, catches, page):
        run = await ledger.enqueue(catches.options(id="r"))
        (child,) = await dead(ledger, 1)
        await becomes(run, JobState.WAITING)
        await ledger.execute(child.ref, Discard(reason="not needed"))
        assert await run.result(timeout_s=LIMIT_S) == "item 2: r-1-2-of-runs"
    (failed,) = [job.steps["page"] for job in (await jobs(ledger)).values() if job.id == "r"]
    assert failed.error is not None
    assert "it was discarded: ValueError: page 2 is gone" in failed.error.message
    await require_sound(ledger)


@workflow(queue="runs", max_attempts=1)
async def settles(run: Run) -> list[str]:
    async def settled() -> list[str]:
        return [each.state for each in await run.map_settled(page, range(COUNT))]

    async def beside() -> None:
        await run.call(slow, 1)

    found, _ = await run.gather(settled, beside)
    return found


@workflow(queue="runs", max_attempts=1)
async def gives_up(run: Run) -> str:
    first = await run.start(slow, 0)
    try:
        await run.options(on_dead_letter="fail").call(page, 1)
    except ChildFailedError as error:
        return f"{await first.result()} {error}"
    return ""


async def test_a_run_that_counts_dead_letters_as_failures_does_so_whatever_becomes_of_them(
    ledger: Ledger,
) -> None:
    BROKEN.add(1)
    async with working(ledger, settles, gives_up, page, slow):
        settled, given_up = await ledger.enqueue(settles), await ledger.enqueue(gives_up)
        broken = await dead(ledger, 2)
        for run in (settled, given_up):
            await counted(run)
        BROKEN.clear()
        for child in broken:
            await child.retry()
            await becomes(child, JobState.COMPLETED)
        HELD.set()
        states = await settled.result(timeout_s=LIMIT_S)
        assert states == ["completed", "dead_lettered", *["completed"] * 3]
        assert "page 1 is gone" in await given_up.result(timeout_s=LIMIT_S)
    await require_sound(ledger)


async def counted(run: JobHandle[Any]) -> None:
    """Wait until a run has counted a child as failed."""
    async with asyncio.timeout(LIMIT_S):
        while not any(step.failed for step in (await run.snapshot()).steps.values()):
            await asyncio.sleep(0.02)


async def test_what_was_counted_of_a_child_is_read_while_its_requeue_runs(ledger: Ledger) -> None:
    """The requeued child still runs when the last of its siblings ends: its run reads the end that it counted."""

    @task(name="held", queue="kids", max_attempts=1)
    async def held(n: int) -> int:
        if n in BROKEN:
            raise ValueError("no")
        await HELD.wait()
        return n

    @workflow(name="both", queue="runs", max_attempts=1)
    async def both(run: Run) -> list[str]:
        ends = await run.map_settled(held, [0, 1])
        return [f"{each.state} {each.error}".strip() for each in ends]

    BROKEN.add(1)
    async with working(ledger, both, held):
        run = await ledger.enqueue(both)
        (child,) = await dead(ledger, 1)
        await counted(run)
        BROKEN.clear()
        await child.retry()
        await becomes(child, JobState.RUNNING)
        other = next(ref for ref, job in (await jobs(ledger)).items() if job.member and ref != child.ref)
        await ledger.execute(other, CancelJob(reason="not wanted"))
        assert await run.result(timeout_s=LIMIT_S) == [
            "cancelled it was cancelled: not wanted",
            "dead_lettered ValueError: no",
        ]
        HELD.set()
        await becomes(child, JobState.COMPLETED)
    assert set(await attempts(run)) <= {"paused", "completed"}
    await require_sound(ledger)


async def test_what_keeps_a_run_from_reading_ends_costs_no_attempt(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, troubles = ChildJobs.ends, [UnreachableError("the ends cannot be read")] * 3

    async def ends(self: ChildJobs, *given: Any) -> list[MemberEnd]:
        if troubles:
            raise troubles.pop()
        return await real(self, *given)

    monkeypatch.setattr(ChildJobs, "ends", ends)
    monkeypatch.setattr(journal, "retry_store", at_once)
    async with working(ledger, calls_once, page):
        run = await ledger.enqueue(calls_once)
        assert await run.result(timeout_s=LIMIT_S) == 10
    assert Counter(await attempts(run))["interrupted"] == 3
    await require_sound(ledger)


async def at_once(_: str, store: Callable[[], Awaitable[Any]], **__: Any) -> Any:
    return await store()


@workflow(queue="runs", max_attempts=1)
async def calls_once(run: Run) -> int:
    return await run.call(page, 1)


# Whoever dies meanwhile.


class Mortal:
    """A worker that is cut off from the server in the middle of whatever it does, and never says goodbye."""

    def __init__(self, server: EmbeddedServer, environment: str, tasks: Sequence[Task[..., Any]]) -> None:
        self._server = server
        self._environment = environment
        self._tasks = tasks

    async def live(self, until: asyncio.Event) -> None:
        """Work until an event, and then be gone."""
        settings: dict[str, Any] = {"environment": self._environment, "lease_s": 2.0}
        async with Proxy(self._server.port) as proxy, connect(proxy.url, **settings) as ledger:
            config = WorkerConfig(ack_wait_s=1.0, grace_s=0.1, concurrency=8)
            running = asyncio.create_task(Worker(ledger, TaskRegistry(self._tasks), config).run())
            await until.wait()
            proxy.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@step
async def held() -> None:
    await HELD.wait()


@workflow(queue="runs", max_attempts=1)
async def begins_and_is_held(run: Run) -> int:
    child = await run.start(page, 1)
    await run.step(held)
    return await child.result()


async def test_a_run_whose_workers_died_is_mended_by_a_rerun_as_why_proposes(
    nats_server: EmbeddedServer, environment: str, connected: Connect, tmp_path: Path
) -> None:
    """Its open children were cancelled with it, so that a requeue of it would fail by them."""
    is_over = asyncio.Event()
    async with connected(lease_s=2.0) as ledger:
        life = asyncio.create_task(Mortal(nats_server, environment, [begins_and_is_held]).live(is_over))
        run = await ledger.enqueue(begins_and_is_held.options(id="r"))
        async with asyncio.timeout(LIMIT_S):
            while len(await jobs(ledger)) < 2:
                await asyncio.sleep(0.02)
        is_over.set()
        await life
        async with working(ledger, begins_and_is_held, ack_wait_s=1.0):
            assert (await ended(run)).state is JobState.DEAD_LETTERED
            async with asyncio.timeout(LIMIT_S):
                while not (await run.snapshot()).steps["page"].failed:
                    await asyncio.sleep(0.02)
        rows = Rows(ledger, tmp_path / "rows.db")
        assert (await why(rows, "r")).why.hint == "jobledger jobs rerun r --failed"
        HELD.set()
        async with working(ledger, begins_and_is_held, page):
            again = await ledger.rerun(run, failed=True)
            assert await again.result(timeout_s=LIMIT_S) == 10
        await require_sound(ledger)


@contextlib.asynccontextmanager
async def dying(
    server: EmbeddedServer, environment: str, chance: random.Random, tasks: Sequence[Task[..., Any]] = TASKS
) -> AsyncGenerator[None, None]:
    """Let a worker live and die again and again, for the length of the block."""
    is_over, kill = asyncio.Event(), asyncio.Event()

    async def lives() -> None:
        while not is_over.is_set():
            kill.clear()
            life = asyncio.create_task(Mortal(server, environment, tasks).live(kill))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), chance.uniform(0.2, 1.5))
            kill.set()
            await life

    living = asyncio.create_task(lives())
    try:
        yield
    finally:
        is_over.set()
        await living


async def mend_until(ledger: Ledger, is_enough: Callable[[], bool], chance: random.Random) -> None:
    """Requeue dead children in any order; also those whose only attempt was lost with its worker."""
    while not is_enough():
        for child in await dead(ledger, 0):
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            await child.retry()
        await asyncio.sleep(0.1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2])
async def test_the_requeue_of_dead_children_goes_on_with_their_runs_whoever_dies_meanwhile(
    nats_server: EmbeddedServer, environment: str, ledger: Ledger, seed: int
) -> None:
    chance = random.Random(seed)
    shapes = [*WORKFLOWS, "graph"]
    BROKEN.update(chance.sample(range(COUNT), chance.randint(1, COUNT)))
    async with working(ledger, *TASKS, ack_wait_s=1.0), asyncio.timeout(80):
        async with dying(nats_server, environment, chance):
            runs = [await begin(ledger, shape, f"r-{shape}") for shape in shapes]
            await dead(ledger, len(BROKEN) * len(shapes))
            BROKEN.clear()
            await mend_until(ledger, lambda: chance.random() < 0.2, chance)
        mending = asyncio.create_task(mend_until(ledger, lambda: False, chance))
        results = [await run.result(timeout_s=60) for run in runs]
        mending.cancel()
    assert [each["total"] if isinstance(each, dict) else each for each in results] == [SUM] * len(shapes)
    made = Counter(job.task for job in (await jobs(ledger)).values())
    assert made[page.name] == COUNT * len(shapes)
    await require_sound(ledger)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2])
async def test_runs_of_any_shape_complete_by_requeues_or_begun_again_whoever_dies_meanwhile(  # noqa: PLR0917
    nats_server: EmbeddedServer,
    environment: str,
    connected: Connect,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seed: int,
) -> None:
    chance, tasks, file = random.Random(seed), drawn_runs.TASKS, tmp_path / "broken"
    monkeypatch.setenv(drawn_runs.BROKEN, str(file))
    killing = functools.partial(dying, nats_server, environment, chance, tasks)
    async with connected(lease_s=2.0) as ledger:
        async with working(ledger, *tasks, ack_wait_s=1.0, concurrency=8):
            copied = await drawn_runs.fail_and_mend(ledger, chance, drawn_runs.draw(chance, 4), file, killing)
        assert copied > 0
        await require_sound(ledger)


# Runs of one id.


@workflow(queue="one", on_success=told)
async def first(run: Run) -> int:
    return await run.call(page, 1)


@workflow(queue="two", on_success=told)
async def second(run: Run) -> int:
    return await run.call(page, 2)


async def test_two_runs_of_one_id_in_two_queues_are_each_told_of_once(ledger: Ledger) -> None:
    async with working(ledger, first, second, page, told):
        runs = [await ledger.enqueue(each.options(id="order-7")) for each in (first, second)]
        assert [await run.result(timeout_s=LIMIT_S) for run in runs] == [10, 20]
        await until(lambda: len(TOLD) >= 2)
    assert sorted(TOLD) == ["one/order-7", "two/order-7"]
    ids = sorted(job.id for job in (await jobs(ledger)).values() if job.queue in ("kids", "ears"))
    assert ids == [f"order-7-{what}-of-{queue}" for what in ("1-0", "end") for queue in ("one", "two")]
    await require_sound(ledger)
