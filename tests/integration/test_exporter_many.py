"""A scrape's price does not grow with what it does not show, and its counters outlive the events that they count."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from tests.integration.test_exporter import Scrape, exporting, scraped_at_head
from tests.support.history import write_history

from jobledger.audit.archive import Archiver, archive_deps
from jobledger.ledger import Ledger
from jobledger.ledger.metrics.exposition import scrape as scrape_of
from jobledger.ledger.model.memory import MemoryLog
from jobledger.projections import Projector, Store, counting
from jobledger.projections.metrics.figures import Figures, read_figures
from jobledger.projections.metrics.metrics import figures_metrics
from jobledger.projections.metrics.names import COUNTERS
from jobledger.projections.statistics.spread import install
from jobledger.projections.statistics.tables import ADD_FAILURES, ADD_QUEUE, add_totals
from jobledger.projections.statistics.tally import QUEUE_COUNTS, STATISTICS, is_spread

pytestmark = pytest.mark.anyio


async def test_a_scrape_of_very_many_queues_and_tasks_is_bounded_and_right(tmp_path: Path) -> None:
    """The rows are written as `add_tally` writes them: 20,000 pairs by events would take minutes."""
    path, pairs, shown = tmp_path / "p.db", 20_000, 50
    with Projector(MemoryLog(), path) as projector:
        await projector.prepare()
    chance = random.Random(4)
    rows = [
        (
            f"q{n % 4_000}",
            f"t{n}",
            tuple(None if is_spread(each) else chance.randrange(9) for each in STATISTICS),
        )
        for n in range(pairs)
    ]
    failed, dead = STATISTICS.index("failed"), STATISTICS.index("dead_lettered")
    with closing(sqlite3.connect(path)) as connection:
        install(connection)
        for start in range(0, pairs, 3_000):  # as many transactions
            add_totals(connection, rows[start : start + 3_000])
        kinds = [(q, t, f"E{n}", v[failed], v[dead]) for n, (q, t, v) in enumerate(rows)]
        connection.executemany(ADD_FAILURES, kinds)
        states = [1] * len(QUEUE_COUNTS)
        lanes = [(f"q{n}", priority, *states) for n in range(4_000) for priority in ("high", "low")]
        connection.executemany(ADD_QUEUE, lanes)
        connection.commit()
    figures, text = scrape(path, shown)
    took: list[float] = []
    for _ in range(3):
        began = time.thread_time()
        scrape(path, shown)
        took.append(time.thread_time() - began)
    # A tenth of a second on an idle machine; reading and showing every row took several.
    assert min(took) < 0.6

    found = Scrape(text)
    assert figures.folded == {
        "queue": 4_000 - shown,
        "task": pairs - shown,
        "error_type": pairs - shown,
        "limit": 0,
        "schedule": 0,
        "target": 0,
    }
    for column, measure in COUNTERS.items():
        place = STATISTICS.index(column)
        assert found.sum(measure.name) == sum(values[place] or 0 for _, _, values in rows), column
        # By queue as well, for those that are shown, and by task.
        assert found.sum(measure.name, queue="q7") == sum(v[place] or 0 for q, _, v in rows if q == "q7")
        assert found.sum(measure.name, queue="q7", task="t7") == rows[7][2][place]
    assert found.sum("jobledger_task_failures_total") == sum(v[failed] or 0 for _, _, v in rows)
    assert found.sum("jobledger_task_failures_total", error_type="E9") == rows[9][2][failed]
    assert found.sum("jobledger_queue_jobs") == 8_000 * len(states)
    assert found.sum("jobledger_queue_jobs", queue="(other)", priority="low", state="queued") == 4_000 - shown
    series = {key[0]: 0 for key in found.samples}
    for name, _ in found.samples:
        series[name] += 1
    # Each shown task, one rest for each shown queue, and one for all others.
    assert max(count for name, count in series.items() if not name.endswith("_bucket")) <= 2 * len(states) * (
        shown + 1
    )
    assert series["jobledger_jobs_completed_total"] == 2 * shown + 1
    assert all(count <= (2 * shown + 1) * 17 for name, count in series.items() if name.endswith("_bucket"))


def scrape(path: Path, shown: int) -> tuple[Figures, str]:
    with Store.open(path) as store:
        figures = read_figures(store, shown, datetime.now(UTC))
    families = _Collected(list(figures_metrics(figures, datetime.now(UTC))))
    _, text = scrape_of(families, "application/openmetrics-text; version=1.0.0")
    return figures, text.decode()


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


async def test_counters_survive_an_archive_and_the_loss_of_the_file(ledger: Ledger, tmp_path: Path) -> None:
    await write_history(ledger.log)
    async with exporting(ledger, tmp_path / "p.db") as exporter:
        before = (await scraped_at_head(exporter, ledger)).counters()
    deps = archive_deps(
        ledger,
        by="alice",
        on_progress=lambda _step, _done, _total: None,
        count=counting(ledger.log, tmp_path / "elsewhere.db"),
    )
    done = await Archiver(ledger.log, tmp_path / "archive", deps).run(datetime.now(UTC))
    assert done.jobs_archived > 0
    assert done.jobs_carried > 0
    async with exporting(ledger, tmp_path / "new.db") as exporter:
        found = await scraped_at_head(exporter, ledger)
        assert found.counters() == before
        assert found.one("jobledger_projection_begins_at_sequence") == done.first_sequence
        assert found.one("jobledger_projection_counts_begin_at_sequence") == 1
        await write_history(ledger.log, "later")
        later = (await scraped_at_head(exporter, ledger)).counters()
        assert all(later[key] >= value for key, value in before.items())
        assert later != before
