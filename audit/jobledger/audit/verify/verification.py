"""Checking a whole ledger: every event read once, in stream order, and what the consumers of work still hold.

`Checker` does the checking and knows nothing of servers; `verify` feeds it from a log and goes on after a place that
cannot be read; `leftovers` asks the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Protocol

import msgspec

from jobledger.audit.verify.checker import Checker
from jobledger.audit.verify.options import DEFAULT_OPTIONS, CheckOptions, Expectation, Leftover
from jobledger.audit.verify.payloads import PayloadStates, PayloadWitness
from jobledger.audit.verify.references import References
from jobledger.audit.verify.report import Report
from jobledger.audit.verify.set_aside import acknowledgements
from jobledger.audit.verify.unproven import unproven
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import CorruptLedgerError, InvalidInputError, LedgerError
from jobledger.ledger.model.log import Head, Log, events_among
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived, LimitInForce
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.durables import list_consumers
from jobledger.ledger.nats.inbox import Inbox

#: The number of unreadable places at which `verify` stops: this is no ledger any more.
UNREADABLE_MAX: Final = 1_000
_ASK_AGAIN_S: Final = 0.1


class Witness(Protocol):
    """A further comparison of the ledger in the same pass."""

    def feed(self, batch: Sequence[Message]) -> None:
        """Take what was read, in stream order; what could not be read is left out."""
        ...

    async def finish(self, checker: Checker) -> None:
        """Report to the checker what does not agree (`note`), and the result of the comparison (`compared`)."""
        ...


async def verify(
    log: Log,
    *,
    from_sequence: int = 1,
    to_sequence: int | None = None,
    options: CheckOptions = DEFAULT_OPTIONS,
    expected: Expectation | None = None,
    before: Report | None = None,
    witnesses: Sequence[Witness] = (),
    payloads: Sequence[PayloadStates] = (),
    is_part: bool = False,
    acknowledging: Log | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a ledger up to `to_sequence`, or to its head as it is now; what was found is in the report.

    A place that cannot be read is a violation, and the check goes on after it. A ledger whose beginning was archived is
    checked from where it begins. `is_part`: the log is a part of a ledger by intent, as an export of a range is, so
    nothing is missing before it. `acknowledging`: the log with acknowledgements of messages that are not events, for
    a part; None: `log` itself. `payloads` are read for the large values that events refer to; without any these are
    only counted. `on_progress` gets the sequence reached and the last one, after each batch.

    Raises: InvalidInputError, ScratchSpaceError, UnreachableError, LedgerError when its beginning is archived in the
        middle of the check, and what a witness raises.
    """
    head = await log.head()
    is_whole = head.first_sequence > 1 and from_sequence in (1, head.first_sequence)
    begin = head.first_sequence if is_whole else from_sequence
    prefix_archived = is_whole and not is_part
    _check_range(begin, to_sequence, before)
    checker = Checker(
        log.names,
        from_sequence=begin,
        prefix_archived=prefix_archived,
        options=options,
        before=before,
        limits=await _limits_before(log, begin) if prefix_archived else None,
    )
    last = head.last_sequence if to_sequence is None else to_sequence
    references = References()
    witnesses = [*witnesses, PayloadWitness(references, payloads)]
    try:
        await _feed(checker, log, head, last, witnesses=witnesses, on_progress=on_progress)
        _note_missing(checker, head, begin, last)
        if checker.set_aside.unaccepted:  # somebody may have acknowledged one after the range
            async for event in acknowledgements(acknowledging or log, last + 1):
                checker.set_aside.accept(event)
        for witness in witnesses:
            await witness.finish(checker)
        report = checker.finish(expected)
        limits = unproven(report, is_part=is_part or not is_whole, has_end=to_sequence is None)
        return msgspec.structs.replace(report, not_proven=tuple(limits))
    finally:
        references.close()
        checker.close()


async def _limits_before(log: Log, begin: int) -> tuple[LimitInForce, ...] | None:
    """Return the limits in force where an archived prefix ends, as its `archived` event has them; None without one."""
    subject = REACTOR.of_type(log.names, "archived", ARCHIVE)
    async with contextlib.aclosing(log.read_messages(from_sequence=begin, subject=subject)) as batches:
        async for batch in batches:
            for message in events_among(batch):
                with contextlib.suppress(CorruptLedgerError):  # the checker reports it
                    event = REACTOR.decode(message)
                    if isinstance(event, Archived) and event.through_sequence == begin - 1:
                        return event.limits
    return None


def _note_missing(checker: Checker, head: Head, begin: int, last: int) -> None:
    """Note the stream sequences up to `last` that were not read."""
    if begin > head.last_sequence + 1:
        sentence = f"the ledger ends at {head.last_sequence}, before {begin}: it was rewound or replaced"
        checker.note("", "sequence", sentence, stream_sequence=begin)
    elif checker.next_sequence <= last:
        missing = f"{checker.next_sequence} to {last} could not be read"
        sentence = f"stream sequence {missing}, the ledger's head is {head.last_sequence}"
        checker.note("", "sequence", sentence, stream_sequence=checker.next_sequence)


def _check_range(begin: int, last: int | None, before: Report | None) -> None:
    if last is not None and last < begin - 1:
        raise InvalidInputError(f"to_sequence is {last}, before from_sequence {begin}")
    if last is not None and before is not None and last < before.head_sequence:
        raise InvalidInputError(
            f"to_sequence is {last}, and the earlier report goes up to {before.head_sequence}"
        )


async def _feed(
    checker: Checker,
    log: Log,
    head: Head,
    last: int,
    *,
    witnesses: Sequence[Witness],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Feed everything up to `last`; go on after a place that cannot be read, as long as reading advances."""
    unreadable, last = 0, min(last, head.last_sequence)
    while checker.next_sequence <= last and unreadable < UNREADABLE_MAX:
        position = checker.next_sequence
        try:
            async for batch in _up_to(log, position, last):
                for message in batch:
                    checker.feed(message)
                for witness in witnesses:
                    witness.feed(batch)
                if on_progress is not None:
                    on_progress(checker.next_sequence - 1, last)
            break
        except CorruptLedgerError as error:
            if (await log.head()).first_sequence > max(head.first_sequence, checker.next_sequence):
                sentence = "the ledger's beginning was archived while it was checked: check it again"
                raise LedgerError(sentence) from error
            checker.unreadable(error)
            unreadable += 1
            if checker.next_sequence == position:
                break  # reading does not advance


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
    """Return what the ledger's work consumers still hold, by the server; it should be [] once all work is done.

    Acknowledgements are sent without waiting for an answer: while anything is left, the server is asked again,
    for at most `within_s` seconds.

    Raises: LedgerError, UnreachableError.
    """
    deadline = time.monotonic() + within_s
    while True:
        work = (
            Leftover(consumer=info.name, pending=info.pending, ack_pending=info.ack_pending)
            for info in await list_consumers(inbox, names.ledger_stream)
            if info.name.startswith("work_")
        )
        found = [left for left in work if left.pending or left.ack_pending]
        if not found or time.monotonic() >= deadline:
            return found
        await asyncio.sleep(_ASK_AGAIN_S)
