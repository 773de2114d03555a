"""`Context`: what a running task can read about its attempt and report; the worker passes it as a parameter."""

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
    #: The stream sequence of the attempt's `started`, larger than that of any earlier attempt: what the task changes
    #: elsewhere can keep it and refuse a smaller one, which comes from a worker that lost the job. 0 outside of workers.
    claim_epoch: int = 0
    logger: logging.LoggerAdapter[Any]  #: bound to job and attempt
    channel: Channel
    checkpoint_value: Any = None  #: what an earlier attempt last gave to `checkpoint`, read from JSON

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

        What the task says is kept in `channel`: `reports`, `checkpoints`, `heartbeats`; `channel.stop_reason = "..."`
        makes the next sign of life raise AttemptStoppedError. `checkpoint` is what an earlier attempt left.
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
        """The ledger, for an async task: jobs that it makes are this job's.

        They inherit its trace and tenant, name it as their causation, and belong to its correlation, or to this job
        where it has none. One that is given no id gets `<job id>-<task>-<n>`, n counting the jobs of that task which
        this attempt makes: another attempt that makes the same ones in the same order finds them made.

        Raises: InvalidInputError in a task that is not async, RefusedError where a job is only debugged; its
        `enqueue` also raises InputMismatchError.
        """
        return self.channel.ledger()

    @property
    def sync_ledger(self) -> sync.Ledger:
        """The same with verbs that block, for a task that is not async.

        When the attempt is told to stop, a verb under way raises AttemptStoppedError.

        Raises: InvalidInputError in an async task, RefusedError where a job is only debugged.
        """
        return self.channel.sync_ledger()

    def heartbeat(self) -> None:
        """Say that the task is alive, and hear whether it should go on. Cheap; callable from any thread.

        Raises: AttemptStoppedError in a task that runs in a thread or a process and was told to stop (an async
        task is cancelled instead); let it pass, so that the attempt ends.
        """
        self.channel.heartbeat()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far the task is. Callable as often as one likes: what is stored and shown is rate-limited.

        Raises: AttemptStoppedError, as `heartbeat`; InvalidInputError for NaN or an infinite number.
        """
        self.channel.progress(done, total, note)

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Keep a JSON value for the next attempt; in the ledger once awaited.

        An async task awaits it. In a sync task the call itself returns only when the value is stored, and
        there is nothing to await. Each one is an event of the ledger: meant for every some seconds, not for
        every row.

        Raises: InvalidInputError for what JSON cannot hold, StaleClaimError when the job is somebody else's by now,
        AttemptStoppedError, UnreachableError.
        """
        return self.channel.checkpoint(value)


@types.coroutine  # unlike a coroutine's, nothing complains when what it returns is not awaited
def done() -> Generator[None, None, None]:
    """Return what `Channel.checkpoint` gives a sync task: awaiting it is allowed, and does nothing."""
    yield from ()


# For unit tests: what a task says is kept, and nothing else happens.


class ProgressCall(NamedTuple):
    """One call of `Context.progress`."""

    done: float
    total: float | None
    note: str


class RecordedChannel:
    """Keeps what a task says, after the checks that a worker makes."""

    def __init__(self, ledger: client.Ledger | None, sync_ledger: sync.Ledger | None) -> None:
        self.heartbeats = 0  #: signs of life, progress and checkpoints included
        self.reports: list[ProgressCall] = []
        self.checkpoints: list[Any] = []  #: as the next attempt would read them
        self.stop_reason = ""  #: set it, and the next sign of life raises AttemptStoppedError
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
    """A context whose channel keeps what was said."""

    channel: RecordedChannel
