"""Ending the lease of a process that is gone: only once, never over a renewal, and noticed by one that lives."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from tests.support.renewals import renewals
from tests.support.working import LIMIT_S, Connect, until, working

from jobledger.ledger import Ledger, task
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.errors import ServerUnreachableError
from jobledger.ledger.nats.leases import LeaseLostError, WorkerInfo

pytestmark = pytest.mark.anyio
NOW = datetime(2025, 1, 31, 8, tzinfo=UTC)
INFO = WorkerInfo(
    worker="web1-1-00", host="web1", pid=1, queues=("email",), started_at=NOW, renewed_at=NOW, running=2
)


@task
async def nothing() -> None:
    return


async def test_an_ended_lease_is_over_for_everybody_and_cannot_be_renewed(ledger: Ledger) -> None:
    leases = ledger.leases
    revision = await leases.renew(INFO, 0)
    assert await leases.find(INFO.worker) == INFO
    assert await leases.end(INFO.worker)
    assert await leases.find(INFO.worker) is None
    assert [(info.stopped, info.running) for info in await leases.all()] == [(True, 0)]
    for stale in (revision, 0):  # one that lives after all takes another name
        with pytest.raises(LeaseLostError):
            await leases.renew(INFO, stale)
    assert await leases.find(INFO.worker) is None


async def test_ending_what_is_over_changes_nothing(ledger: Ledger) -> None:
    leases = ledger.leases
    assert not await leases.end("never-1-00")
    revision = await leases.renew(INFO, 0)
    await leases.renew(msgspec.structs.replace(INFO, stopped=True), revision)
    (before,) = await leases.all()
    assert not await leases.end(INFO.worker)
    assert await leases.all() == [before]


async def test_a_renewal_that_was_still_on_its_way_is_ended_too(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = ledger.leases
    revision = await leases.renew(INFO, 0)
    last = leases._last
    reads = 0

    async def read_then_renewed(subject: str) -> tuple[bytes, int] | None:
        nonlocal reads
        reads += 1
        found = await last(subject)
        if reads == 1:
            await leases.renew(INFO, revision)
        return found

    monkeypatch.setattr(leases, "_last", read_then_renewed)
    assert await leases.end(INFO.worker)
    assert reads == 2
    assert await leases.find(INFO.worker) is None


async def test_a_worker_whose_first_lease_has_no_answer_asks_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, tried = ledger.leases.renew, list[str]()

    async def unanswered_once(info: WorkerInfo, revision: int) -> int:
        answer = await renew(info, revision)
        tried.append(info.worker)
        if len(tried) == 1:  # stored, and nobody hears of it
            raise ServerUnreachableError("the lease could not be renewed: no answer")
        return answer

    monkeypatch.setattr(ledger.leases, "renew", unanswered_once)
    async with working(ledger, nothing) as worker:
        await worker.taking.wait()
        assert worker.identity == tried[1] != tried[0]


async def test_a_lease_that_has_no_answer_for_too_long_is_an_error(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unanswered(info: WorkerInfo, revision: int) -> int:
        raise ServerUnreachableError("the lease could not be renewed: no answer")

    monkeypatch.setattr(ledger.leases, "renew", unanswered)
    keeper = LeaseKeeper(ledger.leases, ledger.clock, (), running=lambda: 0, on_lost=lambda _: None)
    with pytest.raises(ServerUnreachableError, match="no answer"):
        await keeper.open(patience_s=0.2)


async def test_a_renewal_whose_answer_is_lost_is_found_and_costs_no_lease(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(lease_s=2.0) as ledger:
        renew, sent = ledger.leases.renew, list[int]()

        async def every_second_unanswered(info: WorkerInfo, revision: int) -> int:
            sent.append(revision)
            answer = await renew(info, revision)
            if len(sent) % 2 == 0:  # stored, and nobody hears of it
                await asyncio.Event().wait()
            return answer

        monkeypatch.setattr(ledger.leases, "renew", every_second_unanswered)
        async with working(ledger, nothing) as worker:
            await worker.taking.wait()
            identity = worker.identity
            await until(lambda: len(sent) >= 5)
            assert worker.identity == identity
            assert worker.counts().lease_is_valid


async def test_a_first_lease_whose_answer_is_lost_is_found(ledger: Ledger) -> None:
    first = await ledger.leases.renew(INFO, 0)
    assert await ledger.leases.renew(INFO, 0) > first


async def test_a_worker_without_a_lease_asks_for_no_job_and_uses_up_no_delivery(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(lease_s=1.0) as ledger:
        is_answered = renewals(ledger, monkeypatch)
        async with working(ledger, nothing) as worker:
            await worker.taking.wait()
            is_answered.clear()
            await until(lambda: not worker.counts().lease_is_valid)
            handles = [await ledger.enqueue(nothing) for _ in range(5)]
            await asyncio.sleep(1.5)  # long enough to be handed them over and over
            # One request for a job stands at the server while a lane is empty.
            assert worker._intake.deliveries <= 1
            is_answered.set()
            for handle in handles:
                await handle.result(timeout_s=LIMIT_S)
