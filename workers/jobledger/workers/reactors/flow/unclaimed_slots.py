"""The watch over granted jobs that have not started: it queues them if nobody did, and puts unclaimed ones back."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import load, transact
from jobledger.ledger.model.commands import PutBack
from jobledger.ledger.model.errors import LedgerError, NotFoundError, RefusedError
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.limits.flow import GrantedJob
from jobledger.ledger.model.limits.holders import JobKey
from jobledger.ledger.model.log import BATCH_MESSAGES_MAX
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.reactors.flow.admission import Admitter
from jobledger.workers.reactors.flow.log_once import ToldOnce

logger = logging.getLogger("jobledger.workers.reactors.flow.unclaimed_slots")

#: The time that another reactor may take from `granted` to `queued`.
_PATIENCE_S: Final = 1.0
_CHAINS_AT_ONCE: Final = 64


class Slot(msgspec.Struct, frozen=True, gc=False):
    """A job that holds slots."""

    granted: GrantedJob
    grant: int  #: stream sequence of its `granted`
    since: float  #: when this process heard of the grant, by the monotonic clock
    is_first: bool  #: whether the job never ran before, so that any `started` belongs to this grant


_Slots = OrderedDict[JobKey, Slot]


class UnclaimedSlots:
    """Checks holders of slots once their grants are old enough, each holder once or twice, however long it runs."""

    def __init__(self, ledger: Ledger, admitting: Admitter, *, claim_within_s: float) -> None:
        self._ledger = ledger
        self._admitting = admitting
        self._claim_within_s = claim_within_s
        self._young: _Slots = OrderedDict()  # granted by another reactor, perhaps not queued
        self._old: _Slots = OrderedDict()  # queued, perhaps not claimed
        self._turns = asyncio.Semaphore(_CHAINS_AT_ONCE)
        self._trouble = ToldOnce(
            logger, "jobs that hold slots could not be looked at, %s first: %s; looked at again later"
        )
        self.put_back = 0  #: number of jobs that were put back here

    def add(self, slot: Slot, *, is_ours: bool) -> None:
        """Note a grant; `is_ours`: this process queues the job itself."""
        key = (slot.granted.queue, slot.granted.job)
        self.left(*key)
        (self._old if is_ours else self._young)[key] = slot

    def left(self, queue: str, job: str) -> None:
        """Forget a job that gave its slots back."""
        self._young.pop((queue, job), None)
        self._old.pop((queue, job), None)

    async def started(self, jobs: Iterable[JobKey]) -> list[JobKey]:
        """Return those of up to 1,000 holders whose attempts have started, or that gave the slots back.

        Raises: UnreachableError.
        """
        known = {job: self._young.get(job) or self._old.get(job) for job in islice(jobs, BATCH_MESSAGES_MAX)}
        subjects = {
            job: self._subject(job) for job, slot in known.items() if slot is not None and slot.is_first
        }
        ran = await self._ledger.log.present(list(subjects.values())) if subjects else set[str]()
        found = [job for job, slot in known.items() if slot is None or subjects.get(job) in ran]
        others = [job for job, slot in known.items() if slot is not None and not slot.is_first]
        states = await asyncio.gather(*(self._state(job) for job in others))
        waiting = (JobState.HELD, JobState.QUEUED)
        return found + [job for job, state in zip(others, states, strict=True) if state not in waiting]

    def _subject(self, job: JobKey) -> str:
        return self._ledger.names.of_type(JobRef(queue=job[0], job_id=job[1]), "started")

    async def _state(self, job: JobKey) -> JobState | None:
        async with self._turns:
            found = (await load(self._ledger.log, JobRef(queue=job[0], job_id=job[1]))).job
        return None if found is None else found.state

    async def look(self) -> None:
        """Check the holders with old enough grants, up to 1,000 of each kind.

        Raises: UnreachableError.
        """
        now = self._ledger.clock.monotonic()
        await self._see_to(self._young, now - _PATIENCE_S, is_young=True)
        await self._see_to(self._old, now - self._claim_within_s, is_young=False)

    async def _see_to(self, slots: _Slots, since: float, *, is_young: bool) -> None:
        due: dict[str, Slot] = {}
        for job, slot in slots.items():
            if slot.since > since or len(due) == BATCH_MESSAGES_MAX:
                break
            due[self._subject(job)] = slot
        if not due:
            return
        ran = await self._ledger.log.present(list(due))
        rest: list[Slot] = []
        for subject, slot in due.items():
            if slots.pop((slot.granted.queue, slot.granted.job), None) is not slot:
                continue  # it gave the slots back meanwhile, and perhaps was granted again
            if not (slot.is_first and subject in ran):
                rest.append(slot)
        await asyncio.gather(*(self._see_to_one(slot, is_young=is_young) for slot in rest))

    async def _see_to_one(self, slot: Slot, *, is_young: bool) -> None:
        """Check a holder not known to have started; one that started or gave its slots back is not checked again."""
        try:
            async with self._turns:
                is_settled = await self._settle(slot, is_young=is_young)
            self._trouble.went_well()
            if is_settled:
                return
        except (NotFoundError, RefusedError):
            return  # a worker was faster
        except LedgerError as error:
            self._trouble.failed(slot.granted.job, error)
        again = slot if is_young else msgspec.structs.replace(slot, since=self._ledger.clock.monotonic())
        self._old.setdefault((slot.granted.queue, slot.granted.job), again)

    async def _settle(self, slot: Slot, *, is_young: bool) -> bool:
        """Do the missing step for a job; return whether no further check is needed."""
        granted = slot.granted
        ref = JobRef(queue=granted.queue, job_id=granted.job)
        view = await load(self._ledger.log, ref)
        job = view.job
        if job is None:
            return True
        if job.state is JobState.HELD and job.wait_sequence == granted.held:
            self._admitting.redrive(granted, slot.grant)
            return False
        if job.state is not JobState.QUEUED or job.grant != slot.grant:
            return True
        if is_young:
            return False
        command = PutBack(asked_by=job.wait_sequence)
        await transact(self._ledger.log, ref, command, self._ledger.stamp, known=view)
        self.put_back += 1
        return True
