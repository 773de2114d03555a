"""`Context`, which the worker passes to a task: the facts about its attempt, and methods to report."""

from __future__ import annotations

import logging
import types
from collections.abc import Awaitable, Generator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from jobledger.ledger.model.errors import AttemptStoppedError, InvalidInputError
from jobledger.ledger.model.inputs import finite
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.signature import GivenByWorker

if TYPE_CHECKING:
    from jobledger.ledger import client, sync


class Channel(Protocol):
    """The receiver of a context's reports: the worker, which passes them to the ledger; in a unit test, a recorder."""

    def heartbeat(self) -> None:
        """See `Context.heartbeat`."""
        ...

    def progress(self, done: float, total: float | None, note: str) -> None:
        """See `Context.progress`."""
        ...

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """See `Context.checkpoint`."""
        ...

    def ledger(self) -> client.Ledger:
        """See `Context.ledger`."""
        ...

    def sync_ledger(self) -> sync.Ledger:
        """See `Context.sync_ledger`."""
        ...


class Context(msgspec.Struct, GivenByWorker, frozen=True, kw_only=True):
    """The attempt a task is running in.

    A task that wants it has a parameter annotated `Context` (first, by custom); it is not part of the input.
    """

    job_id: str
    queue: str
    task: str
    attempt: int  #: 1 for the first run
    worker: str
    deadline: datetime | None  #: when the attempt times out, by the worker's clock; None: never
    #: The stream sequence of the attempt's `started`, larger than that of any earlier attempt: a resource that the
    #: task changes can keep it, and refuse a smaller one, which comes from a worker that lost the job. 0 outside of
    #: workers.
    claim_epoch: int = 0
    logger: logging.LoggerAdapter[Any]  #: bound to job and attempt
    channel: Channel
    checkpoint_value: Any = (
        None  #: the newest value that an earlier attempt passed to `checkpoint`, read from JSON
    )

    @classmethod
    def for_test(
        cls,
        *,
        job_id: str = "test-1",
        queue: str = "test",
        task: str = "test",
        attempt: int = 1,
        checkpoint: Any = None,
        deadline: datetime | None = None,
        ledger: client.Ledger | None = None,
        sync_ledger: sync.Ledger | None = None,
    ) -> ContextForTest:
        """Return a context to call a task with in a unit test: `await send.function(Context.for_test(), to="ada")`.

        Reports of the task are kept in `channel`: `reports`, `checkpoints`, `heartbeats`. After `channel.stop_reason =
        "..."` the next sign of life raises AttemptStoppedError. `checkpoint` is the value from an earlier attempt.
        """
        return ContextForTest(
            job_id=job_id,
            queue=queue,
            task=task,
            attempt=attempt,
            worker="test",
            deadline=deadline,
            claim_epoch=attempt,
            logger=logging.LoggerAdapter(logging.getLogger(f"jobledger.task.{task}"), {"job": job_id}),
            channel=RecordedChannel(ledger, sync_ledger),
            checkpoint_value=checkpoint,
        )

    @property
    def ledger(self) -> client.Ledger:
        """The ledger, for an async task: jobs that it makes belong to this job.

        They inherit its trace and tenant, name it as their causation, and have its correlation, or the id of this job
        if it has none. A new job without an id gets `<job id>-<task>-<n>`, where n counts the jobs of that task in
        this attempt: another attempt that makes the same jobs in the same order finds them made.

        Raises: InvalidInputError in a task that is not async, RefusedError if the job is only debugged; its `enqueue`
        also raises InputMismatchError.
        """
        return self.channel.ledger()

    @property
    def sync_ledger(self) -> sync.Ledger:
        """The ledger as `ledger`, but with verbs that block, for a task that is not async.

        If the attempt is told to stop, a running verb raises AttemptStoppedError.

        Raises: InvalidInputError in an async task, RefusedError if the job is only debugged.
        """
        return self.channel.sync_ledger()

    def heartbeat(self) -> None:
        """Report that the task is alive, and learn whether it should go on. Cheap; callable from any thread.

        Raises: AttemptStoppedError in a task that runs in a thread or a process and was told to stop (an async
        task is cancelled instead); let it pass, so that the attempt ends.
        """
        self.channel.heartbeat()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far the task is. May be called at any rate: only some reports are stored and shown.

        Raises: AttemptStoppedError, as `heartbeat`; InvalidInputError for NaN or an infinite number.
        """
        self.channel.progress(done, total, note)

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Store a JSON value for the next attempt; once awaited, it is in the ledger.

        An async task awaits it. In a sync task the call itself returns only when the value is stored, and
        there is nothing to await. Each checkpoint is an event of the ledger: make one every few seconds, not for every
        row.

        Raises: InvalidInputError for a value that JSON cannot hold, StaleClaimError if another worker has the job by
        now, AttemptStoppedError, UnreachableError.
        """
        return self.channel.checkpoint(value)


@types.coroutine  # unlike with a coroutine, Python does not warn if the result is not awaited
def done() -> Generator[None, None, None]:
    """Return the result of `Channel.checkpoint` for a sync task: awaiting it is allowed, and does nothing."""
    yield from ()


# For unit tests: reports of a task are kept, and nothing else happens.


class ProgressCall(NamedTuple):
    """One call of `Context.progress`."""

    done: float
    total: float | None
    note: str


class RecordedChannel:
    """Keeps the reports of a task, after the checks that a worker makes."""

    def __init__(self, ledger: client.Ledger | None, sync_ledger: sync.Ledger | None) -> None:
        self.heartbeats = 0  #: signs of life, progress and checkpoints included
        self.reports: list[ProgressCall] = []
        self.checkpoints: list[Any] = []  #: in the form that the next attempt would read
        self.stop_reason = ""  #: if set, the next sign of life raises AttemptStoppedError
        self._ledger = ledger
        self._sync_ledger = sync_ledger

    def heartbeat(self) -> None:
        """See `Context.heartbeat`."""
        self.heartbeats += 1
        if self.stop_reason:
            raise AttemptStoppedError(self.stop_reason)

    def progress(self, done: float, total: float | None, note: str) -> None:
        """See `Context.progress`."""
        of = None if total is None else finite("total", total)
        self.reports.append(ProgressCall(finite("done", done), of, str(note)))
        self.heartbeat()

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """See `Context.checkpoint`."""
        self.checkpoints.append(msgspec.json.decode(encode_value(value, what="checkpoint")))
        self.heartbeat()
        return done()

    def ledger(self) -> client.Ledger:
        """See `Context.ledger`."""
        if self._ledger is None:
            raise InvalidInputError("this context has no ledger: give one, Context.for_test(ledger=...)")
        return self._ledger

    def sync_ledger(self) -> sync.Ledger:
        """See `Context.sync_ledger`."""
        if self._sync_ledger is None:
            raise InvalidInputError(
                "this context has no ledger that blocks: give one, Context.for_test(sync_ledger=...)"
            )
        return self._sync_ledger


class ContextForTest(Context, frozen=True, kw_only=True):
    """A context whose channel keeps the reports."""

    channel: RecordedChannel
