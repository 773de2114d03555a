"""Finding tasks by name, as workers announced them; what was found is used again for a moment."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from jobledger.ledger.additions.announced import AnnouncedTask
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import (
    InvalidError,
    JetStreamDisabledError,
    TaskNotFoundError,
    UnreachableError,
)
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.task_book import TaskEntry
from jobledger.ledger.patience import Patience

#: How long a task that was found is used again. The worker checks each input by its own code, whatever was announced.
_GOOD_FOR_S: Final = 2.0
#: How long to wait for the bucket's answer about a task that was found before.
_ASKED_AGAIN_S: Final = 1.0
_KEPT_MAX: Final = 1_000
_NAMES_COMPARED_MAX: Final = 1_000
_NEAR_MAX: Final = 3


class _FoundTasks(NamedTuple):
    task: AnnouncedTask
    until: float  #: by the monotonic clock


class AnnouncedTasks:
    """The tasks that workers ever announced, for one client."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[TaskEntry | None]],
        names: Callable[[], Awaitable[list[str]]],
        clock: Clock,
    ) -> None:
        """`find` and `names` ask the ledger for one entry and for the names of all."""
        self._find = find
        self._names = names
        self._clock = clock
        self._kept: dict[str, _FoundTasks] = {}
        self._turn = asyncio.Lock()  #: many enqueues begin at once, and one of them asks

    def known(self, name: str) -> AnnouncedTask | None:
        """Return a task that was found a moment ago."""
        kept = self._kept.get(name)
        return kept.task if kept is not None and self._clock.monotonic() < kept.until else None

    async def get(self, name: str, *, unknown_ok: bool = False) -> AnnouncedTask:
        """Return a task; with `unknown_ok` also one of which nothing is known, and whose input may be any object.

        Raises: TaskNotFoundError, InvalidTokenError, PermissionRefusedError, UnreachableError.
        """
        found = self.known(name)
        if found is None:
            check_token("task name", name)
            async with self._turn:
                found = self.known(name) or await self._look(name)
        if found is not None:
            return found
        if unknown_ok:
            entry = TaskEntry(
                name=name, queue="default", text="", input=True, worker="", announced_at=self._clock.now()
            )
            return AnnouncedTask(entry, is_known=False)
        raise TaskNotFoundError(name, await self._near(name))

    async def _look(self, name: str) -> AnnouncedTask | None:
        kept = self._kept.get(name)
        try:
            async with asyncio.timeout(None if kept is None else _ASKED_AGAIN_S):
                entry = await self._find(name)
        except (JetStreamDisabledError, UnreachableError, TimeoutError):
            if kept is None:
                raise
            return self._keep(name, kept.task)  # the bucket is away, which is no reason to refuse a job
        if entry is None:
            return None
        return self._keep(name, kept.task if kept is not None and kept.task.is_as(entry) else _read(entry))

    def _keep(self, name: str, task: AnnouncedTask) -> AnnouncedTask:
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[name] = _FoundTasks(task, self._clock.monotonic() + _GOOD_FOR_S)
        return task

    async def _near(self, name: str) -> list[str]:
        known = await self._names()
        return difflib.get_close_matches(name, known[:_NAMES_COMPARED_MAX], n=_NEAR_MAX)


async def find_announced(
    patience: Patience, announced: AnnouncedTasks, name: str, *, unknown_ok: bool = False
) -> AnnouncedTask:
    """Return a task as `AnnouncedTasks.get`, with patience for the server where that must be asked."""
    found = announced.known(name)
    if found is not None:
        return found
    return await patience.read(lambda: announced.get(name, unknown_ok=unknown_ok))


def _read(entry: TaskEntry) -> AnnouncedTask:
    try:
        return AnnouncedTask(entry)
    except (msgspec.MsgspecError, InvalidError):  # of a newer version: what its plain fields say counts
        return AnnouncedTask(msgspec.structs.replace(entry, enqueued=NO_VALUE))
