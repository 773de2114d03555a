"""What somebody did at once to many jobs is one group of acts, and nothing else is."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

from jobledger.projections import ActFilter, ActRow
from jobledger.projections.queries.letters import group_acts

_BEGIN = datetime(2026, 1, 1, 8, tzinfo=UTC)


def act(
    seconds: float, job: str, *, by: str = "ann", name: str = "cancel", reason: str = ""
) -> dict[str, Any]:
    at = (_BEGIN + timedelta(seconds=seconds)).isoformat()
    return {"at": at, "by": by, "act": name, "job": job, "reason": reason}


def grouped(
    *acts: dict[str, Any], limit: int = 50, acts_max: int = 1_000, together: bool = True
) -> tuple[list[str], int]:
    """Return the groups in words, the newest first, and how many acts they are."""
    connection = sqlite3.connect(":memory:")
    columns = ", ".join((*ActRow.__struct_fields__, "unsure"))
    connection.execute(f"CREATE TABLE acts ({columns})")
    for number, each in enumerate(acts, start=1):
        row = {"stream_sequence": number, "queue": "mail" if each["job"] else "", "task": "send", **each}
        values = [row.get(name, 0) for name in (*ActRow.__struct_fields__, "unsure")]
        connection.execute(f"INSERT INTO acts VALUES ({', '.join('?' * len(values))})", values)
    found = group_acts(
        lambda sql, values: connection.execute(sql, tuple(values)).fetchall(),
        ActFilter(),
        limit=limit,
        together=together,
        acts_max=acts_max,
    )
    words = [
        f"{each.newest.by} {each.newest.act} {each.count}{'' if each.is_whole else '+'}"
        for each in found.items
    ]
    return words, found.acts


def test_many_jobs_at_once_are_one_group_however_many_portions_are_read() -> None:
    acts = [act(number / 100, f"j{number}", reason="old") for number in range(169)]
    assert grouped(*acts, limit=2) == (["ann cancel 169"], 169)
    assert grouped(*acts, limit=2, together=False) == (["ann cancel 1"] * 2, 2)


def test_two_people_at_one_time_are_two_groups() -> None:
    acts = [act(number, f"j{number}", by="ann" if number % 2 else "bob") for number in range(8)]
    assert grouped(*acts) == (["ann cancel 4", "bob cancel 4"], 8)
    assert grouped(*acts, limit=1) == (["ann cancel 4"], 4)


def test_another_reason_another_act_a_pause_and_the_same_job_begin_another_group() -> None:
    for second in (act(1, "b", reason="x"), act(1, "b", name="retry"), act(12, "b"), act(1, "a"), act(1, "")):
        assert len(grouped(act(0, "a"), second)[0]) == 2, second


def test_a_group_whose_end_was_not_looked_at_says_so() -> None:
    acts = [act(number, f"j{number}") for number in range(9)]
    assert grouped(*acts, acts_max=5) == (["ann cancel 5+"], 5)
    assert grouped(act(-60, "x"), *acts, acts_max=9) == (["ann cancel 9"], 9)
