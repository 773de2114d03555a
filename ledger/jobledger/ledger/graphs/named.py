"""Graphs for programs without the code of the tasks: tasks and nodes are given by their names.

Each becomes a `Graph`, so that the rules of graphs are in one place. A stored graph is told again in the same form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from jobledger.ledger.graphs.graph import Graph
from jobledger.ledger.model.errors import InvalidError, InvalidInputError, NotFoundError
from jobledger.ledger.model.graphs.spec import NODES_MAX, GraphNode, GraphSpec
from jobledger.ledger.model.graphs.stored import for_run
from jobledger.ledger.model.hooks.pointers import check_pointer, index_in, pointer_of, words_of
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.rights.marks import PAYLOADS
from jobledger.ledger.model.runs.orders import OnDeadLetter, Take
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.named.book import AnnouncedTasks, find_announced
from jobledger.ledger.named.verbs import options_of
from jobledger.ledger.options import NodeFields
from jobledger.ledger.patience import Patience

#: Nodes that are checked before the event loop runs other work.
_AT_ONCE: Final = 100

NodeName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_.#-]{1,100}$")]


class NamedNode(NodeFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node of a graph. An option that is left out is as its task's code says."""

    name: NodeName  #: no other node of the graph has it; the graph's result has the node's result under it
    task: str
    input: Annotated[dict[str, Any], PAYLOADS] = {}  #: the arguments by name
    #: where results of other nodes go: JSON pointers into the input, such as `/text`, with the nodes' names
    takes: dict[str, NodeName] = {}
    after: tuple[NodeName, ...] = ()  #: nodes that it waits for beside those whose results it takes
    always: bool = False  #: whether it runs whatever became of those that it waits for
    #: owner of its data, `kind:id`, also with an argument in braces; the graph has the same one
    owner: str | None = None


class NamedGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole graph; the order of its nodes does not matter."""

    name: str
    nodes: Annotated[tuple[NamedNode, ...], msgspec.Meta(min_length=1, max_length=NODES_MAX)]
    limit: int = 0  #: how many nodes may be open at the same time; 0: all that are ready
    #: once a node has failed: `stop` begins no other node, `continue` begins all that do not wait for it
    on_failure: Literal["stop", "continue"] = "stop"
    #: whether the graph waits for a person where a node's job becomes a dead letter, or the node has failed by that
    on_dead_letter: OnDeadLetter = "wait"


def named_graph(given: object) -> NamedGraph:
    """Return a graph from plain JSON values. Raises: InvalidInputError, also for fields that there are not."""
    try:
        return msgspec.convert(given, NamedGraph)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"the graph is not as it must be: {error}") from error


def told(spec: GraphSpec) -> NamedGraph:
    """Return a stored graph in the form in which it can be stored again."""
    return NamedGraph(
        name=spec.name,
        nodes=tuple(_told(spec, node) for node in spec.nodes),
        limit=spec.limit,
        on_failure=spec.on_failure,
        on_dead_letter=spec.on_dead_letter,
    )


def _told(spec: GraphSpec, node: GraphNode) -> NamedNode:
    taken = {take.of for take in node.node.takes}
    return copied(
        NamedNode,
        node.node,
        name=node.label,
        input=node.input,
        takes={pointer_of(take.at): spec.nodes[take.of].label for take in node.node.takes},
        after=tuple(spec.nodes[need].label for need in node.after if need not in taken),
        always=node.always,
        owner=node.owner or None,
    )


async def check_run(
    patience: Patience, announced: AnnouncedTasks, spec: GraphSpec, given: Mapping[str, Any]
) -> None:
    """Refuse an input from which a stored graph would make inputs that its announced tasks do not take.

    Raises: InvalidInputError with the node, UnreachableError.
    """
    for place, node in enumerate(for_run(spec, given).nodes):
        if place % _AT_ONCE == 0:
            await asyncio.sleep(0)
        task = await find_announced(patience, announced, node.node.task, unknown_ok=True)
        try:
            task.signature.check_known(node.input, {str(take.at[0]) for take in node.node.takes})
        except InvalidInputError as error:
            raise InvalidInputError(f"node {node.label!r} of graph {spec.name}: {error}") from None


async def graph_of(patience: Patience, announced: AnnouncedTasks, given: NamedGraph) -> Graph:
    """Return a graph whose nodes were checked by what workers announced of their tasks.

    Raises: as `Graph.add`, with the name of the node; TaskNotFoundError, UnreachableError. `Graph.spec` checks the rest.
    """
    graph = Graph(
        given.name, limit=given.limit, on_failure=given.on_failure, on_dead_letter=given.on_dead_letter
    )
    places = _places(given)
    for place, node in enumerate(given.nodes):
        if place % _AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            task = await find_announced(patience, announced, node.task)
            given_of = {name: getattr(node, name) for name in (*NodeFields.__struct_fields__, "owner")}
            options = options_of(task, given_of)
            values, takes = _with_places(node, places)
            after = [_place(places, name) for name in node.after]
            graph.add_node(node.name, task, options, values, takes=takes, after=after, always=node.always)
        except (InvalidError, NotFoundError) as error:
            error.args = (f"node {node.name!r} of graph {given.name}: {error}",)
            raise
    return graph


def _places(given: NamedGraph) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, node in enumerate(given.nodes):
        if places.setdefault(node.name, place) != place:
            raise InvalidInputError(
                f"two nodes of graph {given.name} are called {node.name!r}: give each a name of its own"
            )
    return places


def _place(places: Mapping[str, int], name: str) -> int:
    place = places.get(name)
    if place is None:
        raise InvalidInputError(f"the graph has no node {name!r}: name one of its nodes")
    return place


def _with_places(node: NamedNode, places: Mapping[str, int]) -> tuple[dict[str, Any], list[Take]]:
    """Return a node's input with None where results go, and which result goes where. Raises: InvalidInputError."""
    values: dict[str, Any] = msgspec.json.decode(encode_value(node.input, what=f"input of task {node.task}"))
    # Shorter pointers come first: a pointer into the place of another result then finds None there, and is refused.
    wanted = sorted((words_of(check_pointer(pointer)), name) for pointer, name in node.takes.items())
    return values, [Take(at=_cleared(values, words), of=_place(places, name)) for words, name in wanted]


def _cleared(values: dict[str, Any], words: list[str]) -> tuple[str | int, ...]:
    """Put None where a result goes; return the keys that lead there. Raises: InvalidInputError for a missing place."""
    inside: Any = values
    way: list[str | int] = []
    for number, word in enumerate(words, 1):
        at = _member(inside, word, may_be_new=number == len(words))
        if at is None:
            break
        way.append(at)
        if number == len(words):
            inside[at] = None
            return tuple(way)
        inside = inside[at]
    raise InvalidInputError(
        f"its input has no place /{'/'.join(words)} for a result: name an argument, as /text, or a place inside of "
        "a list or an object that the input has"
    )


def _member(inside: Any, word: str, *, may_be_new: bool) -> str | int | None:
    """Return the key or the index that a word of a pointer means in an object or a list; None where it means nothing."""
    if isinstance(inside, dict):
        return word if may_be_new or word in cast("dict[str, Any]", inside) else None
    return index_in(inside, word)
