"""Inherited slots: those that a run's children need not take, since the run, or a run above it, holds them to its end.

A run that keeps a slot until it has ended and waits for a child that names the same key would wait for ever. So a child
uses the slot of the run above it. The slots that a run keeps follow from the definitions that its own grant obeyed, so
every process that makes its children finds the same ones.
"""

from __future__ import annotations

import contextlib

from jobledger.ledger.model.job import Job
from jobledger.ledger.model.limits.definition import LIMIT, Definition
from jobledger.ledger.model.limits.flow import FLOW, Granted
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.log import Log, events_among


async def limits_of_children(log: Log, job: Job) -> tuple[str, ...]:
    """Return the limits of which a run's children need no slot of their own, in their order.

    Raises: UnreachableError, UnknownEventError.
    """
    found = dict.fromkeys(job.order.inherits)
    if job.order.limits and job.grant:
        obeyed = await _obeyed(log, job.grant)
        for limit in job.order.limits:
            name, key = split(limit)
            definition = await _definition(log, name, obeyed)
            terms = None if definition is None else definition.of(key)
            if terms is not None and terms.keep == "job":
                found[limit] = None
    return tuple(sorted(found))


async def _obeyed(log: Log, grant: int) -> int | None:
    """Return the stream sequence of the newest definition that a grant obeyed; None: an archive run took it."""
    message = await log.get(grant)
    event = None if message is None else FLOW.decode(message)
    return event.limits_sequence if isinstance(event, Granted) else None


async def _definition(log: Log, name: str, through: int | None) -> Definition | None:
    """Return a limit as it was at a stream sequence, or is now; if that was archived, the oldest one left."""
    definition: Definition | None = None
    batches = log.read_messages(subject=LIMIT.chain(log.names, name))
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in events_among(batch):
                if definition is not None and through is not None and message.stream_sequence > through:
                    return definition
                definition = LIMIT.evolve(definition, LIMIT.decode(message), message.stream_sequence)
    return definition
