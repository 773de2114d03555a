"""The object store of a bucket: bytes under a name, in messages, moved in pieces, each transfer within a limit."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import math
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import IO, TYPE_CHECKING, Final, cast

import msgspec
import nats.errors

from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.errors import LedgerFullError, PermissionRefusedError, ServerUnreachableError
from jobledger.ledger.nats.api import LOOK_UP, NO_ROOM
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.writer import WRONG_SEQUENCE_CODES

# nats-py's JetStream client is slow to load: its errors are found in `nats.js` when one is raised.
if TYPE_CHECKING:
    import io

    import nats.js.errors
    from nats.js.api import ObjectInfo, RawStreamMsg
    from nats.js.object_store import ObjectStore

_TRANSFER_S: Final = 60.0
#: Bytes per second: a transfer that is slower, after its first minute, counts as hanging.
_BYTES_PER_S_MIN: Final = 1 << 20
_CHUNK_BYTES: Final = 128 << 10
_TTL: Final = "Nats-TTL"
_ROLLUP: Final = "Nats-Rollup"
_ONLY_BEHIND: Final = "Nats-Expected-Last-Subject-Sequence"
#: A header of an object's info: no event names the object, and it is deleted soon unless it is written again.
UNNAMED: Final = "Jobledger-Unnamed"
_CHUNKS_LONGER_S: Final = 60
_RACES_MAX: Final = 8
_NONE: Final[Mapping[str, str]] = {}


class ObjectGoneError(Exception):
    """There is no object of that name."""


class ObjectDamagedError(Exception):
    """An object differs from what was stored under its name."""


class _Info(msgspec.Struct):
    """The part of an object's info that tells whether the object exists."""

    deleted: bool = False


class _HashingFile:
    """A file to be written that hashes the written data."""

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


class ObjectBucket:
    """Stores, reads and removes the objects of one bucket."""

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        life_s: float | None = None,
    ) -> None:
        """`clock`: measures the remaining life of an object; the fleet's clock for objects with a limited life.

        `life_s`: how long the bucket keeps an object that has no life of its own; None: until somebody removes it.
        """
        self._connection = connection
        self._bucket = bucket
        self._clock = clock
        self._life_s = life_s
        self._store: ObjectStore | None = None

    async def store(self, name: str, file: IO[bytes], *, what: str, size_bytes: int) -> None:
        """Store the content of a file under a name that nobody else uses; `what` is for messages.

        Raises: LedgerFullError, ServerUnreachableError.
        """
        async with self._storage(what, size_bytes):
            # nats-py only calls `readinto` of a file, in a thread.
            await (await self._open()).put(name, cast("io.BufferedIOBase", file))

    async def store_once(
        self, name: str, data: bytes, *, what: str, stays_s: float = 0.0, life_s: float | None = None
    ) -> None:
        """Store bytes under a name that is derived from them, unless they are stored and stay for `stays_s` seconds.

        Those that are marked as unnamed are stored again.

        Of several callers that store them at the same moment the first succeeds, and nobody removes another's chunks,
        so every reader finds the whole object. (nats-py's `put` keeps the last, and removes the chunks of the others.)
        `life_s`: how long the server keeps them, in a bucket whose messages may have a life of their own; None: as
        long as the bucket keeps its objects.

        Raises: LedgerFullError, ServerUnreachableError.
        """
        async with self._storage(what, len(data)):
            for left in reversed(range(_RACES_MAX)):
                newest, left_s = await self._newest(name)
                if left_s >= stays_s:
                    break
                try:
                    await self._store_behind(newest, name, data, life_s)
                    break
                except nats.js.errors.BadRequestError as error:
                    # Another caller stored them meanwhile, perhaps for a shorter time.
                    if error.err_code not in WRONG_SEQUENCE_CODES or not left:
                        raise

    @contextlib.asynccontextmanager
    async def _storage(self, what: str, size_bytes: int) -> AsyncGenerator[None, None]:
        """Set a limit to the block, which stores; translate its errors."""
        try:
            async with self._transfer(size_bytes):
                yield
        except (TimeoutError, OSError, nats.errors.Error) as error:
            if isinstance(error, nats.js.errors.APIError) and error.err_code in NO_ROOM:
                message = f"the server has no room for the {what}: raise max_file_store in its configuration"
                raise LedgerFullError(message) from error
            message = f"the {what} could not be stored: {str(error) or type(error).__name__}"
            raise ServerUnreachableError(message) from error

    async def _newest(self, name: str) -> tuple[int, float]:
        """Return the stream sequence of an object's info, 0 without one, and for how many seconds it stays."""
        try:
            found = await self._newest_message(name)
        except nats.js.errors.NotFoundError:
            return 0, -math.inf
        if msgspec.json.decode(found.data or b"{}", type=_Info).deleted:
            return found.seq or 0, -math.inf
        headers = cast("dict[str, str]", found.headers or {})
        if UNNAMED in headers:  # it may be deleted at any moment
            return found.seq or 0, -math.inf
        life_s = float(headers[_TTL].removesuffix("s")) if _TTL in headers else self._life_s or math.inf
        return found.seq or 0, life_s - self._age_s(found)

    async def _newest_message(self, name: str) -> RawStreamMsg:
        subject = f"$O.{self._bucket}.{_named(name)}"
        return await self._connection.jetstream().get_last_msg(f"OBJ_{self._bucket}", subject)

    def _age_s(self, message: RawStreamMsg) -> float:
        """Return how long ago the server stored it, since its writer's clock, as in `mtime`, may be wrong."""
        return (self._clock.now() - message.time).total_seconds() if message.time is not None else 0.0

    async def _store_behind(self, newest: int, name: str, data: bytes, life_s: float | None) -> None:
        """Store the chunks, then the object's info, as nats-py does, which knows no condition and no limit of life.

        The server refuses the info if one was stored under the name since stream sequence `newest`. The chunks stay
        longer than the info: a reader that found it without its chunks would wait for them.
        """
        publish, place = self._connection.jetstream().publish, secrets.token_hex(11)
        chunks = [data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES)]
        info = msgspec.json.encode(self._info(name, data, place, len(chunks)).as_dict())
        try:
            for chunk in chunks:
                life = _life(life_s and life_s + _CHUNKS_LONGER_S)
                await publish(f"$O.{self._bucket}.C.{place}", chunk, headers=life)
            await self._replace(_named(name), info, {**_life(life_s), _ONLY_BEHIND: str(newest)})
        except nats.js.errors.APIError:
            # The server refused one of them, so nobody can know of the chunks. (Without an answer the info may be there.)
            with contextlib.suppress(TimeoutError, OSError, nats.errors.Error):
                await self._replace(f"C.{place}", b"")
            raise

    def _info(self, name: str, data: bytes, place: str, chunks: int) -> ObjectInfo:
        """Return the info of an object whose chunks lie at `place`, in the form that nats-py reads."""
        from nats.js.api import ObjectInfo, ObjectMetaOptions  # noqa: PLC0415

        sha256 = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        return ObjectInfo(
            name=name,
            bucket=self._bucket,
            nuid=place,
            size=len(data),
            chunks=chunks,
            digest=f"SHA-256={sha256}",
            options=ObjectMetaOptions(max_chunk_size=_CHUNK_BYTES),
        )

    async def read(self, name: str, *, what: str, size_bytes: int = 0) -> bytes:
        """Return the bytes under a name. Raises: ObjectGoneError, ObjectDamagedError, ServerUnreachableError."""
        try:
            async with self._transfer(size_bytes):
                found = await (await self._open()).get(name)
        except nats.js.errors.NotFoundError as error:
            raise ObjectGoneError from error
        except nats.js.errors.DigestMismatchError as error:
            raise ObjectDamagedError from error
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise _unreadable(what, error) from error
        return found.data or b""

    async def copy_to(self, name: str, file: IO[bytes], *, what: str, size_bytes: int = 0) -> str:
        """Write the bytes under a name to a file, piece by piece, and return their sha256 (hex).

        Raises: as `read`, and the file's OSError; the content of the file is then worthless.
        """
        hashing = _HashingFile(file)
        try:
            async with self._transfer(size_bytes):
                # nats-py only calls `write`, in a thread.
                await (await self._open()).get(name, writeinto=cast("io.BufferedIOBase", hashing))
        except nats.js.errors.NotFoundError as error:
            raise ObjectGoneError from error
        except nats.js.errors.DigestMismatchError as error:
            raise ObjectDamagedError from error
        except OSError as error:
            if hashing.error is not None:
                raise hashing.error from error  # an error of the file, not of the server
            raise _unreadable(what, error) from error
        except (TimeoutError, nats.errors.Error) as error:
            raise _unreadable(what, error) from error
        return hashing.hexdigest()

    async def has_object(self, name: str, *, what: str) -> bool:
        """Return whether an object of a name exists. Raises: ServerUnreachableError, PermissionRefusedError."""
        try:
            async with self._transfer():
                await (await self._open()).get_info(name)
        except nats.js.errors.NotFoundError:
            return False
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise _unreadable(what, error) from error
        return True

    async def remove_object(self, name: str, *, what: str) -> bool:
        """Remove the object of a name; return whether it existed.

        Two short messages replace it, so this needs only the right to write values.

        Raises: ServerUnreachableError, PermissionRefusedError.
        """
        try:
            async with self._transfer():
                # If a removal was stopped between the two messages, the next one finds the chunks, too.
                info = await (await self._open()).get_info(name, show_deleted=True)
                was_there = not info.deleted
                info.deleted, info.size, info.chunks = True, 0, 0
                await self._replace(_named(name), msgspec.json.encode(info.as_dict()))
                await self._replace(f"C.{info.nuid}", b"")
        except nats.js.errors.NotFoundError:
            return False
        except (TimeoutError, OSError, nats.errors.Error) as error:
            said = str(error) or type(error).__name__
            raise ServerUnreachableError(f"{what} could not be removed: {said}") from error
        return was_there

    async def mark(self, name: str, info: bytes, *, behind: int, is_unnamed: bool, what: str) -> bool:
        """Write an object's info once more, with the mark that no event names it, or without that mark.

        Returns whether it was written: not if somebody wrote or deleted it since stream sequence `behind`.

        Raises: LedgerFullError, ServerUnreachableError, PermissionRefusedError.
        """
        mark = {UNNAMED: "1"} if is_unnamed else _NONE
        async with self._storage(what, len(info)):
            try:
                await self._replace(_named(name), info, {**mark, _ONLY_BEHIND: str(behind)})
            except nats.js.errors.BadRequestError as error:
                if error.err_code not in WRONG_SEQUENCE_CODES:
                    raise
                return False
        return True

    async def _replace(self, subject: str, data: bytes, headers: Mapping[str, str] = _NONE) -> None:
        """Store a message in the place of all others of its subject."""
        rollup: dict[str, str] = {**headers, _ROLLUP: "sub"}
        await self._connection.jetstream().publish(f"$O.{self._bucket}.{subject}", data, headers=rollup)

    @contextlib.asynccontextmanager
    async def _transfer(self, size_bytes: int = 0) -> AsyncGenerator[None, None]:
        """Set a limit to the block; a right that the server refuses meanwhile ends it at once.

        Raises: TimeoutError, PermissionRefusedError.
        """
        refused: list[PermissionRefusedError] = []
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        try:
            async with asyncio.timeout(_TRANSFER_S + size_bytes / _BYTES_PER_S_MIN) as limit:

                def on_refused(error: PermissionRefusedError) -> bool:
                    if self._bucket not in error.subject and error.subject != LOOK_UP:
                        return False
                    refused.append(error)
                    limit.reschedule(0.0)
                    return True

                self._connection.refused_listeners.append(on_refused)
                try:
                    yield
                finally:
                    self._connection.refused_listeners.remove(on_refused)
                # nats-py waits with asyncio.wait_for, which in Python 3.11 loses a cancellation that comes between an
                # answer and its waiter: the task would go on for ever.
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


def _named(name: str) -> str:
    """Return the last word of the subject of an object's info."""
    return f"M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _life(life_s: float | None) -> dict[str, str]:
    """Return the header that limits a message's life to whole seconds; none without a limit."""
    return {} if life_s is None else {_TTL: f"{math.ceil(life_s)}s"}


def _unreadable(what: str, error: Exception) -> ServerUnreachableError:
    return ServerUnreachableError(f"{what} could not be read: {str(error) or type(error).__name__}")
