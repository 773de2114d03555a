"""The message about an event, for a receiver or a task: small unless more is asked for, and the same at every try."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.ledger.model.aggregates import JOB
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import PayloadMissingError
from jobledger.ledger.model.events import Completed, DeadLettered, Event, Failed
from jobledger.ledger.model.hooks.definition import Part
from jobledger.ledger.model.hooks.watch import WATCH
from jobledger.ledger.model.seals import unseal_error
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.protocols import Client

_ATTEMPT: Final = "attempt"
_OF_ERROR: Final = ("kind", "type", "message", "traceback")


class EventMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message about one event."""

    type: str  #: `job.<type of event>`, or `watch.firing` and `watch.resolved`
    timestamp: datetime  #: when the event was stored, by the server's clock
    data: dict[str, Any]  #: what it is about; large values only where they are asked for


async def told_of(
    client: Client, message: Message, include: Sequence[Part] = (), *, unseals: bool = False
) -> EventMessage:
    """Return the message about a stored event of a job or a watch.

    A value that is asked for and is gone from the object store is named in `missing` instead. So is each value of a job
    that has an owner, since the receiver would keep what is to be erased here; `unseals`: whoever gets the message seals
    it under the same key.

    Raises: CorruptLedgerError, UnreachableError; ErasedError with `unseals`.
    """
    if isinstance(message, StoredEvent):
        kind = f"job.{JOB.type_of(message.event)}"
        data = _about(message) | await _parts(client, message.event, include, unseals=unseals)
    else:
        event = WATCH.decode(message)
        kind = f"watch.{WATCH.type_of(event)}"
        terms = msgspec.to_builtins(event.definition)
        data = {"watch": event.watch, "value": event.value, **terms, "sequence": message.stream_sequence}
    return EventMessage(type=kind, timestamp=message.stored_at, data=data)


def _about(message: StoredEvent) -> dict[str, Any]:
    event = message.event
    data: dict[str, Any] = {"queue": event.queue, "job": event.job, "task": event.task}
    if hasattr(event, _ATTEMPT):
        data[_ATTEMPT] = getattr(event, _ATTEMPT)
    if event.correlation:
        data["correlation"] = event.correlation
    return {**data, "sequence": message.stream_sequence}


async def _parts(client: Client, event: Event, include: Sequence[Part], *, unseals: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    missing: list[str] = []
    for part in include:
        if event.key and not unseals:
            missing.append(part)
            continue
        try:
            value = await _part(client, event, part)
        except PayloadMissingError:
            missing.append(part)
            continue
        if value is not None:
            found[part] = value
    return {**found, "missing": missing} if missing else found


async def _part(client: Client, event: Event, part: Part) -> msgspec.Raw | dict[str, Any] | None:
    """Return one part of what is told; None where the event has none of that kind."""
    match part:
        case "input":
            job = (await load(client.log, JobRef(queue=event.queue, job_id=event.job))).job
            if job is None:  # it is in an archive
                return None
            return msgspec.Raw(await client.inputs.get(job.order.input, job.order.input_ref, key=event.key))
        case "result":
            if not isinstance(event, Completed):
                return None
            return msgspec.Raw(await client.results.get(event.result, event.result_ref, key=event.key))
        case "error":
            error = event.error if isinstance(event, Failed | DeadLettered) else None
            if error is None:
                return None
            if event.key:
                error = unseal_error(await client.keys.key(event.key), error)
            return {name: getattr(error, name) for name in _OF_ERROR}
