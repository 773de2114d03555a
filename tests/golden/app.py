"""The code of the small ledger whose answers and pages are recorded."""

from __future__ import annotations

from jobledger.ledger import Context, Run, Signal, Unique, step, task, workflow

approved = Signal("approved", str)


@task(queue="mail", max_attempts=1)
async def send(context: Context, to: str, cents: int = 1) -> str:
    """Send a letter; nobody lives at `nowhere`."""
    context.logger.warning("sends to %s", to)
    if to == "nowhere":
        raise ValueError("no such house")
    return f"sent to {to}, {cents}"


@task(queue="mail", max_attempts=1, unique=Unique(args=("to",)))
async def greet(to: str) -> None:
    """Greet somebody, one greeting at a time."""


@step
async def reserve(order: str) -> str:
    """Reserve what was ordered."""
    if order == "none":
        raise ValueError("nothing is left")
    return f"reserved {order}"


@workflow(queue="orders", max_attempts=1)
async def deliver(run: Run, order: str) -> str:
    """Send what was ordered once somebody approved it."""
    await run.step(reserve, order)
    await run.call(send, to=order)
    return await run.wait(approved)


@workflow(queue="etl", max_attempts=1)
async def totals(run: Run) -> int:
    """Make two tables."""
    rows = await run.write("rows", ({"sku": f"s{n % 2}", "cents": n} for n in range(4)))
    query = "SELECT sku, sum(cents)::BIGINT AS cents FROM t GROUP BY sku ORDER BY sku"
    return (await run.sql(query, into="sums", t=rows)).rows


TASKS = (send, greet, deliver, totals)
