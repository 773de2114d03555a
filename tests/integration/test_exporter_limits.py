"""What the exporter tells of jobs that wait for limits, on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.test_exporter import exporting, scraped_at_head
from tests.support.limited import define

from jobledger.ledger import Ledger, task
from jobledger.ledger.model.commands import Dispatch, PutBack
from jobledger.projections import Store
from jobledger.projections.metrics.figures import read_figures
from jobledger.projections.statistics.held import SETS

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
        assert found.by("jobledger_folded_label_values", "label") == {}
    with Store.open(tmp_path / "p.db") as store:
        few = read_figures(store, 1)
        assert [(row.limit, row.jobs, row.defined) for row in few.held] == [
            ("global", 1, False),
            ("(other)", 2, True),
        ]
        assert few.folded["limit"] == 2
        plan = " ".join(str(row[3]) for row in store.select(f"EXPLAIN QUERY PLAN {SETS}"))
        assert "USING COVERING INDEX jobs_by_limits_since_us_status" in plan, plan
