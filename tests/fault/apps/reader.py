"""Follows a ledger and says after each batch how far it has come: `reader.py URL ENVIRONMENT dense|filtered`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

from jobledger.ledger import connect


def _say(sequence: int) -> None:
    sys.stdout.write(f"{sequence}\n")
    sys.stdout.flush()


async def main(url: str, environment: str, kind: str) -> None:
    """Read until killed."""
    async with connect(url, environment=environment) as ledger:
        _say(0)
        subject = f"{ledger.names.ledger_root}.job.>" if kind == "filtered" else None
        async with aclosing(ledger.log.read_messages(subject=subject, follow=True)) as batches:
            async for batch in batches:
                _say(batch[-1].stream_sequence)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
