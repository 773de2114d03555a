"""`enqueue_many` says the truth about the inputs before the one that it stops at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from jobledger.ledger import task
from jobledger.ledger.model.errors import InvalidInputError, LedgerFullError
from jobledger.ledger.model.log import Entry
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio


@task(queue="bulk")
async def count(number: int) -> int:
    return number


async def test_those_before_a_bad_input_are_enqueued_as_the_sentence_says() -> None:
    ledger = MemoryLedger()
    with pytest.raises(InvalidInputError, match="enqueued before it: 20"):
        await ledger.enqueue_many(count, [*({"number": number} for number in range(20)), {"number": "bad"}])
    assert (await ledger.log.head()).last_sequence == 20


async def test_a_failure_of_those_before_a_bad_input_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = MemoryLedger()
    submit, accepted = ledger.log.submit, 0

    def full_after_three(entries: Sequence[Entry]) -> asyncio.Future[int]:
        nonlocal accepted
        accepted += 1
        if accepted <= 3:
            return submit(entries)
        refused: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        refused.set_exception(LedgerFullError("the ledger is full"))
        return refused

    monkeypatch.setattr(ledger.log, "submit", full_after_three)
    with pytest.raises(LedgerFullError):
        await ledger.enqueue_many(count, [*({"number": number} for number in range(20)), {"number": "bad"}])
    assert (await ledger.log.head()).last_sequence == 3
