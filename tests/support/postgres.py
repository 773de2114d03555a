"""A real PostgreSQL of the test's own: on a socket in a folder of its own, killed and started again as a test wants."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

#: Where Debian's packages put the programs that are not on the path.
_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_LIMIT_S = 60.0
#: postgres refuses to run as root; Debian's package makes this account.
_ACCOUNT = "postgres" if os.name == "posix" and os.geteuid() == 0 else None
_SETTINGS = (
    "fsync=off",
    "listen_addresses=",
    "max_connections=40",
    "shared_buffers=16MB",
    "log_min_messages=fatal",
)


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, _PLACES)))
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql (no cluster has to be made)")
    return found


class Postgres:
    """One server; each test makes databases of its own in it."""

    def __init__(self, folder: Path) -> None:
        self._program = _program("postgres")
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        if _ACCOUNT is not None:
            shutil.chown(folder, _ACCOUNT)
        made = [
            _program("initdb"),
            "-D",
            str(folder / "data"),
            "-U",
            "app",
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
        ]
        subprocess.run(made, check=True, capture_output=True, timeout=_LIMIT_S, user=_ACCOUNT, cwd=folder)

    def url(self, database: str = "postgres", password: str = "") -> str:
        return f"postgresql://app{password and ':' + password}@/{database}?host={self.folder}"

    def start(self) -> None:
        """Start it, and wait until it takes connections: after a kill it first mends its files."""
        words = [word for setting in _SETTINGS for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-D", str(self.folder / "data"), "-k", str(self.folder), *words],
                stdout=log,
                stderr=log,
                user=_ACCOUNT,
                cwd=self.folder,
                start_new_session=True,
            )
        limit = time.monotonic() + _LIMIT_S
        while subprocess.run([_program("pg_isready"), "-q", "-h", str(self.folder)], check=False).returncode:
            assert self._process.poll() is None, (self.folder / "log").read_text(encoding="utf-8")
            assert time.monotonic() < limit, "PostgreSQL does not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it and all its backends without a word."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_LIMIT_S)
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_LIMIT_S)
            self._process = None

    def new_database(self) -> str:
        """Make an empty database; return its address."""
        import psycopg  # noqa: PLC0415 - only where PostgreSQL is

        self._databases += 1
        name = f"t{self._databases}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)


@contextlib.contextmanager
def postgres_server() -> Generator[Postgres]:
    """Give a running server for the length of the block; without the programs the test is skipped."""
    _program("postgres")
    # A socket's path has at most 107 characters, and pytest's folders have more.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp", ignore_cleanup_errors=True) as made:
        server = Postgres(Path(made))
        server.start()
        try:
            yield server
        finally:
            server.stop()
