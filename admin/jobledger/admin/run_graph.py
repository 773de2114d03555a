"""The steps of a run as a graph: the recorded order of the steps. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec

from jobledger.ledger.model.graphs.spec import GraphSpec
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import ChildOrder
from jobledger.ledger.model.runs.steps import Step, name_in

#: A drawing of more nodes is not readable.
NODES_MAX: Final = 500


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A step, or a child of a step that is a graph."""

    id: str  #: `3` for the third step, `3.0` for its first child
    label: str
    status: str  #: the status of a step; for a child `completed`, `failed`, `open` or `waiting`


class _GraphInput(msgspec.Struct):
    graph: GraphSpec


_decode_graph: Final = msgspec.json.Decoder(_GraphInput).decode


class RunGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes in an order in which they can run, and which of them come before which."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]  #: pairs of a node and one that comes after it
    hidden: int  #: how many nodes beyond `NODES_MAX` are left out

    def before(self, node: str) -> list[str]:
        """Return the nodes that come directly before one."""
        return [first for first, then in self.edges if then == node]


def graph_of(job: Job) -> RunGraph:
    """Return the graph of what a run recorded.

    Steps of one branch follow each other. A branch begins after the last step of the branch around it; the outer branch
    goes on once all branches that began in it have ended.
    """
    nodes: list[Node] = []
    edges: list[tuple[str, str]] = []
    tails: dict[str, list[str]] = {}  # by branch: the nodes directly before its next step
    for step in sorted(job.steps.values(), key=lambda each: each.number):
        branch = step.key.rpartition("/")[0]
        name = str(step.number)
        edges += ((tail, name) for tail in _before(tails, branch))
        nodes.append(Node(id=name, label=_label(step), status=step.state))
        tails[branch] = [name]
        if step.kind == "graph" and step.order is not None and step.order.after:
            tails[branch] = _children(step, step.order, _labels(job, step.order), nodes, edges)
    shown = {node.id for node in nodes[:NODES_MAX]}
    return RunGraph(
        nodes=tuple(nodes[:NODES_MAX]),
        edges=tuple(each for each in edges if shown.issuperset(each)),
        hidden=max(0, len(nodes) - NODES_MAX),
    )


def nodes_of(spec: GraphSpec) -> RunGraph:
    """Return a stored graph as it is drawn before it runs: nodes by their places, all of them waiting."""
    places = range(min(len(spec.nodes), NODES_MAX))
    return RunGraph(
        nodes=tuple(Node(id=str(place), label=spec.nodes[place].label, status="waiting") for place in places),
        edges=tuple((str(need), str(place)) for place in places for need in spec.nodes[place].after),
        hidden=len(spec.nodes) - len(places),
    )


def _before(tails: dict[str, list[str]], branch: str) -> list[str]:
    """Return what the next step of a branch comes after; branches that began in it have ended by then."""
    inner = f"{branch}/" if branch else ""
    begun = [each for each in tails if each != branch and each.startswith(inner)]
    found = [tail for each in begun for tail in tails.pop(each)]
    if found:
        return found
    while branch not in tails and branch:
        branch = branch.rpartition("/")[0]
    return tails.get(branch, [])


def _label(step: Step) -> str:
    name = name_in(step.key)
    kind = "" if step.kind in ("step", "undo", name) else f"{step.kind} "
    about = f" ({step.target})" if step.target not in ("", name) else ""
    order = step.order
    if order is None:
        return f"{kind}{step.key}{about}"
    ended = step.ended.bit_count()
    return f"{kind}{step.key}{about} {ended:,}/{'?' if step.count is None else f'{step.count:,}'}"


def _labels(job: Job, order: ChildOrder) -> list[str]:
    """Return the labels of a graph's nodes; tasks and numbers if an older version stored it with a large input."""
    if any(node.label for node in order.nodes):
        return [node.label for node in order.nodes]
    with contextlib.suppress(msgspec.DecodeError):
        found = [node.label for node in _decode_graph(job.order.input).graph.nodes]
        if len(found) == order.count:
            return found
    return [f"{order.node(item).task} {item}" for item in range(order.count)]


def _children(
    step: Step, order: ChildOrder, labels: Sequence[str], nodes: list[Node], edges: list[tuple[str, str]]
) -> list[str]:
    """Add the children of a graph; return those that no other one waits for."""
    opened, ended, failed = step.opened, step.ended, step.failed
    ends = set(range(order.count))
    for item, needs in enumerate(order.after):
        name, bit = f"{step.number}.{item}", 1 << item
        status = (
            "failed"
            if failed & bit
            else "completed"
            if ended & bit
            else "open"
            if opened & bit
            else "waiting"
        )
        nodes.append(Node(id=name, label=labels[item], status=status))
        edges += ((f"{step.number}.{need}" if needs else str(step.number), name) for need in needs or (0,))
        ends.difference_update(needs)
    return [f"{step.number}.{item}" for item in sorted(ends)]


def levels(graph: RunGraph) -> list[list[Node]]:
    """Return the nodes in rows: each lies below all that come before it."""
    before: dict[str, Sequence[str]] = {node.id: [] for node in graph.nodes}
    for first, then in graph.edges:
        before[then] = (*before[then], first)
    level: dict[str, int] = {}
    rows: list[list[Node]] = []
    for node in graph.nodes:  # an order in which they can run: what comes before has its level
        place = max((level[each] + 1 for each in before[node.id]), default=0)
        level[node.id] = place
        while len(rows) <= place:
            rows.append([])
        rows[place].append(node)
    return rows
