"""Appends of a run's branches: those that come while one is under way go together, as one batch if they are many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from jobledger.ledger.model.commands import (
    CompleteStep,
    CopyEnds,
    Join,
    RefuseSignal,
    StartStep,
    StepCommand,
)
from jobledger.ledger.model.errors import LedgerFullError, UnreachableError
from jobledger.workers.attempt.channel import AttemptChannel

StepAppend = StepCommand | RefuseSignal | CopyEnds | Join

#: A batch of this size costs the server less than as many appends one by one. Source: measured, as ADR 005.
_BATCH_MIN: Final = 16
_BATCH_MAX: Final = 200
#: Of results and items in one batch.
_BYTES_MAX: Final = 1 << 20


class _WaitingStep(msgspec.Struct, eq=False):
    command: StepAppend
    stored: asyncio.Future[None]


class Together:
    """Appends what the branches of one attempt record, one append at a time: each rests on the one before."""

    def __init__(self, channel: AttemptChannel) -> None:
        self._channel = channel
        self._waiting: list[_WaitingStep] = []
        self._emptying: asyncio.Task[None] | None = None
        self._is_busy = False

    async def append(self, command: StepAppend) -> None:
        """Return when what follows from the command is stored. Raises: as `AttemptChannel.append`.

        Cancelled, it may be stored or not, as any append.
        """
        if self._is_busy:
            loop = asyncio.get_running_loop()
            entry = _WaitingStep(command, loop.create_future())
            self._waiting.append(entry)
            await entry.stored
            return
        self._is_busy = True
        try:
            await self._channel.append(command)
        finally:
            if self._waiting:
                self._emptying = asyncio.get_running_loop().create_task(self._empty())
            else:
                self._is_busy = False

    async def _empty(self) -> None:
        """Append what waits, until nothing does."""
        try:
            while some := self._take():
                if len(some) < _BATCH_MIN:
                    for each in some:
                        await self._alone(each)
                else:
                    await self._as_one(some)
                # What these branches record next goes along with what else waits.
                await asyncio.sleep(0)
        finally:
            self._is_busy = False

    def _take(self) -> list[_WaitingStep]:
        """Take the next entries; drop those whose branches were cancelled meanwhile."""
        waiting = [each for each in self._waiting if not each.stored.done()]
        size = count = 0
        for each in waiting[:_BATCH_MAX]:
            size += _size(each.command)
            if count and size > _BYTES_MAX:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _as_one(self, some: Sequence[_WaitingStep]) -> None:
        try:
            refused = await self._channel.append_all([each.command for each in some])
        except (LedgerFullError, UnreachableError) as error:  # raised by each of them
            for each in some:
                _settle(each, error)
            return
        except Exception:  # noqa: BLE001 - one is at fault: appended alone, each shows whether it is the one
            refused = list(range(len(some)))
        for number, each in enumerate(some):
            if number not in refused:
                _settle(each)
        for number in refused:  # appended alone, each is decided on what is stored by then
            await self._alone(some[number])

    async def _alone(self, entry: _WaitingStep) -> None:
        if entry.stored.done():
            return
        try:
            await self._channel.append(entry.command)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for it
            _settle(entry, error)
        else:
            _settle(entry)


def _settle(entry: _WaitingStep, error: Exception | None = None) -> None:
    if entry.stored.done():  # its branch was cancelled
        return
    if error is None:
        entry.stored.set_result(None)
    else:
        entry.stored.set_exception(error)


def _size(command: StepAppend) -> int:
    if isinstance(command, CompleteStep):
        return len(bytes(command.result))
    return len(bytes(command.items)) if isinstance(command, StartStep) else 0
