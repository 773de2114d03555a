"""The hash links of a chain: each event names the sha256 of the event before it.

The one place that decides whether a link holds. A check of the whole ledger calls it for each event; code that reads a
single chain for a person calls `check_chain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.log import Log, events_among
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived
from jobledger.ledger.model.subjects import aggregate_of


def broken_link(prev: str, before: bytes | None, *, of: str = "job", age: int = 0) -> str | None:
    """Return one sentence when an event that names `prev` cannot follow the event with the sha256 `before`, else None.

    `before` is None if the event is the first of its chain, a chain of `of`. `age` is the stream sequence of the event
    before, if the sentence should name it.
    """
    if before is None:
        return f"it follows {prev!a}, and no event of its {of} is before it" if prev else None
    if prev == before.hex():
        return None
    stored = f", stored at {age}" if age else ""
    return f"it follows {prev!a}, the event before it{stored} has the hash {before.hex()}"


class Run(NamedTuple):
    """The facts of an archive run that decide which chains may begin again."""

    stream_sequence: int  #: sequence of the event that records it
    through: int  #: stream sequence up to which everything was archived


class ChainCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the links of one chain found."""

    events: int
    broken_at: int | None  #: stream sequence of the first event whose link does not hold; None: all hold
    problem: str = ""  #: one sentence on that link
    archived_before: bool = False  #: the chain begins before the ledger does: those links were not checked

    @property
    def is_unbroken(self) -> bool:
        """Whether every link that was read holds."""
        return self.broken_at is None

    def text(self) -> str:
        """Return it for a person: `chain of 10 events: unbroken`."""
        noun = "event" if self.events == 1 else "events"
        before = (
            "; the events before them lie before the ledger's beginning and were not read"
            if self.archived_before
            else ""
        )
        if self.broken_at is None:
            return f"chain of {self.events:,} {noun}: unbroken{before}"
        return f"chain of {self.events:,} {noun}: BROKEN at {self.broken_at}: {self.problem}"


def check_chain(messages: Sequence[Message], *, runs: Sequence[Run] = (), begins_at: int = 1) -> ChainCheck:
    """Check the links of one chain, all of whose events come in stream order.

    A chain may begin again where `runs` had archived all of it before. In a ledger that `begins_at` a later stream
    sequence than 1, what comes before its first event may have been archived.

    Raises: UnknownEventError, MalformedEventError.
    """
    before, age, archived_before = None, 0, False
    for message in messages:
        name, prev = _link_of(message)
        if before is None and prev and begins_at > 1:
            archived_before = True
        elif prev or before is None or not _may_begin_again(message.stream_sequence, age, runs):
            problem = broken_link(prev, before, of=name, age=age)
            if problem is not None:
                return ChainCheck(events=len(messages), broken_at=message.stream_sequence, problem=problem)
        before, age = message.sha256, message.stream_sequence
    return ChainCheck(events=len(messages), broken_at=None, archived_before=archived_before)


def _link_of(message: Message) -> tuple[str, str]:
    """Return what the chain is of, and the hash that the event names."""
    if isinstance(message, StoredEvent):
        return "job", message.event.prev
    aggregate = AGGREGATES[aggregate_of(message.subject)]
    return aggregate.name, aggregate.decode(message).prev


def _may_begin_again(stream_sequence: int, age: int, runs: Sequence[Run]) -> bool:
    return any(run.stream_sequence < stream_sequence and age <= run.through for run in runs)


async def check_history(log: Log, messages: Sequence[Message]) -> ChainCheck:
    """Check the links of one chain that was read from `log` as a whole.

    Raises: CorruptLedgerError, UnreachableError.
    """
    links = [_link_of(message)[1] for message in messages]
    begins_at = (await log.head()).first_sequence if links and links[0] else 1
    runs = await _archive_runs(log) if "" in links[1:] else ()
    return check_chain(messages, runs=runs, begins_at=begins_at)


async def _archive_runs(log: Log) -> Sequence[Run]:
    runs: list[Run] = []
    async for batch in log.read_messages(subject=REACTOR.of_type(log.names, "archived", ARCHIVE)):
        for message in events_among(batch):
            event = REACTOR.decode(message)
            if isinstance(event, Archived):
                runs.append(Run(message.stream_sequence, event.through_sequence))
    return runs
