"""Facts that only the server knows: the ledger's size and head, timers, consumers, leases, the lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import anyio
import msgspec

from jobledger.audit.watch import AuditState, audited
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import CorruptLedgerError, ServerUnreachableError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.log import Head
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.durables import list_consumers
from jobledger.ledger.nats.inbox import ReplyTimeoutError
from jobledger.ledger.nats.infos import ConsumerInfo, StreamInfo
from jobledger.ledger.nats.leases import WorkerInfo, keeper_among
from jobledger.ledger.nats.streams import deleted_ledger, find_stream
from jobledger.ledger.throttle import load_of, needed_by_job

#: Time limit of all questions together; a scrape waits no longer.
FACTS_S: Final = 4.0
_WORK: Final = "work_"


class LaneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One queue at one priority, by its consumer."""

    queue: str
    priority: str
    undelivered: int
    unsettled: int
    redelivered: int


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The server's facts at one moment."""

    first_sequence: int
    head_sequence: int
    events: int
    ledger_bytes: int
    limit_bytes: int | None  #: None without a limit
    committed_bytes: int  #: bytes in use, and those that waiting jobs still need
    timers_messages: int
    lanes: tuple[LaneFacts, ...]
    workers: int
    queue_workers: dict[str, int]
    queue_slots: dict[
        str, int
    ]  #: by queue: attempts that its workers can run at once; a worker counts in each of its queues
    lag_s: float | None  #: age of the first event after the given position; 0 without one
    audited: AuditState | None  #: None if it cannot be read
    now: datetime | None  #: time by the server's clock; None if the server gives none
    keeper: WorkerInfo | None  #: process that moves old events into the archive, if there is one


async def server_facts(ledger: Ledger, position: int) -> ServerFacts:
    """Ask the server; `position` is the stream sequence that the projection has reached.

    Raises: UnreachableError, LedgerNotFoundError, LedgerError.
    """
    try:
        with anyio.fail_after(FACTS_S):
            return await _ask(ledger, position)
    except (TimeoutError, ReplyTimeoutError) as error:
        raise ServerUnreachableError(f"the server did not answer within {FACTS_S:g} s") from error
    except ConnectionLostError as error:
        raise ServerUnreachableError("there is no connection to the server") from error


async def _ask(ledger: Ledger, position: int) -> ServerFacts:
    stream = await _stream(ledger, ledger.names.ledger_stream)
    state, limit = stream.state, int(stream.config.get("max_bytes", -1))
    timers = await find_stream(ledger.inbox, ledger.names.timers_stream)
    leases = await ledger.leases.all(clients=True)
    workers = [info for info in leases if info.kind == "worker" and not info.stopped]
    queue_workers: Counter[str] = Counter()
    queue_slots: Counter[str] = Counter()
    for info in workers:
        for queue in info.queues:
            queue_workers[queue] += 1
            queue_slots[queue] += info.concurrency
    timers_messages = 0 if timers is None else timers.state.messages
    lanes = tuple(_lanes(await list_consumers(ledger.inbox, ledger.names.ledger_stream)))
    waiting = sum(lane.undelivered + lane.unsettled for lane in lanes) + timers_messages
    head = Head(
        first_sequence=max(1, state.first_sequence),
        last_sequence=state.last_sequence,
        stored_bytes=state.bytes,
    )
    load = load_of(head, waiting if lanes else None, await needed_by_job(ledger.log))
    return ServerFacts(
        first_sequence=max(1, state.first_sequence),
        head_sequence=state.last_sequence,
        events=state.messages,
        ledger_bytes=state.bytes,
        limit_bytes=limit if limit > 0 else None,
        committed_bytes=load.committed_bytes,
        timers_messages=timers_messages,
        lanes=lanes,
        workers=len(workers),
        queue_workers=dict(queue_workers),
        queue_slots=dict(queue_slots),
        lag_s=await _lag_s(ledger, position, state.last_sequence, stream.ts),
        audited=await _audited(ledger),
        now=_time(stream.ts),
        keeper=keeper_among(leases),
    )


async def _audited(ledger: Ledger) -> AuditState | None:
    try:
        return await audited(ledger.log)
    except CorruptLedgerError:  # the projector and every check report this
        return None


async def _stream(ledger: Ledger, name: str) -> StreamInfo:
    found = await find_stream(ledger.inbox, name)
    if found is None:
        raise deleted_ledger(ledger.connection, name)
    return found


def _lanes(consumers: Iterable[ConsumerInfo]) -> Iterator[LaneFacts]:
    for info in consumers:
        queue, _, priority = info.name.removeprefix(_WORK).rpartition("_")
        if info.name.startswith(_WORK) and queue and priority in PRIORITIES:
            yield LaneFacts(
                queue=queue,
                priority=priority,
                undelivered=info.pending,
                unsettled=info.ack_pending,
                redelivered=info.redelivered,
            )


async def _lag_s(ledger: Ledger, position: int, head: int, now: str) -> float | None:
    """Return the age of the first event after `position`, by the server's clock; None: unknown."""
    if position >= head:
        return 0.0
    try:
        stored = await ledger.log.get(position + 1)
    except CorruptLedgerError:
        stored = None
    if stored is None:  # purged meanwhile, or damaged: the projector will report it
        return None
    there = _time(now) or ledger.clock.now()
    return max(0.0, (there - stored.stored_at).total_seconds())


def _time(text: str) -> datetime | None:
    """Read the server's time; None if it gives none."""
    try:
        return server_time(text)
    except ValueError:
        return None
