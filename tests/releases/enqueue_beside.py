"""Enqueue jobs with the code of a release: enqueue_beside.py SERVER_URL BATCH [held]

Makes the ledger where there is none. Prints the ids of all that was enqueued.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import beside_app  # type: ignore[import-not-found] # pyright: ignore[reportMissingImports] - beside it

from jobledger.ledger import connect

URL, BATCH, WHAT = sys.argv[1], sys.argv[2], sys.argv[3:]
LEASE_S = 3.0
COUNTS = {"plain": 10, "again": 3, "at_once": 3, "dead": 1}
DELAYS_S = (0.5, 2.0, 4.0)


async def main() -> None:
    """Enqueue them."""
    async with connect(URL, lease_s=LEASE_S) as ledger:
        for name, count in ({"held": 2} if WHAT else COUNTS).items():
            for n in range(count):
                await put(ledger, name, f"{BATCH}-{name}-{n}", n)
        for n, delay_s in enumerate(() if WHAT else DELAYS_S):
            await put(ledger, "plain", f"{BATCH}-delayed-{n}", n, delay_s=delay_s)


async def put(ledger: Any, task: str, job: str, n: int, **options: float) -> None:
    """Enqueue one, and say that it is acknowledged."""
    await ledger.enqueue(getattr(beside_app, task).options(id=job, **options), n=n)
    sys.stdout.write(f"{job}\n")


asyncio.run(main())
