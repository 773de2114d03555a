"""The fleet that a kept demo leaves: each of its sights is there, and a person can act on it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.support.working import working

from jobledger.admin.diagnoses import diagnose
from jobledger.admin.rows import Rows
from jobledger.cli.demo import shop
from jobledger.cli.demo.fleet import APP, leave_fleet
from jobledger.ledger import JobState, Ledger, TaskRegistry
from jobledger.projections.tables.schedules import read_schedules

pytestmark = pytest.mark.anyio


async def test_a_kept_demo_leaves_a_fleet_worth_looking_at(ledger: Ledger, tmp_path: Path) -> None:
    async with working(ledger, registry=TaskRegistry.load([APP])):
        await leave_fleet(ledger)
        rows = Rows(ledger, tmp_path / "rows.db")
        async with rows.opened() as view:
            jobs = view.store.jobs(500)
            schedules = [each.name for each in read_schedules(view.store.select)]
            found = {(each.kind, each.object) for each in await diagnose(ledger, view)}
        states = Counter((job.task, job.status) for job in jobs)
        assert (states["import_row", "completed"], states["import_row", "dead_lettered"]) == (196, 4)
        assert (states["checkout", "completed"], states["checkout", "dead_lettered"]) == (16, 1)
        assert (states["checkout", "waiting"], states["charge", "dead_lettered"]) == (3, 3)
        assert (states["payout", "waiting"], states["export_bookings", "held"]) == (3, 5)
        assert (states["report", "queued"], states["classify", "queued"]) == (3, 12)
        assert schedules == ["nightly-report"]
        assert {
            ("queue_without_worker", "queue gpu"),
            ("queue_paused", "queue reports"),
            ("limit_closed", "limit tenant:initech"),
            ("dead_letters", "task send_mail"),
            ("run_waits_for_person", "run orders/order-17"),
        } <= found
        # What waits for a person goes on when one acts.
        payout = await ledger.job("payout-acme")
        await ledger.signal("payout-acme", shop.approved, shop.Approval(by="bob"))
        assert (await payout.wait(timeout_s=20)).state is JobState.COMPLETED
