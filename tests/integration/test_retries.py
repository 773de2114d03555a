"""Retries in one event: what is stored of them, who hears of the failure, and what the claim of a retry reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from tests.support.limited import define
from tests.support.working import LIMIT_S, Connect, ended, types, until, working

from jobledger.audit.verify import verify
from jobledger.ledger import Backoff, Context, JobState, Ledger, Retry, Task, task
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Claim, Complete, Fail
from jobledger.ledger.model.events import ErrorInfo, Failed, Queued
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.webhook import SetWebhook
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import ChainEvents
from jobledger.ledger.webhooks.changes import change_webhook
from jobledger.workers import Worker
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.recorder import Recorder, settled_by_now
from jobledger.workers.attempt.settlement import ACK, AGAIN, AGAIN_DELIVERIES_MAX, DROP, Settlement
from jobledger.workers.reactors.webhooks import WebhookReactor

pytestmark = pytest.mark.anyio

AT_ONCE = ["queued", "started", "failed", "started", "completed"]
LATER = ["queued", "started", "failed", "queued", "started", "completed"]
STARTED: Counter[str] = Counter()
STOPPED: list[Worker] = []  #: the worker that the next failure stops


@pytest.fixture(autouse=True)
def forget() -> None:
    STARTED.clear()
    STOPPED.clear()


@task(queue="retries", max_attempts=3, backoff=Backoff(base_s=0))
async def fails_once(context: Context) -> str:
    return await _fails_once(context)


async def _fails_once(context: Context) -> str:
    STARTED[context.job_id] += 1
    if STARTED[context.job_id] > 1:
        return str(context.checkpoint_value or "done")
    while STOPPED:
        STOPPED.pop().stop()
    raise ValueError("the bank does not answer")


@task(queue="retries", max_attempts=3, backoff=Backoff(base_s=0))
async def keeps_a_value(context: Context) -> str:
    if context.checkpoint_value is None:
        await context.checkpoint("half")
    return await _fails_once(context)


@task(queue="retries", max_attempts=3, backoff=Backoff(base_s=0.05, jitter=0))
async def fails_once_later(context: Context) -> str:
    return await _fails_once(context)


@task(queue="retries", max_attempts=AGAIN_DELIVERIES_MAX + 2, backoff=Backoff(base_s=0))
async def fails() -> None:
    raise ValueError("never")


@task(queue="retries", max_attempts=3)
async def asks_for_low_priority(context: Context) -> Retry | None:
    STARTED[context.job_id] += 1
    return Retry(delay_s=0, priority="low") if STARTED[context.job_id] == 1 else None


class Reads:
    """Counts the reads of jobs' chains, and of the newest event of one, that a ledger makes."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: set[str] = set()  #: chains
        self.chains = self.newest = 0
        log = ledger.log
        read_chain, last = log.read_chain, log.last

        async def counted_chain(chain: str) -> ChainEvents:
            self.chains += chain in self.of
            return await read_chain(chain)

        async def counted_last(chain: str) -> Message | None:
            self.newest += chain in self.of
            return await last(chain)

        monkeypatch.setattr(log, "read_chain", counted_chain)
        monkeypatch.setattr(log, "last", counted_last)

    @property
    def both(self) -> tuple[int, int]:
        return self.chains, self.newest


@contextlib.asynccontextmanager
async def stopped_by_a_failure(ledger: Ledger, *tasks: Task[..., Any]) -> AsyncGenerator[None]:
    """Run a worker that the first failure ends, so that another one gets the retry."""
    async with working(ledger, *tasks) as worker:
        STOPPED.append(worker)
        yield
        await until(worker._stopping.is_set)


async def test_a_retry_at_once_is_one_event_and_its_claim_reads_nothing(
    connected: Connect, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as own:
        reads = Reads(own, monkeypatch)
        async with working(own, fails_once, reactors=False) as worker:
            await worker.taking.wait()  # a lane that begins looks at what waits in it
            reads.of.add(ledger.names.chains("retried", "retries"))
            job = await ledger.enqueue(fails_once.options(id="retried"))
            assert await job.result(timeout_s=LIMIT_S) == "done"
    assert await types(job) == AT_ONCE
    assert reads.both == (0, 0)
    history = await job.history()
    failed = history[2].event
    assert isinstance(failed, Failed)
    said = (failed.v, failed.dispatch, failed.epoch, failed.given_back, failed.retry_at)
    assert said == (2, history[0].stream_sequence, history[1].stream_sequence, 0, None)
    assert [each.state for each in (await job.snapshot()).attempts] == ["failed", "completed"]


async def test_another_worker_claims_it_by_the_newest_event_alone(
    connected: Connect, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await ledger.enqueue(fails_once)
    async with stopped_by_a_failure(ledger, fails_once):
        pass
    assert (await job.snapshot()).state is JobState.QUEUED
    async with connected() as other:
        reads = Reads(other, monkeypatch)
        reads.of.add(ledger.names.chain(job.ref))
        async with working(other, fails_once, reactors=False):
            assert await job.result(timeout_s=LIMIT_S) == "done"
    assert await types(job) == AT_ONCE
    assert reads.both == (0, 1)


async def test_another_worker_hands_the_checkpoint_on(ledger: Ledger) -> None:
    job = await ledger.enqueue(keeps_a_value)
    async with stopped_by_a_failure(ledger, keeps_a_value):
        pass
    async with working(ledger, keeps_a_value):
        assert await job.result(timeout_s=LIMIT_S) == "half"
    assert await types(job) == ["queued", "started", "checkpointed", "failed", "started", "completed"]


async def test_a_retry_after_a_delay_has_the_order_and_its_claim_reads_nothing(
    connected: Connect, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as own:
        reads = Reads(own, monkeypatch)
        async with working(own, fails_once_later) as worker:
            await worker.taking.wait()
            reads.of.add(ledger.names.chains("retried", "retries"))
            job = await ledger.enqueue(fails_once_later.options(id="retried"))
            assert await job.result(timeout_s=LIMIT_S) == "done"
    assert await types(job) == LATER
    assert reads.chains == 0
    failed, queued = (each.event for each in (await job.history())[2:4])
    assert isinstance(failed, Failed)
    assert isinstance(queued, Queued)
    assert (failed.v, queued.v, queued.given_back, queued.max_attempts) == (1, 1, 0, 3)


async def test_a_job_cancelled_between_failure_and_retry_does_not_run_again(ledger: Ledger) -> None:
    job = await ledger.enqueue(fails_once)
    async with stopped_by_a_failure(ledger, fails_once):
        pass
    await job.cancel(reason="enough")
    async with working(ledger, fails_once) as worker:
        await worker.taking.wait()
        other = await ledger.enqueue(fails_once.options(priority="low"))
        await ended(other)
        await until(lambda: worker.counts().held == 0)
    assert await types(job) == ["queued", "started", "failed", "cancelled"]
    assert STARTED[job.id] == 1


async def test_a_worker_that_dies_after_the_failure_leaves_the_job_to_others(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Recorder.record
    dying: list[asyncio.Task[Any]] = []

    async def record_and_die(self: Recorder, attempt: Attempt, outcome: Any) -> Settlement:
        settlement = await record(self, attempt, outcome)
        if not dying:
            dying.append(attempt.own_task)
            raise asyncio.CancelledError  # nothing is settled any more
        return settlement

    monkeypatch.setattr(Recorder, "record", record_and_die)
    async with working(ledger, fails_once, ack_wait_s=1.0):
        job = await ledger.enqueue(fails_once)
        assert await job.result(timeout_s=LIMIT_S) == "done"
    assert dying
    assert await types(job) == AT_ONCE


async def test_a_work_item_is_offered_a_few_times_then_there_is_a_fresh_one(ledger: Ledger) -> None:
    async with working(ledger, fails):
        job = await ledger.enqueue(fails)
        assert (await ended(job)).state is JobState.DEAD_LETTERED
    once = ["started", "failed"]
    assert await types(job) == [
        "queued", *once * (AGAIN_DELIVERIES_MAX + 1), "queued", *once, "dead_lettered"
    ]  # fmt: skip


async def test_a_retry_with_another_priority_has_a_work_item_of_its_own(ledger: Ledger) -> None:
    async with working(ledger, asks_for_low_priority):
        job = await ledger.enqueue(asks_for_low_priority)
        assert (await ended(job)).order.priority == "low"
    assert await types(job) == LATER


async def test_a_retry_of_a_limited_job_waits_for_its_limits(ledger: Ledger) -> None:
    await define(ledger, "bank", slots=1)
    async with working(ledger, fails_once):
        job = await ledger.enqueue(fails_once.options(limits=["bank"]))
        assert await job.result(timeout_s=LIMIT_S) == "done"
    once = ["held", "queued", "started"]
    assert await types(job) == [*once, "failed", *once, "completed"]


async def test_subscribers_and_webhooks_hear_of_the_failure(ledger: Ledger) -> None:
    definition = WebhookDefinition(
        target=WebhookTarget(url="https://example.com"), events=("failed",), secrets=("env:A",)
    )
    await change_webhook(ledger, "bank", SetWebhook(definition=definition), by="ann")
    reacting = asyncio.create_task(WebhookReactor(ledger, look_every_s=0.02).run())
    try:
        async with working(ledger, fails_once):
            job = await ledger.enqueue(fails_once)
            await ended(job)
        failed = (await job.history())[2].stream_sequence
        heard = [each async for each in ledger.events(types=["failed"], follow=False)]
        assert [each.stream_sequence for each in heard] == [failed]
        assert isinstance(heard[0].event, Failed)
        assert heard[0].event.error.message == "the bank does not answer"
        made = await ledger.log.read_chain(ledger.names.chains_of_id(f"bank-{failed}"))
        async with asyncio.timeout(LIMIT_S):
            while not made:
                await asyncio.sleep(0.02)
                made = await ledger.log.read_chain(ledger.names.chains_of_id(f"bank-{failed}"))
    finally:
        reacting.cancel()
        await asyncio.gather(reacting, return_exceptions=True)


async def test_a_check_finds_both_forms_sound(ledger: Ledger) -> None:
    async with working(ledger, fails_once, fails_once_later):
        jobs = [await ledger.enqueue(each) for each in (fails_once, fails_once_later)]
        ends: list[Job] = [await ended(job) for job in jobs]
    report = await verify(ledger.log)
    assert report.sound, msgspec.json.encode(report)
    assert report.types == {"queued": 3, "started": 4, "failed": 2, "completed": 2}
    assert all(len(end.attempts) == 2 for end in ends)


async def test_a_work_item_that_runs_elsewhere_by_now_is_left_alone(ledger: Ledger) -> None:
    """The answer to a failure was lost, another worker took the retry, and the first one hears of its failure late."""
    job = await ledger.enqueue(fails_once)
    first = await ledger.execute(job.ref, Claim(worker="a-1-00", lease_s=15.0))
    error = ErrorInfo(kind="exception", type="ValueError", message="no")
    fail = Fail(epoch=first.claim_epoch, error=error, offers_again=True)
    failed = await ledger.execute(job.ref, fail)
    assert settled_by_now(first, failed) is AGAIN
    second = await ledger.execute(job.ref, Claim(worker="b-1-00", lease_s=15.0))
    assert second.dispatch_sequence == first.dispatch_sequence
    assert settled_by_now(first, second) is DROP
    done = await ledger.execute(job.ref, Complete(epoch=second.claim_epoch, result=msgspec.Raw(b"2")))
    assert settled_by_now(first, done) is ACK
