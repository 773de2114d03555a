"""Graph verbs: list and show the graphs that are stored under names, and take one away."""

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
    show_graph,
)
from jobledger.admin.verbs.kit import (
    Facts,
    Heading,
    Place,
    Plan,
    Reason,
    Table,
    Told,
    Verb,
    option,
    told_changes,
    verb,
)
from jobledger.ledger.graphs.named import NamedGraph

Name = Annotated[str, option("The stored graph's name.", "NAME")]
_SHOWN_MAX: Final = 40  #: characters of an input or of a list, which may have thousands


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
        """List those of which who asks may see every node, as the ledger says now. Raises: as `Ledger.graphs.all`."""
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
                    _short(", ".join(each.takes)),
                    _short(each.changed_by),
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
        if not place.principal.is_everywhere:  # a graph that was removed has no nodes to go by
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
        """Remove it, for whoever may do so with each of its nodes. Raises: as `Ledger.graphs.remove`."""
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
                _short(", ".join(dict.fromkeys((*node.takes.values(), *node.after)))),
                _short(msgspec.json.encode(node.input).decode()),
            )
            for node in definition.nodes
        ],
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
