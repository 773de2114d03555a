"""A graph as it is stored: the input of the built-in workflow `run_graph`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.rights.marks import PAYLOADS
from jobledger.ledger.model.runs.orders import ITEMS_MAX, ChildNode, ChildOrder, OnDeadLetter
from jobledger.ledger.model.subjects import check_token

NODES_MAX: Final = 10_000


class GraphNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a graph, as it is stored."""

    label: str  #: its name in the graph: the task's, with `#n` from the second node of the task on
    node: ChildNode  #: its task and options, and the results that go into its input
    input: Annotated[dict[str, Any], PAYLOADS] = {}  #: its keyword arguments, null in the places of results
    after: tuple[int, ...] = ()  #: the nodes that it waits for, by their places; each is before it
    always: bool = False  #: whether it runs even if those failed
    #: Of a stored graph: whose data its job holds, with an argument in braces where that comes from the run's input, such
    #: as `person:{user_id}`; "": its task does not say.
    owner: str = ""


class GraphSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole graph, as it is stored: the input of `run_graph`."""

    name: str  #: its name; of a stored graph the name under which it is stored
    nodes: tuple[GraphNode, ...]  #: in an order in which each comes after the nodes that it waits for
    limit: int = 0  #: how many nodes may be open at the same time; 0: all that are ready
    on_failure: Literal["stop", "continue"] = "stop"  #: what happens to the other nodes once one failed
    on_dead_letter: OnDeadLetter = "fail"  #: whether a node that is a dead letter has failed, or waits

    def check(self) -> None:
        """Refuse a graph that cannot run: it may have been written by hand.

        Raises: InvalidInputError, InvalidTokenError.
        """
        check_token("graph", self.name)
        if not 1 <= len(self.nodes) <= NODES_MAX:
            raise InvalidInputError(
                f"graph {self.name} has {len(self.nodes):,} nodes: 1 to {NODES_MAX:,} can run"
            )
        if not 0 <= self.limit <= ITEMS_MAX:
            raise InvalidInputError(f"the limit of graph {self.name} must be 0 or more, got {self.limit}")
        for place, node in enumerate(self.nodes):
            wrong = [
                need
                for need in (*node.after, *(take.of for take in node.node.takes))
                if not 0 <= need < place
            ]
            if wrong:
                raise InvalidInputError(
                    f"node {node.label} of graph {self.name} is number {place} and waits for number {wrong[0]}: "
                    "put each node behind those that it waits for"
                )
            check_token("queue", node.node.queue)

    @property
    def shape(self) -> list[Any]:
        """The parts that identify a graph: without its nodes' options, which a new release of their code may change."""
        return [
            (self.name, node.label, node.node.task, node.input, node.node.takes, node.after, node.always)
            for node in self.nodes
        ]

    def is_input(self, text: bytes) -> bool:
        """Return whether the input of a run of `run_graph` is this graph."""
        return msgspec.json.decode(text, type=dict[str, GraphSpec])["graph"].shape == self.shape

    @property
    def order(self) -> ChildOrder:
        """The order by which a step asks for the nodes' jobs."""
        return ChildOrder(
            task=self.name,
            queue=self.nodes[0].node.queue,
            count=len(self.nodes),
            limit=self.limit,
            on_failure="stop" if self.on_failure == "stop" else "collect",
            on_dead_letter=self.on_dead_letter,
            tells_queue=True,
            after=tuple(node.after for node in self.nodes),
            always=tuple(place for place, node in enumerate(self.nodes) if node.always),
            nodes=tuple(msgspec.structs.replace(node.node, label=node.label) for node in self.nodes),
        )

    @property
    def items(self) -> bytes:
        """The nodes' inputs as the JSON array that goes with `order`."""
        return msgspec.json.encode([node.input for node in self.nodes])
