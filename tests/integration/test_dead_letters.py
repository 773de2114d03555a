"""Jobs that no consumer hands out any more, on a real server: advisories, the DLQ stream, old consumers."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.jetstream import api
from tests.support.stranded import (
    Puller,
    dispatches,
    has_dispatches,
    make_consumer,
    messages,
    reacting,
    start,
    take_lease,
    until_advised,
)
from tests.support.working import LIMIT_S, Connect, becomes, types, working

from jobledger.ledger import Hooks, Job, JobState, Ledger, Notice, task
from jobledger.ledger.model.commands import Dispatch
from jobledger.ledger.nats.durables import DELIVERIES_MAX, consumer_config, ensure_consumer
from jobledger.workers.reactors.dead_letters import CONSUMER, DeadLetterReactor

pytestmark = pytest.mark.anyio

TOLD: list[Notice] = []


@task(queue="post", max_attempts=2, hooks=Hooks(on_dead_letter=TOLD.append))
async def send(n: int) -> int:
    return n


# Advisories.


async def test_a_dispatch_that_is_handed_out_in_vain_is_made_anew_three_times_then_the_job_is_a_dead_letter(
    ledger: Ledger,
) -> None:
    gone: list[Job] = []
    await make_consumer(ledger, 2)
    job = await ledger.enqueue(send, 1)
    async with (
        Puller(ledger) as puller,
        reacting(DeadLetterReactor(ledger, on_dead_letter=gone.append), ledger=ledger),
    ):
        dead = await becomes(job, JobState.DEAD_LETTERED)
    assert await types(job) == ["queued", "queued", "queued", "dead_lettered"]
    assert await dispatches(job) == ["new", "redispatched", "redispatched"]
    assert sorted(puller.seen) == [(sequence, count) for sequence in (1, 2, 3) for count in (1, 2)]
    assert (dead.dead_reason, dead.attempts) == ("max_deliver", ())
    assert dead.error is not None
    assert dead.error.kind == "undeliverable"
    assert dead.error.message.startswith(
        "3 dispatches came to no verdict (the last one was delivered 2 times)"
    )
    assert [each.id for each in gone] == [job.id]
    assert dead.attempts_left == 2


async def test_a_job_that_was_dispatched_anew_is_run_by_the_next_worker(ledger: Ledger) -> None:
    await make_consumer(ledger, 1)
    job = await ledger.enqueue(send, 7)
    async with Puller(ledger):
        await until_advised(ledger, 1)
    async with working(ledger, send):
        assert await job.result(timeout_s=LIMIT_S) == 7
    assert await dispatches(job) == ["new", "redispatched"]


async def test_advisories_that_come_while_nobody_listens_are_seen_to_later(ledger: Ledger) -> None:
    await make_consumer(ledger, 1)
    jobs = [await ledger.enqueue(send, n) for n in range(50)]
    async with Puller(ledger):
        await until_advised(ledger, 50)
    assert [await dispatches(job) for job in jobs] == [["new"]] * 50
    async with working(ledger, send):
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == list(range(50))
    assert await messages(ledger, ledger.names.dlq_stream) == 0


async def test_hooks_hear_of_a_dead_letter_that_the_worker_made(ledger: Ledger) -> None:
    TOLD.clear()
    await make_consumer(ledger, 1)
    job = await ledger.enqueue(send, 1)
    for _ in range(2):
        await ledger.execute(job.ref, Dispatch(cause="redispatched"))
    async with Puller(ledger):
        await until_advised(ledger, 3)
    async with working(ledger, send):
        await becomes(job, JobState.DEAD_LETTERED)
        async with asyncio.timeout(LIMIT_S):
            while not TOLD:
                await asyncio.sleep(0.02)
    assert [(notice.job_id, notice.attempt, notice.reason) for notice in TOLD] == [(job.id, 0, "max_deliver")]


async def test_hooks_hear_of_a_job_whose_worker_died_over_its_last_attempt(ledger: Ledger) -> None:
    TOLD.clear()
    job = await ledger.enqueue(send.options(max_attempts=1), 1)
    await start(ledger, job.ref, "w-1-abc")  # which has no lease
    async with working(ledger, send, reactors=False):
        await becomes(job, JobState.DEAD_LETTERED)
        async with asyncio.timeout(LIMIT_S):
            while not TOLD:
                await asyncio.sleep(0.02)
    assert [(notice.job_id, notice.attempt, notice.reason) for notice in TOLD] == [(job.id, 1, "exhausted")]
    assert TOLD[0].error is not None
    assert TOLD[0].error.message == "worker w-1-abc died while running the last attempt"


async def test_what_other_consumers_give_up_is_their_own_business(ledger: Ledger) -> None:
    names = ledger.names
    config = consumer_config(names.dispatches("post", "normal"), ack_wait_s=1.0, ack_pending_max=10)
    await ensure_consumer(ledger.inbox, names.ledger_stream, "theirs", {**config, "max_deliver": 1})
    job = await ledger.enqueue(send, 1)
    puller = Puller(ledger)
    puller._consumer._subject = f"$JS.API.CONSUMER.MSG.NEXT.{names.ledger_stream}.theirs"
    async with puller, reacting(DeadLetterReactor(ledger), ledger=ledger):
        await until_advised(ledger, 1)
        await _settled(ledger)
    assert await dispatches(job) == ["new"]


async def _settled(ledger: Ledger) -> None:
    """Wait until the reactor has dealt with every advisory."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            call = f"CONSUMER.INFO.{ledger.names.advisories_stream}.{CONSUMER}"
            info = await api(ledger.inbox, call, {})
            if "error" not in info and info["num_pending"] == info["num_ack_pending"] == 0:
                return
            await asyncio.sleep(0.02)


async def test_a_job_whose_worker_died_over_its_last_delivery_goes_on(connected: Connect) -> None:
    async with connected(lease_s=3.0) as ledger:
        await make_consumer(ledger, 1)
        job = await ledger.enqueue(send, 1)
        async with Puller(ledger) as puller, reacting(DeadLetterReactor(ledger), ledger=ledger):
            puller.keeps = True
            await take_lease(ledger, "w-1-abc")
            await start(ledger, job.ref, "w-1-abc")
            await until_advised(ledger, 1)
            assert await dispatches(job) == ["new"]  # its worker lives
            await has_dispatches(job, 2)  # and is judged dead once its lease is over
            after = await job.snapshot()
            assert [attempt.state for attempt in after.attempts] == ["lost"]
            await start(ledger, job.ref, "w-2-abc")  # which has no lease at all
            dead = await becomes(job, JobState.DEAD_LETTERED)
    assert (dead.dead_reason, len(dead.attempts)) == ("max_deliver", 2)
    assert dead.error is not None
    assert "worker w-2-abc died while running attempt 2, the last one" in dead.error.message


async def test_the_reactor_makes_a_lost_stream_of_advisories_anew_and_goes_on(ledger: Ledger) -> None:
    await make_consumer(ledger, 1)
    stream = ledger.names.advisories_stream
    async with Puller(ledger) as puller, reacting(DeadLetterReactor(ledger), ledger=ledger):
        first = await ledger.enqueue(send, 1)
        await becomes(first, JobState.DEAD_LETTERED)
        await api(ledger.inbox, f"STREAM.DELETE.{stream}", {})
        async with asyncio.timeout(LIMIT_S):
            while "error" in await api(ledger.inbox, f"STREAM.INFO.{stream}", {}):
                await asyncio.sleep(0.02)
        puller.seen.clear()
        second = await ledger.enqueue(send, 2)
        await becomes(second, JobState.DEAD_LETTERED)


async def test_a_finished_job_is_left_alone_by_a_late_advisory(ledger: Ledger) -> None:
    job = await ledger.enqueue(send, 3)
    async with working(ledger, send):
        assert await job.result(timeout_s=LIMIT_S) == 3
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{ledger.names.ledger_stream}.work_post_normal"
        body = b'{"type":"io.nats.jetstream.advisory.v1.max_deliver","consumer":"work_post_normal","stream_seq":1,"deliveries":20}'
        for each in (body, b"not even JSON", b'{"consumer":"work_post_normal","stream_seq":999}'):
            ledger.connection.send(subject, "", b"", each)
        await until_advised(ledger, 3)
        await _settled(ledger)
    assert await types(job) == ["queued", "started", "completed"]


# The DLQ stream, and old consumers.


@task(queue="post", max_attempts=1)
async def fail(n: int) -> None:
    raise ValueError(f"number {n}")


async def test_the_dlq_stream_carries_each_dead_letter(ledger: Ledger) -> None:
    async with working(ledger, fail):
        jobs = [await ledger.enqueue(fail, n) for n in range(3)]
        for job in jobs:
            await job.wait(timeout_s=LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        while await messages(ledger, ledger.names.dlq_stream) < 3:
            await asyncio.sleep(0.02)
    found = [
        (await ledger.connection.jetstream().get_msg(ledger.names.dlq_stream, number)) for number in (1, 2, 3)
    ]
    for job, message in zip(jobs, found, strict=True):
        last = (await job.history())[-1]
        assert (message.subject, message.data) == (last.subject, last.data)


async def test_a_consumer_of_an_earlier_version_gets_the_limit_and_keeps_its_position(ledger: Ledger) -> None:
    await make_consumer(ledger, -1)
    job = await ledger.enqueue(send, 1)
    name = f"CONSUMER.INFO.{ledger.names.ledger_stream}.work_post_normal"
    async with working(ledger, send, reactors=False):
        await job.result(timeout_s=LIMIT_S)
        info = await api(ledger.inbox, name, {})
        assert info["config"]["max_deliver"] == DELIVERIES_MAX
        assert info["config"]["ack_wait"] == 1_000_000_000  # what is another setting stays as it is
        assert info["delivered"]["stream_seq"] >= 1
