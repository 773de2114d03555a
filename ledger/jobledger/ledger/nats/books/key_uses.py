"""The bucket ACCESS: the last use of each key, as noted by gateways; `ended_sessions` are there, too.

Only the ledger decides whether a key is valid. A gateway writes the time of a key at most once a minute, so a time
here may be a minute old; the entry of an unused key is deleted after a year.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.model.errors import LedgerError, ServerUnreachableError
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.streams import StreamSpec, bucket_specification, ensure_streams, find_stream

_TIMEOUT_S: Final = 5.0
_KEYS_MAX: Final = 100_000
_ENTRY_BYTES_MAX: Final = 4 << 10
_LIFE_S: Final = 366 * 24 * 3600
_READ_AT_ONCE: Final = 1_000  #: the server gives the newest of 1,024 subjects at the most


class KeyUse(msgspec.Struct, frozen=True, kw_only=True):
    """The last use of a key."""

    key: str
    at: datetime  #: by the clock of the gateway
    client: str = ""  #: the address that it was used from


def uses_specification(names: Names, replicas: int) -> StreamSpec:
    """Return the bucket; gateways create it, so nobody else needs the right to do so."""
    return bucket_specification(
        access_stream(names),
        access_subject(names, ">"),
        entries_max=_KEYS_MAX,
        entry_bytes_max=_ENTRY_BYTES_MAX,
        replicas=replicas,
        life_s=_LIFE_S,
    )


async def ensure_uses(inbox: Inbox, names: Names, replicas: int) -> None:
    """Make the bucket where it is missing. Raises: as `ensure_streams`."""
    await ensure_streams(inbox, [uses_specification(names, replicas)])


async def write_use(inbox: Inbox, names: Names, use: KeyUse) -> None:
    """Store when a key was used, over what was stored before.

    Raises: ServerUnreachableError, ReplyTimeoutError, PermissionRefusedError, LedgerError.
    """
    try:
        data, _ = await inbox.ask(access_subject(names, use.key), use, timeout_s=_TIMEOUT_S)
    except ConnectionLostError as error:
        raise ServerUnreachableError("the connection was lost while the use of a key was stored") from error
    if b'"error"' in data:
        raise LedgerError(f"the server refused to store the use of key {use.key}: {data[:200].decode()}")


async def read_uses(
    connection: Connection, inbox: Inbox, names: Names, keys: Sequence[str]
) -> dict[str, KeyUse]:
    """Return the last uses of keys, by their ids; empty if no gateway ever ran.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError.
    """
    if await find_stream(inbox, access_stream(names)) is None:
        return {}
    found: list[api.Found] = []
    for first in range(0, len(keys), _READ_AT_ONCE):
        request = {
            "multi_last": [access_subject(names, each) for each in keys[first : first + _READ_AT_ONCE]]
        }
        try:
            found += await api.direct_get(connection, inbox, access_stream(names), request, batch=True)
        except ConnectionLostError as error:
            raise ServerUnreachableError("the bucket of uses of keys gave no answer") from error
    uses = [_read(data) for data, _ in found if data]
    return {use.key: use for use in uses if use is not None}


def _read(data: bytes) -> KeyUse | None:
    """Read an entry; None for one that a newer version wrote."""
    try:
        return msgspec.json.decode(data, type=KeyUse)
    except msgspec.MsgspecError:
        return None


def access_stream(names: Names) -> str:
    """Return the stream of the bucket."""
    return f"KV_{names.access_bucket}"


def access_subject(names: Names, key: str) -> str:
    """Return the subject of an entry."""
    return f"$KV.{names.access_bucket}.{key}"
