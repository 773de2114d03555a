"""A run with two tables, in a worker that ends where it hurts: a file is stored, and nothing is recorded of it.

It does so `TABLES_CRASHES` times; the folder `TABLES_MARKS` says how often it happened.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

from jobledger.ledger import Run, workflow
from jobledger.ledger.tables.stores import BucketStore

_put = BucketStore.put
ROWS = 5_000
QUEUE = "work"


async def _put_and_crash(self: BucketStore, name: str, path: Path, **more: Any) -> datetime | None:
    expires_at = await _put(self, name, path, **more)
    crashes = int(os.environ.get("TABLES_CRASHES", "0"))
    for number in range(crashes):
        mark = Path(os.environ["TABLES_MARKS"]) / str(number)
        if not mark.exists():
            mark.touch()
            os._exit(9)  # it is stored, and nobody recorded it
    return expires_at


BucketStore.put = _put_and_crash  # type: ignore[method-assign]


@workflow(queue=QUEUE, max_attempts=9)
async def totals(run: Run, count: int) -> int:
    """Write rows and sum them up."""
    rows = await run.write("rows", ({"n": n} for n in range(count)))
    sums = await run.sql("SELECT sum(n)::BIGINT AS n FROM t", into="sums", t=rows)
    return int((await sums.arrow()).column("n")[0].as_py())
