"""What happens to jobs with limits while a worker hosts their reactor: read `Turn.run` and `Turn._round` from the top.

A turn begins at the newest snapshot (`start`). Then it folds the events that came (`fold`), decides who gets slots
(`Granter.decide`, in the model), appends `granted` on condition that no other reactor did (`chain`), and has each granted
job queued (`admission`). A granted job that nobody queued, or no worker claims, is found by `unclaimed`; what a limit's
mode cancels is cancelled by `cancels`. A snapshot spares the next turn the events before it (`snapshots`).

There is no election: the reactor whose `granted` was accepted last leads. The other follows, and grants where it was
possible for a second and nobody did; so it takes over from one that died, froze or is cut off.
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
from jobledger.workers.reactors.flow.unclaimed import Slot, UnclaimedSlots
from jobledger.workers.services import end

logger = logging.getLogger("jobledger.workers.reactors.flow.turn")

_CLAIM_WITHIN_S: Final = 60.0
_SNAPSHOT_EVENTS: Final = 20_000
_SNAPSHOT_S: Final = 3600.0
_POLITE_S: Final = 1.0
#: How often holders are looked at, and a follower looks whether something is left undone.
_TICK_S: Final = 0.25
#: The most messages that are read and not folded yet; then reading waits.
_ARRIVED_MAX: Final = 20_000
#: Folded in one go, before other tasks of the worker have their turn.
_FOLDED_AT_ONCE: Final = 1_000
#: How long another reactor's `granted`, for which ours was refused, may take to arrive.
_HEARD_WITHIN_S: Final = 10.0
_FULL_PAUSE_S: Final = 1.0
#: Holders that have not started are asked for again after this time.
_ASK_AGAIN_S: Final = 0.02


class FlowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times and sizes; the defaults are what production has."""

    claim_within_s: float = (
        _CLAIM_WITHIN_S  #: how long a job keeps its slots without being claimed by a worker
    )
    polite_s: float = _POLITE_S  #: how long a follower waits for grants that are due before it grants itself
    snapshot_events: int = _SNAPSHOT_EVENTS  #: events read between two snapshots
    snapshot_s: float = _SNAPSHOT_S  #: seconds between two snapshots, where anything was stored meanwhile


class Turn:
    """The time in which one worker hosts the reactor of the limits, until another worker is to."""

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
        #: Since when a follower knows of something that could be granted.
        self._undone_since: float | None = None
        self._done_at = ledger.clock.monotonic()  # when nothing was left to grant, as a follower saw it last
        self._heard_at = 0.0  # when another's `granted` was heard last
        self._tick_at = 0.0
        self._tending: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._started: list[JobKey] = []  # holders that were found to have started
        self._folded_at_snapshot = 0
        self._snapshot_at = 0.0
        self._is_tidy = True  # no old state of a snapshot is left to remove before the next snapshot
        self.is_quiet = False  #: nothing that was read can be granted, and all that was granted is queued
        self.refused = 0  #: grants of ours that came second
        self.granted = 0  #: jobs that were granted here

    @property
    def behind(self) -> int:
        """How many events were read and are not folded yet."""
        return len(self._arrived)

    async def run(self) -> None:
        """Serve until it is not this worker's turn any more.

        Raises: LedgerError; what was granted and not queued is found by whoever begins next.
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
        """Read up to the end, and note the holders of slots: perhaps nobody has queued them yet."""
        await begin(self._ledger, self._chain, self._folding)
        known = ((key, each) for key, each in self._granter.holders.jobs.items() if each.grant)
        for (queue, job), holding in list(known):
            granted = GrantedJob(queue=queue, job=job, held=holding.held)
            self._unclaimed.add(Slot(granted, holding.grant, 0.0, is_first=False), is_ours=False)
        self._note_snapshot()

    async def _read(self) -> None:
        """Read what comes from now on, for as long as it is folded about as fast."""
        async with contextlib.aclosing(read(self._ledger, self._folding.position + 1, None)) as batches:
            async for batch in batches:
                self._arrived += batch
                self._news.set()
                while len(self._arrived) > _ARRIVED_MAX:
                    self._taken.clear()
                    await self._taken.wait()

    async def _round(self) -> None:
        """Fold what came, grant what can be granted, look after the rest now and then, and wait for more."""
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
        """Grant what can be granted now; return after how many seconds to look again by itself.

        Raises: UnreachableError, and what else `Log.append` raises: it is not known then what is stored.
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
        if decision.wake_at is None or self._seats.is_clock_wrong:  # then rates stand still, as `_now` does
            return _TICK_S
        return min(_TICK_S, max(0.001, (decision.wake_at - self._ledger.clock.now()).total_seconds()))

    async def _append(self, decision: Decision, jobs: tuple[GrantedJob, ...]) -> int | None:
        """Append what was decided, and return its stream sequence; None where it was taken back.

        Where another reactor was faster, wait for what that one did. Raises: as `_grant`.
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
        """Follow whoever leads, or take a snapshot where one is due, and begin to look after holders of slots."""
        if not self._leads():
            await self._follow_politely()
        elif self._chain.view.state is not None and await self._is_snapshot_due():
            await self._snapshot()
        if self._tending is None or self._tending.done():
            if self._tending is not None:
                self._tending.result()
            self._tending = asyncio.create_task(self._tend(), name="reactor flow tends")

    async def _tend(self) -> None:
        """Look after holders that nobody runs, and after what could not be stored."""
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

    # What is noted of what was folded and granted.

    def _on_folded(self, message: Message, granted: Granted | None) -> None:
        """Keep the `held` of a job that waits, forget one that left, and note what another reactor granted."""
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
        """Return the present time, but never one before that of the chain's newest event.

        Rates are counted by it, so it stands still while this machine's clock and the server's are too far apart.
        """
        now, state = self._ledger.clock.now(), self._chain.view.state
        if state is None:
            return now
        return state.at if self._seats.is_clock_wrong else max(now, state.at)

    def _ask(self, jobs: Sequence[JobKey]) -> None:
        """Begin to see which of these holders have started: a rate waits for them."""
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

    # Two reactors.

    def _leads(self) -> bool:
        """Whether this reactor leads: it granted last, or the one that did is gone and this one is the first host."""
        hosts, author = self._seats.fleet.hosts, self._chain.author
        if author in hosts:
            return author == self._seats.identity
        return hosts[:1] == (self._seats.identity,)

    async def _follow_politely(self) -> None:
        """Grant where something could be granted for a while and nobody did."""
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
        """Wait until what came before a refused event was read and folded."""
        known = self._chain.view.last_sequence
        try:
            async with asyncio.timeout(_HEARD_WITHIN_S):
                while self._chain.view.last_sequence == known:
                    await self._news.wait()
                    self._fold_some()
        except TimeoutError as error:
            message = f"what another reactor granted did not arrive within {_HEARD_WITHIN_S:g} s"
            raise ServerUnreachableError(message) from error

    # Snapshots.

    async def _open_chain(self) -> bool:
        """Begin the chain of grants where jobs wait; return whether it has begun."""
        return bool(len(self._granter.lines)) and await self._snapshot()

    async def _is_snapshot_due(self) -> bool:
        """Whether enough events were read, or enough time went by with anything stored, since the newest snapshot."""
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
                return False  # the other reader brings it in a moment
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
