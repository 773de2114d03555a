"""What pages ask of the tables: never every job, nor the rows of every dead letter, however many there are."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from tests.support.limits import LIMIT_S
from tests.support.shops import Shop, shop_of

from jobledger.gateway.pages.table import PAGES
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Store

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def shop(nats_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with shop_of(nats_server, tmp_path_factory.mktemp("shop")) as made:
        yield made


async def test_no_page_looks_at_every_job(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan ends at a number of rows, or needs an index alone: of held jobs, of those that wait, of causes."""
    select = Store.select
    slow: list[tuple[str, list[str]]] = []

    def noted(store: Store, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        plan = [str(row[3]) for row in select(store, f"EXPLAIN QUERY PLAN {sql}", values)]
        scans = [each for each in plan if re.match(r"SCAN (jobs|j|dead_letters|d)\b", each)]
        if "LIMIT" not in sql and any("COVERING INDEX" not in each for each in scans):
            slow.append((sql, plan))
        return select(store, sql, values)

    monkeypatch.setattr(Store, "select", noted)
    words = {"queue": "orders", "id": "order-acme-1", "task": "charge"}
    more = {"/plan": "state=dead_lettered", "/jobs": "q=state:dead&share=true"}
    async with httpx.AsyncClient(base_url=shop.url, timeout=LIMIT_S) as http:
        for page in PAGES:
            if page.path.endswith(("/rows", "/rerun")):
                continue  # they read one run
            for span in ("1h", "7d"):
                path = f"{page.path.format(**words)}?{more.get(page.path, '')}&range={span}"
                answer = await http.get(path)
                assert answer.status_code == 200, (path, answer.text)
    assert slow == []
