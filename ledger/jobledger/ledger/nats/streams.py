"""The streams and buckets of one environment: missing ones are created, existing ones checked, and none is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, cast

import msgspec

from jobledger.ledger.model.errors import (
    LedgerError,
    LedgerNotFoundError,
    RefusedError,
    ServerUnreachableError,
    StreamMismatchError,
)
from jobledger.ledger.model.forms import FORM, FORM_FIRST
from jobledger.ledger.model.subjects import Names, environment_of
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import AccountInfo, StreamInfo

_NANOSECONDS: Final = 1_000_000_000
#: Key in the metadata of a ledger: the highest form of events that may be appended. Absent in ledgers made before
#: forms.
_FORM_MARK: Final = "jobledger_form"
_FORM_DIGITS_MAX: Final = 9
_FORM_TRIES_MAX: Final = 5
_SAID_MAX: Final = 40
#: Key in the metadata of a ledger during a restore: names the restore.
RESTORE_MARK: Final = "jobledger_restore"
_DUPLICATE_WINDOW_S: Final = 120.0
#: Each queue has three consumers. A stream without a limit of its own gets the server's `default_max_consumers`, 1,000.
_CONSUMERS_MAX: Final = 10_000
#: The subject of the server's advisories that a consumer gave a message up.
_ADVISORIES: Final = "$JS.EVENT.ADVISORY.CONSUMER"
_GIVEN_UP: Final = ("MAX_DELIVERIES", "MSG_TERMINATED")
_ADVISORIES_SHARE: Final = 64  # of the ledger's size
_ADVISORIES_BYTES_MIN: Final = 256 << 10
_BODIES_SHARE: Final = 16
_BODIES_BYTES_MIN: Final = 64 << 20
_DLQ_SHARE: Final = 16
_DLQ_BYTES_MIN: Final = 1 << 20
_KEY_BYTES_MAX: Final = 8 << 10
_NAMES_MAX: Final = 10_000
_SHOWN_MAX: Final = 10
ADVISORIES_LIFE_S: Final = 7 * 24 * 3600.0
DLQ_LIFE_S: Final = 30 * 24 * 3600.0
RESULTS_LIFE_S: Final = 7 * 24 * 3600.0


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: its settings, and those among them that guarantees need."""

    name: str
    config: dict[str, Any]
    required: tuple[str, ...]  #: settings that must be as in `config` if the stream exists already


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
            "max_consumers": _CONSUMERS_MAX,
            "deny_delete": True,
            "allow_direct": True,
            "allow_atomic": True,
            "num_replicas": replicas,
            "metadata": {_FORM_MARK: str(FORM)},
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
    """Return the stream of timers; the reactor creates it again when it is gone."""
    return StreamSpec(
        name=names.timers_stream,
        config={
            "subjects": [names.all_timers],
            "retention": "workqueue",
            "storage": "file",
            # The server allows no `discard: new` with schedules, and `old` forgets timers when a limit is reached: so
            # the stream has no limit of size. A timer is smaller than the event that set it, and gone once it has
            # fired and was handled.
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
    """Return the stream of the server's advisories on dispatches that it gave up; the reconciler finds lost ones."""
    return StreamSpec(
        name=names.advisories_stream,
        config={
            "subjects": [f"{_ADVISORIES}.{kind}.{names.ledger_stream}.>" for kind in _GIVEN_UP],
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
    """Return the stream with a copy of every dead letter, for alerts; the ledger itself decides."""
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


def bucket_specification(
    name: str, subjects: str, *, entries_max: int, entry_bytes_max: int, replicas: int, life_s: float = 0.0
) -> StreamSpec:
    """Return the settings of a bucket that its first user creates. It keeps each key's newest entry (for `life_s`)."""
    return StreamSpec(
        name=name,
        config={
            "subjects": [subjects],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_msgs": entries_max,
            "max_msgs_per_subject": 1,
            "max_msg_size": entry_bytes_max,
            **({"max_age": int(life_s * _NANOSECONDS)} if life_s else {}),
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "num_replicas": replicas,
        },
        required=("subjects", "max_msgs_per_subject"),
    )


def keys_specification(names: Names, replicas: int) -> StreamSpec:
    """Return the bucket of owners' keys; the process that makes the first key creates it.

    Messages may be deleted, since only a deletion overwrites the bytes on the disk. An owner may have two messages,
    because a new one is written before the old one is deleted.
    """
    spec = bucket_specification(
        f"KV_{names.keys_bucket}",
        f"$KV.{names.keys_bucket}.>",
        entries_max=-1,
        entry_bytes_max=_KEY_BYTES_MAX,
        replicas=replicas,
    )
    config = {**spec.config, "discard": "new", "max_msgs_per_subject": 2, "deny_delete": False}
    return msgspec.structs.replace(
        spec, config=config, required=("subjects", "max_msgs_per_subject", "deny_delete")
    )


def tables_specification(names: Names, *, bytes_max: int, life_s: float, replicas: int) -> StreamSpec:
    """Return the object store of tables; the first worker that stores one creates it, so that others need none."""
    spec = _objects(names.tables_bucket, life_s, replicas)
    return msgspec.structs.replace(spec, config={**spec.config, "max_bytes": bytes_max})


def bodies_specification(names: Names, *, ledger_bytes_max: int, replicas: int) -> StreamSpec:
    """Return the object store of bodies of webhooks, each of which has its own time to be kept.

    When it is full, the oldest bodies go, so that no webhook is refused because of earlier ones.
    """
    spec = _objects(names.bodies_bucket, 0.0, replicas)
    bytes_max = max(_BODIES_BYTES_MIN, ledger_bytes_max // _BODIES_SHARE)
    config = {**spec.config, "max_bytes": bytes_max, "discard": "old", "allow_msg_ttl": True}
    return msgspec.structs.replace(spec, config=config, required=(*spec.required, "allow_msg_ttl"))


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


async def ensure_streams(inbox: Inbox, specs: list[StreamSpec]) -> None:
    """Create missing streams and check existing ones.

    Raises: StreamMismatchError, JetStreamDisabledError, LedgerFullError (no room), ServerUnreachableError.
    """
    async for spec, found in _find_streams(inbox, specs):
        check_settings(spec, (found or await _made(inbox, spec)).config)


async def ensure_stream(inbox: Inbox, spec: StreamSpec) -> StreamInfo:
    """Create a stream if it is missing, and return it. Raises: as `ensure_streams`."""
    found = await find_stream(inbox, spec.name) or await _made(inbox, spec)
    check_settings(spec, found.config)
    return found


async def _made(inbox: Inbox, spec: StreamSpec) -> StreamInfo:
    try:
        return await api.create_stream(inbox, spec.name, spec.config)
    except api.TakenError:  # another process created it meanwhile
        return await api.stream_info(inbox, spec.name)
    except api.ApiError as error:
        if error.number not in api.TOO_FEW_SERVERS:
            raise
        raise ServerUnreachableError(_too_few_servers(spec.name, spec.config["num_replicas"])) from error


def _too_few_servers(stream: str, replicas: int) -> str:
    return (
        f"stream {stream} needs {replicas} servers of the cluster that have JetStream and room, and fewer answer: "
        "start the others, or make fewer copies (`replicas`)"
    )


async def give_replicas(inbox: Inbox, stream: str, replicas: int) -> StreamInfo:
    """Set the number of a stream's replicas, and return the stream at that moment; its servers copy it afterwards.

    Raises: RefusedError if too few servers answer; ApiError, JetStreamDisabledError, UnreachableError.
    """
    info = await api.stream_info(inbox, stream)
    if info.config.get("num_replicas", 1) == replicas:
        return info
    try:
        return await api.update_stream(inbox, stream, {**info.config, "num_replicas": replicas})
    except api.ApiError as error:
        if error.number not in api.TOO_FEW_SERVERS:
            raise
        raise RefusedError(_too_few_servers(stream, replicas)) from error


async def give_bytes(inbox: Inbox, stream: str, bytes_max: int) -> None:
    """Let a stream hold up to `bytes_max` bytes; no message is removed.

    Raises: LedgerFullError if the server has no room for that; ApiError, JetStreamDisabledError, UnreachableError.
    """
    info = await api.stream_info(inbox, stream)
    if info.config.get("max_bytes") != bytes_max:
        await api.update_stream(inbox, stream, {**info.config, "max_bytes": bytes_max})


def form_in(config: Mapping[str, Any]) -> int:
    """Return the form of the ledger whose stream has these settings; the first form if they name none.

    A value that is no number counts as form 1, which every program reads; `check_settings` refuses it at the next connect.
    """
    said = _metadata(config).get(_FORM_MARK, "")
    return int(said) if _is_form(said) else FORM_FIRST


def _is_form(said: str) -> bool:
    return said.isascii() and said.isdecimal() and len(said) <= _FORM_DIGITS_MAX


def _metadata(config: Mapping[str, Any]) -> dict[str, str]:
    return cast("dict[str, str]", config.get("metadata") or {})


async def require_changes(inbox: Inbox, stream: str) -> None:
    """Check that this user may change a stream's settings, by writing them unchanged.

    Raises: PermissionRefusedError; ApiError, JetStreamDisabledError, UnreachableError.
    """
    await api.update_stream(inbox, stream, (await api.stream_info(inbox, stream)).config)


async def raise_form(inbox: Inbox, stream: str, form: int) -> None:
    """Raise the form of a ledger, so that events up to `form` may be appended; it is never lowered.

    The server has no conditional change of settings, so another process may write back the form that it had read: the
    form is read again afterwards.

    Raises: RefusedError if that happens again and again; ApiError, JetStreamDisabledError, UnreachableError.
    """
    for _ in range(_FORM_TRIES_MAX):
        info = await api.stream_info(inbox, stream)
        if form_in(info.config) >= form:
            return
        metadata = {**_metadata(info.config), _FORM_MARK: str(form)}
        await api.update_stream(inbox, stream, {**info.config, "metadata": metadata})
    raise RefusedError(
        f"something else changes the settings of {stream} all the time: stop it, and try again"
    )


async def check_streams(inbox: Inbox, specs: list[StreamSpec]) -> None:
    """Check the existing streams, and create none.

    Raises: StreamMismatchError, JetStreamDisabledError, ServerUnreachableError.
    """
    async for spec, found in _find_streams(inbox, specs):
        if found is not None:
            check_settings(spec, found.config)


async def _find_streams(
    inbox: Inbox, specs: list[StreamSpec]
) -> AsyncIterator[tuple[StreamSpec, StreamInfo | None]]:
    """Yield each stream, None for a missing one; all are requested at once.

    Raises: as `find_stream`, in the turn of the stream.
    """
    looks = (find_stream(inbox, spec.name) for spec in specs)
    answers = await asyncio.gather(*looks, return_exceptions=True)
    for spec, answer in zip(specs, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        yield spec, answer


async def require_ledger(inbox: Inbox, names: Names, url: str) -> None:
    """Check that there is a ledger; `url`, without a password, is the address in the error.

    Raises: LedgerNotFoundError, JetStreamDisabledError, ServerUnreachableError.
    """
    if await find_stream(inbox, names.ledger_stream) is None:
        raise LedgerNotFoundError(url, names.environment, await _environments(inbox))


def deleted_ledger(connection: Connection, stream: str) -> LedgerNotFoundError:
    """Return the error for a ledger that was deleted after this connection was made."""
    gone = "somebody deleted it after this program connected; bring it back from a back-up or an export"
    return LedgerNotFoundError(connection.shown_server, environment_of(stream) or "", [], gone)


async def _environments(inbox: Inbox) -> list[str]:
    """Return the environments that have a ledger in this account, [] if the user may not see them."""
    try:
        streams = await api.stream_names(inbox, names_max=_NAMES_MAX)
    except LedgerError:  # only the advice lacks them
        return []
    return sorted(found for name in streams if (found := environment_of(name)) is not None)[:_SHOWN_MAX]


async def find_stream(inbox: Inbox, name: str, *, subjects: str | None = None) -> StreamInfo | None:
    """Return a stream in its present state, None if there is none of that name.

    `subjects`: a filter; the answer then counts the messages of each subject that fits.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    try:
        return await api.stream_info(inbox, name, subjects=subjects)
    except api.MissingError:
        return None


async def subject_at(inbox: Inbox, stream: str, stream_sequence: int) -> str | None:
    """Return the subject of a message from the stream's leader, None if it has no such message.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    found = await api.get_message(inbox, stream, {"seq": stream_sequence})
    return None if found is None else found.subject


async def newest_at(inbox: Inbox, stream: str, subject: str) -> int:
    """Return the sequence of the newest message of a subject, or of a filter, from the stream's leader; 0 for none.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    found = await api.get_message(inbox, stream, {"last_by_subj": subject})
    return 0 if found is None else found.stream_sequence


async def account_usage(inbox: Inbox) -> AccountInfo:
    """Return the account's use of storage, and its limit.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    return await api.account_info(inbox)


def check_settings(spec: StreamSpec, found: dict[str, Any]) -> None:
    """Compare the present settings with the required ones.

    Raises: StreamMismatchError.
    """
    differences = [
        f"{setting} is {found.get(setting)!r}, must be {spec.config[setting]!r}"
        for setting in spec.required
        if _plain(found.get(setting)) != _plain(spec.config[setting])
    ]
    said = _metadata(found).get(_FORM_MARK)
    if said is not None and not _is_form(said):
        differences.append(
            f"its metadata says {_FORM_MARK} is {said[:_SAID_MAX]!r}, must be a number, such as '{FORM}'"
        )
    if found.get("persist_mode") == "async":
        differences.append("persist_mode is 'async', which acknowledges before writing")
    if differences and RESTORE_MARK in (found.get("metadata") or {}):
        advice = "a restore into this server is under way, or was not finished: wait for its end, or run `jobledger restore DIR`, which says how to begin it again"
        raise StreamMismatchError(spec.name, differences, advice)
    if differences:
        raise StreamMismatchError(spec.name, differences)


def _plain(value: Any) -> Any:
    """Return a setting, a missing one as its zero."""
    if isinstance(value, list):
        return sorted(cast("list[str]", value))
    return value or 0
