"""Beginning a graph: one job, a run of the built-in workflow `run_graph`."""

from __future__ import annotations

import functools
from typing import Any, Final

from jobledger.ledger.enqueueing import Enqueuer
from jobledger.ledger.graphs.graph import RUN_GRAPH, Graph, GraphSpec
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.options import Options
from jobledger.ledger.parts import Client
from jobledger.ledger.tasks import Task


def _asked(graph: GraphSpec) -> dict[str, Any]:
    """Have the input and the result of `run_graph`, which workers have."""
    raise NotImplementedError(graph)


_RUN: Final = Task[..., dict[str, Any]](_asked, RUN_GRAPH, Options(queue=BUILT_IN_QUEUE))


async def begin_graph(
    client: Client,
    enqueuer: Enqueuer,
    graph: Graph,
    id: str | None,  # noqa: A002 - the public name of the option
) -> JobHandle[Any]:
    """Enqueue the run of a graph, after what its nodes' code defines of limits; see `Ledger.run_graph`."""
    spec = graph.spec()
    for options, task in graph.declared:
        queue = options.declared_queue
        limits = (*options.declared, *(() if queue is None else queue.limits))
        ensure = functools.partial(client.code_limits.ensure, limits, task, options.queue)
        await client.patience.read(ensure)
    return await enqueuer.one(_RUN.options(id=id), graph=spec)
