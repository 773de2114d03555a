"""What a running task can know and say of itself: `Context`, handed to a parameter of that type."""

from __future__ import annotations

import logging
import types
from collections.abc import Awaitable, Generator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from jobledger.ledger.signature import GivenByWorker

if TYPE_CHECKING:
    from jobledger.ledger import client, sync


class Channel(Protocol):
    """Where a context's words go: to the ledger by way of the worker; in a unit test, wherever the test likes."""

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

    @property
    def ledger(self) -> client.Ledger:
        """The ledger, for an async task: jobs that it makes are this job's.

        They inherit its trace and tenant, name it as their causation, and belong to its correlation, or to this job
        where it has none. One that is given no id gets `<job id>-<task>-<n>`, n counting the jobs of that task which
        this attempt makes: another attempt that makes the same ones in the same order finds them made.

        Raises: InvalidInputError in a task that is not async, RefusedError where a job is only debugged; its
        `enqueue` InputMismatchError too.
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
