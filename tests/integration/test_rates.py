"""How well and how fast jobs went: the same as the totals of the same time say, by queue and by task."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.histories import BEGIN, SteppedClock, memory_history
from tests.support.projections import finish

from jobledger.admin.lists.stats import SpanRates, stats
from jobledger.admin.rows import View
from jobledger.projections import Histogram, ProjectionConfigError, Store
from jobledger.projections.statistics.answers import Statistics
from jobledger.projections.statistics.rates import Rates, quantiles

pytestmark = pytest.mark.anyio
DAY = timedelta(days=1)


def of_totals(name: str, rows: list[Statistics]) -> Rates:
    completed, failed = sum(row.completed for row in rows), sum(row.failed for row in rows)
    return Rates(
        name=name,
        enqueued=sum(row.enqueued for row in rows),
        completed=completed,
        failed=failed,
        dead_lettered=sum(row.dead_lettered for row in rows),
        success_rate=completed / (completed + failed) if completed + failed else None,
        wait=quantiles(Histogram.merged(row.wait for row in rows)),
        run=quantiles(Histogram.merged(row.run for row in rows)),
    )


async def test_rates_are_what_the_totals_add_up_to(tmp_path: Path) -> None:
    await finish(await memory_history(3, jobs=40, steps=600), tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        view, totals = View(store, SteppedClock().now(), 1), store.totals()

        async def told(queue: str | None = None) -> SpanRates:
            return await stats(view, BEGIN - DAY, BEGIN + DAY, queue=queue)

        found = await told()
        for name, rates in (("queue", found.queues), ("task", found.tasks)):
            names = sorted({getattr(row, name) for row in totals})
            assert [each.name for each in rates] == names
            assert rates == [
                of_totals(each, [row for row in totals if getattr(row, name) == each]) for each in names
            ]
        assert sum(each.completed for each in found.spans) == sum(row.completed for row in totals)
        assert any(each.success_rate not in (None, 0.0, 1.0) for each in found.queues)
        assert any(each.wait.p99_s for each in found.queues)
        assert (await told("queue-1")).queues == [each for each in found.queues if each.name == "queue-1"]
        some = await stats(
            view, BEGIN - DAY, BEGIN + DAY, visible_queues=("*-[12]",), visible_tasks=("none",)
        )
        assert (some.queues, some.tasks, some.spans) == ([], [], [])
        assert (await stats(view, BEGIN - DAY, BEGIN - DAY / 2)).queues == []
        with pytest.raises(ProjectionConfigError):
            await stats(view, BEGIN, BEGIN + DAY, step_s=61)


def test_nothing_merged_is_nothing() -> None:
    nothing = Histogram.merged([])
    assert (nothing.count, nothing.sum_s, nothing.quantile_s(0.5)) == (0, 0.0, None)
