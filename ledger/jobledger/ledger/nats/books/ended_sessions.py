"""Sessions of browsers that somebody ended by logging out, in the bucket ACCESS beside the uses of keys.

A gateway writes the id of an ended session here, and every gateway reads new entries once a second. An entry is kept
longer than any session lasts, so an ended session stays ended.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.model.errors import LedgerError, ServerUnreachableError
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.books.key_uses import access_stream, access_subject, ensure_uses
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox, header
from jobledger.ledger.nats.streams import find_stream

_TIMEOUT_S: Final = 5.0
_PAGE: Final = 1_000
_ENDED: Final = "ended"


class EndedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The person who ended a session, and the time by the gateway's clock."""

    by: str
    at: datetime


async def write_ended(inbox: Inbox, names: Names, replicas: int, session: str, ended: EndedSession) -> None:
    """Store that a session ended; `session` is its id, a token of a subject.

    Raises: ServerUnreachableError, ReplyTimeoutError, PermissionRefusedError, LedgerError.
    """
    await ensure_uses(inbox, names, replicas)
    subject = access_subject(names, f"{_ENDED}.{session}")
    try:
        data, _ = await inbox.ask(subject, ended, timeout_s=_TIMEOUT_S)
    except ConnectionLostError as error:
        raise ServerUnreachableError(
            "the connection was lost while the end of a session was stored"
        ) from error
    if b'"error"' in data:
        raise LedgerError(f"the server refused to store the end of a session: {data[:200].decode()}")


async def read_ended(connection: Connection, inbox: Inbox, names: Names, after: int) -> tuple[list[str], int]:
    """Return the ids of sessions that ended after a sequence of the bucket, and the sequence that was reached.

    Raises: LedgerError, JetStreamDisabledError, UnreachableError, ReplyTimeoutError.
    """
    stream, ids = access_stream(names), list[str]()
    while True:
        request = {"seq": after + 1, "next_by_subj": access_subject(names, f"{_ENDED}.*"), "batch": _PAGE}
        try:
            found = await api.direct_get(connection, inbox, stream, request, batch=True)
        except ConnectionLostError as error:
            if await find_stream(inbox, stream) is None:  # nobody ever logged out, and no key was used
                return [], 0
            raise ServerUnreachableError("the bucket of ended sessions gave no answer") from error
        if not found:
            return ids, after
        ids += [header(headers, b"Nats-Subject").decode().rpartition(".")[2] for _, headers in found]
        after = int(header(found[-1][1], b"Nats-Sequence"))
