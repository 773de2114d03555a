"""A disk that can be full without being root: a small tmpfs in a user namespace, or a limit on the size of files."""

from __future__ import annotations

import contextlib
import shutil
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


class Namespace:
    """A user namespace with mounts of its own, in which a tmpfs may be mounted without being root."""

    def __init__(self, mount: str) -> None:
        """Begin with a mount. Raises: OSError where that is not allowed."""
        if shutil.which("unshare") is None or shutil.which("nsenter") is None:
            raise OSError("unshare and nsenter are not installed")
        self._keeper = subprocess.Popen(
            ["unshare", "-Urm", "sh", "-c", f"{mount} && echo ready && exec sleep 600"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != b"ready\n":
            self.close()
            raise OSError("user namespaces with a tmpfs are not allowed here")
        #: The words before a command that runs in it.
        self.enter = ("nsenter", "--preserve-credentials", "-U", "-m", "-t", str(self._keeper.pid))

    def run(self, command: str) -> None:
        """Run a command of the shell in it, to its end."""
        subprocess.run([*self.enter, "sh", "-c", command], check=True, timeout=_LIMIT_S)

    def close(self) -> None:
        """End it, and with it its mounts."""
        self._keeper.kill()
        self._keeper.wait(_LIMIT_S)
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()


class Mount:
    """A folder that is the mount of a small disk, for those that run in its namespace: full, closed, or not mounted."""

    def __init__(self, folder: Path, *, mib: int) -> None:
        """Mount it on a folder that is there. Raises: OSError where that is not allowed."""
        disk = folder.with_name(f"{folder.name}-disk")
        disk.mkdir()
        self.folder = folder
        self._bind = f"mount --bind {disk} {folder}"
        self._namespace = Namespace(f"mount -t tmpfs -o size={mib}m tmpfs {disk} && {self._bind}")
        self.enter = self._namespace.enter
        self.close = self._namespace.close

    def fill(self) -> None:
        """Leave no room."""
        self._namespace.run(f"cat /dev/zero > {self.folder}/ballast 2>/dev/null || true")

    def free(self) -> None:
        """Make room again."""
        self._namespace.run(f"rm {self.folder}/ballast")

    def close_to_writes(self) -> None:
        """Let it be read only."""
        self._namespace.run(f"mount -o remount,bind,ro {self.folder}")

    def open_to_writes(self) -> None:
        """Let it be written to again."""
        self._namespace.run(f"mount -o remount,bind,rw {self.folder}")

    def unmount(self) -> None:
        """Leave the empty folder below; what is stored stays."""
        self._namespace.run(f"umount {self.folder}")

    def mount(self) -> None:
        """Mount the same disk again."""
        self._namespace.run(self._bind)


class Tmpfs:
    """A tmpfs of some MiB, most of it taken by ballast: writes fail with ENOSPC.

    A process keeps the namespace, so that what is stored outlives the server's restart.
    """

    def __init__(self, folder: Path, store: Path, server: str, *, mib: int, room_mib: int) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._ballast_mib = mib - room_mib
        self._namespace = Namespace(f"mount -t tmpfs -o size={mib}m tmpfs {store}")
        enter = " ".join(self._namespace.enter)
        self.binary = _script(folder / "nats-server-on-tmpfs", f'exec {enter} {server} "$@"')

    def fill(self) -> None:
        # What is stored already may leave less room than the ballast takes.
        self._namespace.run(
            f"head -c {self._ballast_mib << 20} /dev/zero > {self._store}/ballast 2>/dev/null || true"
        )

    def free(self) -> None:
        self._namespace.run(f"rm {self._store}/ballast")

    def close(self) -> None:
        self._namespace.close()


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
