"""The watch for changed source files, for development: compares their times and sizes twice a second.

Only `.py` files, in the folders that the application's modules come from; hidden folders, virtual environments,
caches and node_modules are left out. Of a large tree only the first files are watched.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

logger = logging.getLogger("jobledger.workers.supervision.reload")

_POLL_S: Final = 0.5
_FILES_MAX: Final = 5_000
_FOLDERS_MAX: Final = 2_000
_SETTLE_LOOKS_MAX: Final = 20
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

#: The facts that distinguish two versions of a file: time of change in nanoseconds, bytes, inode.
Seen = dict[str, tuple[int, int, int]]


def source_folders(modules: Iterable[str]) -> list[Path]:
    """Return the folders to watch for modules as `TaskRegistry.load` takes them; nothing of them is executed.

    A package is watched as a whole, a module with its folder. For a module that cannot be found the current folder is
    watched, where it may yet appear.
    """
    found = {folder.resolve() for name in modules for folder in _folders(name)}
    return sorted(each for each in found if not any(other in each.parents for other in found))


def _folders(name: str) -> list[Path]:
    path = Path(name)
    if path.suffix == ".py":
        return [path.parent]
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return [Path(each) for each in spec.submodule_search_locations]
    if spec is not None and spec.origin is not None and spec.has_location:
        return [Path(spec.origin).parent]
    return [Path.cwd()]


class SourceWatch:
    """Looks at the source files below some folders."""

    def __init__(self, folders: Sequence[Path], *, poll_s: float = _POLL_S) -> None:
        self._folders = tuple(folders)
        self._poll_s = poll_s
        self._warned = False
        self._seen = self.look()

    async def run(self, on_change: Callable[[list[str]], None]) -> None:
        """Call `on_change` with the paths that changed, came or went since this was made, until cancelled.

        An editor or a checkout writes several files: they are reported together, once two looks find no change.
        """
        while True:
            await anyio.sleep(self._poll_s)
            before, self._seen = self._seen, await self._unchanged()
            changed = difference(before, self._seen)
            if changed:
                on_change(changed)

    async def _unchanged(self) -> Seen:
        before = self._seen
        for _ in range(_SETTLE_LOOKS_MAX):
            now = await anyio.to_thread.run_sync(self.look)
            if now == before:
                break
            before = now
            await anyio.sleep(self._poll_s / 5)
        return before

    def look(self) -> Seen:
        """Return the files that exist."""
        found: Seen = {}
        for entry in self._entries():
            try:
                status = entry.stat()
            except OSError:  # the file was removed between the listing and this look
                continue
            found[entry.path] = (status.st_mtime_ns, status.st_size, status.st_ino)
            if len(found) >= _FILES_MAX:
                self._warn(f"only the first {_FILES_MAX:,} files are watched")
                break
        return found

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        roots = [str(folder) for folder in self._folders]
        waiting = list(roots)
        looked_at = 0
        while waiting:
            looked_at += 1
            if looked_at > _FOLDERS_MAX:
                self._warn(f"only the first {_FOLDERS_MAX:,} folders are watched")
                return
            folder = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    here = sorted(entries, key=lambda entry: entry.name)
            except OSError:
                continue
            if folder not in roots and any(entry.name == "pyvenv.cfg" for entry in here):
                continue
            for entry in here:
                if entry.name.endswith(".py"):
                    yield entry
                elif not entry.name.startswith(".") and entry.name not in _PASSED_OVER and _is_folder(entry):
                    waiting.append(entry.path)

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s below %s", what, ", ".join(map(str, self._folders)))


def difference(before: Seen, after: Seen) -> list[str]:
    """Return the paths that are not the same in both, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
