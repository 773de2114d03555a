"""Inputs and results above the inline limit: kept in an object store by the sha256 of their JSON text."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final, cast

import msgspec

from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import PayloadMissingError, PayloadState, PayloadTooLargeError
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.seals import KeyHolder, seal_value, unseal_value
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.objects import ObjectBucket, ObjectDamagedError, ObjectGoneError

if TYPE_CHECKING:
    from jobledger.ledger.model.lifecycle import StoreName


#: The most bytes of one group's inputs, or results, as a multiple of the largest value: they are read as one.
_OF_GROUP: Final = 32


class _Nowhere:
    """A file that forgets what is written to it."""

    def write(self, data: bytes) -> int:
        return len(data)


class Payloads(ObjectBucket):
    """A store that puts values where they fit, and checks them when it gets them back.

    Writing a value again is harmless: equal values have one name.
    """

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        *,
        inline_bytes_max: int,
        payload_bytes_max: int,
        keys: KeyHolder,
        life_s: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`keys`: seal and unseal the values of jobs that have owners. `life_s`: None, as long as the ledger."""
        super().__init__(connection, bucket, clock, life_s=life_s)
        self._keys = keys
        self._inline_bytes_max = inline_bytes_max
        self._payload_bytes_max = payload_bytes_max

    @property
    def group_bytes_max(self) -> int:
        """How many bytes the inputs, or the results, of one group may have together."""
        return _OF_GROUP * self._payload_bytes_max

    def fits_inline(self, text: bytes, *, what: str, of_group: bool = False) -> bool:
        """Return whether `text` can be part of an event. `of_group`: it is what all children of a step get or returned.

        Raises: PayloadTooLargeError beyond the limit of both.
        """
        if len(text) <= self._inline_bytes_max:
            return True
        limit = self.group_bytes_max if of_group else self._payload_bytes_max
        if len(text) > limit:
            raise PayloadTooLargeError(what, len(text), limit)
        return False

    async def put(
        self, text: bytes, *, what: str, key: str, of_group: bool = False
    ) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return what an event is to carry: the value itself, or a reference to where it now lies.

        `key`: names the key that seals the value, as the job's order does; "": it is stored as it is. `of_group`: as in
        `fits_inline`.

        Raises: PayloadTooLargeError, LedgerFullError, ServerUnreachableError; ErasedError, KeyUnavailableError.
        """
        is_small = self.fits_inline(text, what=what, of_group=of_group)
        if key:
            text = seal_value(await self._keys.key(key), text)
            is_small = len(text) <= self._inline_bytes_max
        if is_small:
            return msgspec.Raw(text), None
        name = digest(text)
        await self._store_value(name, text, what=what)
        return NO_VALUE, PayloadRef(sha256=name, size_bytes=len(text))

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None, *, key: str) -> bytes:
        """Return the JSON text that an event carries or refers to; `key`: as in `put`.

        Raises: PayloadMissingError when it is gone or damaged, ServerUnreachableError; ErasedError, KeyUnavailableError,
            SealBrokenError.
        """
        text = bytes(value) if reference is None else await self.stored(reference)
        return unseal_value(await self._keys.key(key), text) if key and text else text

    async def stored(self, reference: PayloadRef) -> bytes:
        """Return what is stored where an event refers to. Raises: as `get`, of what is stored."""
        try:
            text = await self.read(reference.sha256, what=_named(reference), size_bytes=reference.size_bytes)
        except ObjectGoneError as error:
            raise self._gone(reference) from error
        except ObjectDamagedError as error:
            raise self._damaged(reference) from error
        if digest(text) != reference.sha256:
            raise self._damaged(reference)
        return text

    async def copy(self, reference: PayloadRef, file: IO[bytes]) -> None:
        """Write a value to a file, chunk by chunk.

        Raises: as `get`; the content of the file is then worthless.
        """
        try:
            found = await self.copy_to(
                reference.sha256, file, what=_named(reference), size_bytes=reference.size_bytes
            )
        except ObjectGoneError as error:
            raise self._gone(reference) from error
        except ObjectDamagedError as error:
            raise self._damaged(reference) from error
        if found != reference.sha256:
            raise self._damaged(reference)

    async def state_of(self, reference: PayloadRef) -> PayloadState:
        """Read a value, chunk by chunk, and return what became of it.

        Raises: ServerUnreachableError.
        """
        try:
            await self.copy(reference, cast("IO[bytes]", _Nowhere()))
        except PayloadMissingError as error:
            return error.state
        return "stored"

    async def keep(self, reference: PayloadRef, text: bytes) -> None:
        """Store a value under the digest that an event refers to, even above the present limits.

        Raises: LedgerFullError, ServerUnreachableError.
        """
        assert digest(text) == reference.sha256, "a value is kept by the digest of its text"
        await self._store_value(reference.sha256, text, what="payload")

    async def _store_value(self, name: str, text: bytes, *, what: str) -> None:
        """Store a value unless it is there and stays for a while: an old one is written again for its new owner."""
        await self.store_once(name, text, what=what, stays_s=(self._life_s or 0.0) / 2)

    async def remove(self, reference: PayloadRef) -> None:
        """Let go of a value to which nothing refers any more; one that is gone already is no error.

        Raises: ServerUnreachableError, PermissionRefusedError.
        """
        await self.remove_object(reference.sha256, what=_named(reference))

    def _gone(self, reference: PayloadRef) -> PayloadMissingError:
        why = "it was deleted" if self._life_s is None else "results expire after a week"
        return PayloadMissingError(f"{_named(reference)} is gone from {self._bucket}: {why}", state="gone")

    def _damaged(self, reference: PayloadRef) -> PayloadMissingError:
        return PayloadMissingError(
            f"{_named(reference)} in {self._bucket} differs from what was stored: its sha256 is another one",
            state="differs",
        )


def _named(reference: PayloadRef) -> str:
    return f"payload {reference.sha256[:12]}..."


class Stores:
    """Both object stores of a ledger, for whoever copies what events refer to."""

    def __init__(self, inputs: Payloads, results: Payloads) -> None:
        self._stores: dict[StoreName, Payloads] = {"inputs": inputs, "results": results}

    async def copy(self, store: StoreName, reference: PayloadRef, file: IO[bytes]) -> None:
        """Write a value to a file; see `Payloads.copy`."""
        await self._stores[store].copy(reference, file)

    async def state_of(self, store: StoreName, reference: PayloadRef) -> PayloadState:
        """Return what became of a value; see `Payloads.state_of`."""
        return await self._stores[store].state_of(reference)

    async def keep(self, store: StoreName, reference: PayloadRef, text: bytes) -> None:
        """Store a value again; see `Payloads.keep`."""
        await self._stores[store].keep(reference, text)
