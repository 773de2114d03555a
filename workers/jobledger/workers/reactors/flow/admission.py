"""The way from `granted` to `queued`: each granted job gets its work item, by a plain append of its own."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model import codec
from jobledger.ledger.model.chain import JobView, link, transact
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Dispatch
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import LedgerError, NotFoundError, RefusedError, WrongSequenceError
from jobledger.ledger.model.events import Held
from jobledger.ledger.model.job import evolve
from jobledger.ledger.model.limits.flow import GrantedJob
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.reactors.flow.log_once import ToldOnce
from jobledger.workers.services import end

logger = logging.getLogger("jobledger.workers.reactors.flow.admission")

#: Most bytes of `held` events in memory, so that the chains of their jobs need not be read; others are read at the
#: grant.
_KEPT_BYTES_MAX: Final = 24 << 20
_KEPT_COST: Final = 250  # bytes of an entry beside those of its event, about
_CHAINS_AT_ONCE: Final = 64
#: Most appends in flight.
_IN_FLIGHT_MAX: Final = 2_000


class _KeptSlot(msgspec.Struct, frozen=True, gc=False):
    data: bytes
    stream_sequence: int


class Admitter:
    """Appends `queued` for granted jobs; several may do so, since each append is conditional on the job's chain."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[tuple[str, str], _KeptSlot] = {}
        self._kept_bytes = 0
        self._turns = asyncio.Semaphore(_CHAINS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._room = asyncio.Event()
        self._room.set()
        #: Granted jobs whose `queued` could not be stored yet, with their grants.
        self.owed: dict[GrantedJob, int] = {}
        self.admitted = 0  #: number of `queued` events that were stored here
        self._trouble = ToldOnce(
            logger,
            "jobs that have their slots could not be queued, %s first: %s; tried again until they are",
        )

    def keep(self, stored: StoredEvent) -> None:
        """Keep a job's `held` event until the job is granted or let go."""
        data, event = stored.data, stored.event
        total = self._kept_bytes + len(data) + _KEPT_COST
        if total <= _KEPT_BYTES_MAX and not event.prev:
            self._kept[event.queue, event.job] = _KeptSlot(data, stored.stream_sequence)
            self._kept_bytes = total

    def let_go(self, queue: str, job: str) -> None:
        """Forget a job that does not wait any more."""
        kept = self._kept.pop((queue, job), None)
        if kept is not None:
            self._kept_bytes -= len(kept.data) + _KEPT_COST

    @property
    def is_busy(self) -> bool:
        """Whether a granted job is not queued yet."""
        return bool(self._in_flight or self._tasks or self.owed)

    async def room(self) -> None:
        """Wait until there is room for an append."""
        while self._in_flight >= _IN_FLIGHT_MAX:
            self._room.clear()
            await self._room.wait()

    def admit(self, granted: GrantedJob, grant: int) -> None:
        """Begin to append the job's `queued`; the outcome is handled later."""
        kept = self._kept.get((granted.queue, granted.job))
        self.let_go(granted.queue, granted.job)
        if kept is None or kept.stream_sequence != granted.held:
            self.redrive(granted, grant)
            return
        event = codec.decode(kept.data, stream_sequence=kept.stream_sequence)
        assert isinstance(event, Held), "what is kept is `held`"
        view = JobView(evolve(None, event, kept.stream_sequence), kept.stream_sequence, kept.data)
        command = Dispatch(cause="admitted", asked_by=granted.held, grant=grant)
        events = decide(view.job, command, self._ledger.stamp())
        self._in_flight += 1
        outcome = self._ledger.log.submit(link(view, events, self._ledger.names).entries)
        outcome.add_done_callback(functools.partial(self._on_outcome, granted, grant))

    def _on_outcome(self, granted: GrantedJob, grant: int, outcome: asyncio.Future[int]) -> None:
        self._in_flight -= 1
        self._room.set()
        if outcome.cancelled():
            return
        error = outcome.exception()
        if error is None:
            self._on_admitted()
        elif isinstance(error, WrongSequenceError):
            self.redrive(granted, grant)  # cancelled meanwhile, or carried over by an archive run
        else:
            self._owe(granted, grant, error)

    def redrive(self, granted: GrantedJob, grant: int) -> None:
        """Begin to append the job's `queued` to its present chain, unless another process did."""
        task = self._ledger.connection.loop.create_task(self._redrive(granted, grant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _redrive(self, granted: GrantedJob, grant: int) -> None:
        ref = JobRef(queue=granted.queue, job_id=granted.job)
        command = Dispatch(cause="admitted", asked_by=granted.held, grant=grant)
        try:
            async with self._turns:
                await transact(self._ledger.log, ref, command, self._ledger.stamp)
        except (NotFoundError, RefusedError):
            self.owed.pop(
                granted, None
            )  # it is queued already, or ended its wait: then its own event gave the slot back
        except LedgerError as error:
            self._owe(granted, grant, error)
        else:
            self.owed.pop(granted, None)
            self._on_admitted()

    def _on_admitted(self) -> None:
        self.admitted += 1
        self._trouble.went_well()

    def _owe(self, granted: GrantedJob, grant: int, error: BaseException) -> None:
        self._trouble.failed(granted.job, error)
        self.owed[granted] = grant

    def try_again(self) -> None:
        """Try appends again that failed before."""
        owed, self.owed = self.owed, {}
        for granted, grant in owed.items():
            self.redrive(granted, grant)

    async def close(self) -> None:
        """Stop the appends; another reactor finds the jobs that are left."""
        await end(*self._tasks)
