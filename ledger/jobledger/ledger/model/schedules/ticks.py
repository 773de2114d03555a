"""The ticks of a schedule: `next_tick`, the only function that knows cron, intervals, moments and time zones. Pure.

The rules for changes of clocks are those of cron: a wall time that occurs twice ticks the first time; a skipped wall
time ticks right after the gap; an expression whose hour field begins with `*` ticks by elapsed hours. Source: ADR 020.
"""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

import msgspec

from jobledger.ledger.model.envelope import TIME_MAX, TIME_MIN, Moment, Whole
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.inputs import check_whole
from jobledger.ledger.model.schedules.cron import check_cron, counts_hours, next_wall_time

INTERVAL_S_MAX: Final = 366 * 86_400
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}", flags=re.ASCII)
_ZONE_CHARACTERS_MAX: Final = 64
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The ticks of a schedule: exactly one of `cron`, `every_s` and `at`, or none by itself: `on_demand`."""

    cron: str = ""  #: five fields: minute, hour, day of the month, month, day of the week
    every_s: Whole = (
        0  #: seconds; ticks are whole multiples of it since 1970, so that all processes agree on them
    )
    at: Moment | None = None  #: one moment
    timezone: str = "UTC"  #: time zone of `cron`; a name in the IANA database
    on_demand: bool = False  #: no ticks: its jobs are made when a person or program triggers it


def check_spec(spec: Spec) -> None:
    """Refuse a spec without ticks; never takes long.

    Raises: InvalidInputError.
    """
    if bool(spec.cron) + bool(spec.every_s) + (spec.at is not None) + spec.on_demand != 1:
        raise InvalidInputError("give exactly one of a cron expression, an interval, a moment and on_demand")
    if spec.every_s:
        check_whole("every_s", spec.every_s, 1)
        if spec.every_s > INTERVAL_S_MAX:
            raise InvalidInputError(f"every_s is {spec.every_s:,}: give at most a year, {INTERVAL_S_MAX:,}")
    if spec.timezone != "UTC" and not spec.cron:
        raise InvalidInputError(
            "a time zone belongs to a cron expression: an interval and a moment need none"
        )
    if spec.cron:
        check_cron(spec.cron)
        zone_of(spec.timezone)


def next_tick(spec: Spec, after: datetime) -> datetime | None:
    """Return the first tick after a moment, in UTC; None if there is none until the year 9999.

    `after` has a time zone. The same on every machine that has the same time zone database.

    Raises: InvalidInputError for a time zone that this machine does not know, and for an invalid expression.
    """
    after = max(after.astimezone(UTC), TIME_MIN - _MICROSECOND)
    try:
        found = _next(spec, after)
    except OverflowError:
        return None
    return found if found is not None and found <= TIME_MAX else None


def is_tick(spec: Spec, moment: datetime) -> bool:
    """Return whether a moment is a tick."""
    return next_tick(spec, moment - _MICROSECOND) == moment


def newest_tick(spec: Spec, first: datetime, until: datetime) -> datetime:
    """Return the newest tick up to `until`; `first` is a tick that is not after `until`."""
    if spec.every_s:
        return _multiple(spec.every_s, until)
    none_later, low = until, first  # a tick lies in (low, until] or is `low`; none in (none_later, until]
    while none_later - low > _SECOND:
        middle = low + (none_later - low) / 2
        found = next_tick(spec, middle)
        if found is None or found > until:
            none_later = middle
        else:
            low = found
    return low


def ticks_from(spec: Spec, first: datetime, until: datetime, count_max: int) -> list[datetime]:
    """Return the ticks from the tick `first` to `until`, the oldest first, at most `count_max`."""
    found: list[datetime] = []
    tick: datetime | None = first
    while tick is not None and tick <= until and len(found) < count_max:
        found.append(tick)
        tick = next_tick(spec, tick)
    return found


@functools.lru_cache(maxsize=1_024)
def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database.

    Raises: InvalidInputError.
    """
    if name == "UTC":
        return UTC  # UTC needs no database
    # Imported late, like croniter: processes that only enqueue need neither.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415

    try:
        if len(name) > _ZONE_CHARACTERS_MAX or _ZONE.fullmatch(name) is None:
            raise ZoneInfoNotFoundError(name)  # noqa: TRY301 - the same to its caller
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInputError(
            f"there is no time zone {name[:80]!a} on this machine: give a name such as Europe/Berlin, or, if it is "
            "one, install the package tzdata"
        ) from error


def _next(spec: Spec, after: datetime) -> datetime | None:
    if spec.on_demand:
        return None
    if spec.at is not None:
        return spec.at if spec.at > after else None
    if spec.every_s:
        return _multiple(spec.every_s, after) + timedelta(seconds=spec.every_s)
    zone = zone_of(spec.timezone)
    if zone is UTC:
        found = next_wall_time(spec.cron, after.replace(tzinfo=None))
        return None if found is None else found.replace(tzinfo=UTC)
    return (
        _by_passing_hours(spec.cron, zone, after)
        if counts_hours(spec.cron)
        else _by_wall_time(spec.cron, zone, after)
    )


def _multiple(every_s: int, until: datetime) -> datetime:
    """Return the last multiple of an interval since 1970 that is not after a moment."""
    every = timedelta(seconds=every_s)
    return TIME_MIN + (until - TIME_MIN) // every * every


def _by_wall_time(cron: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the next tick of an expression that names hours: each wall time once."""
    wall = after.astimezone(zone).replace(tzinfo=None)
    # It loops more than once only within a repeated hour, whose first pass has ticked already.
    while (found := next_wall_time(cron, wall)) is not None:
        tick, wall = _first_at(found, zone), found
        if tick > after:
            return tick
    return None


def _first_at(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first moment at which clocks show a wall time; for a skipped one, the end of the gap."""
    aware = wall.replace(tzinfo=zone)  # fold 0: the first of two moments; in a gap, by the offset before it
    found = aware.astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == wall:
        return found
    gap = found.astimezone(zone).replace(tzinfo=None) - wall
    changed = _next_change(zone, found - gap, found)
    assert changed is not None, "a gap has an end"
    return changed


def _by_passing_hours(cron: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the next tick of an expression that counts hours: the next moment whose wall time matches.

    It uses the offset of the moment up to the next change of the clocks, and after that the new offset.
    """
    since = after
    while True:
        offset = _offset(zone, since)
        wall = next_wall_time(cron, (after + offset).replace(tzinfo=None))
        if wall is None:
            return None
        found = (wall - offset).replace(tzinfo=UTC)
        changed = _next_change(zone, since, found)
        if changed is None:
            return found
        since, after = changed, changed - _MICROSECOND


def _next_change(zone: tzinfo, since: datetime, until: datetime) -> datetime | None:
    """Return the first moment after `since` and up to `until` at which a zone has another offset, None without one."""
    offset = _offset(zone, since)
    low = high = since
    while high < until and _offset(zone, high) == offset:
        low, high = high, min(high + _DAY, until)
    if _offset(zone, high) == offset:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) / 2
        low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
    return low.replace(microsecond=0) + _SECOND  # clocks are changed at a whole second


def _offset(zone: tzinfo, moment: datetime) -> timedelta:
    found = moment.astimezone(zone).utcoffset()
    assert found is not None, "a zone has an offset at each moment"
    return found
