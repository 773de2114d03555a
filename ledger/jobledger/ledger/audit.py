"""Checking a whole ledger: every event read once, in stream order, and what the consumers of work still hold.

`Checker` does the checking and knows nothing of servers; `verify` feeds it from a log and goes on behind what
cannot be read; `leftovers` asks the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from jobledger.ledger.audit_checker import TIMER_TOLERANCE_S, VIOLATIONS_MAX, Checker, Expected, Leftover
from jobledger.ledger.audit_report import Report, Violation
from jobledger.ledger.codec import Message
from jobledger.ledger.errors import CorruptLedgerError, InvalidInputError, LedgerError
from jobledger.ledger.inbox import Inbox
from jobledger.ledger.log import Log
from jobledger.ledger.streams import api
from jobledger.ledger.subjects import Names

__all__ = ["Checker", "Expected", "Leftover", "Report", "Violation", "leftovers", "verify"]

#: Places that cannot be read, after which `verify` stops: this is no ledger any more.
UNREADABLE_MAX: Final = 1_000
_ASK_AGAIN_S: Final = 0.1


async def verify(
    log: Log,
    *,
    from_sequence: int = 1,
    to_sequence: int | None = None,
    expected: Expected | None = None,
    before: Report | None = None,
    timer_tolerance_s: float = TIMER_TOLERANCE_S,
    violations_max: int = VIOLATIONS_MAX,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a ledger up to `to_sequence`, or to its head as it is now; what was found is in the report.

    What cannot be read is a violation, and the check goes on behind it. `on_progress` gets the sequence reached and
    the last one, after each batch.

    Raises: InvalidInputError, UnreachableError.
    """
    checker = Checker(
        log.names,
        from_sequence=from_sequence,
        timer_tolerance_s=timer_tolerance_s,
        violations_max=violations_max,
        before=before,
    )
    if to_sequence is not None and to_sequence < from_sequence - 1:
        raise InvalidInputError(f"to_sequence is {to_sequence}, before from_sequence {from_sequence}")
    if to_sequence is not None and before is not None and to_sequence < before.head_sequence:
        sentence = f"to_sequence is {to_sequence}, and the earlier report goes up to {before.head_sequence}"
        raise InvalidInputError(sentence)
    head = (await log.head()).last_sequence
    last = head if to_sequence is None else to_sequence
    unreadable = 0
    while checker.next_sequence <= min(last, head) and unreadable < UNREADABLE_MAX:
        position = checker.next_sequence
        try:
            async for batch in _up_to(log, position, last):
                for message in batch:
                    checker.feed(message)
                if on_progress is not None:
                    on_progress(checker.next_sequence - 1, last)
            break
        except CorruptLedgerError as error:
            checker.unreadable(error)
            unreadable += 1
            if checker.next_sequence == position:
                break  # there is no way on
    if from_sequence > head + 1:
        sentence = f"the ledger ends at {head}, before {from_sequence}: it was rewound or replaced"
        checker.note("", "sequence", sentence, stream_sequence=from_sequence)
    elif checker.next_sequence <= last:
        sentence = f"stream sequence {checker.next_sequence} to {last} could not be read, the ledger's head is {head}"
        checker.note("", "sequence", sentence, stream_sequence=checker.next_sequence)
    return checker.finish(expected)


async def _up_to(log: Log, from_sequence: int, last: int) -> AsyncGenerator[list[Message], None]:
    """Yield batches from a sequence to `last`, and nothing beyond."""
    async with contextlib.aclosing(log.read_messages(from_sequence=from_sequence)) as batches:
        async for batch in batches:
            if batch[-1].stream_sequence < last:
                yield batch
                continue
            yield [message for message in batch if message.stream_sequence <= last]
            return


async def leftovers(inbox: Inbox, names: Names, *, within_s: float = 0.0) -> list[Leftover]:
    """Ask the server what the work consumers of the ledger still hold; [] is as it should be when all is done.

    Acknowledgements are sent without waiting for an answer: `within_s` asks again for so long while anything is left.

    Raises: LedgerError, UnreachableError.
    """
    deadline = time.monotonic() + within_s
    while True:
        found = [left async for left in _work_consumers(inbox, names) if left.pending or left.ack_pending]
        if not found or time.monotonic() >= deadline:
            return found
        await asyncio.sleep(_ASK_AGAIN_S)


async def _work_consumers(inbox: Inbox, names: Names) -> AsyncGenerator[Leftover, None]:
    offset = 0
    while True:
        answer = await api(inbox, f"CONSUMER.LIST.{names.ledger_stream}", {"offset": offset})
        if "error" in answer:
            raise LedgerError(f"the consumers cannot be listed: {answer['error'].get('description', '?')}")
        page: list[dict[str, Any]] = answer.get("consumers") or []
        for info in page:
            if str(info["name"]).startswith("work_"):
                yield Leftover(
                    consumer=info["name"], pending=info["num_pending"], ack_pending=info["num_ack_pending"]
                )
        offset += len(page)
        if not page or offset >= int(answer.get("total", 0)):
            return
