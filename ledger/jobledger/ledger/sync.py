"""The ledger for blocking code (Django, Flask, scripts): the same verbs through one thread that runs the loop.

Not a second implementation: each call is carried to the asynchronous `Ledger` and waits for its answer.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from jobledger.ledger import client, event_stream, handle
from jobledger.ledger.dead_letters import Changes
from jobledger.ledger.enqueueing import BulkResult
from jobledger.ledger.event_stream import EventOptions
from jobledger.ledger.held_lock import Block, HeldLock
from jobledger.ledger.locks import WAIT_S_DEFAULT
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.subscriptions.consumers import SubscriptionInfo
from jobledger.ledger.tasks import Task, TaskWithOptions

P = ParamSpec("P")
R = TypeVar("R")


class JobHandle(Generic[R]):
    """A job by its name; every method blocks until it is answered. See `handle.JobHandle`."""

    def __init__(self, portal: BlockingPortal, asynchronous: handle.JobHandle[R]) -> None:
        self._portal = portal
        self._job = asynchronous
        self.ref = asynchronous.ref
        self.id = asynchronous.id
        self.queue = asynchronous.queue
        self.created = asynchronous.created  #: whether this very call made the job
        self.sequence = asynchronous.sequence  #: stream sequence of the event that made it

    def __repr__(self) -> str:
        """Show id and queue."""
        return repr(self._job)

    def state(self) -> JobState:
        """Return the job's state as it is now."""
        return self._portal.call(self._job.state)

    def snapshot(self) -> Job:
        """Return the whole job as it is now."""
        return self._portal.call(self._job.snapshot)

    def history(self) -> list[StoredEvent]:
        """Return every event of the job, oldest first."""
        return self._portal.call(self._job.history)

    def wait(self, *, timeout_s: float | None = None) -> Job:
        """Return the job once it is final."""
        return _call(self._portal, lambda: self._job.wait(timeout_s=timeout_s))

    def result(self, *, timeout_s: float | None = None) -> R:
        """Wait for the end and return what the task returned."""
        return _call(self._portal, lambda: self._job.result(timeout_s=timeout_s))


class Ledger:
    """A connection for blocking code, usable from several threads; made by `connect`."""

    def __init__(self, portal: BlockingPortal, asynchronous: client.Ledger) -> None:
        self._portal = portal
        self._ledger = asynchronous

    def enqueue(
        self, task: Task[P, R] | TaskWithOptions[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]:
        """Add one job; when this returns, the job is in the ledger. See `client.Ledger.enqueue`."""
        return JobHandle(
            self._portal, _call(self._portal, lambda: self._ledger.enqueue(task, *args, **kwargs))
        )

    def enqueue_many(
        self,
        task: Task[P, R] | TaskWithOptions[P, R],
        inputs: Iterable[Mapping[str, Any]],
        *,
        ids: Callable[[Mapping[str, Any]], str] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> BulkResult:
        """Add a job for each input, as a stream. `inputs` is iterated in the ledger's thread."""
        return _call(
            self._portal, lambda: self._ledger.enqueue_many(task, inputs, ids=ids, on_progress=on_progress)
        )

    def cancel(self, job: JobHandle[Any], *, reason: str = "", by: str = "") -> Job:
        """End a waiting job at once, ask a running one to end. See `client.Ledger.cancel`."""
        return _call(self._portal, lambda: self._ledger.cancel(job.ref, reason=reason, by=by))

    def retry(self, job: JobHandle[Any], *, reason: str = "", by: str = "") -> Job:
        """Let a waiting job wait no longer, give a dead letter one more attempt. See `client.Ledger.retry`."""
        return _call(self._portal, lambda: self._ledger.retry(job.ref, reason=reason, by=by))

    def job(self, job_id: str, *, queue: str | None = None) -> JobHandle[Any]:
        """Return a handle of a job that exists. See `client.Ledger.job`."""
        return JobHandle(self._portal, _call(self._portal, lambda: self._ledger.job(job_id, queue=queue)))

    def requeue(
        self, job_id: str, *, queue: str | None = None, by: str = "", **changes: Unpack[Changes]
    ) -> Job:
        """Give a dead letter new attempts, perhaps with another input. See `client.Ledger.requeue`."""
        return _call(self._portal, lambda: self._ledger.requeue(job_id, queue=queue, by=by, **changes))

    def discard(self, job_id: str, *, queue: str | None = None, reason: str = "", by: str = "") -> Job:
        """Close a dead letter for good. See `client.Ledger.discard`."""
        return _call(self._portal, lambda: self._ledger.discard(job_id, queue=queue, reason=reason, by=by))

    def events(self, **options: Unpack[EventOptions]) -> EventStream:
        """Return stored events to iterate, also as a durable subscription. See `client.Ledger.events`."""

        async def begin() -> event_stream.EventStream:
            return self._ledger.events(**options)

        return EventStream(self._portal, self._portal.call(begin))

    def subscriptions(self) -> list[SubscriptionInfo]:
        """Return every durable subscription with its lag. See `client.Ledger.subscriptions`."""
        return self._portal.call(self._ledger.subscriptions)

    def delete_subscription(self, name: str) -> SubscriptionInfo:
        """Forget a subscription and its position. See `client.Ledger.delete_subscription`."""
        return self._portal.call(self._ledger.delete_subscription, name)

    def lock(
        self, scope: str, lock_id: str, *, wait_s: float = WAIT_S_DEFAULT
    ) -> contextlib.AbstractContextManager[HeldLock]:
        """Exclude everybody else who takes the same lock, for the length of the block. See `client.Ledger.lock`.

        A block of blocking code cannot be cancelled: call `check` on what this gives before each step that matters.
        """
        return Block(f"{scope}/{lock_id}", self._locked(scope, lock_id, wait_s))

    @contextlib.contextmanager
    def _locked(self, scope: str, lock_id: str, wait_s: float) -> Generator[HeldLock, None, None]:
        locks, owner = self._ledger.locks, ("thread", threading.get_ident())
        acquiring = self._portal.start_task_soon(
            functools.partial(locks.acquire, scope, lock_id, wait_s=wait_s, owner=owner)
        )
        try:
            held = acquiring.result()
        except BaseException:  # Ctrl-C, too: what is taken for nobody is given back
            if not acquiring.cancel() and acquiring.exception() is None:
                self._portal.call(locks.release, acquiring.result())
            raise
        try:
            yield held
        except BaseException:
            self._portal.call(locks.release_after_error, held)
            raise
        self._portal.call(locks.release, held)


class EventStream:
    """Stored events to iterate, in one thread; see `client.Ledger.events`.

    `with` begins at once and ends in time, also after `break`.
    """

    def __init__(self, portal: BlockingPortal, asynchronous: event_stream.EventStream) -> None:
        self._portal = portal
        self._events = asynchronous

    def __iter__(self) -> Self:
        """Iterate the events."""
        return self

    def __next__(self) -> StoredEvent:
        """Wait for the next event; whoever interrupts that gives it back."""

        async def step() -> StoredEvent | None:
            return await anext(self._events, None)

        waiting = self._portal.start_task_soon(step)
        try:
            stored = waiting.result()
        except BaseException:
            waiting.cancel()
            raise
        if stored is None:
            raise StopIteration
        return stored

    def close(self) -> None:
        """End it; what a durable subscription was not done with is given back."""
        self._portal.call(self._events.aclose)

    def __enter__(self) -> Self:
        """Begin now."""
        self._portal.call(self._events.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()


def _call(portal: BlockingPortal, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
    async def call() -> R:
        return await make()

    return portal.call(call)


@contextlib.contextmanager
def connect(url: str | None = None, **settings: Any) -> Generator[Ledger, None, None]:
    """Open a ledger for the length of the block; settings and errors are those of `client.connect`."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(client.connect(url, **settings)) as ledger,
    ):
        yield Ledger(portal, ledger)
