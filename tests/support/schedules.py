"""What tests of schedules share: declaring one, and what its chain and its jobs say."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from jobledger.ledger import Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import Held, Order, Queued
from jobledger.ledger.model.schedules.decisions import Declare
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.model.schedules.events import Declared, Schedule, ScheduleEvent, Ticked, state_fields
from jobledger.ledger.model.schedules.jobs import tick_job_id
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.schedules.ticks import Spec
from jobledger.ledger.schedules.changes import KnownSchedule


async def declare(
    ledger: Ledger, name: str = "nightly", *, every_s: int = 1, at: datetime | None = None, **fields: Any
) -> KnownSchedule:
    """Declare a schedule as an operator; every second unless told otherwise."""
    spec = fields.pop("spec", None) or Spec(every_s=0 if at else every_s, at=at)
    order = fields.pop("order", Order(input=msgspec.Raw(b"{}")))
    queue = fields.pop("queue", "cron")
    definition = Definition(spec=spec, task="add", queue=queue, order=order, **fields)
    return await ledger.schedules.act(name, Declare(definition=definition, replace=True))


async def overdue(ledger: Ledger, known: KnownSchedule, *, hours: float) -> KnownSchedule:
    """Let a schedule be one whose next tick was due `hours` hours ago."""
    assert known.event is not None
    every_s = known.event.definition.spec.every_s or 60  # an expression's: at whole minutes
    due = (datetime.now(UTC) - timedelta(hours=hours)).timestamp() // every_s * every_s
    moment = datetime.fromtimestamp(due, UTC)
    fields: dict[str, Any] = state_fields(known.schedule or Schedule(definition=known.event.definition))
    fields |= {"next_tick": moment, "next_at": moment}
    event = Declared(schedule=known.event.schedule, at=known.event.at, by=known.event.by, **fields)
    return await ledger.schedules.append(known, event)


async def facts(ledger: Ledger, name: str = "nightly") -> list[ScheduleEvent]:
    """Return the events of a schedule, oldest first."""
    found: list[ScheduleEvent] = []
    async for batch in ledger.log.read_messages(subject=SCHEDULE.chain(ledger.names, name)):
        found += map(SCHEDULE.decode, batch)
    return found


async def ticked_jobs(ledger: Ledger) -> list[str]:
    """Return the ids of the jobs that the ticks in the ledger ask for."""
    found: list[str] = []
    async for batch in ledger.log.read_messages(subject=SCHEDULE.everything(ledger.names)):
        for event in map(SCHEDULE.decode, batch):
            if isinstance(event, Ticked) and not event.skipped:
                found += [tick_job_id(event.schedule, each) for each in event.ticks or (event.tick,) if each]
    return found


async def begun_jobs(ledger: Ledger) -> Counter[str]:
    """Return how often each job of a tick began: its first events in the ledger."""
    found: Counter[str] = Counter()
    async for batch in ledger.log.read_messages(subject=f"{ledger.names.ledger_root}.job.>"):
        for message in batch:
            event = message.event if isinstance(message, StoredEvent) else None
            if isinstance(event, Queued | Held) and not event.prev and event.tick:
                found[event.job] += 1
    return found
