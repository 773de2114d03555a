"""A workflow engine with a queue of nodes, as an application of jobledger."""

import asyncio
import os
from pathlib import Path

from jobledger.ledger import Backoff, Context, Limit, Run, Schedule, step, task, workflow

LIMITS = (Limit("all", slots=100), Limit("tenant", key="tenant", slots=2), Limit("flow", key="flow", slots=5))


@task(queue="workflow-node", max_attempts=2, backoff=Backoff(base_s=0.1), limits=LIMITS)
async def node(kind: str, flow: str, value: int) -> int:
    if kind == "broken":
        raise ValueError(f"node of {flow} has no connector")
    if kind == "slow" and not Path("held").exists():  # noqa: ASYNC240 - a few bytes
        Path("held").write_text(str(os.getpid()))  # noqa: ASYNC240 - as above
        await asyncio.sleep(3_600)
    return value * 2


@step
async def load(flow: str) -> list[str]:
    return {"broken": ["double", "broken"], "slow": ["slow", "double"]}.get(flow, ["double"] * 3)


@workflow(queue="workflow-execution", max_attempts=4)
async def execute(run: Run, flow: str, value: int) -> int:
    nodes = [await run.start(node, kind, flow, value) for kind in await run.step(load, flow)]
    return sum([await each.result() for each in nodes])


@task(queue="workflow-scheduled", schedule=Schedule(every_s=1))
async def start_what_is_due(context: Context) -> None:
    await context.ledger.enqueue(execute.options(id="nightly", tenant="initech"), "nightly", 10)


@task(queue="background")
async def clean(part: int) -> int:
    await asyncio.sleep(0.05)
    return part
