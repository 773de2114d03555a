"""The reactor of the limits in a worker: idle, except in the two workers whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.workers.reactors.flow.seats import Seats
from jobledger.workers.reactors.flow.turn import FlowOptions, Turn
from jobledger.workers.services import end, outlive


class FlowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one process's work for limits, at one moment."""

    hosts: bool = False  #: whether it is its turn to grant, or to follow the granting process
    granted: int = 0  #: number of jobs that it gave slots
    refused: int = 0  #: number of grants that were refused because another host was faster
    behind: int = 0  #: number of events that it has read but not folded yet


class FlowReactor:
    """Gives slots of limits to jobs that wait for them; every worker process runs one, only two are active."""

    name = "flow"

    def __init__(
        self, ledger: Ledger, identity: Callable[[], str], options: FlowOptions | None = None
    ) -> None:
        """`identity`: returns the name under which this worker holds its lease now."""
        self._ledger = ledger
        self._options = options or FlowOptions()
        self._seats = Seats(ledger, identity)
        #: The counts of earlier turns, and the present turn; set together, since another thread reads them.
        self._turns: tuple[FlowCounts, Turn | None] = (FlowCounts(), None)

    @property
    def turn(self) -> Turn | None:
        """The present turn, while this worker hosts it."""
        return self._turns[1]

    def counts(self) -> FlowCounts:
        """Return the present figures; any thread may call this."""
        before, turn = self._turns
        if turn is None:
            return before
        granted, refused = before.granted + turn.granted, before.refused + turn.refused
        return FlowCounts(hosts=True, granted=granted, refused=refused, behind=turn.behind)

    @property
    def is_quiet(self) -> bool:
        """Whether no job waits for a free slot, as far as is known; True if other workers host the reactor."""
        if self._seats.identity not in self._seats.fleet.candidates:
            return False  # nothing was read yet
        return not self._seats.is_host or (self.turn is not None and self.turn.is_quiet)

    async def run(self) -> None:
        """Host it whenever it is this worker's turn, until cancelled.

        Raises: LedgerError, after which it begins again.
        """
        name = f"the watch for the turn of reactor {self.name}"
        watching = asyncio.create_task(outlive(self._ledger.connection, name, self._seats.watch), name=name)
        try:
            while True:
                while not self._seats.is_host:
                    self._seats.changed.clear()
                    await self._seats.changed.wait()
                turn = Turn(self._ledger, self._seats, self._options)
                self._turns = (self._turns[0], turn)
                try:
                    await turn.run()
                finally:
                    done = self.counts()
                    self._turns = (FlowCounts(granted=done.granted, refused=done.refused), None)
        finally:
            await end(watching)
