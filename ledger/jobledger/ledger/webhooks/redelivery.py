"""Sending events of the past again: which of a range a webhook is owed, by the ledger alone, and the jobs that send them.

Nothing is kept for it: the events are in the ledger, and so is what became of the delivery of each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import InvalidInputError, RefusedError
from jobledger.ledger.model.hooks.definition import WebhookDefinition
from jobledger.ledger.model.hooks.webhook import Webhook
from jobledger.ledger.model.job import CLOSED_STATES, JobState
from jobledger.ledger.protocols import Client
from jobledger.ledger.webhooks.deliveries import made, make, matches, subjects

#: Which events of a range: all of them, or those that never arrived.
Only = Literal["all", "failed"]
EVENTS_MAX: Final = 100_000  #: of one redelivery
_AGAIN_MAX: Final = 1_000
_AT_ONCE: Final = 64
_OVER: Final = CLOSED_STATES | {JobState.DEAD_LETTERED}


class OwedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event that is to be sent."""

    sequence: int  #: of the event
    again: int  #: the number of the redelivery; 0: there was no delivery at all


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a redelivery would send."""

    webhook: str
    matched: int  #: events of the range that the webhook asks for
    delivered: int  #: of them, those that arrived
    under_way: int  #: of them, those whose delivery goes on; they are not sent once more
    owed: tuple[OwedEvent, ...]  #: those that are to be sent, in the ledger's order


async def plan_redelivery(
    client: Client,
    webhook: Webhook,
    *,
    since: datetime,
    until: datetime | None = None,
    only: Only = "failed",
) -> Plan:
    """Return which events of a range of server time the webhook, as it is now, asks for, and which of them are due.

    `until`: up to and with this moment; None: to the end of the ledger. With `only` "all" what arrived is sent again.

    Raises: InvalidInputError for a range with too many events, SequenceGapError for one that is in an archive,
        CorruptLedgerError, UnreachableError.
    """
    found = await _matched(client, webhook.definition, since, until)
    counts = {"delivered": 0, "under_way": 0}
    owed: list[OwedEvent] = []
    for start in range(0, len(found), _AT_ONCE):
        batch = found[start : start + _AT_ONCE]
        looks = await asyncio.gather(*(_deliveries(client, webhook, sequence) for sequence in batch))
        for sequence, states in zip(batch, looks, strict=True):
            if any(state not in _OVER for state in states):
                counts["under_way"] += 1
                continue
            arrived = JobState.COMPLETED in states
            counts["delivered"] += arrived
            if only == "all" or not arrived:
                owed.append(OwedEvent(sequence=sequence, again=len(states)))
    return Plan(webhook=webhook.name, matched=len(found), owed=tuple(owed), **counts)


async def redeliver(
    client: Client, webhook: Webhook, plan: Plan, *, on_progress: Callable[[int, int], None] | None = None
) -> int:
    """Make the jobs of a plan; return how many are new. What somebody else made meanwhile is left alone.

    Raises: RefusedError for a webhook that is not active, LedgerFullError, CorruptLedgerError, UnreachableError; what
        was made before stays, and the same plan goes on from there.
    """
    if not webhook.is_active:
        raise RefusedError(f"webhook {webhook.name} is {webhook.status}: resume it, then redeliver")
    count = 0

    async def send(owed: OwedEvent) -> bool:
        message = await client.log.get(owed.sequence)
        if message is None:
            return False  # archived since
        return await make(client, webhook.name, webhook.definition, message, owed.again)

    for start in range(0, len(plan.owed), _AT_ONCE):
        count += sum(await asyncio.gather(*map(send, plan.owed[start : start + _AT_ONCE])))
        if on_progress is not None:
            on_progress(min(start + _AT_ONCE, len(plan.owed)), len(plan.owed))
    return count


async def _matched(
    client: Client, definition: WebhookDefinition, since: datetime, until: datetime | None
) -> Sequence[int]:
    """Return the stream sequences of what matches within a range, in order."""
    found: set[int] = set()
    last = (await client.log.head()).last_sequence
    for subject in subjects(client.log.names, definition):
        async with contextlib.aclosing(client.log.read_messages(from_time=since, subject=subject)) as batches:
            async for batch in batches:
                own = [each for each in batch if _is_before(each, until, last)]
                found.update(each.stream_sequence for each in own if matches(definition, each))
                if len(found) > EVENTS_MAX:
                    raise InvalidInputError(
                        f"more than {EVENTS_MAX:,} events match within this range: give a shorter one"
                    )
                if len(own) < len(batch):
                    break
    return sorted(found)


def _is_before(message: Message, until: datetime | None, last: int) -> bool:
    return message.stream_sequence <= last and (until is None or message.stored_at <= until)


async def _deliveries(client: Client, webhook: Webhook, sequence: int) -> list[JobState]:
    """Return what became of each delivery of one event, the first one first."""
    states: list[JobState] = []
    while len(states) < _AGAIN_MAX:
        job = await made(client, webhook.name, webhook.definition, sequence, len(states))
        if job is None:
            break
        states.append(job.state)
    return states
