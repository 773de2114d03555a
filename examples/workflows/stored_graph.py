"""An automation that a person drew is stored as a graph; its nodes run as jobs, and their results are collected.

Nodes that do not wait for each other run side by side, on whichever workers serve their queues.
"""

import asyncio
import graphlib
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from jobledger.ledger import (
    Backoff,
    Graph,
    JobHandle,
    JobNotFoundError,
    Ledger,
    Task,
    TaskRegistry,
    connect,
    task,
)
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

LIMIT_S = 30
DRAWN = """{"name": "new-customer", "nodes": [
  {"id": "form", "type": "fetch", "options": {"from": "/forms/7"}},
  {"id": "company", "type": "fetch", "options": {"from": "/companies"}, "after": ["form"]},
  {"id": "score", "type": "count", "after": ["form"]},
  {"id": "letter", "type": "write", "after": ["company", "score"]},
  {"id": "archive", "type": "count", "after": ["form", "letter"]}
]}"""


class Node(msgspec.Struct):
    """One box of the drawing."""

    id: str
    type: str
    options: dict[str, str] = {}
    after: list[str] = []


class Automation(msgspec.Struct):
    """What a person drew."""

    name: str
    nodes: list[Node]


class Ended(msgspec.Struct):
    """What a node returns: its id, so that results are found by it, and its value."""

    node: str
    value: Any


@task(queue="requests", max_attempts=3, backoff=Backoff(base_s=0.05))
async def fetch(node: str, options: dict[str, str], given: list[Ended]) -> Ended:  # noqa: ARG001 - as the others
    source = options["from"]
    if source == "/down":
        message = f"{source} does not answer"
        raise ConnectionError(message)
    return Ended(node, f"what {source} says")


@task(queue="sums")
async def count(node: str, options: dict[str, str], given: list[Ended]) -> Ended:  # noqa: ARG001
    return Ended(node, sum(len(str(each.value)) for each in given))


@task(queue="letters")
async def write(node: str, options: dict[str, str], given: list[Ended]) -> Ended:  # noqa: ARG001
    return Ended(node, " and ".join(f"{each.node}: {each.value}" for each in given))


TYPES: dict[str, Task[[str, dict[str, str], list[Ended]], Ended]] = {
    "fetch": fetch,
    "count": count,
    "write": write,
}


def side_by_side(automation: Automation) -> list[list[str]]:
    """Return the nodes in groups: those of one group can run at the same time, each group after the one before.

    Raises: graphlib.CycleError.
    """
    sorter = graphlib.TopologicalSorter({node.id: node.after for node in automation.nodes})
    sorter.prepare()
    groups: list[list[str]] = []
    while sorter.is_active():
        groups.append(sorted(sorter.get_ready()))
        sorter.done(*groups[-1])
    return groups


def as_graph(automation: Automation, order: list[str]) -> Graph:
    """Return the graph of a drawing; `order` has each node behind those that it waits for."""
    nodes = {node.id: node for node in automation.nodes}
    graph = Graph(automation.name, limit=10, on_dead_letter="fail")
    ends: dict[str, Ended] = {}
    for name in order:
        node = nodes[name]
        given = [ends[each] for each in node.after]  # stand for results that are not there yet
        ends[name] = graph.add(TYPES[node.type], name, node.options, given)
    return graph


async def state_of(ledger: Ledger, job: JobHandle[Any], number: int) -> str:
    """Return the state of the job of one node."""
    try:
        node = await (await ledger.job(f"{job.id}-1-{number}-of-{job.queue}")).snapshot()
    except JobNotFoundError:
        return "not begun"
    return f"{node.state} after {node.attempts_count} attempt{'s' * (node.attempts_count != 1)}"


async def execute(ledger: Ledger, automation: Automation) -> None:
    """Store an automation, run it once, and print what became of each node."""
    groups = side_by_side(automation)
    print(" then ".join(" and ".join(group) for group in groups))
    order = [node for group in groups for node in group]
    # Stored under its name, so that a person, a webhook or another program can begin an execution.
    await ledger.schedules.add(automation.name, as_graph(automation, order), on_demand=True, replace=True)
    job = await ledger.job(await ledger.schedules.trigger(automation.name))
    ended = await job.wait(timeout_s=LIMIT_S)
    for number, node in enumerate(order):
        print(f"  {node:8} {await state_of(ledger, job, number)}")
    print(f"the execution is {ended.state}")
    if ended.error is not None:
        print(f"  {ended.error.message.partition(' (')[0]}")
        return
    for each in msgspec.convert(list((await job.result()).values()), list[Ended]):
        print(f"  {each.node:8} {each.value}")


async def main() -> None:
    automation = msgspec.json.decode(DRAWN, type=Automation)
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry(TYPES.values()))
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                await execute(ledger, automation)
                automation.nodes[1].options["from"] = "/down"
                await execute(ledger, automation)
                worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
