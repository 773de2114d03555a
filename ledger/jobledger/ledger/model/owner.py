"""The events of an owner, the state they add up to, and what may follow: `OwnerEvent`, `evolve`, `decide`. Pure.

An owner whose data is neither held nor erased needs no events: the bucket KEYS has the owner's keys. Each
event holds the whole state, so the newest one *is* the state. Released fields never change type, meaning or name.
Source: ADR 068.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope, Moment, Whole
from jobledger.ledger.model.errors import InvalidInputError, OwnerErasingError, RefusedError
from jobledger.ledger.model.forms import SEALED_FORM
from jobledger.ledger.model.inputs import check_finite, keep_utc
from jobledger.ledger.model.seals import check_owner
from jobledger.ledger.model.times import shown_time

#: The default time for undoing the work of cancelled jobs: the code that does it reads their inputs.
GRACE_S: Final = 300.0
GRACE_S_MAX: Final = 7 * 86_400.0
_REQUEST_MAX: Final = 200
_WHAT: Final = "an owner"


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about an owner."""

    since_form = SEALED_FORM
    kind: str  #: the first word of the owner's name: `person` of `person:17`
    id: str  #: the second one
    number: Whole = 0  #: number of the newest key that is or will be destroyed; 0: none
    reason: str = ""  #: the person's reason


class OwnerHeld(_Fact, frozen=True, kw_only=True, tag="held", gc=False):
    """The data of the owner must be kept: it cannot be erased."""

    until: Moment | None = None  #: when the hold ends by itself; none: somebody must lift it


class OwnerUnheld(_Fact, frozen=True, kw_only=True, tag="unheld", gc=False):
    """The data of the owner may be erased again."""


class OwnerErasing(_Fact, frozen=True, kw_only=True, tag="erasing", gc=False):
    """The key `number` of the owner will be destroyed. Until that is done, no job of the owner begins."""

    request: str = ""  #: reference of the request: the number of a letter or of a ticket
    grace_s: float = GRACE_S  #: seconds from here to the destruction, for undos of cancelled jobs
    begun_at: Moment  #: when the erasure began: an archive run may repeat this event later

    @property
    def destroys_at(self) -> datetime:
        """The moment from which the key may be destroyed."""
        return self.begun_at + timedelta(seconds=self.grace_s)


class OwnerErased(_Fact, frozen=True, kw_only=True, tag="erased", gc=False):
    """The key `number` of the owner is destroyed, so nobody can read the values sealed under it any more."""

    request: str = ""  #: as in `erasing`
    jobs: Whole = 0  #: number of the owner's jobs that the ledger still had
    cancelled: Whole = 0  #: number of these jobs that were cancelled or discarded for the erasure
    destroyed_at: Moment  #: when the key was destroyed
    masters: tuple[
        str, ...
    ] = ()  #: each master key that ever wrapped the key: one of these opens an old copy


OwnerEvent = OwnerHeld | OwnerUnheld | OwnerErasing | OwnerErased


class OwnerState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An owner after the newest event, which holds the whole state."""

    event: OwnerEvent
    sequence: int  #: stream sequence of that event

    @property
    def number(self) -> int:
        """The newest key that is or will be destroyed, 0 for none."""
        return self.event.number

    @property
    def erasing(self) -> OwnerErasing | None:
        """The erasure that is not done; None without one."""
        return self.event if isinstance(self.event, OwnerErasing) else None

    def held(self, now: datetime) -> OwnerHeld | None:
        """Return the hold that lasts at a moment; None without one."""
        event = self.event
        if isinstance(event, OwnerHeld) and (event.until is None or now < event.until):
            return event
        return None


def evolve(_before: OwnerState | None, event: OwnerEvent, stream_sequence: int) -> OwnerState:
    """Return the owner after `event`, whatever came before it."""
    return OwnerState(event=event, sequence=stream_sequence)


class HoldOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Keep the owner's data. If it is held already, this hold takes the place of the earlier one."""

    until: datetime | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Keep the time in UTC. Raises: InvalidInputError for one without a zone."""
        keep_utc(self, "until")


class UnholdOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Let the owner's data be erased again."""

    reason: str = ""


class BeginErasing(msgspec.Struct, frozen=True, kw_only=True):
    """Begin to erase the values that are sealed under the owner's key `number`."""

    number: int
    #: The bucket has that key, also where one of this number was erased before the bucket was lost.
    has_key: bool = False
    grace_s: float = GRACE_S
    request: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        """Check the values to be recorded. Raises: InvalidInputError."""
        check_finite("grace_s", self.grace_s)
        if not 0 <= self.grace_s <= GRACE_S_MAX:
            raise InvalidInputError(
                f"grace_s must be from 0 to {GRACE_S_MAX:,.0f} seconds, got {self.grace_s:g}"
            )
        if len(self.request) > _REQUEST_MAX or not self.request.isprintable():
            raise InvalidInputError(f"request must be at most {_REQUEST_MAX} printable characters")


class EndErasing(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the owner's key `number` is destroyed."""

    number: int
    jobs: int
    cancelled: int
    destroyed_at: datetime
    masters: tuple[str, ...]


OwnerCommand = HoldOwner | UnholdOwner | BeginErasing | EndErasing


def decide(owner: str, state: OwnerState | None, command: OwnerCommand, stamp: Stamp) -> OwnerEvent | None:
    """Return the event that follows from a command; None: nothing would change.

    Raises: InvalidInputError for an invalid name of an owner, and for a hold that would be over already;
        OwnerErasingError; RefusedError; AccessDeniedError.
    """
    kind, _, name = check_owner(owner).partition(":")
    if stamp.authority is not None:
        stamp.authority.require_everywhere("erase")
    stamp.require_form(SEALED_FORM, _WHAT)
    number = 0 if state is None else state.number
    match command:
        case HoldOwner(until=until, reason=reason):
            if state is not None and state.erasing is not None:
                raise OwnerErasingError(owner)
            if until is not None and until <= stamp.at:
                raise InvalidInputError(f"until {shown_time(until)} is past: give a later time, or none")
            return OwnerHeld(kind=kind, id=name, number=number, **stamp.fact, until=until, reason=reason)
        case UnholdOwner(reason=reason):
            if state is None or not isinstance(state.event, OwnerHeld):
                raise RefusedError(f"owner {owner} is not held: there is nothing to lift")
            return OwnerUnheld(kind=kind, id=name, number=number, **stamp.fact, reason=reason)
        case BeginErasing():
            return _erasing(owner, state, command, stamp)
        case EndErasing():
            return _erased(owner, state, command, stamp)


def _erasing(
    owner: str, state: OwnerState | None, command: BeginErasing, stamp: Stamp
) -> OwnerErasing | None:
    if state is not None:
        if (held := state.held(stamp.at)) is not None:
            raise RefusedError(
                f"the data of owner {owner} must be kept: {held_words(held)}; lift the hold before you erase it"
            )
        is_new = state.number < command.number or (state.number == command.number and command.has_key)
        if state.erasing is not None or (isinstance(state.event, OwnerErased) and not is_new):
            return None
    kind, _, name = owner.partition(":")
    return OwnerErasing(
        kind=kind,
        id=name,
        number=command.number,
        **stamp.fact,
        reason=command.reason,
        request=command.request,
        grace_s=command.grace_s,
        begun_at=stamp.at,
    )


def _erased(owner: str, state: OwnerState | None, command: EndErasing, stamp: Stamp) -> OwnerErased | None:
    erasing = None if state is None else state.erasing
    if erasing is None or erasing.number != command.number:
        if state is not None and state.number >= command.number:
            return None  # somebody else was faster
        raise RefusedError(f"nobody began to erase the key {owner}/{command.number}: begin again")
    kind, _, name = owner.partition(":")
    return OwnerErased(
        kind=kind,
        id=name,
        number=command.number,
        **stamp.fact,
        reason=erasing.reason,
        request=erasing.request,
        jobs=command.jobs,
        cancelled=command.cancelled,
        destroyed_at=command.destroyed_at,
        masters=command.masters,
    )


def held_words(held: OwnerHeld) -> str:
    """Return a hold in words for a person: `held by ann since ... until ...: reason`."""
    lasts = "" if held.until is None else f" until {shown_time(held.until)}"
    why = f": {held.reason}" if held.reason else ""
    return f"held by {held.by} since {shown_time(held.at)}{lasts}{why}"


def _words(event: OwnerEvent) -> str:
    said: list[str] = []
    match event:
        case OwnerHeld(until=until):
            said += [] if until is None else [f"until {shown_time(until)}"]
        case OwnerUnheld():
            pass
        case OwnerErasing(request=request, grace_s=grace_s):
            said += [f"key {event.number} in {grace_s:g} s", *([f"request {request}"] if request else [])]
        case OwnerErased(jobs=jobs, cancelled=cancelled):
            said += [f"key {event.number}, {jobs:,} jobs, of these {cancelled:,} cancelled"]
    return ", ".join([*said, *([event.reason] if event.reason else [])])


def _check(before: OwnerState | None, event: OwnerEvent, _stream_sequence: int) -> Iterator[Broken]:
    erasing = None if before is None else before.erasing
    match event:
        case OwnerHeld():
            if erasing is not None:
                yield "transition", "`held` of an owner whose data was being erased"
        case OwnerUnheld():
            if before is None or not isinstance(before.event, OwnerHeld):
                yield "transition", "`unheld` of an owner who was not held"
        case OwnerErasing():
            if before is not None and before.held(event.at) is not None:
                yield "transition", "`erasing` of an owner who was held"
            if erasing is not None and erasing.number != event.number:
                yield "transition", "`erasing` of another key than the one that was being erased"
        case OwnerErased():
            if erasing is None or erasing.number != event.number:
                yield "transition", "`erased` of a key that nobody was erasing"
    if before is not None and event.number < before.number:
        yield (
            "owner",
            f"key {event.number} after key {before.number}: the numbers of an owner's keys only grow",
        )


OWNER: Aggregate[OwnerEvent, OwnerState] = Aggregate(
    "owner",
    ("kind", "id"),
    OwnerEvent,
    state=OwnerState,
    evolve=evolve,
    words=_words,
    check=_check,
    removed=(OwnerUnheld, OwnerErased),
)
