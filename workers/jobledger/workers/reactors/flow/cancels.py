"""Cancellations for a limit's mode: superseded or dropped jobs are cancelled, each on its own chain."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import commit, load, retry_raced, transact
from jobledger.ledger.model.commands import CancelJob
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import LedgerError, NotFoundError, RefusedError
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.limits.modes import Cancel
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.reactors.flow.log_once import ToldOnce
from jobledger.workers.services import end

logger = logging.getLogger("jobledger.workers.reactors.flow.cancels")

_AT_ONCE: Final = 64


class Canceller:
    """Cancels jobs as decided; several processes may do so, since each append is conditional on the job's chain."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[Cancel, asyncio.Task[None]] = {}
        self._owed: list[Cancel] = []  # cancellations that could not be stored yet
        self._trouble = ToldOnce(
            logger,
            "jobs could not be cancelled for their limits, %s for limit %s first: %s; tried again until they are",
        )

    def carry_out(self, cancels: Iterable[Cancel]) -> None:
        """Begin to cancel; the outcome is read from the ledger."""
        for each in cancels:
            if each not in self._tasks:
                self._tasks[each] = task = self._ledger.connection.loop.create_task(self._cancel(each))
                task.add_done_callback(functools.partial(self._on_done, each))

    def _on_done(self, cancel: Cancel, _task: asyncio.Task[None]) -> None:
        del self._tasks[cancel]

    async def _cancel(self, cancel: Cancel) -> None:
        ref = JobRef(queue=cancel.queue, job_id=cancel.job)
        try:
            async with self._turns:
                if cancel.held:
                    await retry_raced(functools.partial(self._end_wait, ref, cancel))
                else:
                    await transact(self._ledger.log, ref, cancel_command(cancel), self._ledger.stamp)
                    self._ledger.hints.tell_cancel(ref)
        except (NotFoundError, RefusedError):
            return  # it went on, or was cancelled before
        except LedgerError as error:
            self._trouble.failed(cancel.job, cancel.limit, error)
            self._owed.append(cancel)
        else:
            self._trouble.went_well()

    async def _end_wait(self, ref: JobRef, cancel: Cancel) -> None:
        """Cancel the job if it is still in the same wait."""
        view = await load(self._ledger.log, ref)
        job = view.job
        if job is None or job.state is not JobState.HELD or job.wait_sequence != cancel.held:
            return
        await commit(self._ledger.log, view, decide(job, cancel_command(cancel), self._ledger.stamp()))

    def try_again(self) -> None:
        """Try cancellations again that failed before."""
        owed, self._owed = self._owed, []
        self.carry_out(owed)

    async def close(self) -> None:
        """Stop the appends."""
        await end(*self._tasks.values())


def cancel_command(cancel: Cancel) -> CancelJob:
    """Return the command of a cancellation that a limit's mode asks for."""
    by = f" by {cancel.by}" if cancel.by else ""
    return CancelJob(reason=f"{cancel.why}{by}, limit {cancel.limit}")
