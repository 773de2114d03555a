"""Where a consumer of work begins that is made where there was one before: at the oldest dispatch that still counts.

After a restore, or when somebody deleted a consumer, the ledger holds every dispatch there ever was. A consumer that hands
out all of them has its workers refuse each job that is over, which takes the server milliseconds a job.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.log import BATCH_MESSAGES_MAX, Log
from jobledger.ledger.model.subjects import JobRef, leaves_of

_ENDINGS: Final = tuple(
    f".{leaf}" for kind in ("completed", "cancelled") for leaf in leaves_of(kind) if "*" not in leaf
)
_CHAINS_AT_ONCE: Final = 64


async def begin_at_living(log: Log, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer of work that begins at the first dispatch that still counts in its lane.

    Those that were given, where that is the first one of all: so a new queue has the settings it always had. Also for
    who may not read the ledger: what is asked of the consumer itself tells then which right is missing.

    Raises: CorruptLedgerError, UnreachableError.
    """
    if await log.last(config["filter_subject"]) is None:
        return config
    with contextlib.suppress(PermissionRefusedError):
        begin = await _begin(log, config["filter_subject"])
        return (
            config
            if begin is None
            else {**config, "deliver_policy": "by_start_sequence", "opt_start_seq": begin}
        )
    return config


async def _begin(log: Log, lane: str) -> int | None:
    """Return the stream sequence of the first dispatch that counts, of the next event for none; None if none is before it."""
    begin, has_skipped = (await log.head()).last_sequence + 1, False
    async with contextlib.aclosing(log.read(subject=lane)) as batches:
        async for batch in batches:
            living = await _first_living(log, batch)
            has_skipped = has_skipped or living != batch[0].stream_sequence
            if living:
                begin = living
                break
    return begin if has_skipped else None


async def _first_living(log: Log, dispatches: Sequence[StoredEvent]) -> int:
    """Return the stream sequence of the first dispatch that a worker may still claim or hold, 0 for none."""
    chains = {each.stream_sequence: each.subject.rpartition(".queued.")[0] for each in dispatches}
    ended = await ended_among(log, set(chains.values()))
    rest = [each for each in dispatches if chains[each.stream_sequence] not in ended]
    for part in _parts(rest, _CHAINS_AT_ONCE):
        counts = await asyncio.gather(*(_counts(log, each) for each in part))
        for each, does_count in zip(part, counts, strict=True):
            if does_count:
                return each.stream_sequence
    return 0


async def _counts(log: Log, dispatch: StoredEvent) -> bool:
    """Return whether it is the newest dispatch of a job that waits for a worker or has one."""
    job = (await load(log, JobRef(queue=dispatch.event.queue, job_id=dispatch.event.job))).job
    is_newest = job is None or job.dispatch_sequence == dispatch.stream_sequence
    return is_newest and (job is None or job.state in (JobState.QUEUED, JobState.RUNNING))


async def ended_among(log: Log, chains: Iterable[str]) -> set[str]:
    """Return those chains of jobs, as subjects without their last words, that surely have a final event.

    Most are completed, so one look tells. A child that completed is not among them.
    """
    found, rest = set[str](), list(chains)
    for ending in _ENDINGS:
        for part in _parts(rest, BATCH_MESSAGES_MAX):
            there = await log.present([chain + ending for chain in part])
            found |= {subject.removesuffix(ending) for subject in there}
        rest = [chain for chain in rest if chain not in found]
    return found


_T = TypeVar("_T")


def _parts(several: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (several[begin : begin + size] for begin in range(0, len(several), size))
