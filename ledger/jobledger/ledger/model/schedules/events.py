"""Every fact a schedule can have, and what they add up to: `ScheduleEvent`, `Schedule`, `evolve`. Pure.

A schedule is an aggregate of its own, with a chain of its own. Each of its events says the whole state, as a lock's do,
so the newest one *is* the state, and an archive run may take all others. Source: ADR 020.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

import msgspec

from jobledger.ledger.model.envelope import Envelope, Moment, Whole
from jobledger.ledger.model.schedules.definition import Definition

#: Why a tick made no job. `running`: the job of the newest tick had not ended. `late`: it was missed and not caught up.
Skipped = Literal["", "running", "late"]


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """What every fact about a schedule carries: the schedule as it is after it."""

    schedule: str  #: its name
    definition: Definition  #: what it does
    next_tick: Moment | None = (
        None  #: the planned moment of the next tick; None: paused, removed or at its end
    )
    next_at: Moment | None = None  #: when that tick is due: `next_tick` and its jitter; a timer is set for it
    tick: Moment | None = (
        None  #: the planned moment of the newest tick, which only grows; None: there was none
    )
    number: Whole = 0  #: how many `ticked` events there were
    ran: Moment | None = None  #: the newest tick that made a job; None: none did
    runs: Whole = 0  #: how many jobs its ticks made
    paused: bool = False  #: whether it ticks only when it is resumed
    superseded: tuple[
        str, ...
    ] = ()  #: code versions whose declaration was replaced, the newest last, at most 16


class Declared(_Fact, frozen=True, kw_only=True, tag="declared", gc=False):
    """Somebody said what the schedule does: for the first time, or otherwise than before."""


class Ticked(_Fact, frozen=True, kw_only=True, tag="ticked", gc=False):
    """A tick came, `tick` says which. This event decides who makes its job: the id of that follows from the tick."""

    job: str = ""  #: id of the job; of several the newest; "" where none is made
    skipped: Skipped = ""  #: why none is made
    missed: Whole = 0  #: missed ticks up to this one that get no job; from 1,000 on there may be more
    ticks: tuple[Moment, ...] = ()  #: where missed ticks are caught up: all that get a job, the oldest first


class Triggered(_Fact, frozen=True, kw_only=True, tag="triggered", gc=False):
    """Somebody wants a job now, beside the ticks: its id is `<schedule>-manual-<stream sequence of this event>`."""

    reason: str = ""  #: why


class Backfilled(_Fact, frozen=True, kw_only=True, tag="backfilled", gc=False):
    """Somebody wants the jobs of past ticks; those that were made before stay as they are."""

    from_at: Moment  #: the range's first moment
    to_at: Moment  #: the range's last moment
    ticks: tuple[Moment, ...]  #: the ticks within it
    reason: str = ""  #: why


class Paused(_Fact, frozen=True, kw_only=True, tag="paused", gc=False):
    """Somebody stopped the ticks, until they are resumed."""

    reason: str = ""  #: why


class Resumed(_Fact, frozen=True, kw_only=True, tag="resumed", gc=False):
    """Somebody let the schedule tick again, from now on: what would have ticked meanwhile is not missed."""

    reason: str = ""  #: why


class Removed(_Fact, frozen=True, kw_only=True, tag="removed", gc=False):
    """Somebody ended the schedule. Its name may be declared again."""

    reason: str = ""  #: why


class Carried(_Fact, frozen=True, kw_only=True, tag="carried", gc=False):
    """The schedule once more, because an archive run takes earlier events away; changes nothing about it."""

    through: Whole  #: the last stream sequence that the run takes away
    form: Whole = 0  #: which fields its writer knew; 0: those of the releases before this number


ScheduleEvent = Declared | Ticked | Triggered | Backfilled | Paused | Resumed | Removed | Carried


class Schedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schedule after its newest event; the fields are those that each event has."""

    definition: Definition
    next_tick: Moment | None = None
    next_at: Moment | None = None
    tick: Moment | None = None
    number: int = 0
    ran: Moment | None = None
    runs: int = 0
    paused: bool = False
    superseded: tuple[str, ...] = ()
    removed: bool = False  #: whether `removed` is the newest event


_STATE = tuple(name for name in Schedule.__struct_fields__ if name != "removed")
_read_state = operator.attrgetter(*_STATE)


def evolve(_before: Schedule | None, event: ScheduleEvent, _stream_sequence: int) -> Schedule:
    """Return the schedule after `event`, whatever came before it."""
    return Schedule(**dict(zip(_STATE, _read_state(event), strict=True)), removed=isinstance(event, Removed))


def state_fields(schedule: Schedule) -> dict[str, Any]:
    """Return the fields of an event that say the state after it."""
    return dict(zip(_STATE, _read_state(schedule), strict=True))
