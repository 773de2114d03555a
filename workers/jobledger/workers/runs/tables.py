"""Tables of runs in a worker: rows written to files, queries run in the pool, files moved to and from the store."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.files import open_file, open_to_lock, open_to_write, rename_over
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.runs.steps import StepFunction
from jobledger.ledger.tables.errors import TableExpiredError
from jobledger.ledger.tables.extra import need_tables
from jobledger.ledger.tables.parquet import ROWS_AT_ONCE, RowLike, RowWriter, batches_of, describe
from jobledger.ledger.tables.record import ProducedFile, TableRecord
from jobledger.ledger.tables.stores import MissingFileError, open_store
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.config import WorkerConfig
from jobledger.workers.runs.engine import EngineLimits, select

# Files of tables on this machine, by their sha256: what an attempt has made or read stays for the next ones.

_PREFIX: Final = "jobledger-tables-"
#: Seconds. A younger folder without an owner may be about to get one.
_YOUNG_S: Final = 60.0


class TableCache:
    """A folder of this process's own, which is made when it is needed and removed with the process.

    Files that an attempt holds stay; others are removed, the one used longest ago first, when there are too many bytes.
    """

    def __init__(self, bytes_max: int, *, root: Path | None = None) -> None:
        self._bytes_max = bytes_max
        self._root = root or Path(tempfile.gettempdir())
        self._folder: Path | None = None
        self._lock = -1
        self._sizes: dict[str, int] = {}  #: sizes by digest, the file used longest ago first
        self._holders: Counter[str] = Counter()

    def _own_folder(self) -> Path:
        """Return the folder. Raises: OSError."""
        if self._folder is None:
            _remove_abandoned(self._root)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._root))
            self._lock = open_to_lock(folder / "lock")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._folder = folder
        return self._folder

    @contextlib.contextmanager
    def scratch(self) -> Generator[Path, None, None]:
        """Give a new folder for the length of the block. Raises: OSError."""
        folder = Path(tempfile.mkdtemp(prefix="work-", dir=self._own_folder()))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def find(self, sha256: str) -> Path | None:
        """Return the file of a digest, None if it is not here."""
        if sha256 not in self._sizes:
            return None
        self._sizes[sha256] = self._sizes.pop(sha256)
        return self._own_folder() / sha256

    def take(self, sha256: str, draft: Path, size_bytes: int) -> Path:
        """Move a finished file into the cache, and return where it is then. Raises: OSError."""
        path = self._own_folder() / sha256
        rename_over(draft, path)
        self._sizes.pop(sha256, None)
        self._sizes[sha256] = size_bytes
        return path

    def hold(self, sha256: str) -> None:
        """Keep a file until it is released as often as it was held."""
        self._holders[sha256] += 1

    def release(self, sha256: str) -> None:
        """Release a file, which may then be removed to make room."""
        self._holders[sha256] -= 1
        if self._holders[sha256] <= 0:
            del self._holders[sha256]
        self.make_room()

    def make_room(self) -> None:
        """Remove files that nobody holds, the one used longest ago first, until the bytes are within the limit."""
        left = sum(self._sizes.values())
        for sha256 in list(self._sizes):
            if left <= self._bytes_max:
                return
            if sha256 not in self._holders:
                left -= self._sizes.pop(sha256)
                (self._own_folder() / sha256).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all of it."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._folder = None
            self._sizes.clear()


def _remove_abandoned(root: Path) -> None:
    """Remove the folders of processes that are gone: nobody has their locks."""
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            is_ours = found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode)
            if not is_ours or time.time() - found.st_mtime < _YOUNG_S:
                continue
            lock = open_to_lock(folder / "lock")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


if TYPE_CHECKING:
    from jobledger.workers.attempt.threads import Threads

#: Runs a transfer of a table, and again while the server is away; the text names what is moved.
Transfer = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
#: As `RunJournal.call`.
CallStep = Callable[[StepFunction[..., Any], Sequence[Any], dict[str, Any]], Awaitable[Any]]
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_MEMORY_BYTES_MIN: Final = 32 << 20


class WorkerTables:
    """What the runs of one worker share for their tables."""

    def __init__(self, ledger: Ledger, config: WorkerConfig, threads: Threads) -> None:
        self.clock = ledger.clock
        self.store = open_store(ledger)
        self.cache = TableCache(config.tables_cache_bytes_max)
        self.limits = engine_limits(config)
        self.threads = threads

    def close(self) -> None:
        """Remove what is kept on this machine."""
        self.cache.close()


class AttemptTables:
    """The tables of one attempt of a run; see `TableWork`."""

    def __init__(self, shared: WorkerTables, attempt: Attempt, call: CallStep, transfer: Transfer) -> None:
        self._shared = shared
        self._attempt = attempt
        self._call = call
        self._transfer = transfer
        self._held: list[str] = []
        self._is_over = False

    async def write(
        self, name: str, rows: Iterable[RowLike] | AsyncIterable[RowLike], row: type[Any] | None
    ) -> TableRecord:
        """See `TableWork.write`."""
        need_tables()
        with self._shared.cache.scratch() as folder:
            path = folder / "rows.parquet"
            if isinstance(rows, AsyncIterable):
                produced = await _write_async(path, rows, name, row)
            else:
                produced = await self._write_in_thread(path, rows, name, row)
            return await self._store(name, path, produced)

    async def _write_in_thread(
        self, path: Path, rows: Iterable[RowLike], name: str, row: type[Any] | None
    ) -> ProducedFile:
        """Read the rows in one thread: what they are read from may belong to it."""
        stopped = threading.Event()
        try:
            produced: ProducedFile = await self._shared.threads.call(
                lambda: _write(path, rows, name, row, stopped), name=f"table {name} of {self._attempt.name}"
            )
            return produced
        finally:
            stopped.set()

    async def select(self, name: str, query: str, paths: Mapping[str, Path]) -> TableRecord:
        """See `TableWork.select`."""
        need_tables()
        with self._shared.cache.scratch() as folder:
            given = {
                "query": query,
                "views": {view: str(path) for view, path in paths.items()},
                "folder": str(folder),
                "limits": self._shared.limits,
            }
            found = await self._call(select, (), given)
            produced = msgspec.json.decode(found, type=ProducedFile)
            return await self._store(name, folder / "result.parquet", produced)

    async def _store(self, name: str, path: Path, produced: ProducedFile) -> TableRecord:
        """Store a file before its step is recorded: if the worker dies in between, the file expires."""
        job = self._attempt.job
        fields = msgspec.structs.asdict(produced)
        file = f"{job.queue}/{job.id}/{produced.sha256}-{secrets.token_hex(4)}.parquet"
        record = TableRecord(name=name, **fields, expires_at=None, file=file)
        store = self._shared.store
        expires_at = await self._transfer(
            f"table {name} of run {job.id}",
            lambda: store.put(record.file, path, size_bytes=record.bytes),
        )
        self._shared.cache.take(record.sha256, path, record.bytes)
        self._hold(record.sha256)
        return msgspec.structs.replace(record, expires_at=expires_at)

    async def path(self, record: TableRecord, step: str) -> Path:
        """See `TableWork.path`."""
        if self._is_over:
            raise RefusedError(
                f"table {record.name!r} is of an attempt that has ended: a run reads only its own tables"
            )
        if record.expires_at is not None and self._shared.clock.now() >= record.expires_at:
            raise TableExpiredError(record, step, self._attempt.job.id, "expired")
        found = self._shared.cache.find(record.sha256)
        if found is None:
            found = await self._bring(record, step)
        self._hold(record.sha256)
        return found

    async def _bring(self, record: TableRecord, step: str) -> Path:
        """Copy a table's file to this machine. Raises: TableExpiredError, and as `TableWork.path`."""
        cache, store, run_id = self._shared.cache, self._shared.store, self._attempt.job.id
        with cache.scratch() as folder:
            draft = folder / "copy.parquet"

            async def copy() -> None:
                with open_to_write(draft, "wb") as file:
                    await store.copy_to(record, file)

            try:
                await self._transfer(f"table {record.name} of run {run_id}", copy)
            except MissingFileError as error:
                raise TableExpiredError(record, step, run_id, "gone") from error
            digest = await anyio.to_thread.run_sync(_digest_of, draft, abandon_on_cancel=True)
            if digest != record.sha256:
                raise TableExpiredError(record, step, run_id, "differs")
            return cache.take(record.sha256, draft, record.bytes)

    def _hold(self, sha256: str) -> None:
        self._shared.cache.hold(sha256)
        self._held.append(sha256)
        self._shared.cache.make_room()

    def release(self) -> None:
        """Release the files that the attempt used."""
        self._is_over = True
        while self._held:
            self._shared.cache.release(self._held.pop())


def _write(
    path: Path, rows: Iterable[RowLike], name: str, row: type[Any] | None, stopped: threading.Event
) -> ProducedFile:
    with open_to_write(path, "xb") as file, RowWriter(file, name=name, row=row) as writer:
        for some in batches_of(rows):
            if stopped.is_set():
                raise InterruptedError("the attempt has ended")
            writer.add(some)
    return describe(path)


async def _write_async(
    path: Path, rows: AsyncIterable[RowLike], name: str, row: type[Any] | None
) -> ProducedFile:
    with open_to_write(path, "xb") as file, RowWriter(file, name=name, row=row) as writer:
        some: list[RowLike] = []
        async for each in rows:
            some.append(each)
            if len(some) >= ROWS_AT_ONCE or not isinstance(each, msgspec.Struct | Mapping):
                await anyio.to_thread.run_sync(writer.add, some)
                some = []
        await anyio.to_thread.run_sync(writer.add, some)
    return await anyio.to_thread.run_sync(describe, path)


def engine_limits(config: WorkerConfig) -> EngineLimits:
    """Return the limits of a query: those set for the worker, else its share of this machine."""
    processes = config.pool_size or os.cpu_count() or 1
    threads = config.table_threads or max(1, (os.cpu_count() or 1) // processes)
    memory = config.table_memory_bytes_max
    if memory is None and config.pool_memory_bytes_max is not None:
        memory = config.pool_memory_bytes_max // 2  # address space, of which the engine gets only a part
    if memory is None:
        memory = _memory_bytes() // 2 // processes
    return EngineLimits(memory_bytes=max(memory, _MEMORY_BYTES_MIN), threads=threads)


def _memory_bytes() -> int:
    """Return the memory that this process may have at the most: the machine's, or its control group's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError), open_file(_CGROUP_LIMIT) as file:
        return min(machine, int(file.read(64)))
    return machine


def _digest_of(path: Path) -> str:
    try:
        return describe(path).sha256
    except Exception:  # noqa: BLE001 - whatever a damaged file makes pyarrow raise
        return ""
