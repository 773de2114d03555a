"""A unique task for its workers; started as a program, a client that enqueues it and now and then dies half-way.

    python unique.py URL ENVIRONMENT SEED KEYS CRASH PLANTED

A line of JSON on stdout for each enqueue that returned: [job id, whether this call made it]. With the probability CRASH the
process ends between the append that takes a key and the one that makes its job. PLANTED=1: it takes every key for free.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

from jobledger.ledger import Limit, Unique, connect, task
from jobledger.ledger.model import unique as model
from jobledger.ledger.unique.jobs import BegunJob, UniqueJobs
from jobledger.ledger.unique.keys import Wish


@task(queue="work", unique=Unique(args=("key",)), max_attempts=100, limits=(Limit("task", slots=15),))
async def only(key: int, seconds: float) -> int:
    """Sleep on the loop."""
    await asyncio.sleep(seconds)
    return key


def plant(chance: random.Random, crash: float, *, free: bool) -> None:
    """Let this process die between the two appends, or be blind."""
    make = UniqueJobs._make

    async def dies_or_makes(self: UniqueJobs, wish: Wish) -> BegunJob:
        if chance.random() < crash:
            os._exit(9)  # the key is taken, and nobody makes its job
        return await make(self, wish)

    UniqueJobs._make = dies_or_makes  # type: ignore[method-assign]
    if free:
        blind: Any = model
        blind.is_held = lambda *_: False  # pyright: ignore[reportUnknownLambdaType]


async def main(url: str, environment: str, *numbers: str) -> None:
    """Enqueue until somebody ends this process."""
    seed, keys, crash, planted = numbers
    chance = random.Random(seed)
    plant(chance, float(crash), free=planted == "1")
    async with connect(url, environment=environment) as ledger:
        while True:
            handle = await ledger.enqueue(only, chance.randrange(int(keys)), chance.uniform(0, 0.05))
            sys.stdout.write(json.dumps([handle.id, handle.created]) + "\n")
            sys.stdout.flush()
            await asyncio.sleep(chance.uniform(0, 0.01))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
