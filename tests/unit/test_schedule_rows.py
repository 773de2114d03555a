"""What is read of the tables about schedules."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from jobledger.projections.tables.schedules import last_failure


def test_the_newest_failure_is_of_a_job_of_this_schedule_and_of_no_other_one() -> None:
    ticks = (
        "report-20260301T120000Z",
        "report-20260301T120005250000Z",
        "report-2-20260401T120000Z",
        "report-20260301T1200067Z",
        "report-manual-9",
    )
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE jobs (id, tick, error_type, error, updated_at)")
    for tick in ticks:
        connection.execute("INSERT INTO jobs VALUES (?, ?, 'ValueError', 'why', 'then')", (tick, tick))

    def select(sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return connection.execute(sql, values).fetchall()

    found = [last_failure(select, name) for name in ("report", "report-2", "repor")]
    connection.close()
    assert [each and each.job for each in found] == [ticks[1], ticks[2], None]
