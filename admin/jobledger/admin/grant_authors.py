"""The turns of workers that granted, and their grants decided again from the events that each turn had read."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import StoredEvent, Unreadable
from jobledger.ledger.model.errors import MalformedEventError, PayloadMissingError
from jobledger.ledger.model.limits.definition import LIMIT
from jobledger.ledger.model.limits.flow import FLOW, MAIN, FlowEvent, Snapshotted
from jobledger.ledger.model.limits.recompute import Author, GrantComparison, Recomputation
from jobledger.ledger.model.log import Head, events_among
from jobledger.ledger.model.subjects import aggregate_of

if TYPE_CHECKING:
    from jobledger.workers.reactors.flow.snapshots import FlowState

_OTHERS: Final[dict[str, Aggregate[Any, Any]]] = {FLOW.name: FLOW, LIMIT.name: LIMIT}


class Turn(msgspec.Struct):
    """One turn of a worker at the reactor of the limits, as the chain of grants tells it."""

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
        return Turn(author)  # the events before it say the same
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
    """Return whether the ledger still has all that a turn read which began with this snapshot at `began`.

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
    from jobledger.workers.reactors.flow.fold import GrantFold  # noqa: PLC0415
    from jobledger.workers.reactors.flow.place import Chain  # noqa: PLC0415
    from jobledger.workers.reactors.flow.source import read  # noqa: PLC0415
    from jobledger.workers.reactors.flow.start import fold_up_to  # noqa: PLC0415 - loaded for this alone

    folding = GrantFold(
        Chain(ledger),
        on_held=lambda _held: None,
        on_left=lambda _queue, _job: None,
        on_granted=lambda _event, _at: None,
    )
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
