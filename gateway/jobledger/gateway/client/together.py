"""The requests for graphs and batches that are made of tasks in code. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import uuid_utils

from jobledger.gateway.client.calls import AnyTask, Call, Named, json_call, order_of, said_of
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.subjects import check_token

if TYPE_CHECKING:
    from jobledger.ledger.graphs.graph import Graph
    from jobledger.ledger.model.graphs.spec import GraphSpec

_OF_GRAPH: Final = ("name", "limit", "on_failure", "on_dead_letter")
_OF_NODES = ("queue", "priority", "max_attempts", "timeout_s", "limits")


def graph_call(graph: Graph | Mapping[str, Any], job_id: str | None) -> Call:
    """Return the request that begins a graph. It always has an id, so the request may be sent twice.

    Raises: as `Graph.spec`; InvalidInputError for limits that only a client with a connection of its own can define.
    """
    if isinstance(graph, Mapping):
        body = dict(graph)
    else:
        if any(options.limits_in_code for options, _ in graph.declared):
            raise InvalidInputError(
                "limits with definitions in code need a connection to the ledger: begin it from there"
            )
        body = _told(graph.spec())
    given = job_id or body.get("id") or str(uuid_utils.uuid7())
    return json_call("POST", "/v1/graphs", {**body, "id": given})


def _told(spec: GraphSpec) -> dict[str, Any]:
    labels = [node.label for node in spec.nodes]
    nodes = [
        {
            "name": each.label,
            "task": each.node.task,
            "input": each.input,
            "takes": {_pointer(take.at): labels[take.of] for take in each.node.takes},
            "after": [labels[place] for place in each.after],
            "always": each.always,
            **{name: getattr(each.node, name) for name in _OF_NODES},
        }
        for each in spec.nodes
    ]
    return {**{name: getattr(spec, name) for name in _OF_GRAPH}, "nodes": nodes}


def _pointer(at: Iterable[str | int]) -> str:
    return "".join(f"/{str(word).replace('~', '~0').replace('/', '~1')}" for word in at)


def open_call(name: str, task: AnyTask, named: Named, on_end: AnyTask | None) -> Call:
    """Return the request that opens a batch. Raises: InvalidInputError."""
    if "id" in named:
        raise InvalidInputError("a batch names its jobs by their places in it: leave id out")
    body: dict[str, Any] = {"task": task} if isinstance(task, str) else said_of(task)
    wanted = {key: value for key, value in {**body, **named}.items() if key in {"task", "queue"}}
    if on_end is not None:
        wanted["on_end"] = {"task": on_end} if isinstance(on_end, str) else said_of(on_end)
    return json_call("PUT", f"/v1/batches/{check_token('batch', name)}", wanted)


def jobs_of(task: AnyTask, inputs: Iterable[Mapping[str, Any]], named: Named) -> Iterator[dict[str, Any]]:
    """Yield the jobs of a batch without ids: the gateway names them by their places. Raises: InvalidInputError."""
    for values in inputs:
        order = order_of(task, values, {}, named)
        del order["id"]
        yield order
