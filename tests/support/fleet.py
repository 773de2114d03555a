"""Real `jobledger worker` processes: started, frozen, thawed, killed, stopped; with what each of them said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.support.traces import Faults, Freeze

from jobledger.ledger import Task, TaskRegistry

ROOT: Final = Path(__file__).parents[2]
APP: Final = ROOT / "tests" / "fault" / "apps" / "chaos.py"
_SOURCES: Final = os.pathsep.join(
    str(ROOT / portion) for portion in ("ledger", "projections", "workers", "cli")
)
_START_S: Final = 30.0
_STOP_S: Final = 60.0


class WorkerProcess:
    """One `jobledger worker`, alone or the supervisor of several."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.process = process
        self.log_path = log_path
        self.said: list[dict[str, Any]] = []
        self._heard = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def _read(self) -> None:
        if self.process.stdout is None:  # it tells nobody
            return
        async for line in self.process.stdout:
            self.said.append(json.loads(line))
            self._heard.set()
        self._heard.set()

    async def ready(self, workers: int = 1) -> None:
        """Wait until this many workers, since the beginning, have said that they take jobs."""
        async with asyncio.timeout(_START_S):
            while sum("worker" in each for each in self.said) < workers:
                assert not self._reading.done(), self.log_path.read_text(encoding="utf-8")
                self._heard.clear()
                await self._heard.wait()

    def children(self) -> list[int]:
        """The worker processes of a supervisor, those that live."""
        return [int(word) for word in _children(self.pid)]

    def ready_children(self) -> int:
        """How many of them have said that they take jobs."""
        return len({each.get("pid") for each in self.said if "worker" in each}.intersection(self.children()))

    async def stop(self, limit_s: float = _STOP_S) -> int:
        """Ask it to stop in good order; return its exit code."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        return await self.ended(limit_s)

    async def ended(self, limit_s: float = _STOP_S) -> int:
        async with asyncio.timeout(limit_s):
            code = await self.process.wait()
            await self._reading
        return code

    async def bury(self) -> None:
        """Leave nothing of it behind, whatever state it is in."""
        below = self.children()
        for pid in [self.pid, *below]:
            if pid != self.pid or self.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await self.ended()


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []


class Fleet:
    """All workers of a test; keeps the book of what was done to them."""

    def __init__(self, folder: Path, url: str, environment: str, *, lease_s: float) -> None:
        self.folder = folder
        self.url = url
        self.environment = environment
        self.lease_s = lease_s
        self.trace = folder / "trace"
        self.faults = Faults()
        self.app = APP  #: the tasks of workers that are started from now on
        self.variables: dict[str, str] = {}  #: and further variables of their environment
        self.started: list[WorkerProcess] = []
        self.standing_still: set[int] = set()

    @property
    def logs(self) -> list[Path]:
        return [each.log_path for each in self.started]

    async def start(self, *words: str, url: str | None = None, ready: int = 1) -> WorkerProcess:
        """Start a worker with some options, and wait until it takes jobs."""
        made = await self.begin(*words, url=url)
        await made.ready(ready)
        return made

    async def begin(self, *words: str, url: str | None = None, says_to: Path | None = None) -> WorkerProcess:
        """Start a worker and wait for nothing; all that it says goes to a file, if one is named."""
        log_path = says_to or self.folder / f"worker-{len(self.started)}.log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("JOBLEDGER_")}
        variables = {"JOBLEDGER_URL": url or self.url, "CHAOS_TRACE": str(self.trace), "PYTHONPATH": _SOURCES}
        command = [sys.executable, "-P", "-m", "jobledger.cli", "worker", "--json", "--app", str(self.app)]
        command += ["--environment", self.environment, *words]
        if says_to is not None:
            command.insert(command.index("worker"), "--verbose")
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if says_to is None else log,
                stderr=log,
                env=inherited | variables | self.variables,
                cwd=self.folder,
                start_new_session=True,
            )
        self.started.append(WorkerProcess(process, log_path))
        return self.started[-1]

    def kill(self, pid: int) -> float:
        """End a process without a word; return when."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        at = self.faults.deaths[pid] = time.monotonic()
        return at

    async def freeze(self, pid: int, seconds: float) -> None:
        """Let a process stand still for some seconds; one that does already is left alone."""
        if pid in self.standing_still:
            return
        began = self.stop_still(pid)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.go_on(pid, began)

    def stop_still(self, pid: int) -> float:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self.standing_still.add(pid)
        return time.monotonic()

    def go_on(self, pid: int, since: float) -> None:
        self.standing_still.discard(pid)
        # The lease is renewed every third of it, so it may be over after two.
        if (now := time.monotonic()) - since > self.lease_s / 2:
            self.faults.freezes.append(Freeze(pid, since, now))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def stop(self) -> list[int]:
        """Stop in good order what still runs; return the exit codes."""
        return await asyncio.gather(*(each.stop() for each in self.started if each.alive))

    async def close(self) -> None:
        for each in self.started:
            await each.bury()


def load_tasks() -> dict[str, Task[..., Any]]:
    """Return the tasks of the fault suite by name, for those who enqueue them."""
    os.environ.setdefault("CHAOS_TRACE", os.devnull)  # they run elsewhere
    return {each.name: each for each in TaskRegistry.load([str(APP)])}
