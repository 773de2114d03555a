"""A log in memory that begins with stored events, each at its own stream sequence, and goes on behind them.

For `debug`: a sequence in an event still names the same event, such as the signal that a step took.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, Names


class PastLog(MemoryLog):
    """Holds chains of jobs; it is read by chain and appended to, and in no other way."""

    def __init__(self, past: Sequence[StoredEvent], *, names: Names, clock: Clock) -> None:
        """`past`: whole chains, or their beginnings, in any order."""
        super().__init__(names=names, clock=clock)
        held = sorted(past, key=lambda stored: stored.stream_sequence)
        self._past = [stored.stream_sequence for stored in held]
        newest: dict[str, int] = {}
        for stored in held:
            event = stored.event
            chain = names.chain(JobRef(queue=event.queue, job_id=event.job))
            self._store([Entry(stored.subject, stored.data, chain, newest.get(chain, 0))])
            newest[chain] = stored.stream_sequence

    def _sequence(self, index: int) -> int:
        known = len(self._past)
        return self._past[index] if index < known else (self._past[-1] if known else 0) + index - known + 1
