"""A job with limits on a real server, admitted by hand: what its worker reads, where its end is stored, what is put back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.limited import define
from tests.support.working import LIMIT_S, Connect, types, working

from jobledger.ledger import Backoff, Context, JobHandle, JobState, Ledger, task
from jobledger.ledger.model.commands import Dispatch, PutBack
from jobledger.ledger.model.errors import IllegalTransitionError
from jobledger.testing import MemoryLedger
from jobledger.workers.reactors.reactor import host
from jobledger.workers.reactors.reconciler import Reconciler

pytestmark = [pytest.mark.anyio, pytest.mark.unsound_ledger("jobs are admitted by hand")]


@task(queue="limited", max_attempts=2, backoff=Backoff(base_s=0), limits=("by-hand",))
async def twice(context: Context, number: int) -> int:
    if context.attempt == 1:
        raise ValueError("not the first time")
    return number


@task(queue="limited", limits=("by-hand",))
async def once(number: int) -> int:
    return number


@task(queue="limited")
async def plain(number: int) -> int:
    return number


async def held(job: JobHandle[Any], count: int) -> None:
    """Wait until a job is held for the so-manieth time."""
    async with asyncio.timeout(LIMIT_S):
        while (await types(job)).count("held") < count or await job.state() is not JobState.HELD:
            await asyncio.sleep(0.01)


async def admit(ledger: Ledger, job: JobHandle[Any]) -> None:
    waiting = (await job.snapshot()).wait_sequence
    await ledger.execute(job.ref, Dispatch(cause="admitted", asked_by=waiting, grant=waiting))


@pytest.fixture
def chains_read(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The chains that this ledger's client reads from now on."""
    read: list[str] = []
    read_chain = ledger.log.read_chain

    def recorded(chain: str) -> Any:
        read.append(chain)
        return read_chain(chain)

    monkeypatch.setattr(ledger.log, "read_chain", recorded)
    return read


async def test_a_worker_claims_what_is_admitted_first_without_reading_its_chain(
    connected: Connect, ledger: Ledger, chains_read: list[str]
) -> None:
    async with connected() as person, working(ledger, twice, plain):
        await (await person.enqueue(plain, 1)).result(timeout_s=LIMIT_S)
        chains_read.clear()  # a lane that begins beside a dispatch looks whether its job lives
        job = await person.enqueue(twice.options(tenant="acme", metadata={"region": "eu"}), 7)
        await held(job, 1)
        await admit(person, job)
        await held(job, 2)  # its retry waits for its limits again
        assert chains_read == []
        await admit(person, job)
        assert await job.result(timeout_s=LIMIT_S) == 7
        said = await types(job)
        order = (await job.snapshot()).order
    assert chains_read == [ledger.names.chain(job.ref)]  # the second attempt builds on the first
    assert " ".join(said) == "held queued started failed held queued started completed"
    assert (order.tenant, order.metadata, order.limits) == ("acme", {"region": "eu"}, ("by-hand",))


async def test_the_end_of_a_job_with_limits_is_heard_of_like_any_other(ledger: Ledger) -> None:
    async with working(ledger, once, plain):
        limited, other = await ledger.enqueue(once, 1), await ledger.enqueue(plain, 2)
        await admit(ledger, limited)
        assert [await each.result(timeout_s=LIMIT_S) for each in (limited, other)] == [1, 2]
    names = ledger.names
    subjects = [f"{names.of_type(limited.ref, 'completed')}.limited", names.of_type(other.ref, "completed")]
    assert await ledger.log.present(subjects) == set(subjects)
    heard = [stored async for stored in ledger.events(types=["completed"], follow=False)]
    assert {stored.event.job for stored in heard} == {limited.id, other.id}
    async with ledger.subscription("ends", types=["completed"], follow=False) as deliveries:
        async for delivery in deliveries:
            await delivery.ack()
    (info,) = await ledger.subscriptions()
    assert info.lag == 0


async def test_the_reconciler_is_done_with_a_job_whose_end_is_limited(
    ledger: Ledger, chains_read: list[str]
) -> None:
    async with working(ledger, once):
        job = await ledger.enqueue(once, 1)
        await admit(ledger, job)
        await job.result(timeout_s=LIMIT_S)
    reconciler = Reconciler(ledger, grace_s=0.1, suspect_s=600.0)
    del chains_read[:]
    running = asyncio.create_task(host(ledger, reconciler))
    try:
        async with asyncio.timeout(LIMIT_S):
            while not any(lane.own is not None and lane.is_quiet for lane in await reconciler.lanes()):
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert chains_read == []  # the subject of its end told enough


async def test_what_is_put_back_runs_once_however_late_its_work_item_comes(ledger: Ledger) -> None:
    job = await ledger.enqueue(once, 7)
    await admit(ledger, job)
    queued = (await job.snapshot()).wait_sequence
    await ledger.execute(job.ref, PutBack(asked_by=queued))
    async with working(ledger, once):  # finds the work item of the grant that was taken back
        await admit(ledger, job)
        assert await job.result(timeout_s=LIMIT_S) == 7
    assert await types(job) == ["held", "queued", "held", "queued", "started", "completed"]
    with pytest.raises(IllegalTransitionError):  # whoever claims first, wins
        await ledger.execute(job.ref, PutBack(asked_by=queued))


async def test_a_worker_tells_what_it_granted(ledger: Ledger) -> None:
    await define(ledger, "by-hand", slots=2)
    async with working(ledger, once) as worker:
        jobs = [await ledger.enqueue(once, number) for number in range(5)]
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == [0, 1, 2, 3, 4]
        counts = worker.counts().flow
        assert (counts.hosts, counts.granted, counts.refused) == (True, 5, 0)
    assert (worker.counts().flow.hosts, worker.counts().flow.granted) == (False, 5)


async def test_in_memory_a_job_with_limits_runs_like_any_other() -> None:
    ledger = MemoryLedger()
    job = await ledger.enqueue(twice.options(limits=("tenant:acme",)), 7)
    await ledger.run_pending()
    assert await job.result() == 7
