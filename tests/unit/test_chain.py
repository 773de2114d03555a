"""The chain: links, conditions, and the loop that decides again when somebody else was faster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from jobledger.ledger.model.chain import (
    EMPTY_CHAIN,
    TRANSACT_TRIES_MAX,
    JobView,
    advance,
    commit,
    extend,
    first_entry,
    fold,
    link,
    load,
    transact,
)
from jobledger.ledger.model.codec import StoredEvent, decode, digest
from jobledger.ledger.model.commands import CancelJob, Claim, Complete, Discard, Enqueue, Fail, Requeue, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    JobExistsError,
    JobNotFoundError,
    StaleClaimError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import ErrorInfo, Order
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.log import ChainEvents, Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, Names

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="w1")
REF = JobRef(queue="email", job_id="j1")
OTHER = JobRef(queue="email", job_id="j2")
NEW = Enqueue(ref=REF, task="send", order=Order(max_attempts=2))
CLAIM = Claim(worker="w1", lease_s=15.0)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")


def stamp() -> Stamp:
    return STAMP


async def grow(log: MemoryLog, ref: JobRef, *commands: Any) -> JobView:
    chain = EMPTY_CHAIN
    for command in commands:
        chain = await transact(log, ref, command, stamp, known=chain)
    return chain


async def running(log: MemoryLog) -> JobView:
    await grow(log, OTHER, Enqueue(ref=OTHER, task="send"))  # so that the epoch is no attempt's number
    return await grow(log, REF, NEW, CLAIM)


def test_sealed_events_are_linked_and_only_the_first_has_a_condition() -> None:
    async def scenario() -> None:
        log = MemoryLog(names=Names("e"))
        chain = await running(log)
        events = decide(chain.job, Fail(epoch=3, error=BOOM), STAMP)
        linked = link(chain, events, log.names)
        assert [entry.subject for entry in linked.entries] == [
            "e_ledger.job.email.j1.failed",
            "e_ledger.job.email.j1.queued.normal",
        ]
        assert [entry.expected for entry in linked.entries] == [3, None]
        assert {entry.chain for entry in linked.entries} == {"e_ledger.job.email.j1.>"}
        assert linked.events[0].prev == chain.last_hash
        assert linked.events[1].prev == digest(linked.entries[0].data)
        assert tuple(decode(entry.data) for entry in linked.entries) == linked.events

    asyncio.run(scenario())


def test_the_first_event_of_a_chain_expects_nothing_before_it() -> None:
    linked = link(EMPTY_CHAIN, decide(None, NEW, STAMP), Names())
    assert (linked.entries[0].expected, linked.events[0].prev) == (0, "")


def test_an_entry_made_for_a_first_event_alone_is_the_one_that_linking_makes() -> None:
    (event,) = decide(None, NEW, STAMP)
    assert (first_entry(event, Names("e")),) == link(EMPTY_CHAIN, [event], Names("e")).entries


def test_folding_extending_and_advancing_agree() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        live = await running(log)
        linked = link(live, decide(live.job, Fail(epoch=3, error=BOOM), STAMP), log.names)
        advanced = advance(live, linked, await log.append(linked.entries))
        stored = await log.read_chain(log.names.chain(REF))
        extended = EMPTY_CHAIN
        for one in stored:
            extended = extend(extended, one)
        assert (
            advanced == extended == fold(stored) == fold(stored[2:], fold(stored[:2])) == await load(log, REF)
        )
        assert advanced.last_sequence == 5
        assert fold([], advanced) is advanced

    asyncio.run(scenario())


def test_a_commit_on_a_stale_view_is_refused_and_stores_nothing() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        view = await grow(log, REF, NEW)
        await commit(log, view, decide(view.job, CLAIM, STAMP))
        with pytest.raises(WrongSequenceError):
            await commit(log, view, decide(view.job, CancelJob(), STAMP))
        assert (await log.head()).last_sequence == 2

    asyncio.run(scenario())


def test_a_lost_race_is_decided_again_on_the_newest_view() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        view = await grow(log, REF, NEW)
        await transact(log, REF, CLAIM, stamp)
        after = await transact(log, REF, CancelJob(), stamp, known=view)  # queued in the view, running by now
        assert after.job is not None
        assert (after.job.state, after.job.cancel_requested) == (JobState.RUNNING, True)

    asyncio.run(scenario())


def test_a_refusal_on_a_stale_view_is_decided_again_before_it_is_raised() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        dead = await grow(log, REF, NEW, CLAIM, Fail(epoch=2, error=BOOM, give_up="rejected"))
        await transact(log, REF, Requeue(), stamp, known=dead)
        with pytest.raises(IllegalTransitionError):  # on this view; the job is queued again meanwhile
            decide(dead.job, CancelJob(), STAMP)
        after = await transact(log, REF, CancelJob(), stamp, known=dead)
        assert after.job is not None
        assert after.job.state is JobState.CANCELLED

    asyncio.run(scenario())


def test_refusals_name_the_job() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        with pytest.raises(JobNotFoundError, match="'j1'"):
            await transact(log, REF, Discard(), stamp)
        with pytest.raises(JobNotFoundError, match="'j1'"):
            await transact(log, REF, Discard(), stamp, known=EMPTY_CHAIN)
        await running(log)
        with pytest.raises(JobExistsError):
            await transact(log, REF, NEW, stamp, known=EMPTY_CHAIN)
        with pytest.raises(StaleClaimError):
            await transact(log, REF, Complete(epoch=1), stamp)
        assert (await log.head()).last_sequence == 3

    asyncio.run(scenario())


class _AlwaysLate(MemoryLog):
    """Somebody else is faster, every time."""

    tries = 0

    async def append(self, entries: Sequence[Entry]) -> int:
        self.tries += 1
        raise WrongSequenceError(entries[0].chain, entries[0].expected or 0)


def test_a_writer_that_always_loses_gives_up() -> None:
    async def scenario() -> None:
        log = _AlwaysLate()
        with pytest.raises(WrongSequenceError):
            await transact(log, REF, NEW, stamp)
        assert log.tries == TRANSACT_TRIES_MAX

    asyncio.run(scenario())


class _Lagging(MemoryLog):
    """A replica that lags: the next few reads lack the newest `behind` events."""

    behind = 0
    reads = 0

    async def read_chain(self, chain: str) -> ChainEvents:
        found = await super().read_chain(chain)
        if not self.reads:
            return found
        self.reads -= 1
        return ChainEvents(found[: len(found) - self.behind])


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_no_outcome_is_refused_on_a_view_that_a_lagging_replica_gave(behind: int) -> None:
    async def scenario() -> None:
        log = _Lagging()
        view = await grow(log, REF, NEW, CLAIM)
        await transact(log, REF, CancelJob(), stamp)
        log.behind, log.reads = behind, 2
        after = await transact(log, REF, Complete(epoch=2), stamp, known=view)
        assert after.job is not None
        assert after.job.state is JobState.COMPLETED

    asyncio.run(scenario())


def test_a_job_that_a_lagging_replica_does_not_know_is_not_taken_for_missing() -> None:
    async def scenario() -> None:
        log = _Lagging()
        view = await grow(log, REF, NEW)
        await transact(log, REF, CLAIM, stamp)
        log.behind, log.reads = 2, 2
        after = await transact(log, REF, CancelJob(), stamp, known=view)
        assert after.job is not None
        assert after.job.cancel_requested

    asyncio.run(scenario())


def test_every_try_has_a_stamp_of_its_own() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        view = await grow(log, REF, NEW)
        await transact(log, REF, CLAIM, stamp)
        moments = iter([NOW, NOW + timedelta(seconds=1)])
        await transact(log, REF, CancelJob(), lambda: Stamp(at=next(moments), by="op"), known=view)
        stored = await log.get(3)
        assert isinstance(stored, StoredEvent)
        assert stored.event.at == NOW + timedelta(seconds=1)

    asyncio.run(scenario())


def test_one_changed_bit_breaks_the_link() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        await grow(log, REF, NEW, CLAIM)
        first, second = await log.read_chain(log.names.chain(REF))
        forged = msgspec.structs.replace(first, data=first.data.replace(b'"send"', b'"sent"'))
        assert second.event.prev == first.hash != forged.hash

    asyncio.run(scenario())
