"""The ledger for blocking code (Django, Flask, scripts): the same verbs through one thread that runs the loop.

Not a second implementation: each call runs in the asynchronous `Ledger`, and the caller waits for its answer.
`loop_thread` handles threads, forked processes and the interpreter's end.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

import msgspec

from jobledger.ledger import client, event_stream, handle
from jobledger.ledger.additions.bulk import BulkResult
from jobledger.ledger.connection import connect as connect_asynchronously
from jobledger.ledger.dead_letters import Changes
from jobledger.ledger.event_stream import EventOptions
from jobledger.ledger.feed import Feed
from jobledger.ledger.held_lock import Block, HeldLock
from jobledger.ledger.locks import WAIT_S_DEFAULT
from jobledger.ledger.loop_thread import LoopThread, wait_for
from jobledger.ledger.model.attempts import Progress
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import ForeignLoopError, LedgerClosedError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.nats.attempt_logs import JobLogs
from jobledger.ledger.outcome import Wish
from jobledger.ledger.protocols import AnyJob
from jobledger.ledger.schedules.sync import BlockingSchedules
from jobledger.ledger.sent_signals import AnySignal
from jobledger.ledger.subscriptions.consumers import SubscriptionInfo
from jobledger.ledger.tasks import Result, Task, TaskWithInput, TaskWithOptions

if TYPE_CHECKING:
    from jobledger.ledger.graphs.graph import Graph
    from jobledger.ledger.graphs.named import NamedGraph
    from jobledger.ledger.graphs.verbs import RunOptions
    from jobledger.ledger.model.graphs.stored import StoredGraph
    from jobledger.ledger.model.named_chain import ChangedValue
    from jobledger.ledger.named.verbs import NamedJob, NamedOptions
    from jobledger.ledger.reruns.plans import Rerun
    from jobledger.ledger.webhooks.receiver import Outcome

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Caller(Protocol):
    """The runner of asynchronous verbs in a loop, for code that blocks; see `LoopThread`."""

    def start(self, verb: Callable[[client.Ledger], Awaitable[R]]) -> concurrent.futures.Future[R]:
        """Begin a call."""
        ...

    def call(self, verb: Callable[[client.Ledger], Awaitable[R]]) -> R:
        """Run a verb and wait for its end."""
        ...

    def give_back(self, verb: Callable[[client.Ledger], Awaitable[R]]) -> R:
        """Run a verb that gives something back, even if no others are begun any more."""
        ...

    def close(self) -> None:
        """Close the opened object."""
        ...


class JobHandle(Generic[R_co]):
    """A job by its name; every method blocks until it is answered. See `handle.JobHandle`."""

    def __init__(self, caller: Caller, asynchronous: handle.JobHandle[R_co]) -> None:
        self._caller = caller
        self._reader = asynchronous.reader
        self.ref = asynchronous.ref
        self.id = asynchronous.id
        self.queue = asynchronous.queue
        self.created = asynchronous.created  #: whether the call that returned this handle made the job
        self.sequence = asynchronous.sequence  #: stream sequence of the job's first event

    def __repr__(self) -> str:
        """Show id and queue."""
        return f"<job {self.id} in {self.queue}>"

    def state(self) -> JobState:
        """Return the job's state as it is now."""
        return self._caller.call(lambda ledger: ledger.handle_of(self.ref).state())

    def snapshot(self) -> Job:
        """Return the whole job as it is now."""
        return self._caller.call(lambda ledger: ledger.handle_of(self.ref).snapshot())

    def history(self) -> list[StoredEvent]:
        """Return every event of the job, oldest first."""
        return self._caller.call(lambda ledger: ledger.handle_of(self.ref).history())

    def wait(self, *, timeout_s: float | None = None) -> Job:
        """Return the job once it is final."""
        return self._caller.call(lambda ledger: ledger.handle_of(self.ref).wait(timeout_s=timeout_s))

    def progress(self) -> Progress | None:
        """Return the newest progress of the job's newest attempt; None: none was reported."""
        return self._caller.call(lambda ledger: ledger.handle_of(self.ref).progress())

    def logs(self, *, attempt: int | None = None, step: str | None = None) -> JobLogs:
        """Return the log lines of the job's attempts that are kept. See `handle.JobHandle.logs`."""
        return self._caller.call(lambda ledger: ledger.handle_of(self.ref).logs(attempt=attempt, step=step))

    def cancel(self, *, reason: str = "", by: str = "") -> Job:
        """End the job if it waits; ask it to end if it runs. See `handle.JobHandle.cancel`."""
        return self._caller.call(lambda ledger: ledger.handle_of(self.ref).cancel(reason=reason, by=by))

    def retry(self, *, reason: str = "", by: str = "") -> Job:
        """Queue a job that waits for a time, give a dead letter one more attempt. See `handle.JobHandle.retry`."""
        return self._caller.call(lambda ledger: ledger.handle_of(self.ref).retry(reason=reason, by=by))

    def reschedule(
        self,
        *,
        run_at: datetime | None = None,
        delay_s: float | None = None,
        reason: str = "",
        by: str = "",
    ) -> Job:
        """Change the time of a job that waits for one. See `handle.JobHandle.reschedule`."""
        return self._caller.call(
            lambda ledger: ledger.handle_of(self.ref).reschedule(
                run_at=run_at, delay_s=delay_s, reason=reason, by=by
            )
        )

    def result(self, *, timeout_s: float | None = None) -> R_co:
        """Wait for the end and return the task's result, in the type of its return annotation."""
        found = self._caller.call(
            lambda ledger: ledger.handle_of(self.ref, reader=self._reader).result(timeout_s=timeout_s)
        )
        return cast("R_co", found)


class Graphs:
    """The stored graphs of a ledger; every method is that of `graphs.verbs.GraphVerbs`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def put(
        self,
        graph: Graph | NamedGraph | Mapping[str, Any],
        *,
        reason: str = "",
        by: str = "",
        plan: bool = False,
    ) -> ChangedValue[StoredGraph]:
        """Store a graph under its name. See `GraphVerbs.put`."""
        return self._caller.call(lambda ledger: ledger.graphs.put(graph, reason=reason, by=by, plan=plan))

    def remove(
        self, name: str, *, reason: str = "", by: str = "", plan: bool = False
    ) -> ChangedValue[StoredGraph]:
        """Take a stored graph away; its runs go on. See `GraphVerbs.remove`."""
        return self._caller.call(lambda ledger: ledger.graphs.remove(name, reason=reason, by=by, plan=plan))

    def get(self, name: str, *, version: int = 0) -> StoredGraph:
        """Return a stored graph, in its newest version (0) or in an older one. See `GraphVerbs.get`."""
        return self._caller.call(lambda ledger: ledger.graphs.get(name, version=version))

    def all(self) -> list[StoredGraph]:
        """Return every stored graph in its newest version, by name. See `GraphVerbs.all`."""
        return self._caller.call(lambda ledger: ledger.graphs.all())

    def run(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - as the asynchronous verb
        **how: Unpack[RunOptions],
    ) -> JobHandle[dict[str, Any]]:
        """Begin a run of a stored graph as one job. See `GraphVerbs.run`."""
        return JobHandle(
            self._caller, self._caller.call(lambda ledger: ledger.graphs.run(name, input, **how))
        )


class Ledger:
    """A connection for blocking code, usable from all threads; made by `connect`.

    As a block (`with`) it is closed at the end; else by `close`, or at the interpreter's end. A forked child connects
    by itself at its first call, and does not touch its parent's connection.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.schedules = BlockingSchedules(caller)
        self.graphs = Graphs(caller)

    def close(self) -> None:
        """Close the connection, within 5 s even if the server does not answer; harmless the second time.

        Calls of other threads have a second to end; after that they raise `LedgerClosedError`, as all later ones do.
        """
        self._caller.close()

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def enqueue(
        self,
        task: Task[P, Result | Wish] | TaskWithOptions[P, Result | Wish],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobHandle[Result]:
        """Add one job; when this returns, the job is in the ledger. See `client.Ledger.enqueue`."""
        made = self._caller.call(lambda ledger: ledger.enqueue(task, *args, **kwargs))
        return JobHandle(self._caller, made)

    def enqueue_many(
        self,
        task: Task[..., Any] | TaskWithOptions[..., Any],
        inputs: Iterable[Mapping[str, Any]],
        *,
        ids: Callable[[Mapping[str, Any]], str] | None = None,
        on_progress: Callable[[int], None] | None = None,
        batch: str | None = None,
        on_end: Task[..., Any] | TaskWithOptions[..., Any] | None = None,
    ) -> BulkResult:
        """Add a job for each input, as a stream, perhaps as a batch. See `client.Ledger.enqueue_many`.

        `inputs` is iterated in the thread that calls; `ids` and `on_progress` are called in the ledger's own.
        """
        feed = Feed(inputs)
        return feed.serve(
            self._caller.start(
                lambda ledger: ledger.enqueue_many(
                    task, feed.items(), ids=ids, on_progress=on_progress, batch=batch, on_end=on_end
                )
            )
        )

    def enqueue_named(
        self,
        task: str,
        input: object = msgspec.Raw(b"{}"),  # noqa: A002 - as the asynchronous verb
        **how: Unpack[NamedOptions],
    ) -> JobHandle[Any]:
        """Add one job by the name of its task, as workers announced it. See `client.Ledger.enqueue_named`."""
        return JobHandle(
            self._caller, self._caller.call(lambda ledger: ledger.enqueue_named(task, input, **how))
        )

    def enqueue_named_many(
        self,
        jobs: Iterable[NamedJob],
        *,
        by: str = "",
        trace: str = "",
        on_progress: Callable[[int], None] | None = None,
    ) -> BulkResult:
        """Add many jobs by the names of their tasks, as a stream. See `client.Ledger.enqueue_named_many`.

        `jobs` is iterated in the thread that calls.
        """
        feed = Feed(jobs)
        return feed.serve(
            self._caller.start(
                lambda ledger: ledger.enqueue_named_many(
                    feed.items(), by=by, trace=trace, on_progress=on_progress
                )
            )
        )

    def do(self, verb: client.Doable[R], *, by: str = "", projection: Path | None = None) -> R:
        """Perform a verb of `jobledger.admin.verbs`. See `client.Ledger.do`."""
        return self._caller.call(lambda ledger: ledger.do(verb, by=by, projection=projection))

    def emit(self, name: str, data: Any, *, by: str = "", id: str | None = None) -> Outcome:  # noqa: A002
        """Hand data to a route as a delivery. See `client.Ledger.emit`."""
        return self._caller.call(lambda ledger: ledger.emit(name, data, by=by, id=id))

    def run_graph(
        self,
        graph: Graph,
        *,
        id: str | None = None,  # noqa: A002 - the public name of the option
        by: str = "",
        owner: str = "",
    ) -> JobHandle[dict[str, Any]]:
        """Begin a graph as one job, whose result has those of the nodes by label. See `client.Ledger.run_graph`."""
        made = self._caller.call(lambda ledger: ledger.run_graph(graph, id=id, by=by, owner=owner))
        return JobHandle(self._caller, made)

    def cancel(self, job: AnyJob, *, queue: str | None = None, reason: str = "", by: str = "") -> Job:
        """End a waiting job at once, ask a running one to end. See `client.Ledger.cancel`."""
        return self._caller.call(lambda ledger: ledger.cancel(job, queue=queue, reason=reason, by=by))

    def retry(self, job: AnyJob, *, queue: str | None = None, reason: str = "", by: str = "") -> Job:
        """Queue a job now that waits for a time, or give a dead letter one more attempt. See `client.Ledger.retry`."""
        return self._caller.call(lambda ledger: ledger.retry(job, queue=queue, reason=reason, by=by))

    def reschedule(
        self,
        job: AnyJob,
        *,
        run_at: datetime | None = None,
        delay_s: float | None = None,
        queue: str | None = None,
        reason: str = "",
        by: str = "",
    ) -> Job:
        """Change the time of a job that waits for one. See `client.Ledger.reschedule`."""
        return self._caller.call(
            lambda ledger: ledger.reschedule(
                job, run_at=run_at, delay_s=delay_s, queue=queue, reason=reason, by=by
            )
        )

    @overload
    def job(
        self,
        job: AnyJob,
        *,
        task: Task[..., Result | Wish] | TaskWithOptions[..., Result | Wish],
        queue: str | None = None,
    ) -> JobHandle[Result]: ...
    @overload
    def job(self, job: AnyJob, *, task: None = None, queue: str | None = None) -> JobHandle[Any]: ...
    def job(
        self,
        job: AnyJob,
        *,
        task: Task[..., Any] | TaskWithOptions[..., Any] | None = None,
        queue: str | None = None,
    ) -> JobHandle[Any]:
        """Return a handle of a job that exists. See `client.Ledger.job`."""
        if task is None:
            found = self._caller.call(lambda ledger: ledger.job(job, queue=queue))
        else:
            found = self._caller.call(lambda ledger: ledger.job(job, task=task, queue=queue))
        return JobHandle(self._caller, found)

    def requeue(
        self, job: AnyJob, *, queue: str | None = None, by: str = "", **changes: Unpack[Changes]
    ) -> Job:
        """Give a dead letter new attempts, perhaps with another input. See `client.Ledger.requeue`."""
        return self._caller.call(lambda ledger: ledger.requeue(job, queue=queue, by=by, **changes))

    def discard(self, job: AnyJob, *, queue: str | None = None, reason: str = "", by: str = "") -> Job:
        """Close a dead letter for good. See `client.Ledger.discard`."""
        return self._caller.call(lambda ledger: ledger.discard(job, queue=queue, reason=reason, by=by))

    def note(self, job: AnyJob, text: str, *, queue: str | None = None, by: str = "") -> Job:
        """Keep a note about a job. See `client.Ledger.note`."""
        return self._caller.call(lambda ledger: ledger.note(job, text, queue=queue, by=by))

    def signal(
        self,
        job: AnyJob,
        signal: AnySignal[R],
        value: R,
        /,
        *,
        id: str = "",  # noqa: A002 - the public name of the option
        queue: str | None = None,
        by: str = "",
        start: TaskWithInput | None = None,
    ) -> bool:
        """Send a run a signal; return False if the run had this `id` before. See `client.Ledger.signal`."""
        options: dict[str, Any] = {"id": id, "queue": queue, "by": by, "start": start}
        return self._caller.call(lambda ledger: ledger.signal(job, signal, value, **options))

    def rerun(
        self,
        run: AnyJob,
        *,
        from_step: str | None = None,
        failed: bool = False,
        queue: str | None = None,
        **how: Unpack[Rerun],
    ) -> JobHandle[Any]:
        """Begin a run again as a new job that copies steps of an earlier run. See `client.Ledger.rerun`."""
        made = self._caller.call(
            lambda ledger: ledger.rerun(run, from_step=from_step, failed=failed, queue=queue, **how)
        )
        return JobHandle(self._caller, made)

    def pause_queue(
        self,
        queue: str,
        *,
        until: datetime | None = None,
        reason: str = "",
        interrupt: bool = False,
        by: str = "",
    ) -> QueueState:
        """Stop giving workers jobs of a queue. See `client.Ledger.pause_queue`."""
        return self._caller.call(
            lambda ledger: ledger.pause_queue(queue, until=until, reason=reason, interrupt=interrupt, by=by)
        )

    def resume_queue(self, queue: str, *, reason: str = "", by: str = "") -> QueueState:
        """Give workers the jobs of a paused queue again. See `client.Ledger.resume_queue`."""
        return self._caller.call(lambda ledger: ledger.resume_queue(queue, reason=reason, by=by))

    def queue_state(self, queue: str) -> QueueState:
        """Return whether a queue is paused, by whom, until when and why. See `client.Ledger.queue_state`."""
        return self._caller.call(lambda ledger: ledger.queue_state(queue))

    def events(self, **options: Unpack[EventOptions]) -> EventStream:
        """Return stored events to iterate, also as a durable subscription. See `client.Ledger.events`."""

        async def begin(ledger: client.Ledger) -> event_stream.EventStream:
            return ledger.events(**options)

        return EventStream(self._caller, self._caller.call(begin))

    def subscriptions(self) -> list[SubscriptionInfo]:
        """Return every durable subscription with its lag. See `client.Ledger.subscriptions`."""
        return self._caller.call(lambda ledger: ledger.subscriptions())

    def delete_subscription(self, name: str) -> SubscriptionInfo:
        """Forget a subscription and its position. See `client.Ledger.delete_subscription`."""
        return self._caller.call(lambda ledger: ledger.delete_subscription(name))

    def lock(
        self, scope: str, lock_id: str, *, wait_s: float = WAIT_S_DEFAULT
    ) -> contextlib.AbstractContextManager[HeldLock]:
        """Exclude everybody else who takes the same lock, for the length of the block. See `client.Ledger.lock`.

        A block of blocking code cannot be cancelled: call `check` of the lock before each important step.
        """
        return Block(f"{scope}/{lock_id}", self._locked(scope, lock_id, wait_s))

    @contextlib.contextmanager
    def _locked(self, scope: str, lock_id: str, wait_s: float) -> Generator[HeldLock, None, None]:
        owner = ("thread", threading.get_ident())
        acquiring = self._caller.start(
            lambda ledger: ledger.locks.acquire(scope, lock_id, wait_s=wait_s, owner=owner)
        )
        try:
            held = wait_for(acquiring)
        except BaseException:  # also Ctrl-C: a lock taken for nobody is given back
            if not acquiring.cancelled() and acquiring.exception() is None:
                taken = acquiring.result()
                self._caller.give_back(lambda ledger: ledger.locks.release(taken))
            raise
        try:
            yield held
        except BaseException:  # also Ctrl-C: however the block ends, its lock is given back
            if held.is_here:
                with contextlib.suppress(LedgerClosedError):  # closing gave it back; the block's error counts
                    self._caller.give_back(lambda ledger: ledger.locks.release_after_error(held))
            raise
        if not held.is_here:
            held.check()  # raises: the block goes on in a forked child, and the lock does not
        self._caller.give_back(lambda ledger: ledger.locks.release(held))


class EventStream:
    """Stored events to iterate, in one thread; see `client.Ledger.events`.

    `with` begins at once and ends in time, also after `break`. A forked child cannot go on with it.
    """

    def __init__(self, caller: Caller, asynchronous: event_stream.EventStream) -> None:
        self._caller = caller
        self._events = asynchronous
        self._pid = os.getpid()

    def __iter__(self) -> Self:
        """Iterate the events."""
        return self

    def __next__(self) -> StoredEvent:
        """Wait for the next event; if the wait is interrupted, the event is given back."""
        self._require_here()

        async def step(_: client.Ledger) -> StoredEvent | None:
            return await anext(self._events, None)

        stored = self._caller.call(step)
        if stored is None:
            raise StopIteration
        return stored

    def close(self) -> None:
        """End the stream; unfinished events of a durable subscription are given back."""
        self._require_here()
        self._caller.give_back(lambda _: self._events.aclose())

    def __enter__(self) -> Self:
        """Begin now."""
        self._require_here()
        self._caller.call(lambda _: self._events.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    def _require_here(self) -> None:
        if self._pid != os.getpid():
            raise ForeignLoopError(
                f"this reading of events belongs to process {self._pid}, from which this one was forked: "
                "begin another one here"
            )


def connect(url: str | None = None, **settings: Any) -> Ledger:
    """Open a ledger, for the length of a `with` block or, called plainly, until `close` or the process's end.

    Settings and errors are those of `connection.connect`.
    """
    caller = LoopThread(functools.partial(connect_asynchronously, url, **settings))
    caller.open()
    return Ledger(caller)
