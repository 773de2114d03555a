"""A disk that can be full without being root: a small tmpfs in a user namespace, or a limit on the size of files."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Protocol

from tests.support import limits

_LIMIT_S = limits.LIMIT_S


class Disk(Protocol):
    """Where a server's store is; `binary` starts nats-server on it."""

    binary: Path

    def fill(self) -> None:
        """Leave next to no room."""
        ...

    def free(self) -> None:
        """Make room again."""
        ...

    def close(self) -> None:
        """Take it away."""
        ...


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o700)
    return path


class Tmpfs:
    """A tmpfs of some MiB, most of it taken by ballast: writes fail with ENOSPC.

    A process keeps the namespace, so that what is stored outlives the server's restart.
    """

    def __init__(self, folder: Path, store: Path, server: str, *, mib: int, room_mib: int) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._ballast_mib = mib - room_mib
        command = f"mount -t tmpfs -o size={mib}m tmpfs {store} && echo ready && exec sleep 600"
        self._keeper = subprocess.Popen(
            ["unshare", "-Urm", "sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != b"ready\n":
            self.close()
            raise OSError("user namespaces with a tmpfs are not allowed here")
        self._enter = f"nsenter --preserve-credentials -U -m -t {self._keeper.pid}"
        self.binary = _script(folder / "nats-server-on-tmpfs", f'exec {self._enter} {server} "$@"')

    def _run(self, command: str) -> None:
        subprocess.run([*self._enter.split(), "sh", "-c", command], check=True, timeout=_LIMIT_S)

    def fill(self) -> None:
        self._run(f"head -c {self._ballast_mib << 20} /dev/zero > {self._store}/ballast")

    def free(self) -> None:
        self._run(f"rm {self._store}/ballast")

    def close(self) -> None:
        self._keeper.kill()
        self._keeper.wait(_LIMIT_S)
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()


class SizeLimit:
    """RLIMIT_FSIZE on nats-server: writes beyond it fail with EFBIG; another limit needs another start."""

    def __init__(self, folder: Path, server: str, *, kib: int) -> None:
        self._kib = kib
        self._limit = folder / "file-size-limit"
        self.free()
        # The shell counts in blocks of 512 or 1,024 bytes; prlimit counts bytes.
        self.binary = _script(
            folder / "nats-server-with-limit", f'exec prlimit --fsize="$(cat {self._limit})" {server} "$@"'
        )

    def fill(self) -> None:
        self._limit.write_text(str(self._kib << 10), encoding="ascii")

    def free(self) -> None:
        self._limit.write_text("unlimited", encoding="ascii")

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._limit.unlink()
