"""Declaring the schedules of a worker's code, without undoing the settings of an operator or of newer code.

Each declaration carries a fingerprint of the code's definition. Code whose declaration was replaced does not declare
again while a living worker has the newer code, so a worker of the older version that restarts during a deploy changes
nothing. When the last worker of the newer version is gone, as after a rollback, the older code counts again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.enqueuer import Enqueuer
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidError,
    LedgerError,
    RefusedError,
    UnreachableError,
)
from jobledger.ledger.model.schedules.decisions import Declare
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.schedules.in_code import Schedule

logger = logging.getLogger("jobledger.workers.schedules")

_AT_ONCE: Final = 16
#: Seconds between two tries for schedules that are declared differently; after `_ALL_EVERY` tries all are tried again.
LOOK_EVERY_S: Final = 30.0
_ALL_EVERY: Final = 20


class ScheduleDeclarer:
    """Declares the schedules of a worker's code: at its start, and later those that had to wait."""

    def __init__(self, ledger: Ledger, schedules: Iterable[Schedule], queues: Sequence[str]) -> None:
        """`queues`: queues that the worker serves; schedules with jobs in other queues are left to other workers."""
        self._ledger = ledger
        self._schedules = [each for each in schedules if each.queue in queues]
        self._enqueuer = Enqueuer(ledger, config=ledger.config, clock=ledger.clock, tracing=None)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Declare until cancelled. Raises: UnreachableError, after which it may be called again."""
        while self._schedules:
            waiting = self._schedules
            for _ in range(_ALL_EVERY):
                waiting = await self.declare(waiting)
                await asyncio.sleep(LOOK_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311 - not all at once
        await asyncio.Event().wait()

    async def declare_once(self) -> None:
        """Declare each schedule until the ledger has the code's definition, then only wait until cancelled.

        For a process without a lease, whose life others cannot see: two such processes with different code would
        replace each other's declarations for ever. Raises: as `run`.
        """
        waiting = await self.declare(self._schedules)
        while waiting:
            await asyncio.sleep(LOOK_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311 - not all at once
            waiting = await self.declare(waiting)
        await asyncio.Event().wait()

    async def declare(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """Declare schedules; return those that are still different in the ledger.

        Raises: UnreachableError.
        """
        done = await asyncio.gather(*map(self._declare, schedules))
        return [each for each, is_declared in zip(schedules, done, strict=True) if not is_declared]

    async def _declare(self, schedule: Schedule) -> bool:
        try:
            async with self._turns:
                return await self._declared(schedule)
        except UnreachableError:
            raise
        except (InvalidError, ConfigurationError, RefusedError) as error:
            self._tell(schedule.name, f"schedule {schedule.name} is not declared: {error}")
        except LedgerError as error:
            self._tell(schedule.name, f"schedule {schedule.name} is not declared, it is tried again: {error}")
        return False

    async def _declared(self, schedule: Schedule) -> bool:
        """Declare one schedule; return whether the ledger has the code's definition."""
        assert schedule.task is not None, "it was checked when it was loaded"
        definition = schedule.definition(await self._enqueuer.like(schedule.task, schedule.declared_input))
        known = await self._act(schedule.name, Declare(definition=definition))
        if known.source == "operator":
            self._tell(
                schedule.name,
                f"schedule {schedule.name} is as an operator declared it, not as the code says: "
                f"`jobledger schedules reset {schedule.name}` lets the code count again",
            )
            return False
        if known.code_version == definition.code_version:
            self._told.pop(schedule.name, None)
            return True
        if await self._lives(schedule.name, known.code_version):
            return False
        known = await self._act(schedule.name, Declare(definition=definition, replace=True))
        return known.code_version == definition.code_version

    async def _act(self, name: str, command: Declare) -> Definition:
        schedule = (await self._ledger.schedules.act(name, command)).schedule
        assert schedule is not None, "it was declared"
        return schedule.definition

    async def _lives(self, name: str, code_version: str) -> bool:
        """Return whether a living worker's code has the ledger's definition of a schedule. Raises: UnreachableError."""
        workers = await self._ledger.leases.all()
        return any((each.schedules or {}).get(name) == code_version for each in workers if not each.stopped)

    def _tell(self, name: str, sentence: str) -> None:
        if self._told.get(name) != sentence:  # it is tried again and again, but logged once
            self._told[name] = sentence
            logger.warning("%s", sentence)
