"""Tables of runs: workers die when a file is stored and nothing is recorded of it; what is recorded is always there."""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
from pathlib import Path

import pytest
from tests.fault.apps import tables as app
from tests.support.figures import Recorder
from tests.support.fleet import Fleet
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger
from jobledger.ledger.tables.record import read_record
from jobledger.ledger.tables.stores import open_store

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(300)]
CRASHES = 3
END_S = 120.0


async def test_a_worker_that_dies_between_a_file_and_its_record_leaves_only_what_expires(
    ledger: Ledger, fleet: Fleet, tmp_path: Path, record: Recorder
) -> None:
    fleet.app = Path(app.__file__)
    fleet.variables |= {"TABLES_CRASHES": str(CRASHES), "TABLES_MARKS": str(tmp_path)}
    job = await ledger.enqueue(app.totals, app.ROWS)
    for _ in range(CRASHES):
        worker = await fleet.start()
        assert await worker.ended(END_S) == 9
    await fleet.start()
    assert await job.result(timeout_s=END_S) == sum(range(app.ROWS))

    found = await job.snapshot()
    store, kept = open_store(ledger), set[str]()
    for key, step in found.steps.items():
        table, copy = read_record(bytes(step.result)), io.BytesIO()
        await store.copy_to(table, copy)
        assert hashlib.sha256(copy.getvalue()).hexdigest() == table.sha256, key
        kept.add(table.file)
    assert len(kept) == 2
    bucket = ledger.names.tables_bucket
    info = await api(ledger.inbox, f"STREAM.INFO.OBJ_{bucket}", {"subjects_filter": f"$O.{bucket}.M.>"})
    assert len(info["state"]["subjects"]) == len(kept) + CRASHES  # the others expire: nothing names them
    assert info["config"]["max_age"] > 0
    async with asyncio.timeout(LIMIT_S):
        report = await verify(ledger.log)
    assert not report.violations
    record(
        "tables",
        "worker dies between a table's file and its record",
        faults=f"{CRASHES} exits without a word",
        jobs=1,
        events=report.events,
        now=time.monotonic(),
    )
