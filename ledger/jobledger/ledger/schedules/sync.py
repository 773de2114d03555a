"""The verbs of `Ledger.schedules` for blocking code: each calls the asynchronous verb and waits for its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar, Unpack

from jobledger.ledger.model.schedules.events import Schedule
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.schedules.in_code import AnyTask
from jobledger.ledger.schedules.verbs import HasTask, ScheduleVerbs, When

R = TypeVar("R")


class _HasSchedules(Protocol):
    """An asynchronous ledger."""

    @property
    def schedules(self) -> ScheduleVerbs:
        """Its schedules."""
        ...


class Carrier(Protocol):
    """The runner of an asynchronous verb in its loop; see `LoopThread`."""

    def call(self, verb: Callable[[Any], Awaitable[R]]) -> R:
        """Run a verb and wait for its end."""
        ...


class BlockingSchedules:
    """The schedules of a ledger, for code that blocks; the methods are those of `ScheduleVerbs`."""

    def __init__(self, caller: Carrier) -> None:
        self._caller = caller

    def add(
        self,
        name: str,
        task: AnyTask | HasTask,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the field's word
        replace: bool = False,
        owner: str = "",
        by: str = "",
        **when: Unpack[When],
    ) -> Schedule:
        """Declare a schedule. See `ScheduleVerbs.add`."""
        return self._call(
            lambda all_of: all_of.add(name, task, input=input, replace=replace, owner=owner, by=by, **when)
        )

    def get(self, name: str) -> Schedule:
        """Return a schedule as it is now."""
        return self._call(lambda all_of: all_of.get(name))

    def next(self, name: str, count: int = 1) -> list[datetime]:
        """Return when the next ticks are due. See `ScheduleVerbs.next`."""
        return self._call(lambda all_of: all_of.next(name, count))

    def pause(self, name: str, *, reason: str = "", by: str = "") -> Schedule:
        """Stop the ticks. See `ScheduleVerbs.pause`."""
        return self._call(lambda all_of: all_of.pause(name, reason=reason, by=by))

    def resume(self, name: str, *, reason: str = "", by: str = "") -> Schedule:
        """Resume the ticks. See `ScheduleVerbs.resume`."""
        return self._call(lambda all_of: all_of.resume(name, reason=reason, by=by))

    def remove(self, name: str, *, reason: str = "", by: str = "") -> Schedule:
        """End the schedule. See `ScheduleVerbs.remove`."""
        return self._call(lambda all_of: all_of.remove(name, reason=reason, by=by))

    def reset(self, name: str, *, by: str = "") -> Schedule:
        """Let the code's declaration count again. See `ScheduleVerbs.reset`."""
        return self._call(lambda all_of: all_of.reset(name, by=by))

    def trigger(self, name: str, *, reason: str = "", by: str = "", trace: str = "") -> JobRef:
        """Make a job now. See `ScheduleVerbs.trigger`."""
        return self._call(lambda all_of: all_of.trigger(name, reason=reason, by=by, trace=trace))

    def backfill(
        self, name: str, from_at: datetime, to_at: datetime, *, reason: str = "", by: str = ""
    ) -> list[JobRef]:
        """Make the jobs of past ticks. See `ScheduleVerbs.backfill`."""
        return self._call(lambda all_of: all_of.backfill(name, from_at, to_at, reason=reason, by=by))

    def _call(self, verb: Callable[[ScheduleVerbs], Awaitable[R]]) -> R:
        def on(ledger: _HasSchedules) -> Awaitable[R]:
            return verb(ledger.schedules)

        return self._caller.call(on)
