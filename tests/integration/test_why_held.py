"""`jobs show --why` and `limits show` of jobs that are held: the limit, how full it is, who holds it, the place in the line."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.working import LIMIT_S, Connect, working

from jobledger.admin import acts
from jobledger.admin import health as limit_checks
from jobledger.admin.health import check_limits
from jobledger.admin.held import limit_now
from jobledger.admin.limits import set_limit
from jobledger.admin.rows import Rows
from jobledger.audit.why import Why
from jobledger.ledger import JobState, Ledger, Limit, task

pytestmark = pytest.mark.anyio
TENANT = Limit("tenant", key="tenant", slots=2)


@task(queue="why", limits=(TENANT, "global"))
async def wait(tenant: str) -> None:
    await asyncio.sleep(LIMIT_S)


@task(queue="why", limits=(Limit("api", rate=1, per_s=3600.0),))
async def call() -> None: ...


async def why(ledger: Ledger, job: str, folder: Path) -> Why:
    return (await acts.why(Rows(ledger, folder / "rows.db"), job)).why


async def test_a_held_job_tells_its_limit_its_holders_and_its_place(
    ledger: Ledger, connected: Connect, tmp_path: Path
) -> None:
    for name in "abcd":
        await ledger.enqueue(wait.options(id=name), "acme")
    found = await why(ledger, "b", tmp_path)
    assert found.sentence.startswith(
        "nobody defined limit global; it is number 2 of its line; tenant:acme has room (0 of 2)"
    )
    assert found.hint == "jobledger limits set global --slots 10"
    await set_limit(ledger, "global", {"slots": 0}, by="alice")
    found = await why(ledger, "a", tmp_path)
    assert found.sentence.startswith("global has 0 slots, so that none may start; it is number 1 of its line")
    await set_limit(ledger, "global", {"slots": 5}, by="alice")
    found = await why(ledger, "a", tmp_path)
    assert found.sentence.startswith("no worker serves queue why")
    async with connected() as other, working(other, wait, call):
        await _running(ledger, "ab")
        found = await why(ledger, "d", tmp_path)
        assert found.sentence == (
            "tenant:acme is full (2 of 2: why/a, why/b); it is number 2 of its line; global has room (2 of 5)"
        )
        assert found.hint == "jobledger limits show tenant:acme"
        assert found.held is not None
        assert (found.held.place, [each.limit for each in found.held.limits]) == (
            2,
            ["global", "tenant:acme"],
        )
        now = await limit_now(ledger, "tenant")
        assert [(each.limit, each.used, each.waiting) for each in now.keys] == [("tenant:acme", 2, 2)]
        now = await limit_now(ledger, "tenant:acme")
        assert (now.state.holders, [each.job for each in now.waits]) == (("why/a", "why/b"), ["c", "d"])

        first = await ledger.enqueue(call)
        await first.result(timeout_s=LIMIT_S)
        second = await ledger.enqueue(call)
        found = await why(ledger, second.id, tmp_path)
        assert found.sentence.startswith("api lets 1 per hour start, the next one at ")
        assert found.held is not None
        (api,) = found.held.limits
        assert api.free_at is not None
        assert timedelta(minutes=58) < api.free_at - ledger.clock.now() < timedelta(minutes=61)
        for name in "ab":
            await ledger.cancel(name)


async def _running(ledger: Ledger, names: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        for name in names:
            while (await (await ledger.job(name)).state()) is not JobState.RUNNING:
                await asyncio.sleep(0.01)


async def test_doctor_tells_of_jobs_that_nobody_grants_or_starts(
    ledger: Ledger, connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(ledger, tmp_path / "rows.db")

    async def said() -> list[str]:
        await rows.catch_up()
        return [f"{each.status}: {each.found}" for each in await check_limits(ledger, tmp_path / "rows.db")]

    assert await said() == []
    for number in range(3):
        await ledger.enqueue(wait, f"t{number}")
    await ledger.enqueue(call)
    assert await said() == ["ok: 4 jobs held"]  # what nobody defined is a diagnosis
    await set_limit(ledger, "global", {"slots": 1}, by="alice")
    assert await said() == ["ok: 4 jobs held"]  # no worker serves their queue: that is said of the queue
    monkeypatch.setattr(limit_checks, "GRANT_WITHIN_S", 0.3)
    async with connected() as other, working(other, wait, call, reactors=False) as worker:
        await worker.taking.wait()
        assert await said() == ["warn: 2 of 4 held jobs could start, and nobody grants them for 0.3 s"]
    monkeypatch.setattr(limit_checks, "START_WITHIN_S", 0.0)
    await set_limit(ledger, "global", {"slots": 2}, by="alice")
    async with connected() as other, working(other, wait, concurrency=1, grace_s=0.1):
        async with asyncio.timeout(LIMIT_S):
            while (found := await said()) != [
                "warn: 2 jobs hold their limits for more than 0 s, and no worker started them"
            ]:
                assert len(found) == 1
