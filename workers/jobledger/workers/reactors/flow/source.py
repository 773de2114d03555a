"""The events that the reactor of the limits reads, in the order of the stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.limits.definition import LIMIT
from jobledger.ledger.model.limits.flow import FLOW, MAIN
from jobledger.ledger.model.queue_pause import QUEUE
from jobledger.ledger.model.subjects import Names, aggregate_of
from jobledger.ledger.nats.ordered_reader import OrderedReader

#: Endings of the subjects of job events that matter: of held jobs, and of jobs that give slots back. Ends of jobs
#: without limits, which are far more frequent, are not among them.
_LEAVES: Final = (
    "held",
    "failed",
    "snoozed",
    "paused",
    "cancelled",
    "dead_lettered",
    "discarded",
    "carried",
    "completed.limited",
    "completed.child.*.limited",
)
_OF_JOBS: Final = frozenset(_LEAVES)
_JOB_TOKENS: Final = 5  # <root>.job.<queue>.<job>.<type and more>
#: The aggregates whose events all matter.
_OTHERS: Final = frozenset({LIMIT.name, FLOW.name, QUEUE.name})
#: Fewer events than this are read without filters, with which a server begins slowly in a ledger of very many jobs.
SHORT: Final = 20_000


def filters(names: Names) -> tuple[str, ...]:
    """Return the filters of subjects that the reactor reads; none overlaps another."""
    jobs = (names.all_of_type(leaf) for leaf in _LEAVES)
    return (*jobs, LIMIT.everything(names), FLOW.chain(names, MAIN), QUEUE.everything(names))


def matters(subject: str) -> bool:
    """Return whether a subject of the ledger matches one of `filters`."""
    tokens = subject.split(".", 4)
    if len(tokens) != _JOB_TOKENS or tokens[1] != "job":
        return aggregate_of(subject) in _OTHERS
    leaf = tokens[-1]
    return leaf in _OF_JOBS or (leaf.startswith("completed.child.") and leaf.endswith(".limited"))


async def read(ledger: Ledger, from_sequence: int, until: int | None) -> AsyncGenerator[list[Message], None]:
    """Yield the events that matter in stream order: up to `until`, or for ever; no batch is empty.

    Raises: CorruptLedgerError, UnreachableError.
    """
    is_short = until is not None and until - from_sequence < SHORT
    reader = OrderedReader(
        ledger.connection,
        ledger.inbox,
        ledger.names.ledger_stream,
        from_sequence=from_sequence,
        from_time=None,
        subject=None if is_short else filters(ledger.names),
        dense=False,
        wants=matters if is_short else None,
    )
    async with contextlib.aclosing(reader.batches(until=until)) as batches:
        async for batch in batches:
            yield batch
