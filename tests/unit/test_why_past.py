"""What a job waited for at a past moment: nothing is said that only now is true, or that nobody can know."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.histories import SteppedClock, act, ref_of
from tests.support.tables import each_row

from jobledger.audit.why import Facts, explain
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def history(*steps: str) -> list[StoredEvent]:
    log, clock = MemoryLog(clock=SteppedClock()), SteppedClock()
    for step in steps:
        assert await act(log, 1, step, clock)
    return await log.read_chain(log.names.chain(ref_of(1)))


@each_row(
    "steps, sentence",
    [
        (("claim",), "it stood in queue queue-1 (normal); which workers lived then is not known"),
        (("claim", "claim"), "whether that worker lived then is not known"),
        (("claim", "claim", "fail"), "it is tried again at"),
        (("enqueue_later",), "it is not due before"),
        (("enqueue_held",), "it waits for its limits (smtp, tenant:t1) to admit it"),
    ],
)
async def test_a_past_answer_says_what_cannot_be_known(steps: tuple[str, ...], sentence: str) -> None:
    events = await history(*steps)
    job = fold(events).job
    assert job is not None
    for late in (timedelta(), timedelta(hours=2)):  # also where a time had come, and nothing had happened yet
        found = explain(job, Facts(now=events[-1].stored_at + late, is_past=True))
        assert sentence in found.sentence
        assert found.hint == ""
        for of_now in ("no worker serves", "runs nowhere", "is a worker running", "its worker is starting"):
            assert of_now not in found.sentence
