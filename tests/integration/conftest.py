"""What these tests share: a ledger in an environment of the test's own, and `jobledger` commands under way."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from tests.support.audit_command import WIDTH, AuditCommand
from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S
from tests.support.pools import TASKS, Pools, is_gone
from tests.support.warm import start
from tests.support.working import Connect

from jobledger.ledger import Ledger, connect
from jobledger.workers.pool.pool import (
    PoolConfig,
    ProcessPool,
)

if TYPE_CHECKING:
    from nats.aio.client import Client

    from jobledger.ledger.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(str(ROOT / portion) for portion in ("ledger", "projections", "workers", "cli"))


@pytest.fixture(autouse=True)
def leaves_sound_ledgers(sound_ledgers: None) -> None:
    """Every test's ledgers are verified at its end."""


class Process:
    """A command; its stdout is read line by line, each wait has a limit."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        stdin: int = subprocess.DEVNULL,
        variables: dict[str, str] | None = None,
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBLEDGER_")}
        environment |= {"PYTHONPATH": SOURCES, "XDG_DATA_HOME": str(folder / "data"), "COLUMNS": "80"}
        environment["JOBLEDGER_WAIT_FOR_SERVER_S"] = "0"  # nor is a server waited for
        environment["JOBLEDGER_NO_GATEWAY"] = "1"  # whoever wants one beside `up` says so
        self.child = start(
            "-m",
            "jobledger.cli",
            *words,
            folder=folder,
            variables=environment | (variables or {}),
            stdin=stdin,
        )
        self.errors = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._said: queue.Queue[str] = queue.Queue()
        self._readers = [threading.Thread(target=self._read_out), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.errors += line
            self._said.put(line)

    def line(self, limit_s: float = LIMIT_S) -> dict[str, Any]:
        found = self._lines.get(timeout=limit_s)
        assert found is not None, f"the process ended: {self.end()} {self.errors}"
        return json.loads(found)  # type: ignore[no-any-return]

    def rest(self) -> list[str]:
        found: list[str] = []
        while (line := self._lines.get(timeout=60)) is not None:
            found.append(line)
        return found

    def said(self, words: str, limit_s: float = LIMIT_S) -> str:
        """Wait for a line on stderr that holds `words`."""
        while words not in (line := self._said.get(timeout=limit_s)):
            pass
        return line

    def end(self, number: signal.Signals | None = None, limit_s: float = LIMIT_S) -> int:
        if number is not None:
            self.child.send_signal(number)
        code = self.child.wait(limit_s)
        for reader in self._readers:
            reader.join(LIMIT_S)
        return code

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.end()
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@pytest.fixture
def command(tmp_path: Path, nats_server_binary: str) -> Iterator[Callable[..., Process]]:
    """Start `jobledger` commands in the test's folder; every one is gone at the end of the test."""
    made: list[Process] = []

    def begin(*words: str, **options: Any) -> Process:
        made.append(Process(tmp_path, *words, **options))
        return made[-1]

    yield begin
    for process in reversed(made):
        process.close()
        sys.stderr.write(process.errors)  # which pytest shows when the test failed


@pytest.fixture
def environment() -> str:
    """Return a name that nobody else has."""
    return f"t_{secrets.token_hex(6)}"


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    """The command line on the test's own ledger, with the test's own folder of data."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    line = CommandLine(nats_server.url, capsys)
    line.make_ledger()
    return line


@pytest.fixture
def connected(nats_server: EmbeddedServer, environment: str) -> Connect:
    """Connect to the test's environment: small streams, unless told otherwise."""

    def make(**settings: Any) -> AbstractAsyncContextManager[Ledger]:
        given: dict[str, Any] = {"ledger_bytes_max": 16 << 20, "lease_s": 15.0, **settings}
        return connect(nats_server.url, environment=environment, **given)

    return make


@pytest.fixture
async def ledger(connected: Connect) -> AsyncIterator[Ledger]:
    """One client of the test's environment."""
    async with connected() as made:
        yield made


@pytest.fixture
async def raw(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    """A connection that nothing of ours stands before."""
    client = await nats.connect(nats_server.url)
    yield client
    await client.close()


@pytest.fixture
async def pools() -> AsyncIterator[Pools]:
    made: list[ProcessPool] = []

    def make(*modules: str, **config: Any) -> ProcessPool:
        settings: dict[str, Any] = {"size": 1, **config}
        made.append(ProcessPool(modules or (TASKS,), PoolConfig(**settings)))
        return made[-1]

    yield make
    for pool in made:
        pids = pool.pids
        await pool.close()
        assert [pid for pid in pids if not is_gone(pid)] == []
        assert (pool.pids, pool._starting) == ([], set())


@pytest.fixture(scope="module")
async def pool(anyio_backend: object) -> AsyncIterator[ProcessPool]:
    """A pool of one process, for tests that leave it as it was."""
    async with ProcessPool([TASKS], PoolConfig(size=1)) as made:
        yield made


@pytest.fixture
def audit(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> AuditCommand:
    """`jobledger audit` on a ledger without events, with nothing of the environment it is run in."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for name in ("URL", "ENVIRONMENT", "APP", "PROJECTION", "DEBUG"):
        monkeypatch.delenv(f"JOBLEDGER_{name}", raising=False)
    made = AuditCommand(nats_server.url, tmp_path, capsys)
    made.make_ledger()
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
