"""The beginning of a consumer of work that is made again: the oldest dispatch that still counts.

After a restore, or when somebody deleted a consumer, the ledger holds every dispatch there ever was. A consumer that hands
out all of them has its workers refuse each job that is over, which takes the server milliseconds a job.
"""

from __future__ import annotations

import contextlib
from typing import Any

from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef, leaves_of


async def begin_at_living(log: Log, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer of work that begins at the first dispatch that still counts in its lane.

    The given settings, where that is the first dispatch of all: so a new queue keeps its settings. Likewise if the user
    may not read the ledger: requests to the consumer itself then show which right is missing.

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
    begin, ends = (await log.head()).last_sequence + 1, dict[str, int]()
    async with contextlib.aclosing(log.read(subject=lane)) as batches:
        async for batch in batches:
            if not ends and await _counts(log, batch[0]):
                return None
            ends = ends or await _ends(log, lane)
            for each in batch:
                is_over = ends.get(each.event.job, 0) > each.stream_sequence
                if not is_over and await _counts(log, each):
                    return each.stream_sequence
    return begin if ends else None


async def _ends(log: Log, lane: str) -> dict[str, int]:
    """Return where the jobs of a lane's queue completed or were cancelled, by job, as read from the ledger."""
    found = {"": 0}
    jobs = lane.rpartition(".queued.")[0]
    for leaf in (*leaves_of("completed"), *leaves_of("cancelled")):
        async with contextlib.aclosing(log.read(subject=f"{jobs}.{leaf}")) as batches:
            async for batch in batches:
                found.update((each.event.job, each.stream_sequence) for each in batch)
    return found


async def _counts(log: Log, dispatch: StoredEvent) -> bool:
    """Return whether it is the newest dispatch of a job that waits for a worker or has one."""
    job = (await load(log, JobRef(queue=dispatch.event.queue, job_id=dispatch.event.job))).job
    if job is None or job.dispatch_sequence != dispatch.stream_sequence:
        return job is None
    return job.state in (JobState.QUEUED, JobState.RUNNING)
