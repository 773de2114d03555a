"""The table of slots says who holds which, however the messages were cut, and agrees with the reactor's own fold."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.projections import assert_true, finish
from tests.support.working import LIMIT_S, Connect, working

from jobledger.admin.held import present
from jobledger.ledger import Backoff, Context, JobState, Ledger, Limit, Snooze, task
from jobledger.projections import Store
from jobledger.projections.tables.slots import slots_taken

pytestmark = pytest.mark.anyio
LIMITS = (Limit("tenant", key="tenant", slots=2), Limit("kept", key="tenant", slots=3, keep="job"))


@task(queue="slots", limits=LIMITS, max_attempts=3, backoff=Backoff(base_s=0.01))
async def work(context: Context, tenant: str, what: str) -> Snooze | None:
    """Fail first, snooze first, end at once, or go on until somebody ends it."""
    if what == "stay" or (what == "retry later" and context.attempt > 1):
        await asyncio.sleep(LIMIT_S)
    if context.attempt == 1 and what == "fail":
        raise ValueError("not the first time")
    return Snooze(3600.0) if what == "snooze" else None


async def test_slots_are_those_of_the_reactor_at_any_moment(
    ledger: Ledger, connected: Connect, tmp_path: Path
) -> None:
    path = tmp_path / "rows.db"
    what = ("end", "fail", "snooze", "stay", "end", "stay")

    async def agrees() -> dict[str, int]:
        """Bring the rows up, in portions of seven messages, and hold them against the fold of the reactor."""
        async with asyncio.timeout(LIMIT_S):
            while True:  # the ledger goes on meanwhile
                before = (await ledger.log.head()).last_sequence
                await finish(ledger.log, path)
                async with present(ledger) as granter:
                    held = granter.holders
                    fold = {(key, *job) for job, holding in held.jobs.items() for key in holding.limits}
                if (await ledger.log.head()).last_sequence == before:
                    break
        with Store.open(path) as store:
            rows = set(store.select("SELECT limit_key, queue, job_id FROM slots"))
            taken = slots_taken(store.select)
        assert rows == fold
        return taken

    async with connected() as other, working(other, work, grace_s=0.1):
        for number in range(12):
            await ledger.enqueue(work.options(id=f"j{number}"), f"t{number % 3}", what[number % 6])
            if number % 5 == 0:
                await agrees()
        await _state(ledger, "j2", JobState.RETRY_WAIT)
        await _state(ledger, "j3", JobState.RUNNING)
        taken = await agrees()
        assert taken["kept:t2"] >= 1  # snoozed jobs keep it, and have no slot of `tenant`
        with Store.open(path) as store:
            assert store.select("SELECT kept FROM slots WHERE limit_key LIKE 'tenant:%' AND kept") == []
        await ledger.cancel("j2")
        await ledger.cancel("j3")
        await _state(ledger, "j3", JobState.CANCELLED)
        await agrees()
    await finish(ledger.log, path)
    await assert_true(ledger.log, path)


async def _state(ledger: Ledger, job: str, state: JobState) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await (await ledger.job(job)).state()) is not state:
            await asyncio.sleep(0.01)
