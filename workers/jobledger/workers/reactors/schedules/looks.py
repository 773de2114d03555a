"""Looking together whether first events of jobs are there: one request for many schedules that tick at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from jobledger.ledger.model.log import Log

#: Who asks within this time is answered by one request; little of the time that is left before a tick.
_TOGETHER_S: Final = 0.02
#: Subjects of one request; `Log.present` takes no more.
_SUBJECTS_MAX: Final = 1_000


class Looks:
    """Asks the log which subjects are in use, for all who want to know within a moment."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._subjects: list[str] = []
        self._next: asyncio.Task[set[str]] | None = None  # has not asked yet

    async def present(self, subjects: Sequence[str]) -> set[str]:
        """Return what `Log.present` says, perhaps with subjects that somebody else asked for.

        Raises: UnreachableError.
        """
        if self._next is None or len(self._subjects) + len(subjects) > _SUBJECTS_MAX:
            self._subjects = []
            self._next = asyncio.create_task(self._ask(self._subjects))
            self._next.add_done_callback(_hear_of)
        self._subjects += subjects
        return await asyncio.shield(self._next)  # others wait for it, too

    async def _ask(self, subjects: list[str]) -> set[str]:
        await asyncio.sleep(_TOGETHER_S)
        if self._subjects is subjects:
            self._next = None
        return await self._log.present(subjects)


def _hear_of(asked: asyncio.Task[set[str]]) -> None:
    """Let no failure be told as forgotten, whose askers are all gone."""
    if not asked.cancelled():
        asked.exception()
