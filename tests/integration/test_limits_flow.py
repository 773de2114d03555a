"""Jobs with limits end to end, on a real server: held, granted, queued, run, and their slots given back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.limited import define, enqueue, grants, times_granted
from tests.support.working import LIMIT_S, Connect, ended, types, until, working

from jobledger.audit.verify import verify
from jobledger.ledger import Backoff, Context, JobState, Ledger, Snooze, task
from jobledger.ledger.model.events import Held, Queued
from jobledger.ledger.model.limits.flow import GrantedJob
from jobledger.workers import Worker
from jobledger.workers.reactors import hosts
from jobledger.workers.reactors.flow.admission import Admitter
from jobledger.workers.reactors.flow.chain import Chain
from jobledger.workers.reactors.flow.reactor import FlowReactor
from jobledger.workers.reactors.flow.seats import Seats
from jobledger.workers.reactors.flow.turn import FlowOptions, Turn

if TYPE_CHECKING:
    from nats.aio.client import Client

pytestmark = pytest.mark.anyio

RUNNING: Counter[str] = Counter()
MOST: Counter[str] = Counter()


@task(queue="work")
async def work(ctx: Context, seconds: float = 0.0, key: str = "all") -> str:
    RUNNING[key] += 1
    MOST[key] = max(MOST[key], RUNNING[key])
    try:
        await asyncio.sleep(seconds)
    finally:
        RUNNING[key] -= 1
    return ctx.job_id


@task(queue="work", backoff=Backoff(kind="fixed", base_s=0.05, jitter=0.0))
async def tries(ctx: Context) -> str | Snooze:
    if ctx.attempt == 1:
        return Snooze(0.05)
    if ctx.attempt <= 3:
        raise ValueError("not yet")
    return "done"


@task(queue="elsewhere")
async def elsewhere() -> None: ...


@pytest.fixture(autouse=True)
def forget() -> None:
    RUNNING.clear()
    MOST.clear()


async def test_a_job_with_a_limit_is_held_granted_queued_and_run(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "api", slots=1)
    job = await enqueue(ledger, work, "api")
    async with connected() as other, working(other, work):
        assert (await ended(job)).state is JobState.COMPLETED
    assert await types(job) == ["held", "queued", "started", "completed"]
    (granted,) = await grants(ledger)
    queued = (await job.history())[1].event
    assert isinstance(queued, Queued)
    assert (queued.cause, queued.grant, [each.job for each in granted.jobs]) == ("admitted", 4, [job.id])
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_no_more_jobs_run_than_each_of_their_limits_allows(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "all", slots=5)
    await define(ledger, "tenant", slots=2)
    jobs: list[Any] = []
    for number in range(40):
        key = f"t{number % 4}"
        jobs.append(await enqueue(ledger, work, "all", f"tenant:{key}", given={"seconds": 0.01, "key": key}))
    async with connected() as other, working(other, work):
        for job in jobs:
            assert (await ended(job)).state is JobState.COMPLETED
    assert max(MOST.values()) == 2
    assert set((await times_granted(ledger)).values()) == {1}
    report = await verify(ledger.log)
    assert report.sound, report.text()


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Tell every reactor of the test other times and sizes than those of production."""

    def tell(**changes: Any) -> None:
        make = functools.partial(FlowReactor, options=FlowOptions(**changes))
        monkeypatch.setattr(hosts, "FlowReactor", make)

    return tell


async def test_what_was_granted_and_not_queued_is_queued_by_the_other_reactor(
    ledger: Ledger, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash point between the two appends: the first reactor never comes to the second one."""
    admit, crashed = Admitter.admit, set[str]()

    def admit_or_crash(self: Admitter, granted: GrantedJob, grant: int) -> None:
        if not crashed:
            crashed.add(granted.job)
            return
        admit(self, granted, grant)

    monkeypatch.setattr(Admitter, "admit", admit_or_crash)
    await define(ledger, "api", slots=1)
    jobs = [await enqueue(ledger, work, "api") for _ in range(3)]
    async with connected() as one, connected() as two, working(one, work), working(two, work):
        for job in jobs:
            assert (await ended(job)).state is JobState.COMPLETED
    assert crashed == {jobs[0].id}
    assert set((await times_granted(ledger)).values()) == {1}


async def test_the_other_reactor_grants_where_who_granted_last_does_nothing(
    ledger: Ledger, connected: Connect
) -> None:
    await define(ledger, "api", slots=10)
    hosts: list[tuple[Worker, asyncio.Task[Any]]] = []
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            other = await stack.enter_async_context(connected())
            worker = await stack.enter_async_context(working(other, work))
            await worker.taking.wait()
            known = [each for _, each in hosts]
            (reactor,) = (
                each for each in asyncio.all_tasks() if each.get_name() == "flow" and each not in known
            )
            hosts.append((worker, reactor))
        await ended(await enqueue(ledger, work, "api"))
        first = (await grants(ledger))[0].by
        for worker, reactor in hosts:
            if worker.identity == first:
                reactor.cancel()
        began = asyncio.get_running_loop().time()
        await ended(await enqueue(ledger, work, "api"))
        assert (
            asyncio.get_running_loop().time() - began < 4.0
        )  # two seconds, on a machine with nothing else to do
    assert (await grants(ledger))[-1].by != first


async def test_a_job_that_fails_or_snoozes_waits_for_its_limits_again(
    ledger: Ledger, connected: Connect
) -> None:
    await define(ledger, "api", slots=1)
    async with connected() as other, working(other, tries):
        job = await enqueue(ledger, tries, "api", max_attempts=2)
        assert (await ended(job)).state is JobState.DEAD_LETTERED
        # fmt: off
        assert await types(job) == [
            "held", "queued", "started", "snoozed", "held", "queued", "started", "failed", "held", "queued", "started",
            "failed", "dead_lettered",
        ]
        # fmt: on
        await ledger.requeue(job.id)
        assert (await ended(job)).state is JobState.COMPLETED
    causes = [each.event.cause for each in await job.history() if isinstance(each.event, Held)]
    assert causes == ["new", "due", "retried", "requeued"]
    assert (await times_granted(ledger))[job.id] == 4


async def test_a_job_cancelled_between_grant_and_queue_gives_its_slot_back(
    ledger: Ledger, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit, waiting = Admitter.admit, list[Callable[[], None]]()

    def admit_later(self: Admitter, granted: GrantedJob, grant: int) -> None:
        waiting.append(lambda: admit(self, granted, grant))

    monkeypatch.setattr(Admitter, "admit", admit_later)
    await define(ledger, "api", slots=1)
    first, second = await enqueue(ledger, work, "api"), await enqueue(ledger, work, "api")
    async with connected() as other, working(other, work):
        await until(lambda: len(waiting) == 1)
        await first.cancel()
        waiting[0]()
        await until(lambda: len(waiting) == 2)
        waiting[1]()
        assert (await ended(second)).state is JobState.COMPLETED
    assert await types(first) == ["held", "cancelled"]
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_queue_that_nobody_serves_is_given_no_slots(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "api", slots=1)
    unserved = await enqueue(ledger, elsewhere, "api")
    async with connected() as other:
        async with working(other, work):
            assert (await ended(await enqueue(ledger, work, "api"))).state is JobState.COMPLETED
        assert await types(unserved) == ["held"]
        async with working(other, elsewhere):
            assert (await ended(unserved)).state is JobState.COMPLETED


async def test_a_job_that_nobody_claims_is_put_back_and_granted_again(
    ledger: Ledger, connected: Connect, options: Callable[..., None]
) -> None:
    options(claim_within_s=0.3)
    await define(ledger, "api", slots=1)
    async with connected() as other, working(other, work, concurrency=1):
        busy = await ledger.enqueue(work, 1.0)
        await until(lambda: RUNNING["all"] == 1)
        job = await enqueue(ledger, work, "api")
        assert (await ended(busy)).state is JobState.COMPLETED
        assert (await ended(job)).state is JobState.COMPLETED
    causes = [each.event.cause for each in await job.history() if isinstance(each.event, Held)]
    assert causes[:2] == ["new", "ungranted"]
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_reactor_begins_with_the_newest_snapshot(
    ledger: Ledger, connected: Connect, options: Callable[..., None]
) -> None:
    options(snapshot_events=20)
    await define(ledger, "all", slots=3)
    async with connected(inline_bytes_max=1) as other, working(other, work):  # its state is put away
        for job in [await enqueue(ledger, work, "all", f"key:{n % 2}") for n in range(5)]:
            assert (await job.snapshot()).state is JobState.HELD  # nobody defined `key`
        await define(ledger, "key", slots=1)
        for job in [await enqueue(ledger, work, "all") for _ in range(40)]:
            await ended(job)
        held = await enqueue(ledger, work, "all", "later")
        async with asyncio.timeout(LIMIT_S):
            while (newest := await Chain(ledger).newest_snapshot()) is None or newest[1].through <= 60:
                await asyncio.sleep(0.02)
    async with connected() as other, working(other, work):
        await define(ledger, "later", slots=1)
        assert (await ended(held)).state is JobState.COMPLETED
    assert set((await times_granted(ledger)).values()) == {1}
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_rate_is_kept_by_the_times_of_the_grants(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "api", rate=20.0, burst=2)
    jobs = [await enqueue(ledger, work, "api") for _ in range(8)]
    async with connected() as other, working(other, work):
        for job in jobs:
            assert (await ended(job)).state is JobState.COMPLETED
    times = [event.at.timestamp() for event in await grants(ledger) for _ in event.jobs]
    assert len(times) == 8
    assert all(later - earlier >= 0.0999 for earlier, later in zip(times, times[3:], strict=False)), times
    assert times[-1] - times[0] < 3.0


async def test_modes_cancel_who_may_not_wait(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "newest", slots=1, mode="newest")
    await define(ledger, "drop", slots=1, mode="drop")
    await define(ledger, "replace", slots=1, mode="replace")
    ended_as: dict[str, list[str]] = {}
    async with connected() as other, working(other, work):
        for mode in ("newest", "drop", "replace"):
            jobs = [await enqueue(ledger, work, mode, given={"seconds": 0.6, "key": mode})]
            await until(lambda mode=mode: RUNNING[mode] == 1)  # type: ignore[misc]
            jobs += [await enqueue(ledger, work, mode, given={"key": mode}) for _ in range(2)]
            ended_as[mode] = [(await ended(job)).state.value for job in jobs]
    assert ended_as == {
        "newest": ["completed", "cancelled", "completed"],
        "drop": ["completed", "cancelled", "cancelled"],
        "replace": ["cancelled", "cancelled", "completed"],
    }
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_paused_queue_is_given_no_slots(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "api", slots=1)
    await ledger.pause_queue("elsewhere", reason="tried")
    waits = await enqueue(ledger, elsewhere, "api")
    async with connected() as other, working(other, work, elsewhere):
        assert (await ended(await enqueue(ledger, work, "api"))).state is JobState.COMPLETED
        assert await types(waits) == ["held"]
        await ledger.resume_queue("elsewhere")
        assert (await ended(waits)).state is JobState.COMPLETED


async def test_a_reactor_whose_clock_is_wrong_looks_at_rates_four_times_a_second(
    ledger: Ledger, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates stand still for it, so the moment to which it would sleep goes by, and it must not look all the time."""
    grant, slept = Turn._grant, list[float]()

    async def grant_and_note(self: Turn) -> float:
        slept.append(await grant(self))
        return slept[-1]

    monkeypatch.setattr(Turn, "_grant", grant_and_note)
    monkeypatch.setattr(Seats, "is_clock_wrong", True)
    await define(ledger, "api", slots=5, rate=50.0)
    jobs = [await enqueue(ledger, work, "api") for _ in range(2)]
    async with connected() as other, working(other, work):
        assert (await ended(jobs[0])).state is JobState.COMPLETED
        slept.clear()
        await until(lambda: len(slept) >= 3)
        assert await types(jobs[1]) == ["held"]
    assert set(slept) == {0.25}


@pytest.mark.unsound_ledger("messages that are no events are published")
async def test_messages_that_are_no_events_keep_nobody_from_granting(
    ledger: Ledger, connected: Connect, raw: Client
) -> None:
    await define(ledger, "api", slots=1)
    root = ledger.names.ledger_root

    async def litter() -> None:
        for subject in (
            "flow.main.granted",
            "job.work.x.held",
            "limit.api.set",
            "queue.work.paused",
            "flow.main.x",
        ):
            await raw.jetstream().publish(f"{root}.{subject}", b"no event")

    await litter()
    async with connected() as other, working(other, work):
        assert (await ended(await enqueue(ledger, work, "api"))).state is JobState.COMPLETED
        await litter()
        assert (await ended(await enqueue(ledger, work, "api"))).state is JobState.COMPLETED
    async with connected() as other, working(other, work):
        assert (await ended(await enqueue(ledger, work, "api"))).state is JobState.COMPLETED
