"""Bugs to plant: each breaks one rule of the protocol, and the simulation must find it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any
from unittest import mock

import msgspec

from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model import chain as chain_module
from jobledger.ledger.model.chain import JobView, load
from jobledger.ledger.model.commands import Dispatch, Outcome
from jobledger.ledger.model.decision_parts import facts
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.events import Cause, JobEvent
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.subjects import JobRef, Names
from jobledger.ledger.nats import floors
from jobledger.ledger.nats.floors import Note
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.ledger.nats.leases import JetStreamLeases
from jobledger.workers.attempt.attempt import Attempts
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.settlement import ACK

Planted = contextlib.AbstractContextManager[Any]


@contextlib.contextmanager
def _all(*patches: Planted) -> Generator[None, None, None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def ack_before_the_outcome() -> Planted:
    real = Attempts._execute

    async def execute(self: Attempts, attempt: Attempt) -> Outcome:
        self._settle(self._handled[attempt.job.dispatch_sequence], ACK)
        return await real(self, attempt)

    return mock.patch.object(Attempts, "_execute", execute)


def take_over_without_a_look_at_the_lease() -> Planted:
    async def find(*_: object) -> None:
        return None

    return mock.patch.object(JetStreamLeases, "find", find)


def claim_without_a_condition() -> Planted:
    async def commit(log: Log, chain: JobView, events: Sequence[JobEvent]) -> JobView:
        newest = await load(log, JobRef(queue=events[0].queue, job_id=events[0].job))
        moved = msgspec.structs.replace(chain, last_sequence=newest.last_sequence, last_data=newest.last_data)
        return await chain_module.commit(log, moved, events)

    return mock.patch("jobledger.workers.attempt.claims.commit", commit)


def take_a_lost_race_for_won() -> Planted:
    real = chain_module.commit

    async def commit(log: Log, chain: JobView, events: Sequence[JobEvent]) -> JobView:
        try:
            return await real(log, chain, events)
        except WrongSequenceError:
            return chain

    return _all(
        mock.patch.object(chain_module, "commit", commit),
        mock.patch("jobledger.workers.attempt.recorder.commit", commit),
    )


def keep_a_lease_beyond_its_end() -> Planted:
    return _all(
        mock.patch.object(LeaseKeeper, "is_valid", new=True),
        mock.patch.object(LeaseKeeper, "_left_s", return_value=3600.0),
    )


def take_a_lost_answer_for_a_lost_race() -> Planted:
    async def find_out(_: JetStreamLog, entries: Sequence[Entry], *__: object) -> int:
        raise WrongSequenceError(entries[0].chain, entries[0].expected or 0)

    return mock.patch.object(JetStreamLog, "_find_out", find_out)


def accept_the_outcome_of_a_stale_claim() -> Planted:
    return mock.patch.object(facts, "check_epoch", return_value=None)


def dispatch_whatever_the_job_waits_for_by_now() -> Planted:
    def dispatch(*, cause: Cause, asked_by: int) -> Dispatch:
        return Dispatch(cause=cause)

    return mock.patch("jobledger.workers.reactors.timers.Dispatch", dispatch)


def note_all_there_is_as_settled() -> Planted:
    real = floors.write_floor

    async def write(inbox: Inbox, names: Names, consumer: str, note: Note) -> None:
        await real(inbox, names, consumer, Note(settled=note.mark.sequence, mark=note.mark))

    return mock.patch("jobledger.workers.attempt.intake.write_floor", write)


def ack_what_a_failure_offers_again() -> Planted:
    return mock.patch("jobledger.workers.attempt.recorder._settled", return_value=ACK)


#: Each bug, and the faults without which it does no harm, or seldom.
MUTATIONS: dict[Callable[[], Planted], frozenset[str]] = {
    ack_before_the_outcome: frozenset(),
    ack_what_a_failure_offers_again: frozenset(),
    take_over_without_a_look_at_the_lease: frozenset({"duplicate delivery"}),
    claim_without_a_condition: frozenset({"delayed request"}),
    take_a_lost_race_for_won: frozenset(),
    keep_a_lease_beyond_its_end: frozenset({"held network"}),
    take_a_lost_answer_for_a_lost_race: frozenset({"lost reply"}),
    accept_the_outcome_of_a_stale_claim: frozenset({"held network", "freeze", "delayed request"}),
    dispatch_whatever_the_job_waits_for_by_now: frozenset({"late timer", "duplicate timer", "lost timers"}),
    note_all_there_is_as_settled: frozenset({"server restart"}),
}
