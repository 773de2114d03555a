"""Files of tables on this machine, by their sha256: what an attempt has made or read stays for the next ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Final

from jobledger.ledger.files import open_to_lock, rename_over

_PREFIX: Final = "jobledger-tables-"
#: A folder without an owner that is younger may be about to get one (seconds).
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
        self._sizes: dict[str, int] = {}  #: by digest, the one used longest ago first
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
        """Return the file of a digest, None where it is not here."""
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
        """Let a file go, once there is no room."""
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
