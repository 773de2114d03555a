"""Where the files of tables lie: in the ledger's bucket TABLES, or in a folder or bucket that a setting names.

A file lies there under the run that made it, its sha256 and a number of its own, so that no two steps share one.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final, Protocol

from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.files import make_folder, open_file
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import ConfigurationError, LedgerFullError, ServerUnreachableError
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.objects import ObjectBucket, ObjectDamagedError, ObjectGoneError
from jobledger.ledger.nats.streams import ensure_stream, find_stream, tables_specification
from jobledger.ledger.tables.extra import load
from jobledger.ledger.tables.record import TableRecord

_NANOSECONDS: Final = 1_000_000_000
_CHUNK_BYTES: Final = 1 << 20
#: Without a setting the bucket's size is the ledger's divided by this, and at least these bytes.
_SHARE: Final = 8
_BYTES_MIN: Final = 16 << 20
#: How often (seconds) a process that stores files in a folder removes expired ones.
_SWEEP_EVERY_S: Final = 3600.0


class Place(Protocol):
    """What a store needs of a connected `Ledger`."""

    @property
    def connection(self) -> Connection:
        """The connection."""
        ...

    @property
    def inbox(self) -> Inbox:
        """Where its answers come."""
        ...

    @property
    def names(self) -> Names:
        """What streams are called."""
        ...

    @property
    def config(self) -> LedgerConfig:
        """The settings."""
        ...

    @property
    def clock(self) -> Clock:
        """The time."""
        ...


class MissingFileError(Exception):
    """A table's file is not there."""


class TableStore(Protocol):
    """Keeps the files of tables for a time."""

    async def put(self, name: str, path: Path, *, size_bytes: int) -> datetime | None:
        """Store a file under a name; return until when it is kept, None: until it is removed.

        Raises: LedgerFullError, ServerUnreachableError, ConfigurationError.
        """
        ...

    async def copy_to(self, record: TableRecord, file: IO[bytes]) -> None:
        """Write a table's file into another one.

        Raises: MissingFileError, ServerUnreachableError, ConfigurationError, and the file's OSError.
        """
        ...

    async def has(self, record: TableRecord) -> bool:
        """Return whether a table's file is there. Raises: ServerUnreachableError, ConfigurationError."""
        ...

    async def remove(self, record: TableRecord) -> bool:
        """Remove a table's file; return whether it was there. Raises: ServerUnreachableError, ConfigurationError."""
        ...


def open_store(ledger: Place) -> TableStore:
    """Return where the ledger's settings say that tables lie. Nothing is asked or made yet."""
    if ledger.config.tables_at:
        return _FolderStore(ledger)
    return BucketStore(ledger)


class BucketStore:
    """The object store TABLES beside the ledger, which the server empties by itself."""

    def __init__(self, ledger: Place) -> None:
        self._ledger = ledger
        self._objects = ObjectBucket(ledger.connection, ledger.names.tables_bucket)
        self._life_s: float | None = None  #: as the bucket has it; 0: for ever. None: not known yet

    async def put(self, name: str, path: Path, *, size_bytes: int) -> datetime | None:
        """See `TableStore.put`; the bucket is made where it is missing."""
        life_s = await self._life()
        begins_at = self._ledger.clock.now()  # its first piece is the first to expire
        try:
            with open_file(path) as file:
                await self._objects.store(name, file, what=f"table {name}", size_bytes=size_bytes)
        except ServerUnreachableError:
            self._life_s = None  # somebody may have deleted the bucket: the next try makes it again
            raise
        return begins_at + timedelta(seconds=life_s) if life_s else None

    async def _life(self) -> float:
        if self._life_s is None:
            config, names = self._ledger.config, self._ledger.names
            bytes_max = config.tables_bytes_max or max(config.ledger_bytes_max // _SHARE, _BYTES_MIN)
            spec = tables_specification(
                names,
                bytes_max=bytes_max,
                life_s=config.tables_life_s,
                replicas=config.replicas,
            )
            try:
                found = await ensure_stream(self._ledger.inbox, spec)
            except LedgerFullError as error:
                message = f"the server has no room for a bucket of tables of {bytes_max:,} bytes: set tables_bytes_max lower, or raise max_file_store"
                raise LedgerFullError(message) from error
            self._life_s = int(found.config.get("max_age") or 0) / _NANOSECONDS
        return self._life_s

    async def copy_to(self, record: TableRecord, file: IO[bytes]) -> None:
        """See `TableStore.copy_to`."""
        what = f"table {record.file}"
        try:
            await self._objects.copy_to(record.file, file, what=what, size_bytes=record.bytes)
        except ObjectGoneError as error:
            raise MissingFileError from error
        except ObjectDamagedError:  # whoever asked compares the digest, and says so
            return

    async def has(self, record: TableRecord) -> bool:
        """See `TableStore.has`."""
        return await self._objects.has_object(record.file, what=f"table {record.file}")

    async def remove(self, record: TableRecord) -> bool:
        """See `TableStore.remove`."""
        stream = f"OBJ_{self._ledger.names.tables_bucket}"
        if await find_stream(self._ledger.inbox, stream) is None:
            return False
        return await self._objects.remove_object(record.file, what=f"table {record.file}")


class _FolderStore:
    """A folder, or a bucket that `pyarrow.fs` can open; what has expired there is removed by who stores something."""

    def __init__(self, ledger: Place) -> None:
        self._ledger = ledger
        self._life_s = ledger.config.tables_life_s
        self._swept_at = -_SWEEP_EVERY_S
        self._opened: tuple[Any, str] | None = None

    def _open(self) -> tuple[Any, str]:
        """Return the file system and the environment's folder in it. Raises: ConfigurationError."""
        if self._opened is None:
            place = self._ledger.config.tables_at
            fs = load("pyarrow.fs")
            try:
                system, root = fs.FileSystem.from_uri(place)
            except (load("pyarrow").ArrowException, OSError, ValueError, TypeError) as error:
                raise ConfigurationError(
                    f"tables_at must be the URI of a folder or bucket, such as file:///srv/tables: {str(error)[:200]}"
                ) from error
            self._opened = system, posixpath.join(root, self._ledger.names.tables_bucket)
        return self._opened

    async def put(self, name: str, path: Path, *, size_bytes: int) -> datetime | None:  # noqa: ARG002 - of others
        """See `TableStore.put`."""
        expires_at = self._ledger.clock.now() + timedelta(seconds=self._life_s)
        await self._in_thread(lambda: self._write(name, path), f"table {name} could not be stored")
        return expires_at

    async def copy_to(self, record: TableRecord, file: IO[bytes]) -> None:
        """See `TableStore.copy_to`."""
        await self._in_thread(lambda: self._read(record, file), f"table {record.file} could not be read")

    async def has(self, record: TableRecord) -> bool:
        """See `TableStore.has`."""
        return bool(
            await self._in_thread(
                lambda: self._exists(record.file), f"table {record.file} could not be found"
            )
        )

    async def remove(self, record: TableRecord) -> bool:
        """See `TableStore.remove`."""
        what = f"table {record.file} could not be removed"
        return bool(await self._in_thread(lambda: self._delete(record.file), what))

    async def _in_thread(self, act: Any, what: str) -> Any:
        """Act in a thread. Raises: ServerUnreachableError for what the place could not do; what `act` raises else."""
        import anyio.to_thread  # noqa: PLC0415 - of those alone who have such a place

        try:
            return await anyio.to_thread.run_sync(act, abandon_on_cancel=True)
        except OSError as error:
            raise ServerUnreachableError(f"{what}: {str(error) or type(error).__name__}") from error

    def _write(self, name: str, path: Path) -> None:
        system, root = self._open()
        target = posixpath.join(root, name)
        folder = posixpath.dirname(target)
        if system.type_name == "local":
            make_folder(Path(folder))  # its owner's alone
        else:
            system.create_dir(folder)
        self._sweep(system, root)
        draft = f"{target}.{secrets.token_hex(4)}.part"
        try:
            with open_file(path) as file, system.open_output_stream(draft) as out:
                while chunk := file.read(_CHUNK_BYTES):
                    out.write(chunk)
            system.move(draft, target)
        except BaseException:  # raised again, also where it was cancelled: no draft stays
            with contextlib.suppress(OSError):
                system.delete_file(draft)
            raise

    def _read(self, record: TableRecord, file: IO[bytes]) -> None:
        system, root = self._open()
        try:
            source = system.open_input_stream(posixpath.join(root, record.file))
        except FileNotFoundError as error:
            raise MissingFileError from error
        with source:
            while chunk := source.read(_CHUNK_BYTES):
                file.write(chunk)

    def _exists(self, name: str) -> bool:
        system, root = self._open()
        return bool(system.get_file_info(posixpath.join(root, name)).is_file)

    def _delete(self, name: str) -> bool:
        system, root = self._open()
        try:
            system.delete_file(posixpath.join(root, name))
        except FileNotFoundError:
            return False
        return True

    def _sweep(self, system: Any, root: str) -> None:
        """Remove what has expired, also drafts of those that died; once in a while."""
        if time.monotonic() - self._swept_at < _SWEEP_EVERY_S:
            return
        self._swept_at = time.monotonic()
        selector = load("pyarrow.fs").FileSelector(root, recursive=True, allow_not_found=True)
        before = self._ledger.clock.now() - timedelta(seconds=self._life_s)
        for info in system.get_file_info(selector):
            if info.is_file and info.mtime is not None and info.mtime < before:
                with contextlib.suppress(OSError):
                    system.delete_file(info.path)
