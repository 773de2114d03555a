"""Inputs and results above the inline limit: kept in an object store by the sha256 of their JSON text."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Final, cast

import msgspec
import nats.errors
import nats.js.errors
from nats.js.api import Header
from nats.js.object_store import ObjectStore

from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import (
    LedgerFullError,
    PayloadMissingError,
    PayloadState,
    PayloadTooLargeError,
    PermissionRefusedError,
    ServerUnreachableError,
)
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.nats.api import LOOK_UP
from jobledger.ledger.nats.connection import Connection

if TYPE_CHECKING:
    import io

    from jobledger.ledger.model.lifecycle import StoreName

_TRANSFER_S: Final = 60.0


class _Hashing:
    """A file to be written that hashes what goes into it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _Nowhere:
    """A file that forgets what is written to it."""

    def write(self, data: bytes) -> int:
        return len(data)


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
        await self._keep(name, text, what=what)
        return NO_VALUE, PayloadRef(sha256=name, size_bytes=len(text))

    async def _keep(self, name: str, text: bytes, *, what: str) -> None:
        try:
            async with self._transfer():
                store = await self._open()
                if not await self._holds(store, name):
                    await store.put(name, text)
        except nats.js.errors.ServerError as error:
            message = f"the server has no room for the {what}: raise max_file_store in its configuration"
            raise LedgerFullError(message) from error
        except (TimeoutError, OSError, nats.errors.Error) as error:
            message = f"the {what} could not be stored: {str(error) or type(error).__name__}"
            raise ServerUnreachableError(message) from error

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None) -> bytes:
        """Return the JSON text that an event carries or refers to.

        Raises: PayloadMissingError when it is gone or damaged, ServerUnreachableError.
        """
        if reference is None:
            return bytes(value)
        try:
            async with self._transfer():
                found = await (await self._open()).get(reference.sha256)
        except nats.js.errors.NotFoundError as error:
            raise self._gone(reference) from error
        except nats.js.errors.DigestMismatchError as error:
            raise self._damaged(reference) from error
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise self._unreadable(reference, error) from error
        text = found.data or b""
        if digest(text) != reference.sha256:
            raise self._damaged(reference)
        return text

    async def copy(self, reference: PayloadRef, file: IO[bytes]) -> None:
        """Write a value to a file, chunk by chunk.

        Raises: as `get`; what is in the file is then worth nothing.
        """
        hashing = _Hashing(file)
        try:
            async with self._transfer():
                # nats-py only calls `write`, in a thread.
                await (await self._open()).get(reference.sha256, writeinto=cast("io.BufferedIOBase", hashing))
        except nats.js.errors.NotFoundError as error:
            raise self._gone(reference) from error
        except nats.js.errors.DigestMismatchError as error:
            raise self._damaged(reference) from error
        except OSError as error:
            if hashing.error is not None:
                raise hashing.error from error  # the file's, not the server's
            raise self._unreadable(reference, error) from error
        except (TimeoutError, nats.errors.Error) as error:
            raise self._unreadable(reference, error) from error
        if hashing.hexdigest() != reference.sha256:
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
        """Store what an event refers to under its digest, whatever the limits are by now.

        Raises: LedgerFullError, ServerUnreachableError.
        """
        assert digest(text) == reference.sha256, "a value is kept by the digest of its text"
        await self._keep(reference.sha256, text, what="payload")

    async def remove(self, reference: PayloadRef) -> None:
        """Let go of a value to which nothing refers any more; one that is gone already is no error.

        Two short messages stay in its place, so this takes no right but that to write values.

        Raises: ServerUnreachableError, PermissionRefusedError.
        """
        try:
            async with self._transfer():
                # Who was stopped between the two finds the chunks of what is gone as well.
                info = await (await self._open()).get_info(reference.sha256, show_deleted=True)
                info.deleted, info.size, info.chunks = True, 0, 0
                name = base64.urlsafe_b64encode(reference.sha256.encode()).decode()
                await self._replace(f"M.{name}", msgspec.json.encode(info.as_dict()))
                await self._replace(f"C.{info.nuid}", b"")
        except nats.js.errors.NotFoundError:
            return
        except (TimeoutError, OSError, nats.errors.Error) as error:
            said = str(error) or type(error).__name__
            message = f"payload {reference.sha256[:12]}... could not be removed: {said}"
            raise ServerUnreachableError(message) from error

    async def _replace(self, subject: str, data: bytes) -> None:
        """Store a message in the place of all others of its subject."""
        rollup: dict[str, str] = {Header.ROLLUP.value: "sub"}
        await self._connection.jetstream().publish(f"$O.{self._bucket}.{subject}", data, headers=rollup)

    def _gone(self, reference: PayloadRef) -> PayloadMissingError:
        why = "somebody deleted it" if self._life_s is None else "results expire after a week"
        return PayloadMissingError(
            f"payload {reference.sha256[:12]}... is gone from {self._bucket}: {why}", state="gone"
        )

    def _damaged(self, reference: PayloadRef) -> PayloadMissingError:
        return PayloadMissingError(
            f"payload {reference.sha256[:12]}... in {self._bucket} differs from what was stored: its sha256 "
            "is another one",
            state="differs",
        )

    def _unreadable(self, reference: PayloadRef, error: Exception) -> ServerUnreachableError:
        said = str(error) or type(error).__name__
        return ServerUnreachableError(f"payload {reference.sha256[:12]}... could not be read: {said}")

    @contextlib.asynccontextmanager
    async def _transfer(self) -> AsyncGenerator[None, None]:
        """Set a limit to the block; a right that the server refuses meanwhile ends it at once.

        Raises: TimeoutError, PermissionRefusedError.
        """
        refused: list[PermissionRefusedError] = []
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        try:
            async with asyncio.timeout(_TRANSFER_S) as limit:

                def on_refused(error: PermissionRefusedError) -> None:
                    if self._bucket in error.subject or error.subject == LOOK_UP:
                        refused.append(error)
                        limit.reschedule(0.0)

                self._connection.refused_listeners.append(on_refused)
                try:
                    yield
                finally:
                    self._connection.refused_listeners.remove(on_refused)
                # nats-py waits with asyncio.wait_for, which in Python 3.11 forgets a cancellation that comes in the
                # moment between an answer and its waiter: the task would go on for ever.
                if task.cancelling() > cancels:
                    raise asyncio.CancelledError
        except (TimeoutError, OSError, nats.errors.Error) as error:
            if refused:
                raise refused[0] from error
            raise

    async def _open(self) -> ObjectStore:
        self._connection.require_here()
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
