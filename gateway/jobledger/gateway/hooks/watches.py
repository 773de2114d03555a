"""Watches: each gateway judges them once a tick by its own rows; the ledger records the first verdict."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import anyio.to_thread

from jobledger.admin.hooks.figures import figure_of
from jobledger.admin.rows import AnswerPosition, View
from jobledger.gateway.gateway import Projection
from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import LedgerError, UnreachableError
from jobledger.ledger.model.hooks.errors import WatchNotFoundError
from jobledger.ledger.model.hooks.watch import WATCH, Judge, Watch
from jobledger.ledger.webhooks.changes import all_watches, change_watch
from jobledger.projections.errors import ProjectionError

logger = logging.getLogger("jobledger.gateway.hooks.watches")

TICK_S: Final = 2.0
#: Rows that are further behind are too old to judge the present.
BEHIND_S_MAX: Final = 10.0


class _WatchFigure(NamedTuple):
    """A watch, and the value of its figure."""

    watch: Watch
    value: float | None


class WatchJudge:
    """Judges the watches of a ledger; each gateway has one."""

    name = "watches"

    def __init__(self, ledger: Ledger, projection: Projection, *, tick_s: float = TICK_S) -> None:
        self._ledger = ledger
        self._projection = projection
        self._tick_s = tick_s
        self._newest = -1  #: stream sequence of the newest event of any watch at the last read of the watches
        self._watches: list[Watch] = []
        #: The time since which a figure has been beyond its bound, by watch and by the event that set the watch.
        self._breached: dict[tuple[str, int], datetime] = {}

    async def run(self) -> None:
        """Judge until cancelled; after a failed read the next tick judges again."""
        while True:
            try:
                await self.judge()
            except (ProjectionError, UnreachableError) as error:
                logger.debug("watches are judged later: %s", error)
            except LedgerError as error:
                logger.error("watches: %s", error)  # noqa: TRY400 - a sentence
            await asyncio.sleep(self._tick_s)

    async def judge(self) -> None:
        """Judge every watch once, by the rows as they are.

        Raises: ProjectionError, LedgerError.
        """
        watches = await self._read()
        if not watches:
            return
        async with self._projection.opened() as view:
            figured, place = await anyio.to_thread.run_sync(_figures, view, watches)
            now = view.now
        known = {(each.name, each.sequence) for each in watches}
        self._breached = {key: since for key, since in self._breached.items() if key in known}
        for each in figured:
            if place.behind_s <= BEHIND_S_MAX or each.watch.definition.figure == "lag":
                await self._say(each, place, now)

    async def _read(self) -> Sequence[Watch]:
        """Return the watches that are set; read them again only after a change."""
        log = self._ledger.log
        newest = await log.newest_sequence(WATCH.everything(log.names))
        if newest != self._newest:
            self._watches = await all_watches(log)
            self._newest = newest
        return self._watches

    async def _say(self, figured: _WatchFigure, place: AnswerPosition, now: datetime) -> None:
        watch, value = figured
        key = (watch.name, watch.sequence)
        if not watch.definition.is_breached(value):
            self._breached.pop(key, None)
            fires = False
        else:
            since = self._breached.setdefault(key, now)
            fires = watch.firing or now - since >= timedelta(seconds=watch.definition.for_s)
        if fires == watch.firing:
            return
        command = Judge(value=value, position=place.sequence, sequence=watch.sequence, fires=fires)
        try:
            await change_watch(self._ledger, watch.name, command)
        except WatchNotFoundError:
            pass  # it was removed meanwhile
        else:
            logger.info("watch %s %s", watch.name, "fires" if fires else "is within its bounds again")


def _figures(view: View, watches: Sequence[Watch]) -> tuple[list[_WatchFigure], AnswerPosition]:
    """Read all figures of one moment."""
    with view.store.one_moment():
        return [_WatchFigure(each, figure_of(view, each.definition)) for each in watches], view.position()
