"""A log in memory that can simulate a crash of its process: stored events stay, and no append succeeds after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import StepCompleted, StepFailed
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import Names


class MortalLog(MemoryLog):
    """Kills its process when the end of a step in `crash_after` is stored, once for each of them."""

    def __init__(self, *, names: Names, clock: Clock) -> None:
        super().__init__(names=names, clock=clock)
        self.crash_after: set[str] = set()  #: keys of steps
        self.is_down = False  #: whether who worked on it is dead: nobody can append until `revive`
        self.kill: Callable[[], object] = lambda: None

    def revive(self) -> None:
        """Let the next process append."""
        self.is_down = False

    def _store(self, entries: Sequence[Entry]) -> int:
        if self.is_down:
            raise asyncio.CancelledError
        first = super()._store(entries)
        if self.crash_after:
            for number, entry in enumerate(entries, start=first):
                self._look_at(entry, number)
        return first

    def _look_at(self, entry: Entry, sequence: int) -> None:
        message = read_message(entry.subject, entry.data, sequence, self._clock.now())
        event = message.event if isinstance(message, StoredEvent) else None
        if isinstance(event, StepFailed) and event.retry_at is not None:
            return
        if isinstance(event, StepCompleted | StepFailed) and event.step in self.crash_after:
            self.crash_after.discard(event.step)
            self.is_down = True
            self.kill()
            raise asyncio.CancelledError
