"""What the exporter tells of jobs that wait for limits, and of schedules, on a real server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_exporter import exporting, scraped_at_head
from tests.support.limited import define
from tests.support.schedules import declare
from tests.support.working import LIMIT_S, working

from jobledger.ledger import JobState, Ledger, task
from jobledger.ledger.model.chain import commit_all
from jobledger.ledger.model.commands import Dispatch, PutBack
from jobledger.ledger.model.log import end_of_chain
from jobledger.ledger.model.schedules.decisions import Pause
from jobledger.ledger.model.schedules.events import Ticked, state_fields
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.projections import Store
from jobledger.projections.metrics.figures import read_figures
from jobledger.projections.metrics.schedules import read_ticking
from jobledger.projections.statistics.held_jobs import SETS
from jobledger.projections.statistics.rates import rates

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def mail(number: int) -> int:
    return number


async def fill(ledger: Ledger) -> None:
    """Two jobs that are held, one of them put back, one that was admitted, a plain one; a limit that nobody waits for."""
    await define(ledger, "tenant", slots=1)
    await define(ledger, "unused", slots=1)
    for name, limits in (
        ("a", ("tenant:a", "tenant:b")),
        ("b", ("tenant:b", "global")),
        ("c", ("tenant:c",)),
        ("plain", ()),
    ):
        job = await ledger.enqueue(mail.options(id=name, limits=limits), 1)
        if name in "bc":
            await ledger.execute(job.ref, Dispatch(cause="admitted", grant=1))
        if name == "b":
            await ledger.execute(job.ref, PutBack(asked_by=(await job.snapshot()).wait_sequence))


@pytest.mark.unsound_ledger("jobs are queued without a grant")
async def test_held_jobs_are_told_by_the_names_of_their_limits(ledger: Ledger, tmp_path: Path) -> None:
    await fill(ledger)
    async with exporting(ledger, tmp_path / "p.db") as exporter:
        found = await scraped_at_head(exporter, ledger)
        assert found.by("jobledger_limit_held_jobs", "limit") == {"tenant": 2, "global": 1}
        assert found.by("jobledger_limit_defined", "limit") == {"tenant": 1, "unused": 1}
        for limit, waits in (("tenant", True), ("global", True), ("unused", False)):
            assert (found.sum("jobledger_limit_oldest_held_seconds", limit=limit) > 0) == waits
        admitted = ("jobledger_jobs_admitted_total", "jobledger_jobs_ungranted_total")
        assert [found.sum(name, queue="mail", task="mail") for name in admitted] == [2, 1]
        wait = "jobledger_limit_wait_seconds"
        assert found.by(f"{wait}_count", "limit") == {"tenant": 2, "global": 1}
        assert 0 < found.sum(f"{wait}_sum", limit="global") < found.sum(f"{wait}_sum", limit="tenant")
        assert found.by("jobledger_folded_label_values", "label") == {}
    with Store.open(tmp_path / "p.db") as store:
        few = read_figures(store, 1, datetime.now(UTC))
        assert [(row.limit, row.jobs, row.defined) for row in few.held] == [
            ("global", 1, False),
            ("(other)", 2, True),
        ]
        assert few.folded["limit"] == 2
        first, other = few.limit_waits  # the first in the ledger has a series, and keeps it
        assert (first, other) == (("global",), ("(other)",))
        assert (few.limit_waits[first][0], few.limit_waits[other][0]) == (1, 2)
        plan = " ".join(str(row[3]) for row in store.select(f"EXPLAIN QUERY PLAN {SETS}"))
        assert "USING COVERING INDEX jobs_by_limits_since_us_status" in plan, plan


async def test_holders_are_counted_until_they_end(ledger: Ledger, tmp_path: Path) -> None:
    await define(ledger, "tenant", slots=1)
    release = asyncio.Event()

    @task(queue="mail", limits=("tenant:a",))
    async def waits() -> None:
        await release.wait()

    async with exporting(ledger, tmp_path / "p.db") as exporter, working(ledger, waits):
        jobs = [await ledger.enqueue(waits) for _ in range(3)]
        async with asyncio.timeout(LIMIT_S):
            while await jobs[0].state() is not JobState.RUNNING:
                await asyncio.sleep(0.01)
        found = await scraped_at_head(exporter, ledger)
        told = [found.sum(f"jobledger_limit_{name}", limit="tenant") for name in ("holders", "held_jobs")]
        assert told == [1, 2]
        release.set()
        for job in jobs:
            await job.wait(timeout_s=LIMIT_S)
        assert (await scraped_at_head(exporter, ledger)).sum("jobledger_limit_holders") == 0


@pytest.mark.unsound_ledger("ticks are planted")
async def test_schedules_tell_their_ticks_and_which_are_late(ledger: Ledger, tmp_path: Path) -> None:
    for name in ("hourly", "stuck", "stopped"):
        await declare(ledger, name, every_s=3_600)
    await ledger.schedules.act("stopped", Pause())
    long_ago = ledger.clock.now() - timedelta(hours=2)
    for number, skipped in ((1, ""), (2, "late"), (3, "running")):
        view = SCHEDULE.view(*await end_of_chain(ledger.log, SCHEDULE.chain(ledger.names, "stuck")))
        assert view.state is not None
        state = state_fields(view.state) | {
            "number": number,
            "runs": 1,
            "tick": long_ago,
            "next_at": long_ago,
        }
        stamp: dict[str, Any] = {"at": ledger.clock.now(), "by": "tester", "schedule": "stuck"}
        missed: dict[str, Any] = {"skipped": skipped, "missed": {1: 1, 2: 4, 3: 0}[number]}
        await commit_all(ledger.log, [(view, [Ticked(**stamp, **state, **missed)])])
    async with exporting(ledger, tmp_path / "p.db") as exporter:
        found = await scraped_at_head(exporter, ledger)
    for metric, expected in (
        ("ticks_total", {"stuck": 3}),
        ("jobs_total", {"stuck": 1}),
        ("missed_total", {"stuck": 5}),
        ("skipped_total", {"stuck": 1}),
        ("paused", {"stopped": 1}),
    ):
        assert found.by(f"jobledger_schedule_{metric}", "schedule") == expected
    assert found.sum("jobledger_schedule_late_seconds", schedule="stuck") >= 7_200
    assert found.sum("jobledger_schedule_late_seconds") < 7_300
    with Store.open(tmp_path / "p.db") as store:
        rows, others = read_ticking(store, 1)
        assert (others, [(row.schedule, row.ticks, row.missed, row.skipped, row.paused) for row in rows]) == (
            2,
            [("hourly", 0, 0, 0, 0), ("(other)", 3, 5, 1, 1)],
        )


async def test_quantiles_of_the_last_minutes_are_those_of_the_rows(ledger: Ledger, tmp_path: Path) -> None:
    async with exporting(ledger, tmp_path / "p.db") as exporter, working(ledger, mail):
        for number in range(20):
            job = await ledger.enqueue(mail, number)
            await job.wait(timeout_s=LIMIT_S)
        found = await scraped_at_head(exporter, ledger)
    with Store.open(tmp_path / "p.db") as store:
        (row,) = rates(store.select, "task", datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC))
        (soon,) = read_figures(store, 1, datetime.now(UTC)).recent.items()
        assert (soon[0], [each.count for each in soon[1]]) == (("mail", "mail"), [20, 20, 20])
        assert read_figures(store, 1, datetime.now(UTC) + timedelta(minutes=7)).recent == {}
    for name, exact in (("job_wait", row.wait), ("attempt_run", row.run)):
        told = [
            found.sum(f"jobledger_{name}_recent_seconds", quantile=part) for part in ("0.5", "0.95", "0.99")
        ]
        assert told == [exact.p50_s, exact.p95_s, exact.p99_s]
    assert len(found.by("jobledger_job_total_recent_seconds", "quantile")) == 3
