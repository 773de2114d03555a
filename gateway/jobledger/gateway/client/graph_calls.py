"""The requests for graphs and batches that are made of tasks in code, and for verbs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import uuid_utils

from jobledger.gateway.client.calls import (
    AnyTask,
    Call,
    JobOptions,
    encode,
    given_of,
    json_call,
    order_of,
    said_of,
)
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import LabelOptions

if TYPE_CHECKING:
    from jobledger.admin.verbs.kit import Verb
    from jobledger.ledger.graphs.graph import Graph

T = TypeVar("T")


def verb_call(verb: Verb[Any]) -> Call:
    """Return the request that does a verb. A request that changes something is not sent twice."""
    from jobledger.admin.verbs.kit import request_of  # noqa: PLC0415 - loaded already where a verb exists

    asked = request_of(verb)
    headers = {} if asked.body is None else {"content-type": "application/json"}
    body = None if asked.body is None else encode(asked.body)
    is_safe = asked.method == "GET"
    return Call(asked.method, asked.path, asked.params, headers, body, is_once=not is_safe)


def answer_in(body: bytes, verb: Verb[T]) -> T:
    """Return the answer of a verb, from the reply to `verb_call`."""
    from jobledger.admin.verbs.kit import answer_type  # noqa: PLC0415 - loaded already

    found: T = msgspec.json.decode(body, type=answer_type(type(verb)))
    return found


def graph_call(graph: Graph | Mapping[str, Any], job_id: str | None) -> Call:
    """Return the request that begins a graph. It always has an id, so the request may be sent twice.

    Raises: as `Graph.spec`; InvalidInputError for limits that only a client with a connection of its own can define.
    """
    body = _body(graph)
    given = job_id or body.get("id") or str(uuid_utils.uuid7())
    return json_call("POST", "/v1/graphs", {**body, "id": given})


def put_graph_call(graph: Graph | Mapping[str, Any], reason: str) -> Call:
    """Return the request that stores a graph under its name. Raises: as `graph_call`."""
    body = _body(graph, stored=True)
    name = check_token("graph", body.get("name"))
    call = json_call("PUT", f"/v1/graphs/{name}", body)
    return call._replace(params={"reason": reason} if reason else {})


def version_in(body: bytes) -> int:
    """Return the version of a stored graph, from the reply to `put_graph_call`."""
    return msgspec.json.decode(body, type=_ChangedGraph).info.version


class _Info(msgspec.Struct):
    version: int


class _ChangedGraph(msgspec.Struct):
    info: _Info


def remove_graph_call(name: str, reason: str) -> Call:
    """Return the request that removes a stored graph."""
    params = {"reason": reason} if reason else {}
    return Call("DELETE", f"/v1/graphs/{check_token('graph', name)}", params=params)


class RunOptions(LabelOptions, total=False):
    """The options of a run of a stored graph; defaults are those of any job."""

    id: str  #: id of its job; a repeat begins nothing
    on_other_input: Literal["error", "keep"]
    owner: str  #: owner of its data, `kind:id`; left out: the one that its nodes name


def run_call(name: str, values: Mapping[str, Any] | None, said: RunOptions) -> Call:
    """Return the request that begins a run of a stored graph. It always has an id, so the request may be sent twice."""
    given = said.get("id") or str(uuid_utils.uuid7())
    body = {**given_of(said), "input": dict(values or {}), "id": given}
    return json_call("POST", f"/v1/graphs/{check_token('graph', name)}/run", body)


def _body(graph: Graph | Mapping[str, Any], *, stored: bool = False) -> dict[str, Any]:
    if isinstance(graph, Mapping):
        body = dict(graph)
    else:
        if any(options.limits_in_code for options, *_ in graph.declared):
            raise InvalidInputError(
                "limits with definitions in code need a connection to the ledger: begin it from there"
            )
        from jobledger.ledger.graphs.named import told  # noqa: PLC0415 - needed here alone

        body = msgspec.to_builtins(told(graph.spec(stored=stored)))
    return body


def emit_call(route: str, data: Any, delivery_id: str | None) -> Call:
    """Return the request that hands data to a route. It always has an id, so the request may be sent twice."""
    body = {"data": data, "id": delivery_id or str(uuid_utils.uuid7())}
    return json_call("POST", f"/v1/routes/{check_token('route', route)}/emit", body)


def open_call(name: str, task: AnyTask, named: JobOptions, on_end: AnyTask | None) -> Call:
    """Return the request that opens a batch. Raises: InvalidInputError."""
    given = given_of(named)
    if "id" in given:
        raise InvalidInputError("a batch names its jobs by their places in it: leave id out")
    body: dict[str, Any] = {"task": task} if isinstance(task, str) else said_of(task)
    wanted = {key: value for key, value in {**body, **given}.items() if key in {"task", "queue"}}
    if on_end is not None:
        wanted["on_end"] = {"task": on_end} if isinstance(on_end, str) else said_of(on_end)
    return json_call("PUT", f"/v1/batches/{check_token('batch', name)}", wanted)


def jobs_of(
    task: AnyTask, inputs: Iterable[Mapping[str, Any]], named: JobOptions
) -> Iterator[dict[str, Any]]:
    """Yield the jobs of a batch without ids: the gateway names them by their places. Raises: InvalidInputError."""
    for values in inputs:
        order = order_of(task, values, {}, named)
        order.pop("id", None)
        yield order
