"""A state of a job has one name, which filters, columns, JSON, metrics and pages use, and one set of words."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jobledger.ledger import JobState
from jobledger.ledger.model.job import FINAL_STATES, OPEN_STATES
from jobledger.ledger.model.state_words import STATE_WORDS, state_title
from jobledger.projections import parse_search
from jobledger.projections.statistics.tables import QUEUES, TENANTS
from jobledger.projections.statistics.tally import QUEUE_COUNTS

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = [state.value for state in JobState]


def test_every_state_has_words_and_is_either_open_or_final() -> None:
    assert list(STATE_WORDS) == list(JobState)
    assert len(set(STATE_WORDS.values())) == len(NAMES)
    assert {*OPEN_STATES} | FINAL_STATES == set(JobState)
    assert not {*OPEN_STATES} & FINAL_STATES
    assert [state_title(state) for state in ("retry_wait", "queued")] == ["Retry wait", "Queued"]


def test_a_search_a_filter_and_the_columns_call_a_state_by_its_name() -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    assert [parse_search(f"state:{name}", now).states for name in NAMES] == [(name,) for name in NAMES]
    assert parse_search("state:open", now).states == tuple(OPEN_STATES)
    told = " ".join((GOLDEN / "help" / "jobs.txt").read_text(encoding="utf-8").split())
    assert f"Only jobs in this state; repeat it for more: {', '.join(NAMES)}." in told
    assert list(QUEUE_COUNTS) == NAMES
    for table in (QUEUES, TENANTS):
        assert set(NAMES) <= set(table.columns)
