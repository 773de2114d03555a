"""Graph verbs: store a graph under a name, list and show those that are stored, and take one away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from jobledger.admin.graphs import (
    ChangedGraph,
    ShownGraph,
    StoredGraphs,
    changed_graph,
    info_of,
    may_view,
    require_of_nodes,
    require_replaceable,
    show_graph,
)
from jobledger.admin.hidden_tasks import naming_no_hidden_task
from jobledger.admin.verbs.kit import (
    Facts,
    Heading,
    Place,
    Plan,
    Reason,
    ReasonBeside,
    Table,
    Told,
    Verb,
    option,
    shortened,
    told_changes,
    verb,
)
from jobledger.ledger.graphs.named import NamedGraph, graph_of
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.subjects import check_token

Name = Annotated[str, option("The stored graph's name.", "NAME")]
_SHOWN_MAX: Final = 40  #: characters of an input or of a list, which may have thousands


class GivenGraph(NamedGraph, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A graph to store, as in `POST /v1/graphs`; inputs may have `{"$input": "/customer"}` in place of values."""

    name: str = ""  #: may be left out, since the address has it


@verb(
    "graphs put",
    "PUT /v1/graphs/{name}",
    permission="manage",
    about="own",
    summary="Store a graph under a name",
    problems=("JOB_INVALID_INPUT", "TASK_NOT_FOUND", "NOT_FOUND", "LEDGER_BUSY", "LEDGER_FULL"),
    creates=True,
)
class PutGraph(Verb[ChangedGraph], frozen=True, kw_only=True):
    """Store a graph under a name, as its next version; an equal one stays as it is. Runs keep their version."""

    name: Name
    graph: Annotated[
        GivenGraph, option("The graph with its nodes, as JSON or TOML.", file="--file", is_body=True)
    ]
    reason: ReasonBeside = ""
    plan: Plan = False

    async def do(self, place: Place) -> ChangedGraph:
        """Store it, for a principal that may manage each of its nodes. Raises: as `Ledger.graphs.put`."""
        ledger, principal = place.ledger, place.principal
        given = self._named()
        for named in given.nodes:
            principal.require("manage", None, check_token("task name", named.task))
        with naming_no_hidden_task(principal):
            graph = await graph_of(ledger.patience, ledger.announced, given)
        for node in graph.spec(stored=True).nodes:
            principal.require("manage", node.node.queue, node.node.task)
        await require_replaceable(ledger, principal, self.name)
        done = await ledger.graphs.put(graph, reason=self.reason, by=place.by, plan=self.plan)
        return changed_graph(done)

    def _named(self) -> NamedGraph:
        said = self.graph.name
        if said not in {"", self.name}:
            raise InvalidInputError(
                f"the graph has the name {ascii(said)[:80]}, not {self.name}: leave it out, or give the same"
            )
        return msgspec.structs.replace(self.graph, name=check_token("graph", self.name))

    def say(self, found: ChangedGraph) -> Iterator[Told]:
        """Say which version it is."""
        info = found.info
        state = "stored as" if found.changed else "as it was,"
        nodes = f"{info.nodes:,} node{'' if info.nodes == 1 else 's'}"
        yield f"graph {info.graph} {'would be' if self.plan else 'is'} {state} version {info.version}: {nodes}"
        if self.plan:
            yield "nothing was changed"


@verb(
    "graphs list",
    "GET /v1/graphs",
    permission="view",
    about="own",
    summary="List the stored graphs",
    problems=("LEDGER_DAMAGED",),
    is_list=True,
)
class ListGraphs(Verb[StoredGraphs], frozen=True, kw_only=True):
    """List the stored graphs: their versions, how many nodes they have, and who changed them last."""

    async def do(self, place: Place) -> StoredGraphs:
        """List those of which the asker may see every node, as the ledger says now. Raises: as `Ledger.graphs.all`."""
        found = await place.ledger.graphs.all()
        return StoredGraphs(items=[info_of(each) for each in found if may_view(place.principal, each)])

    def say(self, found: StoredGraphs) -> Iterator[Told]:
        """Yield a table of them."""
        if not found.items:
            yield "no graph is stored; store one with `jobledger graphs put NAME --file FILE`"
            return
        yield Table(
            ("graph", "version>", "nodes>", "takes", "changed by", "since!"),
            [
                (
                    each.graph,
                    each.version,
                    each.nodes,
                    shortened(", ".join(each.takes), _SHOWN_MAX),
                    shortened(each.changed_by, _SHOWN_MAX),
                    each.changed_at,
                )
                for each in found.items
            ],
        )


@verb(
    "graphs show",
    "GET /v1/graphs/{name}",
    permission="view",
    about="own",
    summary="Show a stored graph",
    problems=("NOT_FOUND", "LEDGER_DAMAGED"),
)
class ShowGraph(Verb[ShownGraph], frozen=True, kw_only=True):
    """Show a stored graph: its nodes, what it takes of a run's input, and its history. --json has it as it can be put."""

    name: Name
    version: Annotated[int, option("An older version. (default: the newest)", "N", ge=0)] = 0

    async def do(self, place: Place) -> ShownGraph:
        """Read its chain. Raises: as `show_graph`."""
        if not place.principal.is_everywhere:  # a removed graph has no nodes whose rights could decide
            graph = await place.ledger.graphs.get(self.name, version=self.version)
            require_of_nodes(place.principal, "view", self.name, graph)
        return await show_graph(place.ledger, self.name, version=self.version)

    def say(self, found: ShownGraph) -> Iterator[Told]:
        """Yield what it is made of, and its changes."""
        info, definition = found.info, found.definition
        yield Heading(f"graph {info.graph}")
        if definition is None:
            yield Facts([("removed by", info.changed_by), ("reason", info.reason or None)])
        else:
            yield Facts(
                [
                    ("version", str(info.version)),
                    ("takes", ", ".join(info.takes) or "nothing of a run's input"),
                    ("limit", f"{definition.limit:,} nodes at once" if definition.limit else None),
                    ("on failure", definition.on_failure),
                    ("changed by", info.changed_by),
                    ("reason", info.reason or None),
                ]
            )
            yield _nodes(definition)
        yield from told_changes(found.history)


@verb(
    "graphs remove",
    "DELETE /v1/graphs/{name}",
    permission="manage",
    about="own",
    summary="Take a stored graph away",
    problems=("NOT_FOUND", "LEDGER_BUSY", "LEDGER_FULL"),
    form="/graphs/{name}/remove",
    then="/graphs",
)
class RemoveGraph(Verb[ChangedGraph], frozen=True, kw_only=True):
    """Take a stored graph away: nothing begins a run of it any more. Its runs go on."""

    name: Name
    reason: Reason = ""
    plan: Plan = False

    async def do(self, place: Place) -> ChangedGraph:
        """Remove it, for a principal that may do so with each of its nodes. Raises: as `Ledger.graphs.remove`."""
        graphs = place.ledger.graphs
        require_of_nodes(place.principal, "manage", self.name, await graphs.get(self.name))
        return changed_graph(await graphs.remove(self.name, reason=self.reason, by=place.by, plan=self.plan))

    def say(self, found: ChangedGraph) -> Iterator[Told]:
        """Say that it is removed."""
        yield f"graph {found.info.graph} {'would be' if self.plan else 'is'} removed"
        if self.plan:
            yield "nothing was changed"


def _nodes(definition: NamedGraph) -> Table:
    return Table(
        ("node", "task", "queue", "after", "input"),
        [
            (
                node.name,
                node.task,
                node.queue,
                shortened(", ".join(dict.fromkeys((*node.takes.values(), *node.after))), _SHOWN_MAX),
                shortened(msgspec.json.encode(node.input).decode(), _SHOWN_MAX),
            )
            for node in definition.nodes
        ],
    )
