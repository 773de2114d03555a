"""Commands to a schedule, and the fact that follows: `decide`. Pure; the present time is that of the stamp."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.errors import (
    AccessDeniedError,
    InvalidInputError,
    RefusedError,
    ScheduleExistsError,
    ScheduleNotFoundError,
)
from jobledger.ledger.model.forms import CARRIED_FORM
from jobledger.ledger.model.inputs import keep_utc
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.schedules.definition import LATE, Definition, check_definition
from jobledger.ledger.model.schedules.events import (
    Backfilled,
    Carried,
    Declared,
    Paused,
    Removed,
    Resumed,
    Schedule,
    ScheduleEvent,
    Skipped,
    Ticked,
    Triggered,
    state_fields,
)
from jobledger.ledger.model.schedules.jobs import tick_job_id
from jobledger.ledger.model.schedules.ticks import newest_tick, next_tick, ticks_from
from jobledger.ledger.model.subjects import check_users_queue, check_users_task

#: The most jobs of one event, and the most missed ticks that are counted.
TICKS_MAX: Final = 1_000
_SUPERSEDED_MAX: Final = 16
_MICROSECOND: Final = timedelta(microseconds=1)
#: How far synchronized clocks of machines may be apart.
_AHEAD: Final = timedelta(seconds=5)

E = TypeVar("E", bound=ScheduleEvent)


#: The queue and task of jobs that a schedule of a graph makes.
_OF_GRAPHS: Final = {(BUILT_IN_QUEUE, "run_graph"), (BUILT_IN_QUEUE, "run_stored_graph")}


class Declare(msgspec.Struct, frozen=True, kw_only=True):
    """Set what the schedule does. The same definition as before makes no event."""

    definition: Definition
    #: Allow an operator to replace another definition of the name, and code to declare again after its version was
    #: superseded. Code never replaces what an operator declared.
    replace: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot tick, and forbidden names. Raises: InvalidInputError, InvalidTokenError."""
        definition = self.definition
        check_definition(definition)
        if (definition.queue, definition.task) not in _OF_GRAPHS:
            check_users_task(definition.task)
            check_users_queue(definition.queue)


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Record the tick that is due; the caller waited for `next_at`."""

    ended: bool = True  #: whether the job of the newest tick with a job has ended; used only with `skip`


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """Make a job now, beside the ticks."""

    reason: str = ""


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """Make the jobs of past ticks."""

    from_at: datetime
    to_at: datetime
    reason: str = ""

    def __post_init__(self) -> None:
        """Check the moments. Raises: InvalidInputError."""
        keep_utc(self, "from_at")
        keep_utc(self, "to_at")
        if self.from_at > self.to_at:
            raise InvalidInputError("the range ends before it begins: exchange the two moments")


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Stop the ticks."""

    reason: str = ""


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """Resume the ticks, from now on."""

    reason: str = ""


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """Give the schedule back to the code: the next process that declares it sets its definition."""


class Carry(msgspec.Struct, frozen=True, kw_only=True):
    """Repeat the whole schedule before an archive run removes events up to `through`; it stays as it is."""

    through: int  #: last stream sequence to be removed


ScheduleCommand = Declare | Tick | Trigger | Backfill | Pause | Resume | Reset | Remove | Carry


def decide(
    name: str, schedule: Schedule | None, command: ScheduleCommand, stamp: Stamp
) -> ScheduleEvent | None:
    """Return the event that follows from a command; None if nothing has to change.

    Raises: ScheduleNotFoundError, ScheduleExistsError, RefusedError for a command that its state does not allow,
        InvalidInputError for a range with too many ticks.
    """
    if stamp.authority is not None:
        _permit(stamp.authority, name, schedule, command)
    if isinstance(command, Declare):
        return _declare(name, schedule, command, stamp)
    if schedule is None or schedule.removed:
        raise ScheduleNotFoundError(name)
    match command:
        case Tick(ended=ended):
            return _tick(name, schedule, stamp, ended=ended)
        case Trigger(reason=reason):
            return _fact(Triggered, name, schedule, stamp, reason=reason)
        case Backfill():
            return _backfill(name, schedule, command, stamp)
        case Pause() | Resume():
            return _turned(name, schedule, command, stamp)
        case Reset():
            return _reset(name, schedule, stamp)
        case Carry(through=through):
            return _fact(Carried, name, schedule, stamp, through=through, form=CARRIED_FORM)
        case Remove(reason=reason):
            return _fact(Removed, name, replace(schedule, next_tick=None, next_at=None), stamp, reason=reason)


def _permit(principal: Principal, name: str, schedule: Schedule | None, command: ScheduleCommand) -> None:
    """Refuse a principal who may not manage the schedule, or may not enqueue its jobs.

    Raises: ScheduleNotFoundError for a principal without a right to the present schedule's jobs; AccessDeniedError.
    """
    if schedule is not None:
        of, missing = schedule.definition, ScheduleNotFoundError(name)
        makes_jobs = isinstance(command, Trigger | Backfill)
        principal.require_about("queue" if makes_jobs else "manage", of.queue, of.task, missing)
    if isinstance(command, Declare):
        to_be = command.definition
        principal.require("manage", to_be.queue, to_be.task)
        principal.require("queue", to_be.queue, to_be.task)
    elif isinstance(command, Tick | Carry):
        raise AccessDeniedError(
            f"{principal.name} is no worker: only workers make the ticks of schedule {name}"
        )


def _turned(name: str, schedule: Schedule, command: Pause | Resume, stamp: Stamp) -> Paused | Resumed:
    if schedule.paused == isinstance(command, Pause):
        state = "paused already" if schedule.paused else "not paused"
        raise RefusedError(f"schedule {name} is {state}: `jobledger schedules show {name}`")
    if isinstance(command, Pause):
        after = replace(schedule, paused=True, next_tick=None, next_at=None)
        return _fact(Paused, name, after, stamp, reason=command.reason)
    after = _planned_from_now(name, replace(schedule, paused=False), stamp.at)
    return _fact(Resumed, name, after, stamp, reason=command.reason)


def _reset(name: str, schedule: Schedule, stamp: Stamp) -> Declared | None:
    definition = replace(schedule.definition, source="code", code_version="")
    after = replace(schedule, definition=definition, superseded=())
    return None if after == schedule else _fact(Declared, name, after, stamp)


def is_as(schedule: Schedule, definition: Definition) -> bool:
    """Return whether a schedule has this definition, whoever declared it."""
    known = schedule.definition
    return replace(definition, source=known.source, code_version=known.code_version) == known


def due_at(name: str, definition: Definition, tick: datetime) -> datetime:
    """Return when a tick is due: its moment plus its jitter, which is the same for every process."""
    digest = hashlib.sha256(f"{name}/{tick.isoformat()}".encode()).digest()
    jitter_us = definition.jitter_s * 1_000_000
    return tick + timedelta(microseconds=int.from_bytes(digest[:8], "big") % (jitter_us + 1))


def tick_after(definition: Definition, after: datetime) -> datetime | None:
    """Return the next tick of a schedule, which may have an end."""
    found = next_tick(definition.spec, after)
    ended = found is None or (definition.ends_at is not None and found > definition.ends_at)
    return None if ended else found


def _declare(name: str, schedule: Schedule | None, command: Declare, stamp: Stamp) -> Declared | None:
    definition = command.definition
    if schedule is None or schedule.removed:
        before = Schedule(definition=definition) if schedule is None else replace(schedule, superseded=())
        fresh = replace(before, definition=definition, removed=False, paused=False)
        return _declared(name, _planned_from_now(name, fresh, stamp.at), stamp)
    known = schedule.definition
    from_code = definition.source == "code"
    if from_code and known.source == "operator":
        return None
    if from_code and definition.code_version in schedule.superseded and not command.replace:
        return None
    is_ahead = _is_ahead(schedule, stamp.at)
    is_known = is_as(schedule, definition) and (
        not from_code or known.code_version == definition.code_version
    )
    if is_known and not is_ahead:
        return None
    if not from_code and not command.replace:
        raise ScheduleExistsError(name)
    superseded = schedule.superseded
    if from_code:
        others = (*superseded, known.code_version)
        superseded = tuple(each for each in others if each != definition.code_version)[-_SUPERSEDED_MAX:]
    after = replace(schedule, definition=definition, superseded=superseded)
    if not schedule.paused and (is_ahead or not _ticks_as(known, definition, schedule, stamp.at)):
        after = _planned_from_now(name, after, stamp.at)
    return _declared(name, after, stamp)


def _declared(name: str, after: Schedule, stamp: Stamp) -> Declared:
    """Refuse a person's schedule that would never tick; code may declare a past moment, as it does at each start."""
    definition = after.definition
    never = after.next_tick is None and not after.paused and not definition.spec.on_demand
    if never and definition.source == "operator":
        raise InvalidInputError(
            f"schedule {name} would never tick: its last moment has passed, give a later one"
        )
    return _fact(Declared, name, after, stamp)


def _ticks_as(known: Definition, definition: Definition, schedule: Schedule, now: datetime) -> bool:
    """Return whether the plan stays: the ticks are the same, or one is due, which must not be lost."""
    is_due = schedule.next_at is not None and schedule.next_at <= now
    same = (known.spec, known.jitter_s, known.ends_at)
    return is_due or same == (definition.spec, definition.jitter_s, definition.ends_at)


def _is_ahead(schedule: Schedule, now: datetime) -> bool:
    """Return whether a wrong clock made ticks of the future."""
    return schedule.tick is not None and schedule.tick - now > _AHEAD


def _planned_from_now(name: str, schedule: Schedule, now: datetime) -> Schedule:
    """Return the schedule with its next tick from now on, even if its newest tick lies in the future.

    Ticks of the future are forgotten: when their moments come, their jobs exist already. Otherwise the schedule would
    not tick until the last of them, whatever a person does.
    """
    return _planned(name, replace(schedule, tick=None) if _is_ahead(schedule, now) else schedule, now)


def _planned(name: str, schedule: Schedule, after: datetime) -> Schedule:
    """Return the schedule with its next tick, which is later than every one before."""
    after = after if schedule.tick is None else max(after, schedule.tick)
    tick = tick_after(schedule.definition, after)
    at = None if tick is None else due_at(name, schedule.definition, tick)
    return replace(schedule, next_tick=tick, next_at=at)


def _tick(name: str, schedule: Schedule, stamp: Stamp, *, ended: bool) -> Ticked:
    if schedule.next_tick is None or schedule.next_at is None:
        raise RefusedError(f"schedule {name} has no tick to come: `jobledger schedules show {name}`")
    definition, now = schedule.definition, stamp.at
    ticks, missed, skipped = [schedule.next_tick], 0, ""
    if now - schedule.next_at > LATE:
        ticks, missed, skipped = _CATCH_UP[definition.catchup](name, definition, schedule.next_tick, now)
    if definition.overlap == "skip" and not ended and len(ticks) == 1 and not skipped:
        skipped = "running"
    after = replace(schedule, tick=ticks[-1], number=schedule.number + 1)
    if not skipped:
        after = replace(after, ran=ticks[-1], runs=schedule.runs + len(ticks))
    return _fact(
        Ticked,
        name,
        _planned(name, after, ticks[-1]),
        stamp,
        job="" if skipped else tick_job_id(name, ticks[-1]),
        skipped=skipped,
        missed=missed,
        ticks=tuple(ticks) if len(ticks) > 1 else (),
    )


_CaughtUp = tuple[list[datetime], int, Skipped]


def _latest(name: str, definition: Definition, first: datetime, now: datetime) -> _CaughtUp:
    tick = _newest_due(name, definition, first, now)
    return [tick], _count(definition, first, tick), ""


def _none(name: str, definition: Definition, first: datetime, now: datetime) -> _CaughtUp:
    tick = _newest_due(name, definition, first, now - LATE)
    return [tick], _count(definition, first, tick) + 1, "late"


def _all(name: str, definition: Definition, first: datetime, now: datetime) -> _CaughtUp:
    newest = _newest_due(name, definition, first, now)
    begin = max(first, now - timedelta(seconds=definition.window_s))
    since = first if begin == first else tick_after(definition, begin - _MICROSECOND)
    if since is None or since > newest:
        return _none(name, definition, first, now)
    ticks = ticks_from(definition.spec, since, newest, TICKS_MAX)
    return ticks, _count(definition, first, since), ""


_CATCH_UP: Final[dict[str, Callable[[str, Definition, datetime, datetime], _CaughtUp]]] = {
    "latest": _latest,
    "none": _none,
    "all": _all,
}


def _newest_due(name: str, definition: Definition, first: datetime, until: datetime) -> datetime:
    """Return the newest tick, from the due tick `first` on, that is due by `until` together with all ticks before it.

    A tick before `until` may be due after it because of its jitter: that one is still to come.
    """
    surely = _end(definition, until - timedelta(seconds=definition.jitter_s))
    newest = newest_tick(definition.spec, first, max(first, surely))
    if definition.jitter_s:
        for tick in ticks_from(definition.spec, newest, _end(definition, until), TICKS_MAX)[1:]:
            if due_at(name, definition, tick) > until:
                break
            newest = tick
    return newest


def _end(definition: Definition, moment: datetime) -> datetime:
    return moment if definition.ends_at is None else min(moment, definition.ends_at)


def _count(definition: Definition, first: datetime, until: datetime) -> int:
    """Return the number of ticks from `first` on before `until`, up to a number that is counted quickly."""
    return len(ticks_from(definition.spec, first, until - _MICROSECOND, TICKS_MAX))


def _backfill(name: str, schedule: Schedule, command: Backfill, stamp: Stamp) -> Backfilled:
    if command.to_at > stamp.at:
        raise InvalidInputError("the range ends in the future: a backfill makes the jobs of past ticks")
    spec, until = schedule.definition.spec, _end(schedule.definition, command.to_at)
    first = next_tick(spec, command.from_at - _MICROSECOND)
    ticks = [] if first is None else ticks_from(spec, first, until, TICKS_MAX + 1)
    if not ticks:
        raise InvalidInputError(f"schedule {name} has no tick in that range")
    if len(ticks) > TICKS_MAX:
        raise InvalidInputError(
            f"schedule {name} has more than {TICKS_MAX:,} ticks in that range: backfill it in parts"
        )
    return _fact(
        Backfilled,
        name,
        schedule,
        stamp,
        from_at=command.from_at,
        to_at=command.to_at,
        ticks=tuple(ticks),
        reason=command.reason,
    )


def _fact(kind: type[E], name: str, after: Schedule, stamp: Stamp, **own: Any) -> E:
    return kind(schedule=name, at=stamp.at, by=stamp.by, trace=stamp.trace, **state_fields(after), **own)
