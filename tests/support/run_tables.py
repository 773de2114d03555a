"""Tables of runs without a worker: a file is stored, and a step is recorded that made it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as arrow_package  # noqa: ICN001
import pyarrow.parquet as pq

from jobledger.ledger import JobHandle, Ledger
from jobledger.ledger.model.commands import CompleteStep
from jobledger.ledger.tables.parquet import describe
from jobledger.ledger.tables.record import TableRecord
from jobledger.ledger.tables.stores import open_store

pa: Any = arrow_package  # it says nothing of its types


async def make_tables(
    ledger: Ledger, job: JobHandle[Any], tables: dict[str, dict[str, Any]], **record: Any
) -> dict[str, TableRecord]:
    """Let a job that somebody claimed make tables; return what is recorded, by the keys of their steps.

    `tables`: their columns by step; a table's name is the last word of its step's key. `record`: what is recorded of
    each of them in place of the truth.
    """
    held = (await job.snapshot()).claim_epoch
    found: dict[str, TableRecord] = {}
    for number, (step, columns) in enumerate(tables.items()):
        file, name = f"{job.queue}/{job.id}/{number}", step.rpartition("/")[2]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows.parquet")
            pq.write_table(pa.table(columns), path)
            made = msgspec.structs.asdict(describe(path))
            until = await open_store(ledger).put(file, path, size_bytes=made["bytes"])
        told: dict[str, Any] = {**made, "name": name, "file": file, "expires_at": until, **record}
        found[step] = TableRecord(**told)
        result = msgspec.Raw(msgspec.json.encode(found[step]))
        end = CompleteStep(epoch=held, step=step, kind="table", target="write", result=result)
        await ledger.execute(job.ref, end)
    return found
