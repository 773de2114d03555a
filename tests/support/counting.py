"""A task that counts its runs, and what must hold of every ledger whatever happened."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from jobledger.ledger import Context, Ledger, task
from jobledger.ledger.model.codec import StoredEvent

RUNS: Counter[str] = Counter()


@task
async def count(context: Context, n: int) -> int:
    RUNS[context.job_id] += 1
    await asyncio.sleep(0)
    return n


async def everything(ledger: Ledger) -> list[StoredEvent]:
    return [stored async for stored in ledger.events(follow=False)]


def types_by_job(events: list[StoredEvent]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for stored in events:
        found.setdefault(stored.event.job, []).append(msgspec.json.decode(stored.data)["type"])
    return found


def check_ledger(events: list[StoredEvent]) -> None:
    """What must hold of every ledger, whatever happened: dense, linked, at most one outcome an attempt."""
    assert [stored.stream_sequence for stored in events] == list(range(1, len(events) + 1))
    chains: dict[str, list[StoredEvent]] = {}
    for stored in events:
        chains.setdefault(stored.event.job, []).append(stored)
    for chain in chains.values():
        hashes = ["", *(stored.hash for stored in chain)]
        assert [stored.event.prev for stored in chain] == hashes[:-1]
        outcomes = Counter(
            written["attempt"]
            for written in (msgspec.json.decode(stored.data) for stored in chain)
            if written["type"] in {"completed", "failed", "interrupted"}
        )
        assert set(outcomes.values()) <= {1}
