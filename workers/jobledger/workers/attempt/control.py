"""An attempt that runs now, and how it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jobledger.ledger.model.chain import JobView
from jobledger.ledger.model.commands import Fail, Outcome
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.seals import ValueKey, seal_error
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.tasks import Task
from jobledger.ledger.tracing import AttemptSpan
from jobledger.workers.attempt.channel import AttemptChannel
from jobledger.workers.attempt.log_lines import AttemptLog
from jobledger.workers.logs import facts_of


class Control(msgspec.Struct, eq=False):
    """The changing part of an attempt. Used on the loop only."""

    channel: AttemptChannel | None = None  #: the channel of a task that takes a context
    stop_reason: str = ""  #: why it was told to stop; "" while it was not
    cancelled: bool = False  #: it was told to stop because somebody cancelled the job
    limit: str = ""  #: the sentence to record on the limit of the attempt that was reached; "": none was
    stalled: str = ""  #: the sign of life that is missing; "": none is
    returned: bool = False  #: the task has ended, and its result is being put away
    recording: bool = False  #: the task has ended, and its outcome is being appended
    abandoned: bool = False  #: the task has not ended, and its outcome is recorded all the same
    undoing: bool = False  #: the run ends and undoes its steps: a further cancel request changes nothing
    recorded: Outcome | None = (
        None  #: the outcome that its run recorded itself when it parked or ended; then no other one is recorded
    )
    span: AttemptSpan | None = None
    key: ValueKey | None = None  #: the key of the job's owner
    log: AttemptLog | None = None  #: lines that its code logged; None before the first one

    def sealed(self, outcome: Outcome) -> Outcome:
        """Return an outcome in the form for ledger, log and spans: its error is sealed if the job has an owner."""
        if self.key is None or not isinstance(outcome, Fail):
            return outcome
        return msgspec.structs.replace(outcome, error=seal_error(self.key, outcome.error))


class Attempt(msgspec.Struct, frozen=True, eq=False):
    """One claimed attempt at its beginning; `control` has the part that changes."""

    ref: JobRef
    task: Task[Any, Any] | None  #: None: no loaded module defines the task
    identity: str  #: the worker's identity in the claim
    chain: JobView  #: the job's chain, which ends with the claim
    job: Job  #: the job of that chain
    own_task: asyncio.Task[None]  #: the asyncio task that makes the attempt
    control: Control
    #: Called to end the attempt once it was told to stop.
    on_told: Callable[[Attempt], None] = lambda _attempt: None

    @property
    def name(self) -> str:
        """The name of the attempt in the log."""
        return f"task {self.job.task} of job {self.job.id}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """The fields of log lines about the attempt."""
        return facts_of(self.job, self.identity)

    @property
    def newest_chain(self) -> JobView:
        """The newest view of the chain that this attempt has."""
        channel = self.control.channel
        return self.chain if channel is None else channel.chain

    @property
    def in_thread(self) -> bool:
        """Whether the task runs in a thread, which nothing can end but the task itself."""
        return self.task is not None and not self.task.is_async and self.task.rules.run_in != "process"

    @property
    def on_loop(self) -> bool:
        """Whether the task is a coroutine on the worker's loop, which may swallow its cancellation."""
        return self.task is not None and self.task.is_async and self.task.rules.run_in != "process"

    def stop(self, reason: str, *, cancelled: bool = False, paused: bool = False) -> None:
        """Tell the attempt to stop, once; if its outcome exists already, it goes on to record that.

        A coroutine is cancelled at once. A thread cannot be: when its job is cancelled or paused, its next heartbeat
        raises, and the attempt ends without it after the worker's `cancel_grace_s`.
        """
        control = self.control
        if control.stop_reason or control.returned or control.recording or control.abandoned:
            return
        control.stop_reason = reason
        control.cancelled = cancelled
        self.tell_thread(reason)
        if not (self.in_thread and (cancelled or paused)):
            self.own_task.cancel(reason)
        self.on_told(self)

    def pause(self) -> None:
        """Stop it because somebody asked to pause the job, and it has just stored a checkpoint to go on from."""
        self.stop("somebody asked to pause the job", paused=True)

    def reach_limit(self, sentence: str) -> None:
        """End it because it reached a limit of its own; the sentence is recorded."""
        if self.control.stop_reason or self.control.limit:
            return
        self.control.limit = sentence
        self.tell_thread(sentence)
        self.own_task.cancel(sentence)
        self.on_told(self)

    def tell_thread(self, reason: str) -> None:
        """Make the next heartbeat of a task that is not on the loop raise."""
        if self.control.channel is not None:
            self.control.channel.stop_reason = reason

    def cut(self) -> None:
        """Leave behind its thread, which did not end in time, unless an outcome is being recorded."""
        if not self.control.recording:
            self.own_task.cancel(self.control.stop_reason)
