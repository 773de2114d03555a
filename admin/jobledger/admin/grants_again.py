"""Grants decided again, to compare them, and simulated with other limits. Both read the ledger and change nothing."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import InvalidInputError, MalformedEventError, PayloadMissingError
from jobledger.ledger.model.inputs import checked_limits
from jobledger.ledger.model.limits.definition import LIMIT, Definition, Override, Terms, problem_of
from jobledger.ledger.model.limits.flow import FLOW, MAIN, FlowEvent, Snapshotted
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.limits.recompute import Author, GrantComparison, Recomputation
from jobledger.ledger.model.limits.simulation import (
    KeyWaits,
    TooManyWaitsError,
    WaitRecord,
    recorded,
    simulated,
)
from jobledger.ledger.model.log import Head, events_among
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.ledger.model.times import shown_time

if TYPE_CHECKING:
    from jobledger.workers.reactors.flow.snapshots import FlowState


# The turns of workers that granted, and their grants decided again from the events that each turn had read.


class Turn(msgspec.Struct):
    """One turn of a worker at the reactor of the limits, as the chain of grants shows it."""

    author: Author
    snapshot: int = (
        0  #: stream sequence of the snapshot from which it can be followed; 0: from the first event
    )
    is_known: bool = True  #: whether all that it knew is in the ledger still, or in a snapshot that was read
    last: int = 0  #: stream sequence of its last grant that can be decided again; 0: none can
    known: int = 0  #: grants that can be decided again
    archived: int = (
        0  #: grants over events that an archive run took away, and that no stored snapshot replaces
    )


async def authors(ledger: Ledger, head: Head) -> list[Turn]:
    """Return who granted, in the order in which they first appended something.

    Raises: UnreachableError, CorruptLedgerError.
    """
    turns: dict[Author, Turn] = {}
    snapshots: list[int] = []
    async with contextlib.aclosing(_flow(ledger, head)) as events:
        async for event, sequence in events:
            author = Author(event.by, event.began)
            turn = turns.get(author)
            if turn is None:
                turn = turns[author] = await _begun(ledger, head, author, snapshots)
            if isinstance(event, Snapshotted):
                snapshots.append(sequence)
                if not turn.is_known and await _is_whole(ledger, head, event, event.through):
                    turn.snapshot, turn.is_known = sequence, True
            elif turn.is_known:
                turn.last, turn.known = sequence, turn.known + 1
            else:
                turn.archived += 1
    return list(turns.values())


async def _begun(ledger: Ledger, head: Head, author: Author, snapshots: list[int]) -> Turn:
    """Return how a turn began: with the newest snapshot that there was, or with the first event."""
    before = bisect.bisect_right(snapshots, author.began)
    if not before:
        return Turn(author, is_known=head.first_sequence <= 1)
    at = snapshots[before - 1]
    snapshot = await _snapshot(ledger, at)
    if head.first_sequence <= 1 and await _state_in(ledger, snapshot) is None:
        return Turn(author)  # the events before it lead to the same state
    return Turn(author, at, is_known=await _is_whole(ledger, head, snapshot, author.began))


async def _state_in(ledger: Ledger, snapshot: Snapshotted) -> FlowState | None:
    """Return a snapshot's state, None if it was removed: two newer ones are stored then."""
    from jobledger.workers.reactors.flow.start import state_in  # noqa: PLC0415

    try:
        return await state_in(ledger, snapshot)
    except PayloadMissingError:
        return None


async def _snapshot(ledger: Ledger, at: int) -> Snapshotted:
    stored = await ledger.log.get(at)
    if stored is None or isinstance(stored, Unreadable):
        raise MalformedEventError(
            f"the snapshot of the limits at stream sequence {at} cannot be read any more"
        )
    event = FLOW.decode(stored)
    assert isinstance(event, Snapshotted), "it was read as one before"
    return event


async def _is_whole(ledger: Ledger, head: Head, snapshot: Snapshotted, began: int) -> bool:
    """Return whether the ledger still has all events that a turn read, which began with this snapshot at `began`.

    An archive run carries jobs over before it removes their events: a turn that began later read the copies.
    """
    if head.first_sequence <= 1:
        return True
    carried = await ledger.log.last(ledger.names.all_of_type("carried"))
    if snapshot.low < head.first_sequence and (carried is None or began < carried.stream_sequence):
        return False
    state = await _state_in(ledger, snapshot)
    return state is not None and all(each.held >= head.first_sequence for each in state.waiting)


async def _flow(ledger: Ledger, head: Head) -> AsyncGenerator[tuple[FlowEvent, int], None]:
    subject = FLOW.chain(ledger.names, MAIN)
    async with contextlib.aclosing(ledger.log.read_messages(subject=subject)) as batches:
        async for batch in batches:
            for message in events_among(batch):
                if message.stream_sequence <= head.last_sequence:
                    yield FLOW.decode(message), message.stream_sequence


async def decided_again(ledger: Ledger, head: Head, turn: Turn) -> GrantComparison:
    """Decide again what was granted in one turn, up to its last grant.

    The state it began with may be removed after `authors` found it: two newer ones are stored then.

    Raises: UnreachableError, CorruptLedgerError, ScratchSpaceError.
    """
    try:
        return await _decided_again(ledger, head, turn)
    except PayloadMissingError:
        if head.first_sequence > 1:
            return GrantComparison(archived=turn.known)
    return await _decided_again(ledger, head, msgspec.structs.replace(turn, snapshot=0))


async def _decided_again(ledger: Ledger, head: Head, turn: Turn) -> GrantComparison:
    """As `decided_again`. Raises: PayloadMissingError for a state that is gone."""
    from jobledger.workers.reactors.flow.chain import Chain  # noqa: PLC0415
    from jobledger.workers.reactors.flow.fold import GrantFold  # noqa: PLC0415
    from jobledger.workers.reactors.flow.source import read  # noqa: PLC0415
    from jobledger.workers.reactors.flow.start import fold_up_to  # noqa: PLC0415 - loaded for this alone

    folding = GrantFold(Chain(ledger))
    with contextlib.closing(folding):
        snapshot = await _snapshot(ledger, turn.snapshot) if turn.snapshot else None
        begun = turn.author.began
        if snapshot is not None:
            begun = max(begun, snapshot.through)  # the turn itself may have stored it later
        await fold_up_to(ledger, folding, snapshot, head.first_sequence, begun)
        again = Recomputation(turn.author, folding.granter, after=turn.snapshot)
        async with contextlib.aclosing(read(ledger, begun + 1, turn.last)) as batches:
            async for batch in batches:
                for message in events_among(batch):
                    if isinstance(message, StoredEvent):
                        again.feed(message.event, message.stream_sequence)
                    elif (of := _OTHERS.get(aggregate_of(message.subject))) is not None:
                        again.feed(of.decode(message), message.stream_sequence)
        return again.found


_OTHERS: Final[dict[str, Aggregate[Any, Any]]] = {FLOW.name: FLOW, LIMIT.name: LIMIT}
_UNBOUNDED: Final = ("slots", "rate")


class SimulatedWaits(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs waited, by key, as it was and as it would have been."""

    begin: datetime
    end: datetime
    waits: int  #: how often a job waited
    recorded: dict[str, KeyWaits]
    simulated: dict[str, KeyWaits]


async def compare_grants(ledger: Ledger) -> GrantComparison:
    """Decide every grant of the ledger again from what its author knew, for each author separately.

    Raises: UnreachableError, CorruptLedgerError, ScratchSpaceError.
    """
    from jobledger.admin.grants_again import authors, decided_again  # noqa: PLC0415

    head = await ledger.log.head()
    found = GrantComparison()
    for each in await authors(ledger, head):
        found += GrantComparison(archived=each.archived)
        if each.last:
            found += await decided_again(ledger, head, each)
    return found


async def simulate_limits(
    ledger: Ledger, begin: datetime, end: datetime, changes: Mapping[str, Any]
) -> SimulatedWaits:
    """Return how long the jobs of a span of time would have waited with other limits.

    `changes`: by limit, or by `name:key` for one key of it, its slots; by `limit.field` another field of `Terms`, such
    as `tenant:acme.rate`. None: no bound; for one key: as the limit says. They hold for the whole span; a limit that is
    not named is as it was, and changes when it did.

    Raises: InvalidTokenError, InvalidInputError for a limit that cannot be, a span that ends before it begins or holds too
        many waits; UnreachableError, CorruptLedgerError.
    """
    wished = _by_limit(changes)
    if end <= begin:
        raise InvalidInputError(
            f"the span ends at {shown_time(end)} and begins at {shown_time(begin)}: give the earlier time first"
        )
    recording = WaitRecord(begin, end)
    try:
        async with contextlib.aclosing(_events(ledger)) as events:
            async for event, message in events:
                if message.stored_at > end:
                    break
                recording.feed(event, message.stream_sequence, message.stored_at)
        recording.done()
    except TooManyWaitsError as error:
        raise InvalidInputError(
            "too many jobs waited in that span to simulate it: choose a shorter one"
        ) from error
    changed = _changed(recording.first_known, wished, begin)
    return SimulatedWaits(
        begin=begin,
        end=end,
        waits=len(recording.waits),
        recorded=recorded(recording),
        simulated=simulated(recording, changed),
    )


async def _events(ledger: Ledger) -> AsyncGenerator[tuple[Envelope, Message], None]:
    """Yield every event of jobs, grants and limits up to the present end."""
    last = (await ledger.log.head()).last_sequence
    async with contextlib.aclosing(ledger.log.read_messages()) as batches:
        async for batch in batches:
            for message in events_among(batch):
                if message.stream_sequence > last:
                    return
                of = _OTHERS.get(aggregate_of(message.subject))
                if isinstance(message, StoredEvent):
                    yield message.event, message
                elif of is not None:
                    yield of.decode(message), message
            if batch[-1].stream_sequence >= last:
                return


def _by_limit(changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what changes by limit. Raises: InvalidTokenError, InvalidInputError."""
    found: dict[str, dict[str, Any]] = {}
    for word, value in changes.items():
        limit, _, field = word.rpartition(".")
        if not limit or field not in Override.__struct_fields__:
            limit, field = word, "slots"
        checked_limits((limit,))
        if value is None and field not in _UNBOUNDED and not split(limit)[1]:
            raise InvalidInputError(f"{word} needs a value: only slots and rate may be none")
        found.setdefault(limit, {})[field] = value
    return found


def _changed(
    limits: Mapping[str, Definition], changes: Mapping[str, dict[str, Any]], at: datetime
) -> dict[str, Definition]:
    """Return the definitions that change. Raises: InvalidInputError for numbers that cannot work."""
    found: dict[str, Definition] = {}
    for limit, terms in changes.items():
        name, key = split(limit)
        before = found.get(name) or limits.get(name)
        if before is None:
            before = Definition(limit=name, sequence=0, at=at, by="")
        common = before.common or Terms()
        if key:
            override = msgspec.structs.replace(before.overrides.get(key, Override()), **terms)
            before = msgspec.structs.replace(
                before, common=common, overrides={**before.overrides, key: override}
            )
        else:
            before = msgspec.structs.replace(before, common=msgspec.structs.replace(common, **terms))
        assert before.common is not None, "it has terms now"
        problem = problem_of(before.common, before.overrides)
        if problem:
            raise InvalidInputError(f"limit {limit}: {problem}")
        found[name] = before
    return found
