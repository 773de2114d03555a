"""The application whose jobs are in the golden ledgers; it runs with the code of the release that writes one."""

from __future__ import annotations

from jobledger.ledger import Limit, Run, Signal, step, task, workflow


@task(queue="plain", max_attempts=3)
async def plain(n: int) -> int:
    """Do it."""
    return n


@task(queue="plain", max_attempts=2)
async def flaky(n: int) -> int:
    """Fail until it is a dead letter."""
    raise ValueError(n)


@task(queue="idle")
async def waiting(n: int) -> int:
    """Wait for a worker: nobody serves the queue as long as the ledger is written."""
    return n


go = Signal("go", str)


@step
async def add(n: int) -> int:
    """Add one."""
    return n + 1


@workflow(queue="runs")
async def flow(run: Run, n: int) -> int:
    """Do a step, call a child, and wait for a signal."""
    first = await run.step(add, n)
    second = await run.call(plain, n=first)
    await run.wait(go)
    return second


@task(queue="limited", limits=(Limit("gate", slots=1),))
async def limited(n: int) -> int:
    """Run alone."""
    return n
