"""The lanes of a worker, and the choice of the next one to ask: slots in proportion to the weights of their queues.

A lane is one queue at one priority. The cost here is the same for three lanes as for three thousand.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Final

from jobledger.ledger.model.events import Priority
from jobledger.ledger.nats.pull import PullConsumer

_CREDIT_MAX: Final = 10_000.0


class Lane:
    """One queue at one priority: a durable consumer, and the state of requests to it."""

    def __init__(self, queue: str, priority: Priority, weight: int, consumer: PullConsumer) -> None:
        self.queue = queue
        self.priority: Priority = priority
        self.weight = weight
        self.credit = 0.0  #: slots that the other lanes of its priority owed it at its last turn
        self.consumer = consumer
        self.empty = False  # it had no message at the last request
        self.lost = True  # the consumer has to be looked for
        self.look_at = 0.0  # the earliest loop time of the next search for it
        self.ack_wait_s = math.inf  # the consumer's ack wait, once it is known
        self.moved = False  # a delivery of this lane came after its newest note
        self.settled = 0  # the floor that this worker noted last
        self.turn: tuple[float, int, Lane] | None = None  # its entry among the turns in `Tier`

    @property
    def may_be_asked(self) -> bool:
        """Whether a request can be made, because none waits at the server."""
        return not (self.lost or self.consumer.standing) and bool(self.consumer.free)


class Tier:
    """The lanes of one priority that may be asked at this moment: those known to be empty, and the others in turns."""

    def __init__(self) -> None:
        self.empty: dict[Lane, None] = {}  #: lanes without a message at the last request
        self._turns: dict[int, list[tuple[float, int, Lane]]] = {}  # heaps by weight
        self._lanes = 0  # number of lanes in turns
        self._weights = 0  # sum of their weights
        # Slots owed to a weight of 1 so far. A lane's credit is its weight times this, plus a number of its own: so a
        # turn of one lane changes no other, and the order among lanes of one weight never changes.
        self._owed = 0.0
        self._numbers = itertools.count()
        self._is_odd = False

    def __bool__(self) -> bool:
        """Whether there is a lane that may be asked."""
        return bool(self._lanes or self.empty)

    def place(self, lane: Lane, *, may_be_asked: bool = True) -> None:
        """Put a lane where it belongs now, or nowhere."""
        if lane.turn is not None and not (may_be_asked and not lane.empty):
            lane.credit = self._credit(lane)
            lane.turn = None
            self._lanes -= 1
            self._weights -= lane.weight
        if may_be_asked and lane.empty:
            self.empty[lane] = None
            return
        self.empty.pop(lane, None)
        if may_be_asked and lane.turn is None:
            self._lanes += 1
            self._weights += lane.weight
            self._give_turn(lane)

    def next(self, wanted: int) -> tuple[Lane, int]:
        """Return the next lane in turns, and for how many of `wanted` free slots to ask it; there must be one.

        Deficit round robin: a lane that is asked then owes that number to the others by their weights, so over time
        slots are in proportion to the weights, for one free slot at a time as for a hundred at once.
        """
        lane = self._first()
        if self._lanes == 1:
            return lane, wanted
        credit = self._credit(lane)
        amount = min(wanted, max(1, round(wanted * lane.weight / self._weights), int(credit)))
        self._owed += amount / self._weights
        lane.credit = max(credit + amount * lane.weight / self._weights - amount, -_CREDIT_MAX)
        self._give_turn(lane)
        return lane, amount

    def next_of_all(self, wanted: int) -> tuple[Lane, int]:
        """Return as `next`, but every other time a lane that was empty."""
        self._is_odd = not self._is_odd
        if not self.empty or (self._lanes and self._is_odd):
            return self.next(wanted)
        lane = next(iter(self.empty))
        self.empty[lane] = self.empty.pop(lane)  # the other empty lanes come first now
        return lane, wanted

    def _first(self) -> Lane:
        """Return the lane that is owed most; of equal ones the one that waits longest."""
        heads: list[Lane] = []
        for turns in self._turns.values():
            while turns and turns[0][2].turn is not turns[0]:
                heapq.heappop(turns)
            heads += [turns[0][2]] if turns else []
        return heads[0] if len(heads) == 1 else max(heads, key=self._claim)

    def _claim(self, lane: Lane) -> tuple[float, int]:
        """Return the sort key: the credit without rounding errors, then how long the lane waits."""
        return round(self._credit(lane), 6), -lane.turn[1] if lane.turn else 0

    def _give_turn(self, lane: Lane) -> None:
        lane.turn = (self._owed * lane.weight - lane.credit, next(self._numbers), lane)
        heapq.heappush(self._turns.setdefault(lane.weight, []), lane.turn)

    def _credit(self, lane: Lane) -> float:
        assert lane.turn is not None, "it waits for its turn"
        return min(self._owed * lane.weight - lane.turn[0], _CREDIT_MAX)
