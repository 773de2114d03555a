"""The tables of webhooks and watches, what is measured of them, and a rebuild that comes to the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobledger.ledger import Ledger
from jobledger.ledger.metrics.exposition import OTHER
from jobledger.ledger.model.commands import Remove
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.watch import Judge, SetWatch, WatchDefinition
from jobledger.ledger.model.hooks.webhook import Disable, Pause, SetWebhook
from jobledger.ledger.webhooks.changes import change_watch, change_webhook
from jobledger.projections import Projector, Store
from jobledger.projections.metrics.figures import read_figures
from jobledger.projections.metrics.metrics import figures_metrics
from jobledger.projections.tables.hooks import read_hooks

pytestmark = pytest.mark.anyio


async def test_rows_are_what_the_newest_events_say(ledger: Ledger, tmp_path: Path) -> None:
    terms = WebhookDefinition(
        target=WebhookTarget(url="https://a.example/in?key=hidden"), events=("completed",), secrets=("env:A",)
    )
    for name in ("gone", "off", "on", "waits"):
        await change_webhook(ledger, name, SetWebhook(definition=terms), by="ann")
    await change_webhook(ledger, "gone", Remove(), by="ann")
    await change_webhook(ledger, "off", Disable(why="410"), by="gateway")
    await change_webhook(ledger, "waits", Pause(reason="moves"), by="ben")
    for name in ("deep", "over"):
        watch = await change_watch(
            ledger, name, SetWatch(definition=WatchDefinition(figure="depth", above=1))
        )
        judged = Judge(value=2.0, position=1, sequence=watch.sequence, fires=True)
        await change_watch(ledger, name, judged)
    await change_watch(ledger, "over", Remove())
    path = tmp_path / "p.db"
    with Projector(ledger.log, path) as projector:
        await projector.catch_up()
    with Store.open(path) as store:
        rows = store.select("SELECT webhook, status, changed_by, reason, target FROM webhooks ORDER BY 1")
        where = "https://a.example/..."
        assert [tuple(row) for row in rows] == [
            ("off", "disabled", "gateway", "410", where),
            ("on", "active", "ann", "", where),
            ("waits", "paused", "ben", "moves", where),
        ]
        [watched] = store.select("SELECT watch, watches, firing, value FROM watches")
        assert tuple(watched) == ("deep", "depth above 1", 1, 2.0)
        assert read_hooks(store.select, 1, OTHER).webhooks == {"off": 1, OTHER: 0}
        figures = read_figures(store, 10, datetime.now(UTC))
        found: dict[str, Any] = {
            metric.name: {tuple(each.labels.values()): each.value for each in metric.samples}
            for metric in figures_metrics(figures, ledger.clock.now())
        }
    assert found["jobledger_webhook_disabled"] == {("off",): 1, ("on",): 0, ("waits",): 0}
    assert found["jobledger_watch_firing"] == {("deep",): 1}
