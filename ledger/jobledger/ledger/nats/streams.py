"""The streams and buckets of one environment: made where missing, checked where they exist, never changed."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    LedgerError,
    LedgerFullError,
    ServerUnreachableError,
    StreamMismatchError,
)
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox, NoRespondersError

API_TIMEOUT_S: Final = 5.0
_STREAM_NOT_FOUND: Final = 10059
_CONSUMER_NOT_FOUND: Final = 10014
_NAME_IN_USE: Final = frozenset({10058, 10148})
_NO_ROOM: Final = frozenset({10023, 10028, 10047})
_NANOSECONDS: Final = 1_000_000_000
_CONSUMER_PAGES_MAX: Final = 100  # of 256 consumers each
_DUPLICATE_WINDOW_S: Final = 120.0
_REACTOR_ACK_PENDING_MAX: Final = 10_000
_ADVISORIES_SHARE: Final = 64  # of the ledger's size
_ADVISORIES_BYTES_MIN: Final = 256 << 10
_DLQ_SHARE: Final = 16
_DLQ_BYTES_MIN: Final = 1 << 20
ADVISORIES_LIFE_S: Final = 7 * 24 * 3600.0
DLQ_LIFE_S: Final = 30 * 24 * 3600.0
RESULTS_LIFE_S: Final = 7 * 24 * 3600.0
#: How often a consumer hands out one dispatch; then the server drops it and says so in ADVISORIES.
DELIVERIES_MAX: Final = 20


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: how it is made, and which of its settings no guarantee can do without."""

    name: str
    config: dict[str, Any]
    required: tuple[str, ...]  #: settings that must be as in `config` when the stream exists already


def specifications(names: Names, *, ledger_bytes_max: int, lease_s: float, replicas: int) -> list[StreamSpec]:
    """Return every stream of an environment, the ledger first."""
    return [
        _ledger(names, ledger_bytes_max, replicas),
        _workers(names, lease_s, replicas),
        timers_specification(names, replicas),
        advisories_specification(names, ledger_bytes_max, replicas),
        _dead_letters(names, ledger_bytes_max, replicas),
        _objects(names.payloads_bucket, 0.0, replicas),
        _objects(names.results_bucket, RESULTS_LIFE_S, replicas),
    ]


def _ledger(names: Names, bytes_max: int, replicas: int) -> StreamSpec:
    return StreamSpec(
        name=names.ledger_stream,
        config={
            "subjects": [names.all_events],
            "retention": "limits",
            "storage": "file",
            "discard": "new",  # full means refused, never forgotten
            "no_ack": False,
            "max_age": 0,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "max_bytes": bytes_max,
            "deny_delete": True,
            "allow_direct": True,
            "allow_atomic": True,
            "num_replicas": replicas,
        },
        required=(
            "subjects",
            "retention",
            "storage",
            "discard",
            "no_ack",
            "max_age",
            "max_msgs",
            "max_msgs_per_subject",
            "deny_delete",
            "allow_direct",
            "allow_atomic",
        ),
    )


def timers_specification(names: Names, replicas: int) -> StreamSpec:
    """Return the stream of timers; the reactor makes it anew when it is gone."""
    return StreamSpec(
        name=names.timers_stream,
        config={
            "subjects": [names.all_timers],
            "retention": "workqueue",
            "storage": "file",
            # The server allows no `discard: new` with schedules, and `old` would forget timers at any limit: so there
            # is none. A timer is smaller than the event that set it, and gone once it has fired and was heard.
            "discard": "old",
            "no_ack": False,
            "max_age": 0,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "max_bytes": -1,
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "allow_atomic": True,
            "allow_direct": True,
            "num_replicas": replicas,
        },
        required=(
            "subjects",
            "retention",
            "storage",
            "no_ack",
            "max_age",
            "max_msgs",
            "max_msgs_per_subject",
            "max_bytes",
            "allow_msg_schedules",
        ),
    )


def advisories_specification(names: Names, ledger_bytes_max: int, replicas: int) -> StreamSpec:
    """Return the stream that keeps what the server says of dispatches it gave up; lost ones the reconciler finds."""
    return StreamSpec(
        name=names.advisories_stream,
        config={
            "subjects": list(names.advisories),
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_age": int(ADVISORIES_LIFE_S * _NANOSECONDS),
            "max_bytes": max(_ADVISORIES_BYTES_MIN, ledger_bytes_max // _ADVISORIES_SHARE),
            "allow_direct": True,
            "num_replicas": replicas,
        },
        required=("subjects", "retention", "storage"),
    )


def _dead_letters(names: Names, ledger_bytes_max: int, replicas: int) -> StreamSpec:
    """A copy of every dead letter for who wants to be alerted; the truth stays in the ledger."""
    return StreamSpec(
        name=names.dlq_stream,
        config={
            "sources": [{"name": names.ledger_stream, "filter_subject": names.all_of_type("dead_lettered")}],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_age": int(DLQ_LIFE_S * _NANOSECONDS),
            "max_bytes": max(_DLQ_BYTES_MIN, ledger_bytes_max // _DLQ_SHARE),
            "allow_direct": True,
            "num_replicas": replicas,
        },
        required=("retention", "storage"),
    )


def _workers(names: Names, lease_s: float, replicas: int) -> StreamSpec:
    return StreamSpec(
        name=f"KV_{names.workers_bucket}",
        config={
            "subjects": [f"$KV.{names.workers_bucket}.>"],
            "retention": "limits",
            "storage": "file",  # leases must outlive a restart of the server, or a takeover could come too early
            "discard": "new",
            "max_age": int(lease_s * _NANOSECONDS),
            "duplicate_window": int(min(_DUPLICATE_WINDOW_S, lease_s) * _NANOSECONDS),
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "num_replicas": replicas,
        },
        # max_age is read, not required: every worker of an environment uses the lease time its bucket has.
        required=("subjects", "storage", "max_msgs_per_subject", "allow_direct"),
    )


def _objects(bucket: str, life_s: float, replicas: int) -> StreamSpec:
    return StreamSpec(
        name=f"OBJ_{bucket}",
        config={
            "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_age": int(life_s * _NANOSECONDS),
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "num_replicas": replicas,
        },
        required=("subjects", "storage", "allow_rollup_hdrs"),
    )


def consumer_config(filter_subject: str, *, ack_wait_s: float, ack_pending_max: int) -> dict[str, Any]:
    """Return the configuration of a durable consumer that hands out work."""
    return {
        "filter_subject": filter_subject,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": int(ack_wait_s * _NANOSECONDS),
        # Deliveries are not attempts: the ledger counts attempts. What the consumer gives up is looked at by the
        # dead-letter reactor, or by the reconciler, and dispatched anew or made a dead letter.
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
        "max_deliver": -1,  # a reactor goes on until it is done: what it gave up, nobody would do
        "max_ack_pending": _REACTOR_ACK_PENDING_MAX,
    }


async def ensure_streams(inbox: Inbox, specs: list[StreamSpec]) -> None:
    """Make what is missing and check what exists.

    Raises: StreamMismatchError, JetStreamDisabledError, LedgerFullError (no room), ServerUnreachableError.
    """
    for spec in specs:
        info = await api(inbox, f"STREAM.INFO.{spec.name}", {})
        if _code(info) == _STREAM_NOT_FOUND:
            info = await api(inbox, f"STREAM.CREATE.{spec.name}", {"name": spec.name, **spec.config})
            if _code(info) in _NAME_IN_USE:  # somebody else made it meanwhile
                info = await api(inbox, f"STREAM.INFO.{spec.name}", {})
        _check_answer(info, f"stream {spec.name}")
        _check_settings(spec, info["config"])


async def ensure_consumer(inbox: Inbox, stream: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Make a durable consumer where it is missing; one that exists must have the same filter and ack policy.

    Returns its settings as they are, which may be another's in all else: who relies on one looks it up there.

    Its `max_deliver` is brought in line, and it is given filters that it lacks of several: an earlier version made
    consumers without them, to refuse them would ask for deleting their positions. What a lower limit drops unsaid the
    reconciler finds; what a further filter would have let through before, nobody appended.

    Raises: StreamMismatchError, ServerUnreachableError, LedgerError.
    """
    info = await api(inbox, f"CONSUMER.INFO.{stream}.{name}", {})
    if _code(info) == _CONSUMER_NOT_FOUND:
        request = {
            "stream_name": stream,
            "action": "create",
            "config": {"durable_name": name, "name": name, **config},
        }
        info = await api(inbox, _create_call(stream, name, config), request)
        if _code(info) in _NAME_IN_USE:
            info = await api(inbox, f"CONSUMER.INFO.{stream}.{name}", {})
    _check_answer(info, f"consumer {name}")
    settings = _widened(info["config"], config)
    wanted = ("filter_subject", "filter_subjects", "ack_policy", "deliver_policy")
    required = tuple(setting for setting in wanted if setting in config)
    _check_settings(StreamSpec(name=f"{stream} consumer {name}", config=config, required=required), settings)
    changed = {**settings, "max_deliver": config.get("max_deliver", -1)}
    if changed != {"max_deliver": -1, **info["config"]}:
        request = {"stream_name": stream, "action": "update", "config": changed}
        _check_answer(await api(inbox, _create_call(stream, name, config), request), f"consumer {name}")
    found: dict[str, Any] = info["config"]
    return found


def _widened(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a consumer's settings with the wanted filters, if those it has are some of them."""
    has = set(found.get("filter_subjects") or ())
    if has and has < set(wanted.get("filter_subjects") or ()):
        return {**found, "filter_subjects": wanted["filter_subjects"]}
    return dict(found)


async def list_consumers(inbox: Inbox, stream: str) -> list[dict[str, Any]]:
    """Return what the server tells of every consumer of a stream, all pages, each consumer once.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    found: dict[str, dict[str, Any]] = {}
    offset = 0
    for _ in range(_CONSUMER_PAGES_MAX):
        answer = await api(inbox, f"CONSUMER.LIST.{stream}", {"offset": offset})
        if "error" in answer:
            description = answer["error"].get("description", "no reason given")
            raise LedgerError(f"the consumers of {stream} cannot be listed: {description}")
        page: list[dict[str, Any]] = answer.get("consumers") or []
        found.update({str(info["name"]): info for info in page})
        offset += len(page)
        if not page or offset >= int(answer.get("total", 0)):
            break
    return list(found.values())


def _create_call(stream: str, name: str, config: dict[str, Any]) -> str:
    single = config.get("filter_subject")  # several have no place in the subject of the request
    return f"CONSUMER.CREATE.{stream}.{name}" + (f".{single}" if single else "")


async def api(inbox: Inbox, call: str, payload: object) -> dict[str, Any]:
    """Call JetStream's API; errors come back under "error".

    Raises: JetStreamDisabledError when nobody answers, ServerUnreachableError without a connection.
    """
    try:
        return await inbox.api(f"$JS.API.{call}", payload, timeout_s=API_TIMEOUT_S)
    except NoRespondersError as error:
        message = "the server has no JetStream for this account: enable jetstream in its configuration"
        raise JetStreamDisabledError(message) from error
    except ConnectionLostError as error:
        message = "the connection was lost while setting up: try again"
        raise ServerUnreachableError(message) from error


def _code(answer: dict[str, Any]) -> int:
    return int(answer.get("error", {}).get("err_code", 0))


def _check_answer(answer: dict[str, Any], what: str) -> None:
    error = answer.get("error")
    if error is None:
        return
    text = error.get("description", "no reason given")
    if _code(answer) in _NO_ROOM:
        message = (
            f"the server has no room for {what} ({text}): raise max_file_store in its configuration, "
            "or ask for a smaller ledger (ledger_bytes_max)"
        )
        raise LedgerFullError(message)
    if error.get("code") == 503:  # noqa: PLR2004 - as HTTP has it
        message = f"JetStream is not available for {what}: {text}"
        raise JetStreamDisabledError(message)
    message = f"the server refused {what}: {text}"
    raise LedgerError(message)


def _check_settings(spec: StreamSpec, found: dict[str, Any]) -> None:
    differences = [
        f"{setting} is {found.get(setting)!r}, must be {spec.config[setting]!r}"
        for setting in spec.required
        if _plain(found.get(setting)) != _plain(spec.config[setting])
    ]
    if found.get("persist_mode") == "async":
        differences.append("persist_mode is 'async', which acknowledges before writing")
    if differences:
        raise StreamMismatchError(spec.name, differences)


def _plain(value: Any) -> Any:
    """A setting left out means its zero."""
    if isinstance(value, list):
        return sorted(cast("list[str]", value))
    return value or 0
