"""Owners as a person sees them: which there are, what is held or erased, and with which master key."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from jobledger.admin.erasure import SETTLE_S, keys_of
from jobledger.admin.rows import Rows
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.errors import OwnerNotFoundError
from jobledger.ledger.model.named_chain import look, newest
from jobledger.ledger.model.owner import (
    OWNER,
    OwnerCommand,
    OwnerErased,
    OwnerErasing,
    OwnerHeld,
    OwnerState,
    decide,
)
from jobledger.ledger.model.seals import check_owner, owner_of
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.named_values import change
from jobledger.ledger.nats.owner_keys import KeyEntry
from jobledger.projections import Store

#: `0` is the character after `/`: the bound of the keys of one owner, `<owner>/<number>`.
_JOBS: Final = "SELECT count(*) FROM jobs WHERE key >= ? AND key < ? AND key <> ''"
_KEYS: Final = "SELECT DISTINCT key FROM jobs WHERE key >= ? AND key <> '' ORDER BY key LIMIT ?"

OwnerPhase = Literal["open", "held", "erasing", "erased"]


class OwnerLine(msgspec.Struct, frozen=True, kw_only=True):
    """One owner in a list."""

    owner: str
    state: OwnerPhase
    jobs: int  #: jobs in the ledger


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """Owners, by their names."""

    items: list[OwnerLine]


class OwnerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One owner."""

    owner: str
    state: OwnerPhase
    words: str  #: the same for a person, with who, when and why
    key: str  #: the newest key, `<owner>/<number>`; "": none
    master: str  #: the master key that wraps it; "": it is destroyed
    masters: tuple[
        str, ...
    ]  #: each master key that ever wrapped it: an old copy of it opens with one of these
    destroyed_at: Moment | None  #: when the newest key was destroyed
    is_closed: bool  #: no job of the owner begins
    changed_at: Moment | None  #: when the state was recorded; None: never
    changed_by: str
    reason: str
    sequence: int  #: stream sequence of that record; 0: there is none


async def change_owner(ledger: Ledger, owner: str, command: OwnerCommand, *, by: str) -> OwnerInfo:
    """Record the events of a command, and return the owner after them. Raises: as `decide`, what appending raises."""
    check_owner(owner)
    await change(ledger, OWNER, owner, lambda before, stamp: decide(owner, before, command, stamp), by=by)
    return await owner_now(ledger, owner)


async def owner_now(ledger: Ledger, owner: str) -> OwnerInfo:
    """Return an owner as ledger and bucket of keys say now.

    Raises: InvalidInputError, OwnerNotFoundError; RefusedError if the ledger does not have the keys; UnreachableError.
    """
    check_owner(owner)
    state: OwnerState | None = (await look(ledger.log, OWNER, owner)).state
    found = await keys_of(ledger).entry(owner)
    if state is None and found is None:
        raise OwnerNotFoundError(owner)
    entry = KeyEntry(number=0) if found is None else found.entry
    event = None if state is None else state.event
    return OwnerInfo(
        owner=owner,
        state=phase_of(state, ledger),
        words=_words(owner, state, entry, ledger),
        key=f"{owner}/{entry.number}" if entry.number else "",
        master=entry.master,
        masters=entry.masters,
        destroyed_at=entry.erased_at,
        is_closed=entry.closed,
        changed_at=None if event is None else event.at,
        changed_by="" if event is None else event.by,
        reason="" if event is None else event.reason,
        sequence=0 if state is None else state.sequence,
    )


def phase_of(state: OwnerState | None, ledger: Ledger) -> OwnerPhase:
    """Return the state of an owner in a word."""
    if state is None:
        return "open"
    match state.event:
        case OwnerErasing():
            return "erasing"
        case OwnerErased():
            return "erased"
        case _:
            return "open" if state.held(ledger.clock.now()) is None else "held"


def _words(owner: str, state: OwnerState | None, entry: KeyEntry, ledger: Ledger) -> str:
    event = None if state is None else state.event
    again = f"; `jobledger erase {owner}` goes on"
    match event:
        case OwnerErasing(number=number):
            return f"key {owner}/{number} is being destroyed{again}"
        case OwnerErased(number=number) if entry.closed:
            return f"key {owner}/{number} is destroyed, and no job of the owner begins yet{again}"
        case OwnerErased(number=number):
            return f"key {owner}/{number} is destroyed" + (
                "" if entry.number == number else "; there is a new one"
            )
        case OwnerHeld() if phase_of(state, ledger) == "held":
            lasts = "somebody lifts the hold" if event.until is None else shown_time(event.until)
            return f"the data must be kept until {lasts}"
        case _:
            return "nothing is held or erased"


async def list_owners(
    ledger: Ledger, rows: Rows, state: OwnerPhase | None, after: str, limit: int
) -> list[OwnerLine]:
    """Return the owners after one, in the order of their keys; of a state, or all that have jobs or a state.

    Raises: ProjectionError, UnreachableError, CorruptLedgerError.
    """
    states = await newest(ledger.log, OWNER)
    begin = f"{after}/" if after else ""
    found = {each for each in states if f"{each}/" > begin}
    lines: list[OwnerLine] = []
    async with rows.opened() as view:
        if state in {None, "open"}:  # in other states each has a record
            found |= _owners_of_jobs(view.store, after, limit + len(states))
        for owner in sorted(found, key=lambda each: f"{each}/"):
            phase = phase_of(states.get(owner), ledger)
            if len(lines) < limit and state in {None, phase}:
                ((jobs,),) = view.store.select(_JOBS, (f"{owner}/", f"{owner}0"))
                lines.append(OwnerLine(owner=owner, state=phase, jobs=jobs))
    return lines


def _owners_of_jobs(store: Store, after: str, limit: int) -> set[str]:
    """Return the owners of the next keys that jobs have."""
    return {owner_of(key) for (key,) in store.select(_KEYS, (f"{after}0" if after else "", limit))}


async def unfinished_erasures(ledger: Ledger) -> list[str]:
    """Return the owners whose erasure is not done though it could be. Raises: UnreachableError, CorruptLedgerError."""
    now, found = ledger.clock.now(), list[str]()
    for owner, state in (await newest(ledger.log, OWNER)).items():
        if state.erasing is not None:
            late = (now - state.erasing.destroys_at).total_seconds() > SETTLE_S
            found += [owner] if late else []
        elif isinstance(state.event, OwnerErased):
            entry = await keys_of(ledger).entry(owner)
            if entry is not None and entry.entry.closed and entry.entry.number == state.number:
                found.append(owner)
    return found
