"""Tables of runs, as a type checker must understand them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, assert_type

import msgspec

from jobledger.ledger import Run, Table, workflow


class Row(msgspec.Struct):
    sku: str
    cents: int


def rows() -> Iterator[Row]:
    yield Row("a", 1)


async def slowly() -> AsyncIterator[dict[str, Any]]:
    yield {"sku": "a"}


@workflow(queue="etl")
async def totals(run: Run, arrow: Any) -> int:
    raw = await run.write("raw", rows())
    assert_type(raw, Table)
    await run.write("slow", slowly(), row=Row)
    await run.write("dicts", [{"sku": "a", "cents": 1}])
    await run.write("arrow", [arrow])
    sums = await run.sql("SELECT * FROM raw", into="sums", timeout_s=5, raw=raw, other=raw)
    assert_type(sums, Table)
    assert_type(await run.fetch(sums, Row), list[Row])
    assert_type(await run.fetch(sums, Row, limit=10), list[Row])
    assert_type(await sums.path(), Path)
    assert_type(sums.expires_at, datetime | None)
    assert_type(sums.schema, dict[str, str])
    return sums.rows
