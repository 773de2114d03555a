"""Erasing what is sealed under an owner's key, step by step. Source: ADR 068.

Each call does what can be done now, decided by what is recorded: the owner's chain in the ledger, and the entry in the
bucket KEYS. So a repeated call goes on after a crash, and two calls at once do not disturb each other.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

import msgspec

from jobledger.admin.bulk import cancel_act, discard_act, perform
from jobledger.admin.choice import ChosenJob
from jobledger.admin.rows import Rows
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.errors import OwnerNotFoundError, RefusedError, ScheduleNotFoundError
from jobledger.ledger.model.events import Cancelled, Discarded
from jobledger.ledger.model.job import OPEN_STATES, JobState
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.model.owner import (
    OWNER,
    BeginErasing,
    EndErasing,
    OwnerErased,
    OwnerErasing,
    OwnerState,
    decide,
)
from jobledger.ledger.model.seals import check_owner
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.named_values import change
from jobledger.ledger.nats.owner_keys import CACHE_S, KeyEntry, OwnerKeys
from jobledger.projections import Store

#: The reason that is recorded in jobs ended for an erasure.
REASON: Final = "erased"
#: Time after the destruction until nobody can use the key: caches expire, then appends under way end.
SETTLE_S: Final = CACHE_S + 30.0
_SETTLE: Final = timedelta(seconds=SETTLE_S)
_LIVING: Final = tuple(state.value for state in OPEN_STATES)
_SCHEDULES: Final = (
    "SELECT name FROM schedules WHERE status <> 'removed' AND json_extract(definition, '$.order.key') = ?"
)
_DEAD: Final = (JobState.DEAD_LETTERED.value,)


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """How far the erasure of an owner's data is."""

    owner: str
    state: Literal["planned", "erasing", "erased"]
    key: str  #: the key that is or will be destroyed
    jobs: int  #: the owner's jobs in the ledger that are sealed under that key
    living: int  #: how many of these jobs have not ended; most were asked to end
    dead_letters: int  #: how many of these jobs wait for a person
    schedules: int  #: schedules that make jobs under that key; they are removed
    cancelled: int  #: how many of the jobs were cancelled or discarded for the erasure; 0 until it is done
    destroyed_at: Moment | None  #: when the key was destroyed; None: it is not yet
    next_at: Moment | None  #: when the same request can go on; None: it is done, or only planned
    #: Master keys that wrapped the key: an old copy of it opens with one of these. Empty if the bucket of keys lost the
    #: key before it was destroyed: then nobody knows.
    masters: tuple[str, ...]
    request: str
    reason: str
    sequence: int  #: stream sequence of the owner's newest event; 0: there is none


class ErasureWish(NamedTuple):
    """What somebody asks for."""

    owner: str
    begin: BeginErasing  #: its number does not count: the bucket tells which key it is
    by: str


class _Counts(NamedTuple):
    jobs: int
    living: list[ChosenJob]
    dead: list[ChosenJob]
    schedules: list[str]


def keys_of(ledger: Ledger) -> OwnerKeys:
    """Return the ledger's own keys. Raises: RefusedError if an application has the keys."""
    if not isinstance(ledger.keys, OwnerKeys):
        raise RefusedError("the keys of owners are not in this ledger: destroy them where sealing= has them")
    return ledger.keys


async def plan_erasure(ledger: Ledger, rows: Rows, wish: ErasureWish) -> Erasure:
    """Return what would be erased; change nothing. Raises: as `erase`."""
    state = await _state(ledger, wish.owner)
    entry = await _entry(keys_of(ledger), wish.owner, state)
    event = decide(wish.owner, state, _begin(wish, entry), ledger.stamp(wish.by))
    after = state if event is None else OWNER.evolve(state, event, 0)
    assert after is not None, "it is as it was asked to be, or becomes so"
    shown = _shown(wish.owner, after, entry, await _counts(rows, f"{wish.owner}/{after.number}"))
    return shown if event is None else msgspec.structs.replace(shown, state="planned", next_at=None)


async def erase(ledger: Ledger, rows: Rows, wish: ErasureWish) -> Erasure:
    """Begin to erase an owner's data, or go on with it, and return how far it is.

    Raises: InvalidInputError, OwnerNotFoundError; RefusedError for an owner who is held, and where the ledger does not
        have the keys; AccessDeniedError, KeyUnavailableError, ProjectionError; what appending raises.
    """
    keys, owner = keys_of(ledger), wish.owner
    known = await _state(ledger, owner)
    await _stand_in(ledger, keys, owner, known)
    begin = _begin(wish, await _entry(keys, owner, known))
    changed = await change(
        ledger, OWNER, owner, lambda before, stamp: decide(owner, before, begin, stamp), by=wish.by
    )
    state: OwnerState = changed.state
    if state.erasing is not None:
        state = await _go_on(ledger, rows, owner, state, by=wish.by)
    if state.erasing is None:
        await keys.open(owner, state.number)
    entry = await _entry(keys, owner, state)
    return _shown(owner, state, entry, await _counts(rows, f"{owner}/{state.number}"))


async def _go_on(ledger: Ledger, rows: Rows, owner: str, state: OwnerState, *, by: str) -> OwnerState:
    """Do that part of an erasure that can be done now; return the owner's state after that."""
    keys, key, erasing = keys_of(ledger), f"{owner}/{state.number}", state.erasing
    assert erasing is not None, "it is not done"
    await keys.close(owner, state.number)
    await _end_jobs(rows, key, by)  # each time: a process with an older entry in memory may have added jobs
    now, entry = ledger.clock.now(), await _entry(keys, owner, state)
    if entry.number == state.number and not (entry.wrapped and now < erasing.destroys_at):
        await keys.destroy(owner, state.number, now)
        entry = await _entry(keys, owner, state)
    if not _is_settled(entry, state, now):
        return state
    end = EndErasing(
        number=state.number,
        jobs=(await _counts(rows, key)).jobs,
        cancelled=await _cancelled(ledger, key),
        destroyed_at=entry.erased_at or now,
        masters=entry.masters,
    )
    changed = await change(
        ledger, OWNER, owner, lambda before, stamp: decide(owner, before, end, stamp), by=by
    )
    return changed.state


def _is_settled(entry: KeyEntry, state: OwnerState, now: datetime) -> bool:
    if entry.number > state.number:
        return True
    return entry.erased_at is not None and now >= entry.erased_at + _SETTLE


def _begin(wish: ErasureWish, entry: KeyEntry) -> BeginErasing:
    return msgspec.structs.replace(wish.begin, number=entry.number, has_key=bool(entry.wrapped))


async def _state(ledger: Ledger, owner: str) -> OwnerState | None:
    return (await look(ledger.log, OWNER, check_owner(owner))).state


async def _entry(keys: OwnerKeys, owner: str, state: OwnerState | None) -> KeyEntry:
    """Return an owner's entry; if the bucket lost it, one made from the owner's chain. Raises: OwnerNotFoundError."""
    if (found := await keys.entry(owner)) is not None:
        return found.entry
    match None if state is None else state.event:
        case OwnerErasing(number=number):
            return KeyEntry(number=number, closed=True)
        case OwnerErased(number=number, masters=masters, destroyed_at=at):
            return KeyEntry(number=number, masters=masters, erased_at=at)
        case _:
            raise OwnerNotFoundError(owner)


async def _stand_in(ledger: Ledger, keys: OwnerKeys, owner: str, state: OwnerState | None) -> None:
    """Write the entry of an owner whose key was lost with the bucket while it was being erased, so that this can end.

    It names no master key: nobody knows any more which ones wrapped the key.
    """
    if state is not None and state.erasing is not None and await keys.entry(owner) is None:
        entry = KeyEntry(number=state.number, closed=True, erased_at=ledger.clock.now())
        await keys.bring(owner, entry)


async def _counts(rows: Rows, key: str) -> _Counts:
    """Return how many jobs are sealed under a key, and which of them have not ended or wait for a person."""
    async with rows.opened() as view:
        ((jobs,),) = view.store.select("SELECT count(*) FROM jobs WHERE key = ? AND key <> ''", (key,))
        living, dead = (_chosen(view.store, key, each) for each in (_LIVING, _DEAD))
        schedules = [name for (name,) in view.store.select(_SCHEDULES, (key,))]
        return _Counts(int(jobs), living, dead, schedules)


def _chosen(store: Store, key: str, states: tuple[str, ...]) -> list[ChosenJob]:
    marks = ", ".join("?" * len(states))
    sql = f"SELECT queue, id, task FROM jobs WHERE key = ? AND key <> '' AND status IN ({marks})"  # noqa: S608
    return [
        ChosenJob(ref=JobRef(queue=queue, job_id=job_id), task=task)
        for queue, job_id, task in store.select(sql, (key, *states))
    ]


async def _end_jobs(rows: Rows, key: str, by: str) -> None:
    """Remove the schedules whose jobs are sealed under a key, cancel these jobs, and discard its dead letters.

    The right to erase suffices for this. A job that another one ended meanwhile is passed over.
    """
    counts = await _counts(rows, key)
    with acting_for(None):
        for name in counts.schedules:
            with contextlib.suppress(ScheduleNotFoundError):  # somebody else was faster
                await rows.ledger.schedules.remove(name, reason=REASON, by=by)
        await perform(rows, cancel_act(REASON, by=by), counts.living, plan=False)
        await perform(rows, discard_act(REASON, by=by), counts.dead, plan=False)


async def _cancelled(ledger: Ledger, key: str) -> int:
    """Return how many jobs sealed under a key were ended for the erasure, by the events still in the ledger."""
    count = 0
    for kind in (Cancelled, Discarded):
        filtered = ledger.names.all_of_type(str(kind.__struct_config__.tag))
        async with contextlib.aclosing(ledger.log.read(subject=filtered)) as batches:
            async for batch in batches:
                events = (stored.event for stored in batch)
                count += sum(
                    isinstance(each, kind) and each.key == key and each.reason == REASON for each in events
                )
    return count


def _shown(owner: str, state: OwnerState, entry: KeyEntry, counts: _Counts) -> Erasure:
    erasing, done = state.erasing, state.event if isinstance(state.event, OwnerErased) else None
    is_own = entry.number == state.number  # the entry may be of a key that was made later
    destroyed_at = done.destroyed_at if done is not None else entry.erased_at if is_own else None
    next_at = None
    if erasing is not None:
        next_at = erasing.destroys_at if destroyed_at is None else destroyed_at + _SETTLE
    return Erasure(
        owner=owner,
        state="erasing" if erasing is not None else "erased",
        key=f"{owner}/{state.number}",
        jobs=counts.jobs,
        living=len(counts.living),
        dead_letters=len(counts.dead),
        schedules=len(counts.schedules),
        cancelled=0 if done is None else done.cancelled,
        destroyed_at=destroyed_at,
        next_at=next_at,
        masters=done.masters if done is not None else entry.masters if is_own else (),
        request=erasing.request if erasing is not None else "" if done is None else done.request,
        reason=state.event.reason,
        sequence=state.sequence,
    )
