"""The reactor of runs' children on a ledger in memory: the same code, handed what was stored instead of deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.nats.pull import Delivery
from jobledger.workers.bench import delivery_of
from jobledger.workers.reactors.children.ends import news_in
from jobledger.workers.reactors.children.reactor import ChildrenReactor


class ChildEnds:
    """Counts the ends of children and lets them follow their runs."""

    def __init__(self, ledger: Ledger) -> None:
        self._reactor = ChildrenReactor(ledger)
        self._at_hand: list[Delivery] = []

    def take_in(self, stored: StoredEvent) -> None:
        """Keep what concerns runs and their children."""
        if news_in(stored.event) is not None:
            kept = self._reactor.keep(delivery_of(stored))
            assert kept is not None, "it tells news"
            self._at_hand.append(kept)

    async def act(self) -> bool:
        """React to the events that are kept; return whether one was done with, so that the log is to be read again."""
        some, self._at_hand = self._at_hand, []
        outcomes = await asyncio.gather(*map(self._reactor.react, some), return_exceptions=True)
        self._at_hand = _left(some, outcomes)
        return len(self._at_hand) < len(some)


def _left(some: Sequence[Delivery], outcomes: Sequence[object]) -> list[Delivery]:
    """Return those to try again, such as an end in a batch whose run has not begun. Raises: any other error."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, WrongSequenceError):
            raise outcome
    return [each for each, outcome in zip(some, outcomes, strict=True) if outcome is not None]
