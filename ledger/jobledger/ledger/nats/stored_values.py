"""The content of the bucket of large inputs, for code that deletes values that no event names.

A value consists of an info, which has its name, and of chunks at a place that the info names. A value that is stored
again has another place, so chunks that no info names belong to a value that was replaced, or never stored whole.
Source: ADR 069.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from jobledger.ledger.model.codec import is_digest
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.subjects import Names, is_token
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats import api
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.objects import UNNAMED
from jobledger.ledger.nats.payloads import Payloads

_PAGES_MAX: Final = 10_000  # of 100,000 subjects each


class _Info(msgspec.Struct, frozen=True):
    """The fields that are read of an info."""

    name: str
    nuid: str = ""
    size: int = 0
    deleted: bool = False


class StoredValue(NamedTuple):
    """A value, from its info."""

    name: str  #: the sha256 of its text; any foreign object has another name
    sequence: int  #: of the info, in the stream of the bucket
    written_at: datetime  #: when the info was written, or the value marked, by the server's clock
    place: str  #: where its chunks lie
    size_bytes: int
    is_marked: bool  #: True: marked because no event names it
    is_removed: bool  #: True: the value was removed, and only its info is left
    info: bytes

    @property
    def is_ours(self) -> bool:
        """Whether its name has the form of a large value's."""
        return is_digest(self.name)


class StoredValues:
    """The values in the bucket of large inputs; no method waits longer than one request."""

    def __init__(self, inbox: Inbox, names: Names, inputs: Payloads) -> None:
        self._inbox = inbox
        self._inputs = inputs
        self._stream = f"OBJ_{names.payloads_bucket}"
        self._infos = f"$O.{names.payloads_bucket}.M."
        self._chunks = f"$O.{names.payloads_bucket}.C."

    async def all(self) -> AsyncGenerator[StoredValue, None]:
        """Yield each value, the oldest write first; a value that is written meanwhile comes once more.

        Raises: UnreachableError, LedgerError for a message that is no info.
        """
        sequence = 1
        while True:
            request = {"seq": sequence, "next_by_subj": f"{self._infos}>"}
            message = await api.get_message(self._inbox, self._stream, request)
            if message is None:
                return
            sequence = message.stream_sequence + 1
            yield self._value(message)

    def _value(self, message: api.StoredMessage) -> StoredValue:
        content = message.content
        try:
            info = msgspec.json.decode(content, type=_Info)
            written_at = server_time(message.time)
        except (msgspec.MsgspecError, ValueError) as error:
            raise LedgerError(
                f"message {message.stream_sequence} of {self._stream} is no info of a large value, so nobody can tell which "
                f"chunks are in use: {error}"
            ) from error
        return StoredValue(
            name=info.name if self._subject(info.name) == message.subject else "",
            sequence=message.stream_sequence,
            written_at=written_at,
            place=info.nuid,
            size_bytes=info.size,
            is_marked=bool(message.header(UNNAMED.encode())),
            is_removed=info.deleted,
            info=content,
        )

    def _subject(self, name: str) -> str:
        return self._infos + base64.urlsafe_b64encode(name.encode()).decode()

    async def mark(self, value: StoredValue, *, is_unnamed: bool) -> bool:
        """Mark a value, or remove its mark; return whether that was done: see `ObjectBucket.mark`."""
        what = f"mark of payload {value.name[:12]}..."
        return await self._inputs.mark(
            value.name, value.info, behind=value.sequence, is_unnamed=is_unnamed, what=what
        )

    async def delete(self, value: StoredValue) -> bool:
        """Delete the info of a value; return whether that was done: not if somebody wrote it meanwhile.

        Its chunks stay, at a place that no info names any more. Raises: UnreachableError, LedgerError.
        """
        before = value.sequence + 1
        return bool(
            await api.purge_subject(
                self._inbox, self._stream, self._subject(value.name), before_sequence=before
            )
        )

    async def places(self) -> AsyncGenerator[list[str], None]:
        """Yield the places of chunks, many at a time; a new place may be missing.

        Raises: UnreachableError, LedgerError.
        """
        offset = 0
        for _ in range(_PAGES_MAX):
            found = await api.stream_info(
                self._inbox, self._stream, subjects=f"{self._chunks}>", offset=offset
            )
            page = list(found.state.subjects or ())
            if not page:
                return
            offset += len(page)
            yield [subject.removeprefix(self._chunks) for subject in page]

    async def chunks_stored_at(self, place: str) -> datetime | None:
        """Return when the newest chunk at a place was stored; None without chunks. Raises: UnreachableError."""
        request = {"last_by_subj": self._chunks + place}
        found = await api.get_message(self._inbox, self._stream, request)
        return None if found is None else server_time(found.time)

    async def delete_chunks(self, place: str) -> None:
        """Delete the chunks at a place, and write other bytes over them on the server's disk.

        Raises: UnreachableError, LedgerError.
        """
        assert is_token(place), "a wildcard would delete the chunks of every value"
        sequence = 1
        while True:
            request = {"seq": sequence, "next_by_subj": self._chunks + place}
            found = await api.get_message(self._inbox, self._stream, request)
            if found is None:
                return
            sequence = found.stream_sequence + 1
            await api.erase_if_there(self._inbox, self._stream, found.stream_sequence)
