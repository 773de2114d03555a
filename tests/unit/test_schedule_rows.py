"""What is read of the tables about schedules."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from jobledger.projections.tables.schedules import TICKS_SHOWN, last_failure, last_ticks


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


def test_the_last_ticks_are_the_newest_with_how_late_they_came_and_what_became_of_them() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE TABLE jobs (tick, queue, task, id, status, error_type, created_at, completed_at)"
    )
    row = ("mail", "send", "j", "dead_lettered", "ValueError", "2026-03-01T12:00:07.500000Z", None)
    ticks = [f"report-20260301T1200{second:02}Z" for second in range(TICKS_SHOWN - 2)]
    ticks += ["report-20260301T120005250000Z", "report-20260228T120000Z", "report-20260227T120000Z"]
    for tick in [*ticks, "report-manual-9", "report-2-20260301T120000Z"]:
        connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (tick, *row))

    def select(sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return connection.execute(sql, values).fetchall()

    found, none = last_ticks(select, "report"), last_ticks(select, "repor")
    connection.close()
    assert (len(found), none) == (TICKS_SHOWN, [])
    assert [each.tick[:19] for each in found] == sorted((each.tick[:19] for each in found), reverse=True)
    assert (found[0].tick[:19], found[0].late_s) == ("2026-03-01T12:00:07", 0.5)
    assert 2.25 in {each.late_s for each in found}
    assert found[-1].tick[:10] == "2026-02-28"
    first = found[0]
    assert (first.queue, first.job, first.status, first.error_type) == (
        "mail",
        "j",
        "dead_lettered",
        "ValueError",
    )
