"""Bugs to plant: each breaks one rule of the protocol, and the simulation must find it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast
from unittest import mock

import msgspec

from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model import chain as chain_module
from jobledger.ledger.model.chain import JobView, load
from jobledger.ledger.model.commands import Dispatch, Outcome
from jobledger.ledger.model.decision_parts import facts
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.events import Cause, JobEvent, Queued
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.subjects import JobRef, Names
from jobledger.ledger.nats import floors
from jobledger.ledger.nats.floors import Note
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.ledger.nats.leases import JetStreamLeases
from jobledger.ledger.nats.pull import Delivery
from jobledger.workers.attempt.attempt import Attempts, Work
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.recorder import Recorder
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
        self._settle(self._handled[attempt.job.dispatch_sequence].deliveries, ACK)
        return await real(self, attempt)

    return mock.patch.object(Attempts, "_execute", execute)


def ack_an_outcome_that_is_only_sent() -> Planted:
    real = Recorder.begin

    def begin(
        self: Recorder, attempt: Attempt, outcome: Outcome, answered: Callable[[int | Exception], None]
    ) -> bool:
        began = real(self, attempt, outcome, lambda _: None)
        if began:
            answered(1)
        return began

    return mock.patch.object(Recorder, "begin", begin)


def claim_without_a_look_at_the_lease() -> Planted:
    def can_claim_at_once(_: Attempts, delivery: Delivery, queued: Queued) -> bool:
        return queued.cause == "new" and delivery.delivered == 1

    return _all(
        mock.patch.object(Attempts, "_can_claim_at_once", can_claim_at_once),
        mock.patch.object(Attempts, "_obstacle", return_value=None),
        mock.patch.object(LeaseKeeper, "holds", return_value=True),
    )


def take_over_without_a_look_at_the_lease() -> Planted:
    async def find(*_: object) -> None:
        return None

    return mock.patch.object(JetStreamLeases, "find", find)


def claim_without_a_condition() -> Planted:
    async def commit(log: Log, chain: JobView, events: Sequence[JobEvent]) -> JobView:
        newest = await load(log, JobRef(queue=events[0].queue, job_id=events[0].job))
        moved = msgspec.structs.replace(chain, last_sequence=newest.last_sequence, last_data=newest.last_data)
        return await chain_module.commit(log, moved, events)

    def begin_commit(
        log: Log, chain: JobView, events: Sequence[JobEvent], answered: Callable[[JobView | Exception], None]
    ) -> None:
        def on_done(done: asyncio.Task[JobView]) -> None:
            error = done.exception()
            answered(done.result() if error is None else cast("Exception", error))

        asyncio.ensure_future(commit(log, chain, events)).add_done_callback(on_done)

    return _all(
        mock.patch("jobledger.workers.attempt.claims.commit", commit),
        mock.patch("jobledger.workers.attempt.claims.begin_commit", begin_commit),
    )


def take_a_lost_race_for_won() -> Planted:
    real = chain_module.commit

    async def commit(log: Log, chain: JobView, events: Sequence[JobEvent]) -> JobView:
        try:
            return await real(log, chain, events)
        except WrongSequenceError:
            return chain

    def on_recorded(self: Attempts, work: Work, attempt: Attempt, *_: object) -> None:
        self._end(attempt)
        self._conclude(work, ACK)

    return _all(
        mock.patch.object(chain_module, "commit", commit),
        mock.patch("jobledger.workers.attempt.recorder.commit", commit),
        mock.patch.object(Attempts, "_on_recorded", on_recorded),
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
    ack_an_outcome_that_is_only_sent: frozenset(),
    claim_without_a_look_at_the_lease: frozenset({"held network", "freeze"}),
    take_over_without_a_look_at_the_lease: frozenset({"duplicate delivery"}),
    claim_without_a_condition: frozenset({"delayed request"}),
    take_a_lost_race_for_won: frozenset(),
    keep_a_lease_beyond_its_end: frozenset({"held network"}),
    take_a_lost_answer_for_a_lost_race: frozenset({"lost reply"}),
    accept_the_outcome_of_a_stale_claim: frozenset({"held network", "freeze", "delayed request"}),
    dispatch_whatever_the_job_waits_for_by_now: frozenset({"late timer", "duplicate timer", "lost timers"}),
    note_all_there_is_as_settled: frozenset({"server restart"}),
}
