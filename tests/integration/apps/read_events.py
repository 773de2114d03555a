"""Reads events one by one as subscription `crash`, prints each, and hangs in the second; for a test that kills it."""

from __future__ import annotations

import sys

import anyio

from jobledger.ledger import connect


async def main(url: str, environment: str) -> None:
    async with connect(url, environment=environment) as ledger:
        async for stored in ledger.events(durable="crash", ack_wait_s=1):
            print(stored.stream_sequence, flush=True)  # noqa: T201 - read by the test
            if stored.stream_sequence == 2:
                await anyio.sleep_forever()


anyio.run(main, sys.argv[1], sys.argv[2])
