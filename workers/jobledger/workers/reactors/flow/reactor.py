"""The reactor of the limits as a worker hosts it: idle, but in the two workers whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobledger.ledger.client import Ledger
from jobledger.workers.reactors.flow.options import FlowOptions
from jobledger.workers.reactors.flow.seats import Seats
from jobledger.workers.reactors.flow.session import Session
from jobledger.workers.services import outlive


class FlowReactor:
    """Gives slots of limits to jobs that wait for them; every worker process runs one, two of them do something."""

    name = "flow"

    def __init__(
        self, ledger: Ledger, identity: Callable[[], str], options: FlowOptions | None = None
    ) -> None:
        """`identity`: the name under which this worker holds its lease at this moment."""
        self._ledger = ledger
        self._options = options or FlowOptions()
        self._seats = Seats(ledger, identity)
        self.session: Session | None = None  #: while this worker hosts it

    @property
    def is_quiet(self) -> bool:
        """Whether nobody waits here for slots that are free, as far as is known: all of it where others host this."""
        if self._seats.identity not in self._seats.fleet.candidates:
            return False  # it did not look yet
        return not self._seats.is_host or (self.session is not None and self.session.is_quiet)

    async def run(self) -> None:
        """Host it whenever it is this worker's turn, until cancelled.

        Raises: LedgerError, after which it begins anew.
        """
        name = f"the watch for the turn of reactor {self.name}"
        watching = asyncio.create_task(outlive(self._ledger.connection, name, self._seats.watch), name=name)
        try:
            while True:
                while not self._seats.is_host:
                    self._seats.changed.clear()
                    await self._seats.changed.wait()
                self.session = Session(self._ledger, self._seats, self._options)
                try:
                    await self.session.run()
                finally:
                    self.session = None
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
