"""The durable consumers of one environment: missing ones are created, existing ones checked, listed, deleted.

A durable consumer keeps its position on the server; how a process takes messages from one is in `consumer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from jobledger.ledger.nats import api
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.nats.streams import StreamSpec, check_settings

_NANOSECONDS: Final = 1_000_000_000
_REACTOR_ACK_PENDING_MAX: Final = 10_000
#: Most deliveries of one dispatch by a consumer; then the server drops it, with a message in ADVISORIES.
DELIVERIES_MAX: Final = 20

#: Creates a consumer, with the arguments of `make_consumer`.
Maker = Callable[[Inbox, str, str, dict[str, Any]], Awaitable[ConsumerInfo]]


def consumer_config(
    filter_subject: str, *, ack_wait_s: float, ack_pending_max: int, in_memory: bool = False
) -> dict[str, Any]:
    """Return the configuration of a durable consumer that hands out work.

    The server writes a consumer's state to a file up to ten times a second, a millisecond each time. A consumer kept
    `in_memory` is gone after a restart of the server, and is created again by its `floors`. Source: ADR 059.
    """
    return {
        **({"mem_storage": True} if in_memory else {}),
        "filter_subject": filter_subject,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": int(ack_wait_s * _NANOSECONDS),
        # Deliveries are not attempts: the ledger counts attempts. The dead-letter reactor, or the reconciler, looks at
        # a dispatch that the consumer gives up, and dispatches the job again or makes it a dead letter.
        "max_deliver": DELIVERIES_MAX,
        "max_ack_pending": ack_pending_max,
    }


def reactor_consumer(filters: tuple[str, ...], *, ack_wait_s: float) -> dict[str, Any]:
    """Return the configuration of the durable consumer that the processes of one reactor share."""
    filtered: dict[str, Any] = {"filter_subjects": list(filters)} if len(filters) > 1 else {}
    if len(filters) == 1:
        filtered["filter_subject"] = filters[0]
    return {
        **filtered,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": int(ack_wait_s * _NANOSECONDS),
        "max_deliver": -1,  # without a limit, since nobody else would do what a reactor gave up
        "max_ack_pending": _REACTOR_ACK_PENDING_MAX,
    }


async def ensure_consumer(
    inbox: Inbox,
    stream: str,
    name: str,
    config: dict[str, Any],
    *,
    make: Maker | None = None,
    own_ack_wait: bool = False,
) -> ConsumerInfo:
    """Create a missing durable consumer; an existing one must have the same filter and ack policy.

    Returns the found or created consumer. Its other settings may differ, so a caller that relies on one must check it.

    `make` creates a missing one, and may let it begin later (`lanes`). Its `max_deliver` is corrected, and missing
    ones of several filters are added: an earlier version created consumers without them, and a refusal would mean
    deleting their positions. Further filters stay: a process of a later version may need them, and reactors pass over
    events that they did not ask for. The reconciler finds dispatches that a lower limit drops silently; no earlier
    event fits a new filter. With `own_ack_wait` its ack wait is corrected, too, since users do not set it.

    Raises: StreamMismatchError, ServerUnreachableError, LedgerError.
    """
    info = await find_consumer(inbox, stream, name)
    if info is None:
        info = await (make or make_consumer)(inbox, stream, name, config)
    settings = _widened(info.config, config)
    expected = {**config, **_beyond(info.config, config)}
    wanted = ("filter_subject", "filter_subjects", "ack_policy", "deliver_policy")
    required = tuple(setting for setting in wanted if setting in config)
    spec = StreamSpec(name=f"{stream} consumer {name}", config=expected, required=required)
    check_settings(spec, settings)
    changed = {**settings, "max_deliver": config.get("max_deliver", -1)}
    if own_ack_wait:
        changed["ack_wait"] = config["ack_wait"]
    if changed != {"max_deliver": -1, **info.config}:
        await api.create_consumer(inbox, stream, name, changed, action="update")
    return info


def _widened(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a consumer's settings with all wanted filters, if its present ones are some of them."""
    has = set(found.get("filter_subjects") or ())
    if has and has < set(wanted.get("filter_subjects") or ()):
        return {**found, "filter_subjects": wanted["filter_subjects"]}
    return dict(found)


def _beyond(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the further settings that a consumer may keep: more filters, and a beginning of its own."""
    kept: dict[str, Any] = {}
    if set(found.get("filter_subjects") or ()) > set(wanted.get("filter_subjects") or ()) > set():
        kept["filter_subjects"] = found["filter_subjects"]
    if wanted.get("deliver_policy") == "all" and found.get("deliver_policy") == "by_start_sequence":
        kept["deliver_policy"] = found["deliver_policy"]
    return kept


async def make_consumer(inbox: Inbox, stream: str, name: str, config: dict[str, Any]) -> ConsumerInfo:
    """Create a durable consumer; one that another process created meanwhile is returned.

    Raises: LedgerError, LedgerFullError, JetStreamDisabledError, UnreachableError.
    """
    try:
        named = {"durable_name": name, "name": name, **config}
        return await api.create_consumer(inbox, stream, name, named)
    except api.TakenError:
        return await api.consumer_info(inbox, stream, name)


async def find_consumer(inbox: Inbox, stream: str, name: str) -> ConsumerInfo | None:
    """Return the present state of a consumer, None if there is none of that name, or no stream.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    try:
        return await api.consumer_info(inbox, stream, name)
    except api.MissingError:
        return None


async def delete_consumer(inbox: Inbox, stream: str, name: str) -> bool:
    """Delete a consumer and its position; return whether there was one.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    try:
        await api.delete_consumer(inbox, stream, name)
    except api.MissingError:
        return False
    return True


async def first_undelivered(inbox: Inbox, stream: str, info: ConsumerInfo) -> int:
    """Return the stream sequence of a consumer's first message that it has not delivered yet; 0 for none.

    Raises: LedgerError, UnreachableError.
    """
    after = info.delivered.stream_sequence + 1
    found = [
        await api.get_message(inbox, stream, {"seq": after, "next_by_subj": subject})
        for subject in info.filters or (">",)
    ]
    return min((message.stream_sequence for message in found if message is not None), default=0)


async def list_consumers(inbox: Inbox, stream: str) -> list[ConsumerInfo]:
    """Return every consumer of a stream, in any order.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    return await api.consumers(inbox, stream)
