"""An attempt that runs now, and how it is told to stop."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from jobledger.ledger.model.chain import JobView
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.pull import Delivery
from jobledger.workers.attempt.channel import AttemptChannel

#: How long a task in a thread may take to hear, by its heartbeat, that it is cancelled.
COOPERATION_S: Final = 5.0


class Running(msgspec.Struct, eq=False):
    """A claimed attempt while its task runs; the worker's handle on it."""

    ref: JobRef
    task: asyncio.Task[None]
    in_thread: bool
    identity: str  #: the worker identity that claimed it
    chain: JobView  #: as it was claimed
    job: Job  #: of that chain; kept beside it, since an attempt asks for it a dozen times
    channel: AttemptChannel | None = None  #: of a task that takes a context
    stop_reason: str = ""  #: why it was told to stop; "" while it was not
    cancelled: bool = False  #: it was told to stop because somebody cancelled the job
    stalled: str = ""  #: what it failed to do in time; "" while it shows signs of life
    newer: Delivery | None = None  #: a newer work item of the same job, handed out meanwhile; settled with it
    recording: bool = False  #: the task has ended and its outcome is on its way into the ledger

    @property
    def newest_chain(self) -> JobView:
        """The newest view of the chain that this attempt has."""
        return self.chain if self.channel is None else self.channel.chain

    def stop(self, reason: str, *, cancelled: bool = False) -> None:
        """Tell it to stop, once. What has an outcome already is left to record it.

        A coroutine is cancelled at once. A thread cannot be: when its job is cancelled it hears so at its
        next heartbeat, and is waited for no longer than `COOPERATION_S`.
        """
        if self.stop_reason or self.recording:
            return
        self.stop_reason = reason
        self.cancelled = cancelled
        self.tell_thread(reason)
        if self.in_thread and cancelled:
            self.task.get_loop().call_later(COOPERATION_S, self._cut)
        else:
            self.task.cancel(reason)

    def tell_thread(self, reason: str) -> None:
        """Let the next heartbeat of a task that is not on the loop raise."""
        if self.channel is not None:
            self.channel.stop_reason = reason

    def _cut(self) -> None:
        if not self.recording:
            self.task.cancel(self.stop_reason)
