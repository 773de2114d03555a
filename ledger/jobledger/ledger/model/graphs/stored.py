"""The events of a stored graph, the state they add up to, and what may follow: `GraphEvent`, `evolve`, `decide`. Pure.

A graph is stored under its name; each `set` with a different graph is its next version. A run takes the newest version
when it begins, and records its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.envelope import Envelope, Moment, Whole
from jobledger.ledger.model.errors import InvalidError, InvalidInputError
from jobledger.ledger.model.forms import SEALED_FORM
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.graphs.parameters import check_parameters, filled, has_constant, pointers_in
from jobledger.ledger.model.graphs.spec import GraphNode, GraphSpec
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.seals import check_owner

_BYTES_MAX: Final = 256 << 10


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a stored graph."""

    graph: str  #: its name
    version: Whole  #: the version, from 1, that this event stores or removes
    reason: str = ""  #: the person's reason


class GraphSet(_Fact, frozen=True, kw_only=True, tag="set", gc=False):
    """From here on the graph is what this event says; runs that have begun go on with theirs."""

    spec: GraphSpec  #: its nodes, and what each runs


class GraphRemoved(_Fact, frozen=True, kw_only=True, tag="removed", gc=False):
    """No run of the graph begins any more. A graph may be stored under the name again."""


GraphEvent = GraphSet | GraphRemoved


class StoredGraph(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored graph after its newest event."""

    name: str
    version: int  #: the newest one, from 1
    spec: GraphSpec | None  #: None: it was removed
    at: Moment
    by: str
    reason: str = ""
    sequence: int  #: stream sequence of that event


def evolve(_before: StoredGraph | None, event: GraphEvent, stream_sequence: int) -> StoredGraph:
    """Return the graph after `event`, whatever came before it."""
    return StoredGraph(
        name=event.graph,
        version=event.version,
        spec=event.spec if isinstance(event, GraphSet) else None,
        at=event.at,
        by=event.by,
        reason=event.reason,
        sequence=stream_sequence,
    )


class SetGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Store a graph under its name, or replace the stored one."""

    spec: GraphSpec
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse a graph that cannot run. Raises: InvalidInputError, InvalidTokenError."""
        check_stored(self.spec)


GraphCommand = SetGraph | Remove


def decide(name: str, before: StoredGraph | None, command: GraphCommand, stamp: Stamp) -> GraphEvent | None:
    """Return the event that follows from a command; None where nothing would change.

    Raises: GraphNotFoundError for the removal of a missing graph, and for a caller who may not see the jobs of its
    present nodes; AccessDeniedError.
    """
    if stamp.authority is not None:
        _permit(stamp.authority, name, before, command)
    fact: dict[str, Any] = {"graph": name, **stamp.fact}
    version = 0 if before is None else before.version
    match command:
        case SetGraph(spec=spec, reason=reason):
            if before is not None and before.spec == spec:
                return None
            if any(node.owner for node in spec.nodes):
                stamp.require_form(SEALED_FORM, f"the owner of a node of graph {name}")
            return GraphSet(**fact, version=version + 1, spec=spec, reason=reason)
        case Remove(reason=reason):
            if before is None or before.spec is None:
                raise GraphNotFoundError(name)
            return GraphRemoved(**fact, version=version, reason=reason)


def _permit(principal: Principal, name: str, before: StoredGraph | None, command: GraphCommand) -> None:
    """Refuse a principal that may not manage the jobs of each node, of the old graph and of the new one."""
    if before is not None and before.spec is not None:
        for node in before.spec.nodes:
            principal.require_about("manage", node.node.queue, node.node.task, GraphNotFoundError(name))
    for node in command.spec.nodes if isinstance(command, SetGraph) else ():
        principal.require("manage", node.node.queue, node.node.task)


def check_stored(spec: GraphSpec) -> None:
    """Refuse a graph that cannot be stored. Raises: InvalidInputError, InvalidTokenError."""
    spec.check()
    for node in spec.nodes:
        try:
            check_parameters(node.input)
            _check_owner(node)
        except InvalidInputError as error:
            raise _of_node(spec, node, error) from None
    size = len(encode_value(spec, what=f"graph {spec.name}"))
    if size > _BYTES_MAX:
        raise InvalidInputError(
            f"graph {spec.name} has {size:,} bytes: at most {_BYTES_MAX:,} are stored under a name"
        )


def _check_owner(node: GraphNode) -> None:
    """Refuse values of a known owner: the stored graph would have them in the clear. Raises: InvalidInputError."""
    if not node.owner or "{" in node.owner:
        return
    check_owner(node.owner)
    clear = [name for name, value in node.input.items() if has_constant(value)]
    if clear:
        raise InvalidInputError(
            f"its job has the owner {node.owner}, and a stored graph keeps values in the clear: take {', '.join(clear)} "
            "from the input of each run, without a default"
        )


def for_run(spec: GraphSpec, given: Mapping[str, Any]) -> GraphSpec:
    """Return a stored graph, filled with values from the input of one run.

    Raises: InvalidInputError with the node for a value that the input lacks.
    """

    def with_values(node: GraphNode) -> GraphNode:
        try:
            return msgspec.structs.replace(node, input=filled(node.input, given))
        except InvalidInputError as error:
            raise _of_node(spec, node, error) from None

    return msgspec.structs.replace(spec, nodes=tuple(map(with_values, spec.nodes)))


def inputs_of(spec: GraphSpec) -> list[str]:
    """Return the pointers into a run's input whose values a graph takes, each once."""
    return pointers_in([node.input for node in spec.nodes])


def _of_node(spec: GraphSpec, node: GraphNode, error: InvalidInputError) -> InvalidInputError:
    return InvalidInputError(f"node {node.label!r} of graph {spec.name}: {error}")


def _words(event: GraphEvent) -> str:
    why = f": {event.reason}" if event.reason else ""
    if isinstance(event, GraphRemoved):
        return event.reason
    count = len(event.spec.nodes)
    return f"version {event.version}, {count:,} node{'' if count == 1 else 's'}{why}"


def _check(before: StoredGraph | None, event: GraphEvent, _stream_sequence: int) -> Iterator[Broken]:
    """Check that the graph can be stored, that versions have no gap, and that only a stored graph is removed."""
    if before is not None and evolve(None, event, before.sequence) == before:
        return  # an archive run appends the current state once more
    if isinstance(event, GraphRemoved):
        if before is None or before.spec is None or event.version != before.version:
            yield "transition", f"`removed` was accepted, although version {event.version} was not there"
        return
    if before is not None and event.version != before.version + 1:
        yield "transition", f"version {event.version} was stored behind version {before.version}"
    if event.spec.name != event.graph:
        yield "transition", f"graph {event.spec.name} was stored as {event.graph}"
    try:
        check_stored(event.spec)
    except InvalidError as error:
        yield "transition", f"`set` was accepted, although {error}"


GRAPH: Aggregate[GraphEvent, StoredGraph] = Aggregate(
    "graph",
    ("graph",),
    GraphEvent,
    state=StoredGraph,
    evolve=evolve,
    words=_words,
    check=_check,
    removed=GraphRemoved,
)
