"""The work of the reactor of the limits while a worker hosts it: read `Turn.run` and `Turn._round` from the top.

A turn begins at the newest snapshot (`start`). Then it folds new events (`fold`), decides which jobs get slots
(`Granter.decide`, in the model), appends `granted` on condition that no other reactor did (`chain`), and queues each
granted job (`admission`). `unclaimed` finds granted jobs that nobody queued or that no worker claims; `cancels` cancels
jobs for a limit's mode. After a snapshot the next turn need not read the events before it (`snapshots`).

There is no election: the reactor whose `granted` was accepted last leads. The other one follows, and grants only if a
grant was possible for a second and nobody made it; so it takes over from a leader that died, froze or is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import (
    LedgerError,
    LedgerFullError,
    PermissionRefusedError,
    ServerUnreachableError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import Carried, Held
from jobledger.ledger.model.limits.flow import MAIN, Granted, GrantedJob
from jobledger.ledger.model.limits.grants import POLICY, Decision
from jobledger.ledger.model.limits.holders import JobKey
from jobledger.workers.reactors.flow.admission import Admitter
from jobledger.workers.reactors.flow.cancels import Canceller
from jobledger.workers.reactors.flow.chain import Chain
from jobledger.workers.reactors.flow.fold import GrantFold
from jobledger.workers.reactors.flow.seats import Seats
from jobledger.workers.reactors.flow.source import read
from jobledger.workers.reactors.flow.start import begin, snapshot, tidy
from jobledger.workers.reactors.flow.unclaimed_slots import Slot, UnclaimedSlots
from jobledger.workers.services import end

logger = logging.getLogger("jobledger.workers.reactors.flow.turn")

_CLAIM_WITHIN_S: Final = 60.0
_SNAPSHOT_EVENTS: Final = 20_000
_SNAPSHOT_S: Final = 3600.0
_POLITE_S: Final = 1.0
#: How often holders are checked, and a follower checks for grants that nobody made.
_TICK_S: Final = 0.25
#: The most messages that are read but not folded; beyond that reading waits.
_ARRIVED_MAX: Final = 20_000
#: Messages that are folded at once, before other tasks of the worker have their turn.
_FOLDED_AT_ONCE: Final = 1_000
#: The longest time until another reactor's `granted`, because of which ours was refused, arrives.
_HEARD_WITHIN_S: Final = 10.0
_FULL_PAUSE_S: Final = 1.0
#: Holders that have not started are checked again after this time.
_ASK_AGAIN_S: Final = 0.02


class FlowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times and sizes; the defaults are for production."""

    claim_within_s: float = (
        _CLAIM_WITHIN_S  #: how long a job keeps its slots without being claimed by a worker
    )
    polite_s: float = _POLITE_S  #: how long a follower waits for due grants before it grants itself
    snapshot_events: int = _SNAPSHOT_EVENTS  #: events read between two snapshots
    snapshot_s: float = _SNAPSHOT_S  #: seconds between two snapshots, if anything was stored meanwhile


class Turn:
    """The time in which one worker hosts the reactor of the limits, until it is another worker's turn."""

    def __init__(self, ledger: Ledger, seats: Seats, options: FlowOptions) -> None:
        self._ledger = ledger
        self._seats = seats
        self._options = options
        self._chain = Chain(ledger)
        self._admitting = Admitter(ledger)
        self._cancelling = Canceller(ledger)
        self._unclaimed = UnclaimedSlots(ledger, self._admitting, claim_within_s=options.claim_within_s)
        self._folding = GrantFold(self._chain, on_folded=self._on_folded)
        self._granter = self._folding.granter
        self._arrived: list[Message] = []  # messages that were read and are not folded yet
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        #: The time since which a follower knows of a possible grant.
        self._undone_since: float | None = None
        self._done_at = ledger.clock.monotonic()  # when a follower last saw that nothing was left to grant
        self._heard_at = 0.0  # when another reactor's `granted` was read last
        self._tick_at = 0.0
        self._tending: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._started: list[JobKey] = []  # holders that were found to have started
        self._folded_at_snapshot = 0
        self._snapshot_at = 0.0
        self._is_tidy = True  # False: an old state of a snapshot may have to be removed
        self.is_quiet = False  #: True: nothing that was read can be granted, and all granted jobs are queued
        self.refused = 0  #: number of our grants that were refused
        self.granted = 0  #: number of jobs that were granted here

    @property
    def behind(self) -> int:
        """The number of events that were read and are not folded yet."""
        return len(self._arrived)

    async def run(self) -> None:
        """Serve until it is no longer this worker's turn.

        Raises: LedgerError; the next reactor finds jobs that were granted but not queued.
        """
        try:
            await self._begin()
            reading = asyncio.create_task(self._read(), name="reactor flow reads")
            try:
                while self._seats.is_host:
                    if reading.done():
                        reading.result()
                    await self._round()
            finally:
                await end(reading, *(task for task in (self._tending, self._asking) if task is not None))
        finally:
            await self._admitting.close()
            await self._cancelling.close()
            self._folding.close()

    async def _begin(self) -> None:
        """Read up to the end, and note the holders of slots, which perhaps nobody has queued yet."""
        await begin(self._ledger, self._chain, self._folding)
        known = ((key, each) for key, each in self._granter.holders.jobs.items() if each.grant)
        for (queue, job), holding in list(known):
            granted = GrantedJob(queue=queue, job=job, held=holding.held)
            self._unclaimed.add(Slot(granted, holding.grant, 0.0, is_first=False), is_ours=False)
        self._note_snapshot()

    async def _read(self) -> None:
        """Read new events, while folding keeps up with them."""
        async with contextlib.aclosing(read(self._ledger, self._folding.position + 1, None)) as batches:
            async for batch in batches:
                self._arrived += batch
                self._news.set()
                while len(self._arrived) > _ARRIVED_MAX:
                    self._taken.clear()
                    await self._taken.wait()

    async def _round(self) -> None:
        """Fold new events, make possible grants, do the other work now and then, and wait for more events."""
        self._fold_some()
        self._folding.see(self._seats.fleet, self._ledger.clock.now())
        wake_s = _TICK_S
        if self._arrived:
            wake_s = 0.0
        elif self._leads():
            wake_s = await self._grant()
        now = self._ledger.clock.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            await self._tick()
        may_wait = not self._arrived and wake_s > 0
        self.is_quiet = may_wait and self._undone_since is None and not self._admitting.is_busy
        if may_wait:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wake_s):
                    await self._news.wait()
        else:
            await asyncio.sleep(0)

    def _fold_some(self) -> None:
        some, self._arrived = self._arrived[:_FOLDED_AT_ONCE], self._arrived[_FOLDED_AT_ONCE:]
        for message in some:
            self._folding.fold(message)
        for job in self._started:
            self._granter.started(job)
        self._started.clear()
        if not self._arrived:
            self._news.clear()
        self._taken.set()

    async def _grant(self) -> float:
        """Make the possible grants; return the seconds until the next look without an event.

        Raises: UnreachableError, and as `Log.append`: it is then not known what is stored.
        """
        await self._admitting.room()
        if self._chain.view.state is None and not await self._open_chain():
            return _TICK_S
        decision = self._granter.decide(self._now())
        self._cancelling.carry_out(decision.cancels)
        self._ask(decision.unstarted)
        if decision.grants:
            jobs = tuple(
                GrantedJob(queue=each.queue, job=each.job, held=each.held) for each in decision.grants
            )
            sequence = await self._append(decision, jobs)
            if sequence is not None:
                self._granter.confirm(sequence)
                self.granted += len(jobs)
                self._note(jobs, sequence, is_ours=True)
                for job in jobs:
                    self._admitting.admit(job, sequence)
            return 0.0
        if decision.wake_at is None or self._seats.is_clock_wrong:  # rates stand still, like `_now`
            return _TICK_S
        return min(_TICK_S, max(0.001, (decision.wake_at - self._ledger.clock.now()).total_seconds()))

    async def _append(self, decision: Decision, jobs: tuple[GrantedJob, ...]) -> int | None:
        """Append the decision, and return its stream sequence; None if it was undone.

        If another reactor was faster, wait for its events. Raises: as `_grant`.
        """
        event = Granted(
            shard=MAIN,
            by=self._seats.identity,
            at=decision.at,
            through=decision.through,
            limits_sequence=decision.limits_sequence,
            began=self._folding.began,
            jobs=jobs,
            slots=decision.slots,
            policy=POLICY,
        )
        try:
            return await self._chain.append(event)
        except WrongSequenceError:
            self.refused += 1
            self._granter.take_back()
            await self._hear()
        except LedgerFullError as error:
            self._granter.take_back()
            logger.log(self._ledger.connection.outage.level(error), "nothing is granted: %s", error)
            await asyncio.sleep(_FULL_PAUSE_S)
        return None

    async def _tick(self) -> None:
        """Follow the leader, or as the leader take a due snapshot; begin to look after holders of slots."""
        if not self._leads():
            await self._follow_politely()
        elif self._chain.view.state is not None and await self._is_snapshot_due():
            await self._snapshot()
        if self._tending is None or self._tending.done():
            if self._tending is not None:
                self._tending.result()
            self._tending = asyncio.create_task(self._tend(), name="reactor flow tends")

    async def _tend(self) -> None:
        """Look after holders that no worker runs, and after failed appends."""
        try:
            self._admitting.try_again()
            self._cancelling.try_again()
            await self._unclaimed.look()
            if not self._is_tidy:
                self._is_tidy = True
                await tidy(self._ledger, self._chain)
        except UnreachableError as error:
            logger.debug("holders of slots could not be looked at: %s", error)
        except PermissionRefusedError as error:
            logger.warning("states of old snapshots of the limits stay stored: %s", error)

    # --- Notes on folded events and grants.

    def _on_folded(self, message: Message, granted: Granted | None) -> None:
        """Keep the `held` of a waiting job, forget a job that ended its wait, and note grants of another reactor."""
        if granted is not None:
            self._undone_since = None
            self._heard_at = self._ledger.clock.monotonic()
            self._note(granted.jobs, message.stream_sequence, is_ours=False)
        elif isinstance(message, StoredEvent) and not isinstance(message.event, Carried):
            event = message.event
            if not (isinstance(event, Held) and event.cause == "new"):
                self._admitting.let_go(event.queue, event.job)
                self._unclaimed.left(event.queue, event.job)
            if isinstance(event, Held) and event.limits:
                self._admitting.keep(message)

    def _note(self, jobs: Iterable[GrantedJob], grant: int, *, is_ours: bool) -> None:
        now = self._ledger.clock.monotonic()
        for job in jobs:
            if not is_ours:
                self._admitting.let_go(job.queue, job.job)
            is_first = self._folding.is_first(job.queue, job.job)
            self._unclaimed.add(Slot(job, grant, now, is_first), is_ours=is_ours)

    def _now(self) -> datetime:
        """Return the present time, but at least that of the chain's newest event.

        Rates are counted by it, so it stands still while this machine's clock and the server's are too far apart.
        """
        now, state = self._ledger.clock.now(), self._chain.view.state
        if state is None:
            return now
        return state.at if self._seats.is_clock_wrong else max(now, state.at)

    def _ask(self, jobs: Sequence[JobKey]) -> None:
        """Begin to find out which of these holders have started, since a rate waits for them."""
        if jobs and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._see_started(jobs), name="reactor flow asks")

    async def _see_started(self, jobs: Sequence[JobKey]) -> None:
        try:
            found = await self._unclaimed.started(jobs)
        except LedgerError as error:
            logger.debug("who has started could not be looked up: %s", error)
            found = []
        if not found:
            await asyncio.sleep(_ASK_AGAIN_S)
        self._started += found
        self._news.set()

    # --- Two reactors.

    def _leads(self) -> bool:
        """Return whether this reactor leads: it granted last, or the last one is gone and this is the first host."""
        hosts, author = self._seats.fleet.hosts, self._chain.author
        if author in hosts:
            return author == self._seats.identity
        return hosts[:1] == (self._seats.identity,)

    async def _follow_politely(self) -> None:
        """Grant if a grant was possible for a while and nobody made it."""
        if self._ledger.clock.monotonic() - self._heard_at < _TICK_S:
            return  # another reactor grants, and will make due grants in a moment
        now = self._ledger.clock.monotonic()
        if not self._could_grant():
            self._undone_since = None
            self._done_at = now
            return
        if self._undone_since is None:
            self._undone_since = max(self._heard_at, self._done_at)
        if now - self._undone_since >= self._options.polite_s:
            self._undone_since = None
            await self._grant()

    def _could_grant(self) -> bool:
        if self._arrived:
            return False
        decision = self._granter.decide(self._now(), 1)
        self._cancelling.carry_out(decision.cancels)
        if decision.grants:
            self._granter.take_back()
        return bool(decision.grants)

    async def _hear(self) -> None:
        """Wait until the events before a refused one were read and folded."""
        known = self._chain.view.last_sequence
        try:
            async with asyncio.timeout(_HEARD_WITHIN_S):
                while self._chain.view.last_sequence == known:
                    await self._news.wait()
                    self._fold_some()
        except TimeoutError as error:
            message = f"what another reactor granted did not arrive within {_HEARD_WITHIN_S:g} s"
            raise ServerUnreachableError(message) from error

    # --- Snapshots.

    async def _open_chain(self) -> bool:
        """Begin the chain of grants if jobs wait; return whether it has begun."""
        return bool(len(self._granter.lines)) and await self._snapshot()

    async def _is_snapshot_due(self) -> bool:
        """Return whether a snapshot is due: after enough events, or after enough time in which anything was stored."""
        read_since = self._folding.folded - self._folded_at_snapshot
        if read_since >= self._options.snapshot_events:
            return True
        if self._ledger.clock.monotonic() - self._snapshot_at < self._options.snapshot_s or self._arrived:
            return False
        self._snapshot_at = self._ledger.clock.monotonic()
        return await self._reach_the_end() or read_since > 0

    async def _reach_the_end(self) -> bool:
        """Move the position to the ledger's end if no event up to there matters; return whether it moved."""
        folding, head = self._folding, (await self._ledger.log.head()).last_sequence
        position = folding.position
        if head <= position:
            return False
        async with contextlib.aclosing(read(self._ledger, position + 1, head)) as batches:
            async for _ in batches:
                return False  # the other reader will bring that event in a moment
        folding.position = folding.granter.through = head
        return True

    async def _snapshot(self) -> bool:
        """Append a snapshot; return whether it was accepted."""
        try:
            await snapshot(self._ledger, self._chain, self._folding, by=self._seats.identity)
        except WrongSequenceError:
            await self._hear()
            return False
        except LedgerError as error:  # grants go on without one
            logger.error("no snapshot of the limits: %s", error)  # noqa: TRY400 - a sentence
            self._note_snapshot()
            if self._chain.view.state is None:
                await asyncio.sleep(_FULL_PAUSE_S)
            return False
        self._note_snapshot()
        return True

    def _note_snapshot(self) -> None:
        self._is_tidy = False
        self._folded_at_snapshot = self._folding.folded
        self._snapshot_at = self._ledger.clock.monotonic()
