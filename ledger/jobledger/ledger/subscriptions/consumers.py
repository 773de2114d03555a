"""Durable subscriptions as the server holds them: made once, checked ever after, listed, deleted.

A subscription is a durable consumer on the ledger's stream. The server keeps what was acknowledged; what a
subscription is for is written into its metadata, so that a change is noticed instead of missing events.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from jobledger.ledger.model.archive_record import forgotten_past
from jobledger.ledger.model.errors import (
    InvalidInputError,
    LedgerError,
    SequenceGapError,
    ServerUnreachableError,
)
from jobledger.ledger.model.log import Head, Log
from jobledger.ledger.model.subjects import SUBSCRIPTION_CONSUMER_PREFIX, Names, check_token
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats.durables import delete_consumer, find_consumer, list_consumers, make_consumer
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.subscriptions.errors import SubscriptionMismatchError, SubscriptionNotFoundError
from jobledger.ledger.subscriptions.filter import EventFilter, Start

ACK_WAIT_S_DEFAULT: Final = 30.0
#: Of one subscription, in all its processes; events that wait for the end of a nak's delay count, too.
UNACKNOWLEDGED_MAX: Final = 10_000
_FILTER_KEY: Final = "jobledger.filter"
_NANOSECONDS: Final = 1_000_000_000
_NEVER: Final = datetime(1, 1, 2, tzinfo=UTC)

_decode_filter = msgspec.json.Decoder(EventFilter).decode


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One durable subscription at this moment."""

    name: str
    filter: EventFilter
    created_at: datetime
    ack_wait_s: float
    pending: int  #: events that nobody was given yet
    in_flight: int  #: events that somebody has, or that wait to be handed out again
    redelivered: int  #: of those in flight, how many were handed out before
    acknowledged_sequence: int  #: all events up to this stream sequence are dealt with; 0: none
    delivered_sequence: int  #: stream sequence of the newest event that was handed out; 0: none
    last_active_at: datetime | None  #: last hand-out or acknowledgement since the server started, None: none

    @property
    def lag(self) -> int:
        """How many events are still to be acknowledged."""
        return self.pending + self.in_flight


def consumer_settings(names: Names, wanted: EventFilter, start: Start, ack_wait_s: float) -> dict[str, Any]:
    """Return the configuration of a subscription's consumer."""
    settings: dict[str, Any] = {
        "filter_subjects": list(wanted.subjects(names)),
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait_s * _NANOSECONDS),
        "max_deliver": -1,  # with a limit the server would stop silently
        "max_ack_pending": UNACKNOWLEDGED_MAX,
        "metadata": {_FILTER_KEY: msgspec.json.encode(wanted).decode()},
    }
    if start.live:
        return {**settings, "deliver_policy": "new"}
    if start.since is not None:
        since = start.since.astimezone(UTC).isoformat()
        return {**settings, "deliver_policy": "by_start_time", "opt_start_time": since}
    if (start.from_sequence or 1) > 1:
        return {**settings, "deliver_policy": "by_start_sequence", "opt_start_seq": start.from_sequence}
    return {**settings, "deliver_policy": "all"}


async def check_begin(start: Start, log: Log) -> Head:
    """Refuse to begin where the ledger has no events, or has none any more; return its two ends.

    Raises: InvalidInputError, SequenceGapError, UnreachableError.
    """
    head = await log.head()
    wanted = start.from_sequence or 1
    if wanted > head.last_sequence + 1:
        raise InvalidInputError(
            f"from_sequence {wanted} lies beyond the ledger's end, which is {head.last_sequence}: begin at "
            f"{head.last_sequence + 1} at most; if it was right once, the ledger was rewound since"
        )
    if 1 < wanted < head.first_sequence:
        forgotten = await forgotten_past(log)
        if forgotten is None or forgotten.through_sequence < wanted:
            where = (
                f"{wanted} is not held any more; read the archive first, or begin at {head.first_sequence}"
            )
        else:
            where = f"{forgotten.words}, are gone for good; begin later"
        message = f"the ledger begins at stream sequence {head.first_sequence}: {where}"
        raise SequenceGapError(message, stream_sequence=wanted, next_sequence=head.first_sequence)
    return head


async def find_subscription(inbox: Inbox, names: Names, name: str) -> SubscriptionInfo:
    """Return one subscription as it is now.

    Raises: SubscriptionNotFoundError, UnreachableError, JetStreamDisabledError.
    """
    consumer = names.subscription_consumer(check_token("subscription", name))
    found = await find_consumer(inbox, names.ledger_stream, consumer)
    if found is None:
        raise SubscriptionNotFoundError(name)
    return _read(found)


async def make_subscription(
    inbox: Inbox, names: Names, name: str, wanted: EventFilter, *, start: Start, ack_wait_s: float
) -> SubscriptionInfo:
    """Make a subscription; one that somebody else made meanwhile is returned as it is.

    Raises: LedgerError, UnreachableError.
    """
    config = consumer_settings(names, wanted, start, ack_wait_s)
    assert config["filter_subjects"], "a subscription without a filter would get other aggregates' events"
    consumer = names.subscription_consumer(name)
    return _read(await make_consumer(inbox, names.ledger_stream, consumer, config))


def check_unchanged(found: SubscriptionInfo, wanted: EventFilter, ack_wait_s: float | None) -> None:
    """Refuse to use a subscription for something else than it was made for.

    Raises: SubscriptionMismatchError.
    """
    differences = [
        f"{field} is {_said(getattr(found.filter, field))}, not {_said(getattr(wanted, field))}"
        for field in EventFilter.__struct_fields__
        if getattr(found.filter, field) != getattr(wanted, field)
    ]
    if ack_wait_s is not None and abs(found.ack_wait_s - ack_wait_s) > 1 / _NANOSECONDS:
        differences.append(f"ack_wait_s is {found.ack_wait_s:g}, not {ack_wait_s:g}")
    if differences:
        raise SubscriptionMismatchError(found.name, differences, found.acknowledged_sequence)


def _said(value: object) -> str:
    if not value:
        return "any"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


async def list_subscriptions(inbox: Inbox, names: Names) -> list[SubscriptionInfo]:
    """Return every subscription, by name.

    Raises: LedgerError, UnreachableError.
    """
    listed = await list_consumers(inbox, names.ledger_stream)
    return sorted((_read(info) for info in listed if _is_ours(info)), key=lambda found: found.name)


def _is_ours(info: ConsumerInfo) -> bool:
    """Another's consumer may be called as ours are."""
    metadata: dict[str, str] = info.config.get("metadata") or {}
    return info.name.startswith(SUBSCRIPTION_CONSUMER_PREFIX) and _FILTER_KEY in metadata


async def delete_subscription(inbox: Inbox, names: Names, name: str) -> SubscriptionInfo:
    """Forget a subscription and its position; return it as it was.

    Raises: SubscriptionNotFoundError, UnreachableError.
    """
    found = await find_subscription(inbox, names, name)
    if not await delete_consumer(inbox, names.ledger_stream, names.subscription_consumer(name)):
        raise SubscriptionNotFoundError(name)
    return found


def _read(info: ConsumerInfo) -> SubscriptionInfo:
    times = [_time(each.last_active) for each in (info.delivered, info.ack_floor)]
    return SubscriptionInfo(
        name=info.name.removeprefix(SUBSCRIPTION_CONSUMER_PREFIX),
        filter=_filter_of(info.config),
        created_at=_time(info.created) or _NEVER,
        ack_wait_s=int(info.config.get("ack_wait", 0)) / _NANOSECONDS,
        pending=info.pending,
        in_flight=info.ack_pending,
        redelivered=info.redelivered,
        acknowledged_sequence=info.ack_floor.stream_sequence,
        delivered_sequence=info.delivered.stream_sequence,
        last_active_at=max((time for time in times if time is not None), default=None),
    )


def _filter_of(config: dict[str, Any]) -> EventFilter:
    """Read what a subscription is for.

    Raises: LedgerError for a consumer of that name that is not of our making.
    """
    metadata: dict[str, str] = config.get("metadata") or {}
    try:
        return _decode_filter(metadata[_FILTER_KEY])
    except (KeyError, msgspec.MsgspecError) as error:
        consumer = config.get("durable_name", "?")
        raise LedgerError(
            f"consumer {consumer} has the name of a subscription and is not of jobledger's making: "
            "delete it with your NATS tools, or use another name"
        ) from error


def _time(text: str | None) -> datetime | None:
    """Read the server's time, nanoseconds cut to microseconds; None where it says that there was none."""
    if not text:
        return None
    try:
        found = server_time(text)
    except ValueError as error:
        raise ServerUnreachableError(f"the server told a time that is none: {text[:60]!r}") from error
    return found if found > _NEVER else None
