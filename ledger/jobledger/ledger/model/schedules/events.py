"""Every fact about a schedule, and their fold: `ScheduleEvent`, `Schedule`, `evolve`. Pure.

A schedule is an aggregate of its own, with a chain of its own. Each of its events has the whole state, as with locks,
so the newest event *is* the state, and an archive run may remove all others. Source: ADR 020.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

import msgspec

from jobledger.ledger.model.envelope import Envelope, Moment, Whole
from jobledger.ledger.model.schedules.definition import Definition

#: Why a tick made no job. `running`: the job of the newest tick had not ended. `late`: the tick was missed and not
#: caught up.
Skipped = Literal["", "running", "late"]


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a schedule: its state after the event."""

    schedule: str  #: its name
    definition: Definition  #: its definition
    next_tick: Moment | None = (
        None  #: the planned moment of the next tick; None: paused, removed or at its end
    )
    next_at: Moment | None = None  #: when that tick is due, `next_tick` plus jitter; a timer is set for it
    tick: Moment | None = None  #: the planned moment of the newest tick, which only grows; None: no tick yet
    number: Whole = 0  #: number of `ticked` events
    ran: Moment | None = None  #: the newest tick that made a job; None: no tick did
    runs: Whole = 0  #: number of jobs that its ticks made
    paused: bool = False  #: True: no ticks until it is resumed
    superseded: tuple[
        str, ...
    ] = ()  #: code versions whose declarations were replaced, the newest last, at most 16


class Declared(_Fact, frozen=True, kw_only=True, tag="declared", gc=False):
    """The schedule was defined: for the first time, or otherwise than before."""


class Ticked(_Fact, frozen=True, kw_only=True, tag="ticked", gc=False):
    """A tick came: `tick`. Its job is made after this event, with an id that follows from the tick."""

    job: str = ""  #: id of the job; of several the newest; "" if none is made
    skipped: Skipped = ""  #: reason why no job is made
    missed: Whole = 0  #: number of missed ticks up to this one without a job; 1,000 may stand for more
    ticks: tuple[Moment, ...] = ()  #: if missed ticks are caught up: those with a job, the oldest first


class Triggered(_Fact, frozen=True, kw_only=True, tag="triggered", gc=False):
    """A job was requested, beside the ticks: its id is `<schedule>-manual-<stream sequence of this event>`."""

    reason: str = ""  #: reason, if one was given


class Backfilled(_Fact, frozen=True, kw_only=True, tag="backfilled", gc=False):
    """The jobs of past ticks were requested; jobs that exist stay as they are."""

    from_at: Moment  #: the range's first moment
    to_at: Moment  #: the range's last moment
    ticks: tuple[Moment, ...]  #: the ticks within the range
    reason: str = ""  #: reason, if one was given


class Paused(_Fact, frozen=True, kw_only=True, tag="paused", gc=False):
    """The ticks were stopped until they are resumed."""

    reason: str = ""  #: reason, if one was given


class Resumed(_Fact, frozen=True, kw_only=True, tag="resumed", gc=False):
    """The ticks were resumed, from now on: ticks during the pause do not count as missed."""

    reason: str = ""  #: reason, if one was given


class Removed(_Fact, frozen=True, kw_only=True, tag="removed", gc=False):
    """The schedule was ended. Its name may be declared again."""

    reason: str = ""  #: reason, if one was given


class Carried(_Fact, frozen=True, kw_only=True, tag="carried", gc=False):
    """The schedule is repeated, because an archive run removes earlier events; it does not change."""

    through: Whole  #: last stream sequence that the run removes
    form: Whole = 0  #: number of the form that its writer knew; 0: releases before such numbers


ScheduleEvent = Declared | Ticked | Triggered | Backfilled | Paused | Resumed | Removed | Carried


class Schedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schedule after its newest event, with the fields of every event."""

    definition: Definition
    next_tick: Moment | None = None
    next_at: Moment | None = None
    tick: Moment | None = None
    number: int = 0
    ran: Moment | None = None
    runs: int = 0
    paused: bool = False
    superseded: tuple[str, ...] = ()
    removed: bool = False  #: True if `removed` is the newest event


_STATE = tuple(name for name in Schedule.__struct_fields__ if name != "removed")
_read_state = operator.attrgetter(*_STATE)


def evolve(_before: Schedule | None, event: ScheduleEvent, _stream_sequence: int) -> Schedule:
    """Return the schedule after `event`, whatever came before it."""
    return Schedule(**dict(zip(_STATE, _read_state(event), strict=True)), removed=isinstance(event, Removed))


def state_fields(schedule: Schedule) -> dict[str, Any]:
    """Return the fields of an event that are the state after it."""
    return dict(zip(_STATE, _read_state(schedule), strict=True))
