"""`Ledger.graphs`: graphs that are stored under their names, and runs of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

import msgspec

from jobledger.ledger.enqueuer import Enqueuer
from jobledger.ledger.graphs.graph import Graph
from jobledger.ledger.graphs.graph_run import run_stored_graph
from jobledger.ledger.graphs.named import NamedGraph, check_run, graph_of, named_graph
from jobledger.ledger.graphs.stored import all_graphs, graph_named, owner_of_run
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.graphs.stored import (
    GRAPH,
    GraphCommand,
    GraphEvent,
    SetGraph,
    StoredGraph,
    decide,
    for_run,
)
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.named_chain import ChangedValue
from jobledger.ledger.named.book import AnnouncedTasks
from jobledger.ledger.named_values import change
from jobledger.ledger.options import LabelOptions, OnOtherInput
from jobledger.ledger.protocols import Client
from jobledger.ledger.tasks import TaskWithOptions

if TYPE_CHECKING:
    from jobledger.ledger.handle import JobHandle

R = TypeVar("R")


class RunOptions(LabelOptions, total=False):
    """How a run of a stored graph is begun; what is left out, or None, is as for any job. Its nodes have its tenant."""

    id: str | None  #: None: a new UUIDv7
    by: str  #: who asks for it; "": this client
    on_other_input: OnOtherInput | None  #: what is done where the id has another input; see `Options`
    trace: str  #: W3C traceparent of the caller; "": that of the span under way
    owner: str | None  #: owner of its data, `kind:id`; None: the one that its nodes name


class GraphVerbs:
    """The stored graphs of one client's ledger. All raise UnreachableError."""

    def __init__(self, client: Client, announced: AnnouncedTasks, enqueuer: Enqueuer) -> None:
        """`announced`: the tasks that workers announced; graphs whose code is not here are checked against them."""
        self._client = client
        self._announced = announced
        self._enqueuer = enqueuer

    async def put(
        self,
        graph: Graph | NamedGraph | Mapping[str, Any],
        *,
        reason: str = "",
        by: str = "",
        plan: bool = False,
    ) -> ChangedValue[StoredGraph]:
        """Store a graph under its name: as its next version, unless its newest one says the same already.

        `graph`: one that code made, or the JSON object of docs/graphs.md with tasks and nodes by their names. Its inputs may
        have `{"$input": "/customer"}` where a value comes from the input of each run. `plan`: store nothing.

        Raises: InvalidInputError with the node, InvalidTokenError, TaskNotFoundError, TaskDefinitionError,
            ConfigurationError for a limit that is defined otherwise, LedgerFullError.
        """
        if not isinstance(graph, Graph):
            given = graph if isinstance(graph, NamedGraph) else named_graph(graph)
            graph = await graph_of(self._client.patience, self._announced, given)
        command = SetGraph(spec=graph.spec(stored=True), reason=reason)
        await graph.ensure_limits(self._client, plan=plan)
        return await self._change(graph.name, command, by, plan=plan)

    async def remove(
        self, name: str, *, reason: str = "", by: str = "", plan: bool = False
    ) -> ChangedValue[StoredGraph]:
        """Take a stored graph away; its runs go on. Raises: GraphNotFoundError, LedgerFullError."""
        return await self._change(name, Remove(reason=reason), by, plan=plan)

    async def get(self, name: str, *, version: int = 0) -> StoredGraph:
        """Return a stored graph, in its newest version (0) or in an older one. Raises: GraphNotFoundError."""
        return (await self._patiently(lambda: graph_named(self._client.log, name, version)))[0]

    async def all(self) -> list[StoredGraph]:
        """Return every stored graph in its newest version, by name."""
        return await self._patiently(lambda: all_graphs(self._client.log))

    async def run(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the field's word
        **how: Unpack[RunOptions],
    ) -> JobHandle[dict[str, Any]]:
        """Begin a run of a stored graph as one job, whose result has those of the nodes by name; `how` is in `RunOptions`.

        `input` must have what the graph takes from it. The run takes the newest version when it begins, and records
        which. The same `id` twice is one run.

        Raises: GraphNotFoundError, InvalidInputError with the node; else as `enqueue`.
        """
        _, spec = await self._patiently(lambda: graph_named(self._client.log, name))
        values = {} if input is None else dict(input)
        await check_run(self._client.patience, self._announced, spec, plain(values, name))
        owner = owner_of_run(spec, plain(values, name), how.get("owner") or "")
        given = {**how, "owner": owner or None}
        options = run_stored_graph.defaults.changed(given, queue=None, limits=())
        return await self._enqueuer.one(TaskWithOptions(run_stored_graph, options), graph=name, input=values)

    async def _change(
        self, name: str, command: GraphCommand, by: str, *, plan: bool
    ) -> ChangedValue[StoredGraph]:
        def decided(before: StoredGraph | None, stamp: Stamp) -> GraphEvent | None:
            return decide(name, before, command, stamp)

        return await change(self._client, GRAPH, name, decided, by=by, plan=plan)

    async def _patiently(self, work: Callable[[], Awaitable[R]]) -> R:
        return await self._client.patience.read(work)


class GraphRun(NamedTuple):
    """A run of a stored graph that is to begin later: `schedules.add` takes it in place of a task."""

    graph: str
    input: Mapping[str, Any] = {}
    owner: str = ""  #: owner of its data; "": the one that its nodes name

    async def as_task(self, client: Client, *, owner: str = "") -> tuple[Any, dict[str, Any]]:
        """Return the task that runs it, with its owner, and its input; `owner`: instead of its own.

        Raises: GraphNotFoundError; InvalidInputError for an input that lacks what the graph takes; UnreachableError.
        """
        _, spec = await client.patience.read(lambda: graph_named(client.log, self.graph))
        given = plain(self.input, self.graph)
        for_run(spec, given)
        owner = owner_of_run(spec, given, owner or self.owner)
        task = run_stored_graph.options(owner=owner) if owner else run_stored_graph
        return task, {"graph": self.graph, "input": dict(self.input)}


def plain(values: Mapping[str, Any], graph: str) -> dict[str, Any]:
    """Return an input as JSON values. Raises: InvalidInputError."""
    text = encode_value(values, what=f"input of graph {graph}")
    return msgspec.json.decode(text, type=dict[str, Any])
