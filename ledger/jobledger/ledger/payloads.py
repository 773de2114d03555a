"""Inputs and results above the inline limit: kept in an object store by the sha256 of their JSON text."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import msgspec
import nats.errors
import nats.js.errors
from nats.js.object_store import ObjectStore

from jobledger.ledger.codec import digest
from jobledger.ledger.connection import Connection
from jobledger.ledger.errors import (
    LedgerFullError,
    PayloadMissingError,
    PayloadTooLargeError,
    ServerUnreachableError,
)
from jobledger.ledger.events import NO_VALUE, PayloadRef

_TRANSFER_S: Final = 60.0


class Payloads:
    """Puts values where they fit, and gets them back checked.

    Writing a value again is harmless: equal values have one name.
    """

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        *,
        inline_bytes_max: int,
        payload_bytes_max: int,
        life_s: float | None = None,
    ) -> None:
        self._connection = connection
        self._bucket = bucket
        self._inline_bytes_max = inline_bytes_max
        self._payload_bytes_max = payload_bytes_max
        self._life_s = life_s  #: how long the bucket keeps a value; None: as long as the ledger
        self._store: ObjectStore | None = None

    def fits_inline(self, text: bytes, *, what: str) -> bool:
        """Return whether `text` can be part of an event.

        Raises: PayloadTooLargeError beyond the limit of both.
        """
        if len(text) <= self._inline_bytes_max:
            return True
        if len(text) > self._payload_bytes_max:
            raise PayloadTooLargeError(what, len(text), self._payload_bytes_max)
        return False

    async def put(self, text: bytes, *, what: str) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return what an event is to carry: the value itself, or a reference to where it now lies.

        Raises: PayloadTooLargeError, LedgerFullError, ServerUnreachableError.
        """
        if self.fits_inline(text, what=what):
            return msgspec.Raw(text), None
        name = digest(text)
        try:
            async with asyncio.timeout(_TRANSFER_S):
                store = await self._open()
                if not await self._holds(store, name):
                    await store.put(name, text)
        except nats.js.errors.ServerError as error:
            message = f"the server has no room for the {what}: raise max_file_store in its configuration"
            raise LedgerFullError(message) from error
        except (TimeoutError, OSError, nats.errors.Error) as error:
            message = f"the {what} could not be stored: {str(error) or type(error).__name__}"
            raise ServerUnreachableError(message) from error
        return NO_VALUE, PayloadRef(sha256=name, size_bytes=len(text))

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None) -> bytes:
        """Return the JSON text that an event carries or refers to.

        Raises: PayloadMissingError when it is gone or damaged, ServerUnreachableError.
        """
        if reference is None:
            return bytes(value)
        try:
            async with asyncio.timeout(_TRANSFER_S):
                found = await (await self._open()).get(reference.sha256)
        except nats.js.errors.NotFoundError as error:
            why = "somebody deleted it" if self._life_s is None else "results expire after a week"
            message = f"payload {reference.sha256[:12]}... is no longer in {self._bucket}: {why}"
            raise PayloadMissingError(message) from error
        except (TimeoutError, OSError, nats.errors.Error) as error:
            message = (
                f"payload {reference.sha256[:12]}... could not be read: {str(error) or type(error).__name__}"
            )
            raise ServerUnreachableError(message) from error
        text = found.data or b""
        if digest(text) != reference.sha256:
            message = f"payload {reference.sha256[:12]}... in {self._bucket} is damaged: its hash differs"
            raise PayloadMissingError(message)
        return text

    async def _open(self) -> ObjectStore:
        if self._store is None:
            self._store = await self._connection.jetstream().object_store(self._bucket)
        return self._store

    async def _holds(self, store: ObjectStore, name: str) -> bool:
        """Return whether the value is there and will be for a while: an old one is written again for its new owner."""
        try:
            info = await store.get_info(name)
        except nats.js.errors.NotFoundError:
            return False
        written_at: str | None = info.mtime
        if self._life_s is None or written_at is None:
            return True
        age_s = (datetime.now(UTC) - datetime.fromisoformat(written_at)).total_seconds()
        return age_s < self._life_s / 2
