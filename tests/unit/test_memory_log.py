"""A MemoryLog as a copy of another: the same ledger up to a moment, and from then on its own."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.log_entries import chain_of, entry, event, fill

from jobledger.ledger.model.errors import LedgerFullError, WrongSequenceError
from jobledger.ledger.model.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def test_a_copy_holds_what_the_other_held_then_and_both_go_their_own_way() -> None:
    log = MemoryLog()
    written = await fill(log, 5)
    copy = MemoryLog()
    copy.copy_from(log, through=3)
    assert (await copy.head()).last_sequence == 3
    assert (await copy.head()).stored_bytes == sum(len(data) for data in written[:3])
    assert [await copy.get(number) for number in (1, 2, 3, 4)] == [
        *[await log.get(n) for n in (1, 2, 3)],
        None,
    ]
    await copy.append([entry(copy, 0, event("other"))])
    assert (await log.head()).last_sequence == 5
    assert await log.last(chain_of(log, "other")) is None


async def test_a_copy_keeps_conditions_purges_and_its_own_limit() -> None:
    log = MemoryLog()
    await log.append([entry(log, 0, event("kept"))])
    await fill(log, 2)
    limit = (await log.head()).stored_bytes
    copy = MemoryLog(stored_bytes_max=limit)
    copy.copy_from(log)
    with pytest.raises(WrongSequenceError):
        await copy.append([entry(copy, 0, event("kept"))])
    with pytest.raises(LedgerFullError):
        await copy.append([entry(copy, 0, event("new"))])
    await log.purge(2)
    copy.copy_from(log)
    assert await copy.head() == msgspec.structs.replace(await log.head(), bytes_max=limit)
    assert await copy.get(2) is None
    assert await copy.last(chain_of(copy, "kept")) is None
