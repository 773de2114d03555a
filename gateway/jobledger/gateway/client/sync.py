"""The ledger over HTTP, for code that blocks: the verbs of the async client, run by a loop in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from jobledger.gateway.client import remote
from jobledger.gateway.client.calls import AnyTask, JobOptions
from jobledger.gateway.client.models import BulkResult, EmitAnswer, Event, JobLogs, JobSnapshot

if TYPE_CHECKING:
    from jobledger.admin.verbs.kit import Verb
    from jobledger.gateway.client.graph_calls import RunOptions
    from jobledger.ledger.graphs.graph import Graph

T = TypeVar("T")


def connect(url: str, *, key: str = "", **options: Any) -> Ledger:
    """Return the ledger behind a gateway, for the length of a `with` block; see `jobledger.gateway.client.connect`."""
    return Ledger(url, key=key, **options)


class Ledger:
    """The verbs of a ledger over HTTP; any thread may call them."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options
        self._begun: AbstractContextManager[BlockingPortal] | None = None
        self._portal: BlockingPortal | None = None
        self._remote: remote.Ledger | None = None
        self.graphs = Graphs(lambda: self.opened)

    def __enter__(self) -> Self:
        """Begin the loop."""
        self._begun = start_blocking_portal()
        self._portal = self._begun.__enter__()
        self._remote = self._portal.call(lambda: remote.connect(self._url, **self._options))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections and end the loop."""
        portal, ledger = self.opened
        portal.call(ledger.__aexit__)
        assert self._begun is not None, "it was entered"
        self._begun.__exit__(kind, error, trace)
        self._portal = self._remote = None

    @property
    def opened(self) -> tuple[BlockingPortal, remote.Ledger]:
        """The loop and the async client. Raises: RuntimeError outside of the `with` block."""
        if self._portal is None or self._remote is None:
            raise RuntimeError("this client is not open: use it inside of `with connect(...) as ledger:`")
        return self._portal, self._remote

    def enqueue(
        self,
        task: AnyTask,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        options: JobOptions | None = None,
        **arguments: Any,
    ) -> JobHandle:
        """Add one job; see `remote.Ledger.enqueue`."""
        portal, ledger = self.opened
        return JobHandle(
            portal, portal.call(lambda: ledger.enqueue(task, values, options=options, **arguments))
        )

    def enqueue_many(
        self,
        task: AnyTask,
        inputs: Iterable[Mapping[str, Any]],
        *,
        options: JobOptions | None = None,
        batch: str | None = None,
        on_end: AnyTask | None = None,
    ) -> BulkResult:
        """Add a job for each input; see `remote.Ledger.enqueue_many`. The inputs are made in the loop's thread."""
        portal, ledger = self.opened
        return portal.call(
            lambda: ledger.enqueue_many(task, inputs, options=options, batch=batch, on_end=on_end)
        )

    def run_graph(self, graph: Graph | Mapping[str, Any], *, id: str | None = None) -> JobHandle:  # noqa: A002 - as the ledger's
        """Begin a graph as one job; see `remote.Ledger.run_graph`."""
        portal, ledger = self.opened
        return JobHandle(portal, portal.call(lambda: ledger.run_graph(graph, id=id)))

    def emit(self, route: str, data: Any, *, id: str | None = None) -> EmitAnswer:  # noqa: A002 - as the ledger's
        """Hand data to a route as a delivery; see `remote.Ledger.emit`."""
        portal, ledger = self.opened
        return portal.call(lambda: ledger.emit(route, data, id=id))

    def do(self, verb: Verb[T]) -> T:
        """Do a verb of `jobledger.admin.verbs`; see `remote.Ledger.do`."""
        portal, ledger = self.opened
        return portal.call(lambda: ledger.do(verb))

    def job(self, job: str, *, queue: str | None = None) -> JobHandle:
        """Return the job of an id; see `remote.Ledger.job`."""
        portal, ledger = self.opened
        return JobHandle(portal, portal.call(lambda: ledger.job(job, queue=queue)))

    def events(self, **choice: Any) -> Generator[Event, None, None]:
        """Iterate events; see `remote.Ledger.events`."""
        portal, ledger = self.opened
        events = ledger.events(**choice)
        try:
            while True:
                yield portal.call(events.__anext__)
        except StopAsyncIteration:
            return
        finally:
            portal.call(events.aclose)


class Graphs:
    """The graphs that are stored under their names; see `remote.Graphs`."""

    def __init__(self, opened: Callable[[], tuple[BlockingPortal, remote.Ledger]]) -> None:
        self._opened = opened

    def put(self, graph: Graph | Mapping[str, Any], *, reason: str = "") -> int:
        """Store a graph under its name; return the version."""
        portal, ledger = self._opened()
        return portal.call(lambda: ledger.graphs.put(graph, reason=reason))

    def run(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - as the ledger's
        **said: Unpack[RunOptions],
    ) -> JobHandle:
        """Begin a run of a stored graph as one job."""
        portal, ledger = self._opened()
        return JobHandle(portal, portal.call(lambda: ledger.graphs.run(name, input, **said)))

    def remove(self, name: str, *, reason: str = "") -> None:
        """Take a stored graph away; its runs go on."""
        portal, ledger = self._opened()
        portal.call(lambda: ledger.graphs.remove(name, reason=reason))


class JobHandle:
    """One job seen from outside; see `remote.JobHandle`."""

    def __init__(self, portal: BlockingPortal, job: remote.JobHandle) -> None:
        self._portal = portal
        self._job = job
        self.queue, self.id = job.queue, job.id
        self.created, self.sequence = job.created, job.sequence

    def snapshot(self) -> JobSnapshot:
        """Return the job as it is."""
        return self._portal.call(self._job.snapshot)

    def state(self) -> str:
        """Return the job's state."""
        return self._portal.call(self._job.state)

    def wait(self, *, timeout_s: float | None = None) -> JobSnapshot:
        """Wait for the job's end."""
        return self._portal.call(lambda: self._job.wait(timeout_s=timeout_s))

    def result(self, *, timeout_s: float | None = None) -> Any:
        """Wait for the job's end and return what its task returned."""
        return self._portal.call(lambda: self._job.result(timeout_s=timeout_s))

    def logs(self, *, attempt: int | None = None, step: str | None = None) -> JobLogs:
        """Return the log lines of the job's attempts, as far as they are kept."""
        return self._portal.call(lambda: self._job.logs(attempt=attempt, step=step))

    def cancel(self, *, reason: str = "") -> None:
        """Cancel the job."""
        self._portal.call(lambda: self._job.cancel(reason=reason))

    def retry(self, *, reason: str = "") -> None:
        """Run a waiting job at once."""
        self._portal.call(lambda: self._job.retry(reason=reason))

    def requeue(self, *, reason: str = "", input: Mapping[str, Any] | None = None) -> None:  # noqa: A002 - as the field
        """Give a dead letter another try."""
        self._portal.call(lambda: self._job.requeue(reason=reason, input=input))

    def discard(self, *, reason: str = "") -> None:
        """Let a dead letter be."""
        self._portal.call(lambda: self._job.discard(reason=reason))
