"""What `jobs show --why` says of a job that is held, for each reason why it may be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.support.tables import each_row

from jobledger.audit.why_held import HeldFacts, LimitState, explain_held
from jobledger.ledger.model.events import Held
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.limits.definition import Terms

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LIMITS = ("api", "tenant:acme")


def job() -> Job:
    return evolve(None, Held(job="j", queue="q", task="t", at=NOW, by="test", limits=LIMITS), 7)


def state(limit: str, terms: Terms | None, **said: Any) -> LimitState:
    return LimitState(limit=limit, terms=terms, **said)


ROOM = state("api", Terms(slots=9), used=2)
FULL = state("tenant:acme", Terms(slots=5), used=5, holders=("q/a", "q/b", "q/c", "q/d", "q/e"))
ACME = "tenant:acme is full (5 of 5: q/a, q/b, q/c and 2 more)"
API = "api has room (2 of 9)"


@each_row(
    ("facts", "sentence", "hint"),
    [
        (HeldFacts(limits=(ROOM, FULL), place=37),
         f"{ACME}; it is number 37 of its line; {API}",
         "jobledger limits show tenant:acme"),
        (HeldFacts(limits=(FULL, state("api", None)), place=1),
         f"nobody defined limit api; it is number 1 of its line; {ACME}",
         "jobledger limits set api --slots 10"),
        (HeldFacts(limits=(state("task:t", None),), place=1), "nobody defined limit task:t; it is number 1 of its line",
         "jobledger limits set task:t --slots 10"),
        (HeldFacts(limits=(ROOM, state("tenant:acme", Terms(slots=0))), place=1),
         f"tenant:acme has 0 slots, so that none may start; it is number 1 of its line; {API}",
         "jobledger limits set tenant:acme --slots 10"),
        (HeldFacts(limits=(state("api", Terms(rate=100.0, per_s=60.0), free_at=NOW, used=3),), place=2),
         "api lets 100 per minute start, the next one at 03:04; it is number 2 of its line",
         "jobledger limits show api"),
        (HeldFacts(limits=(state("api", Terms(rate=5.0, burst=2), unstarted=2, used=2),), place=1),
         "api waits until 2 jobs that it admitted have started; it is number 1 of its line",
         "jobledger limits show api"),
        (HeldFacts(limits=(state("api", Terms(rate=5.0), unstarted=1, used=1),), place=1),
         "api waits until 1 job that it admitted has started; it is number 1 of its line",
         "jobledger limits show api"),
        (HeldFacts(limits=(ROOM,), place=3, is_open=False),
         f"no worker serves queue q, so none of its jobs is admitted; it is number 3 of its line; {API}",
         "jobledger worker --app ... --queue q"),
        (HeldFacts(limits=(ROOM,), place=3), f"2 jobs of its line come first; {API}", "jobledger limits show api"),
        (HeldFacts(limits=(ROOM,), place=1), f"{API}; it is the next of its line", "jobledger doctor"),
        (HeldFacts(limits=(ROOM,), grant=12), "its limits admitted it at stream sequence 12: it is queued in a moment", ""),
        (HeldFacts(limits=(ROOM,)), "it has just left its line", ""),
        (HeldFacts(limits=(state("api", Terms(), used=4),), place=1),
         "api has room (4); it is the next of its line", "jobledger doctor"),
    ],
)  # fmt: skip
def test_why_a_job_is_held(facts: HeldFacts, sentence: str, hint: str) -> None:
    assert explain_held(job(), facts, lambda at: f"{at:%H:%M}") == (sentence, hint)
