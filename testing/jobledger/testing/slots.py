"""Limits of a ledger in memory: who is given slots next, by the rules of the reactor, at the time that the test says."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.commands import Dispatch
from jobledger.ledger.model.errors import NotFoundError, RefusedError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.limits.definition import LIMIT, Terms
from jobledger.ledger.model.limits.flow import FLOW, MAIN, Flow, FlowEvent, Granted, GrantedJob, Snapshotted
from jobledger.ledger.model.limits.grants import POLICY, Decision, Granter
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.subjects import JobRef, aggregate_of
from jobledger.ledger.nats.pauses import queue_state
from jobledger.workers.reactors.flow.cancels import cancel_command

#: The limit of a queue whose jobs take turns. One of them is let in at a time, since one job runs at a time here.
_FAIR: Final = "queue"
#: Slots of a limit that nobody defined: more than there are jobs.
_OPEN: Final = 1_000_000_000


class Slots:
    """Gives slots as the reactor does, one act after the other; what it does is read back from the log."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._granter = Granter()
        self._chain: View[Flow] = View()
        self.wake_at: datetime | None = None  #: when a rate allows the next start of a job that waits for it

    def take_in(self, message: Message) -> None:
        """Fold the next message of the log, whatever it is about."""
        sequence, kind = message.stream_sequence, aggregate_of(message.subject)
        if isinstance(message, StoredEvent):
            self._granter.job(message.event, sequence)
        elif kind == LIMIT.name:
            self._granter.limit(LIMIT.decode(message), sequence)
        elif kind == FLOW.name:
            event = FLOW.decode(message)
            self._chain = View(FLOW.evolve(self._chain.state, event, sequence), sequence, message.data)
            if isinstance(event, Granted):
                self._granter.granted(event, sequence)
        self._granter.through = sequence

    async def give(self, jobs: Mapping[JobRef, Job]) -> bool:
        """Do the next step for held jobs; return whether there was one, so that the log is to be read again.

        `jobs`: all, as they are after what was taken in.
        """
        held = {ref: job for ref, job in jobs.items() if job.state is JobState.HELD}
        if not held:
            self.wake_at = None
            return False
        return await self._admit(held) or await self._decide(held)

    async def _admit(self, held: Mapping[JobRef, Job]) -> bool:
        """Queue those that have their slots."""
        found = False
        for ref, job in held.items():
            holding = self._granter.holders.jobs.get((ref.queue, ref.job_id))
            if holding is not None and holding.held == job.wait_sequence:
                command = Dispatch(cause="admitted", asked_by=holding.held, grant=holding.grant)
                await self._ledger.execute(ref, command)
                found = True
        return found

    async def _decide(self, held: Mapping[JobRef, Job]) -> bool:
        now = self._ledger.clock.now()
        if self._chain.state is None:
            snapshot = Snapshotted(shard=MAIN, at=now, by=self._by, through=self._granter.through, low=1)
            await self._append(snapshot)
            return True
        self._see_terms()
        await self._see_queues({ref.queue for ref in held}, now)
        decision = self._granter.decide(now)
        self.wake_at = decision.wake_at
        for cancel in decision.cancels:
            with contextlib.suppress(NotFoundError, RefusedError):
                ref = JobRef(queue=cancel.queue, job_id=cancel.job)
                await self._ledger.execute(ref, cancel_command(cancel))
        if decision.grants:
            self._granter.take_back()  # the grant counts when it is read from the log
            await self._append(self._granted(decision))
        return bool(decision.grants or decision.cancels)

    def _see_terms(self) -> None:
        """Open the limits that nobody defined, and admit jobs of a fair queue one by one."""
        definitions = self._granter.definitions
        for key in [key for key in self._granter.picker.keys if key]:
            name = split(key)[0]
            definition = definitions.limits.get(name)
            is_set = definition is not None and definition.is_set
            self._granter.offer(key, None if is_set else Terms(slots=1 if name == _FAIR else _OPEN))

    async def _see_queues(self, queues: set[str], now: datetime) -> None:
        for queue in sorted(queues):
            is_paused = (await queue_state(self._ledger.log, queue)).is_paused(now)
            (self._granter.close if is_paused else self._granter.open)(queue)

    def _granted(self, decision: Decision) -> Granted:
        return Granted(
            shard=MAIN,
            by=self._by,
            at=decision.at,
            through=decision.through,
            limits_sequence=decision.limits_sequence,
            jobs=tuple(
                GrantedJob(queue=each.queue, job=each.job, held=each.held) for each in decision.grants
            ),
            slots=decision.slots,
            policy=POLICY,
        )

    @property
    def _by(self) -> str:
        return self._ledger.stamp().by

    async def _append(self, event: FlowEvent) -> None:
        (entry,) = FLOW.link(self._ledger.names, [event], self._chain)
        await self._ledger.log.append((entry,))
