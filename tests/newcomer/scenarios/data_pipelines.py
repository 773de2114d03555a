"""Data pipelines with checkpoints of steps, pages and items, as an application of jobledger."""

import os
import time
from pathlib import Path

import msgspec

from jobledger.ledger import Backoff, Context, Run, Signal, Table, step, task, workflow


class Item(msgspec.Struct):
    account: str
    number: int


class Sale(msgspec.Struct):
    sku: str
    cents: int


class Total(msgspec.Struct):
    sku: str
    cents: int
    goal: int


publish = Signal("publish", bool)
SOON = Backoff(base_s=0.1)


def done(what: str, number: int) -> None:
    """Write a line of what was done, so that somebody can count it."""
    with Path(what).open("a", encoding="utf-8") as lines:
        lines.write(f"{number}\n")


@task(queue="pages", max_attempts=3, backoff=SOON)
async def fetch(context: Context, account: str, pages: int) -> int:
    for page in range(context.checkpoint_value or 1, pages + 1):
        done(f"pages-{account}", page)
        if page == 3 and context.attempt == 1:
            raise ConnectionError(f"page {page} of {account} is not there")
        await context.checkpoint(page + 1)
        context.progress(page, pages)
    context.logger.info("all pages of %s are read", account)
    return pages


@step(max_attempts=2, backoff=SOON)
def enrich(item: Item) -> Sale:
    done(f"items-{item.account}", item.number)
    if item.account == "broken":
        raise ValueError(f"no price for item {item.number}")
    if item == Item("acme", 25) and not Path("held").exists():
        Path("held").write_text(str(os.getpid()), encoding="utf-8")
        time.sleep(3_600)
    return Sale(f"sku-{item.number % 3}", len(item.account))


@workflow(queue="pipelines", max_attempts=3, backoff=SOON, parallel=4)
async def totals(run: Run, account: str) -> list[Total]:
    async def read() -> int:
        return await run.call(fetch, account, 4)

    async def set_goals() -> Table:
        return await run.write(
            "goals", [{"sku": f"sku-{number}", "goal": 10 * number} for number in range(3)]
        )

    pages, goals = await run.gather(read, set_goals)
    sales = await run.each(enrich, [Item(account, number) for number in range(pages * 10)], chunk=10, limit=2)
    rows = await run.write("sales", sales)
    sums = await run.sql(
        "SELECT sku, sum(cents)::BIGINT AS cents, goal FROM sales JOIN goals USING (sku)"
        " GROUP BY sku, goal ORDER BY sku",
        into="sums",
        sales=rows,
        goals=goals,
    )
    await run.wait(publish, timeout_s=600)
    return await run.fetch(sums, Total)
