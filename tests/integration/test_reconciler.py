"""Jobs that no consumer hands out any more, and whose advisory nobody saw, on a real server: the reconciler finds them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.support.jetstream import api
from tests.support.stranded import (
    Puller,
    dispatches,
    has_dispatches,
    make_consumer,
    reacting,
    start,
    take_lease,
    until_advised,
)
from tests.support.working import LIMIT_S, Connect, becomes, until, working

from jobledger.ledger import Job, JobState, Ledger, task
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.durables import DELIVERIES_MAX
from jobledger.workers.reactors.reconciler import Reconciler

pytestmark = pytest.mark.anyio


@task(queue="post", max_attempts=2)
async def send(n: int) -> int:
    return n


def reconciler(ledger: Ledger, grace_s: float = 0.2, suspect_s: float = 600.0, **more: Any) -> Reconciler:
    return Reconciler(ledger, grace_s=grace_s, suspect_s=suspect_s, **more)


async def test_a_job_whose_advisory_was_lost_is_found(ledger: Ledger) -> None:
    await make_consumer(ledger, 2)
    jobs = [await ledger.enqueue(send, n) for n in range(20)]
    async with Puller(ledger):
        await until_advised(ledger, 20)
    await api(ledger.inbox, f"STREAM.PURGE.{ledger.names.advisories_stream}", {})
    async with working(ledger, send, reactors=False), reacting(reconciler(ledger), ledger=ledger):
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == list(range(20))
    assert [await dispatches(job) for job in jobs] == [["new", "redispatched"]] * 20


async def test_several_reconcilers_dispatch_each_stranded_job_anew_once(connected: Connect) -> None:
    async with connected() as one, connected() as two, connected() as three:
        await make_consumer(one, 1)
        jobs = [await one.enqueue(send, n) for n in range(300)]
        async with Puller(one):
            await until_advised(one, 300)
        ledgers = (one, two, three)
        async with contextlib.AsyncExitStack() as stack:
            for each in ledgers:
                await stack.enter_async_context(reacting(reconciler(each), ledger=each))
            for job in jobs:
                await has_dispatches(job, 2)
        assert [await dispatches(job) for job in jobs] == [["new", "redispatched"]] * 300


async def test_a_backlog_in_one_queue_keeps_nobody_from_finding_the_jobs_of_another(ledger: Ledger) -> None:
    await make_consumer(ledger, 1)
    await make_consumer(ledger, 1, queue="crowded")
    for n in range(50):
        await ledger.enqueue(send.options(queue="crowded"), n)
    job = await ledger.enqueue(send, 1)
    async with Puller(ledger):
        await until_advised(ledger, 1)
    looks = _Looks(ledger)
    async with reacting(looks, ledger=ledger):
        await has_dispatches(job, 2)
    assert {ref.queue for ref in looks.seen} == {"post"}
    assert not any(lane.own for lane in await looks.lanes() if "crowded" in lane.worker)


async def test_where_consumers_are_many_the_reconciler_makes_no_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jobledger.workers.reactors.reconciler._CONSUMERS_MAX", 1)
    await make_consumer(ledger, 1)
    job = await ledger.enqueue(send, 1)
    async with Puller(ledger):
        await until_advised(ledger, 1)
    looks = _Looks(ledger)
    assert await looks.lanes() == await looks.lanes() == []
    assert caplog.text.count("the reconciler makes none for further queues") == 1
    assert await dispatches(job) == ["new"]


async def test_without_any_advisory_three_dispatches_in_vain_make_a_dead_letter_too(ledger: Ledger) -> None:
    gone: list[Job] = []
    await make_consumer(ledger, 1)
    job = await ledger.enqueue(send, 1)
    async with Puller(ledger), reacting(reconciler(ledger, on_dead_letter=gone.append), ledger=ledger):
        dead = await becomes(job, JobState.DEAD_LETTERED)
    assert await dispatches(job) == ["new", "redispatched", "redispatched"]
    assert (dead.dead_reason, [each.id for each in gone]) == ("max_deliver", [job.id])


async def test_a_job_stranded_while_it_ran_is_found(connected: Connect) -> None:
    async with connected(lease_s=3.0) as ledger:
        await make_consumer(ledger, 1)
        job = await ledger.enqueue(send, 1)
        async with Puller(ledger) as puller:
            puller.keeps = True
            await take_lease(ledger, "w-1-abc")
            await start(ledger, job.ref, "w-1-abc")
            await until_advised(ledger, 1)
        await api(ledger.inbox, f"STREAM.PURGE.{ledger.names.advisories_stream}", {})
        async with reacting(reconciler(ledger), ledger=ledger):
            await has_dispatches(job, 2)
        assert [attempt.state for attempt in (await job.snapshot()).attempts] == ["lost"]


async def test_what_waits_or_runs_or_is_held_by_somebody_is_not_dispatched_anew(ledger: Ledger) -> None:
    await make_consumer(ledger, DELIVERIES_MAX)
    held = await ledger.enqueue(send, 1)
    running = await ledger.enqueue(send, 2)
    looked = _Looks(ledger)
    async with Puller(ledger) as puller:
        puller.keeps = True
        await until(lambda: len(puller.seen) >= 2)
        await take_lease(ledger, "w-1-abc")
        await start(ledger, running.ref, "w-1-abc")
    waiting = await ledger.enqueue(send, 3)  # nobody asks any more
    async with reacting(looked, ledger=ledger):
        await looked.at(held.ref, running.ref)
        await looked.at(held.ref, running.ref)
    assert [await dispatches(job) for job in (held, running, waiting)] == [["new"]] * 3
    assert waiting.ref not in looked.seen


async def test_a_dispatch_that_is_held_for_far_too_long_counts_as_given_up(ledger: Ledger) -> None:
    await make_consumer(ledger, DELIVERIES_MAX)
    held = await ledger.enqueue(send, 1)
    async with Puller(ledger) as puller:
        puller.keeps = True
        await until(lambda: bool(puller.seen))
    async with reacting(reconciler(ledger, suspect_s=0.5), ledger=ledger):
        await has_dispatches(held, 2)


class _Looks(Reconciler):
    """Tells which jobs were looked at one by one."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, grace_s=0.1, suspect_s=600.0)
        self.seen: list[JobRef] = []
        self._rescue = self._stranded.rescue
        self._stranded.rescue = self._note  # type: ignore[method-assign]

    async def _note(self, ref: JobRef, *args: Any, **options: Any) -> Any:
        settled = await self._rescue(ref, *args, **options)
        self.seen.append(ref)
        return settled

    async def at(self, *refs: JobRef) -> None:
        """Wait until each was looked at once more."""
        self.seen.clear()
        await until(lambda: set(refs) <= set(self.seen))


async def test_finished_jobs_are_passed_over_without_reading_them(ledger: Ledger) -> None:
    async with working(ledger, send, reactors=False):
        jobs = [await ledger.enqueue(send, n) for n in range(600)]
        for job in jobs:
            await job.result(timeout_s=LIMIT_S)
    looks = _Looks(ledger)
    async with reacting(looks, ledger=ledger):
        name = f"CONSUMER.INFO.{ledger.names.ledger_stream}.reconcile_post_normal"
        async with asyncio.timeout(LIMIT_S):
            while (
                "error" in (info := await api(ledger.inbox, name, {}))
                or info["num_pending"] + info["num_ack_pending"]
            ):
                await asyncio.sleep(0.02)
    assert looks.seen == []
    assert info["config"]["headers_only"]


async def test_a_quiet_ledger_costs_two_requests_a_look(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(ledger, send, reactors=False):
        await (await ledger.enqueue(send, 1)).result(timeout_s=LIMIT_S)
    looks = reconciler(ledger, grace_s=0.1)
    async with reacting(looks, ledger=ledger):
        async with asyncio.timeout(LIMIT_S):
            while not all(lane.is_quiet for lane in await looks.lanes()) or not any(
                lane.own for lane in await looks.lanes()
            ):
                await asyncio.sleep(0.02)
        asked: list[str] = []
        send_as_ever = ledger.connection.send

        def count(subject: str, reply: str, headers: bytes, data: bytes) -> None:
            asked.append(subject)
            send_as_ever(subject, reply, headers, data)

        monkeypatch.setattr(ledger.connection, "send", count)
        await until(lambda: len(asked) >= 5)
    kinds = {
        ".".join(subject.split(".")[:4]) for subject in asked
    }  # the second: the newest event of any queue
    assert kinds == {"$JS.API.CONSUMER.LIST", "$JS.API.DIRECT.GET"}
