"""The demo's worker processes: started as anybody would start them, one of them killed while it runs jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from jobledger.cli.errors import DemoFailedError
from jobledger.ledger import JobHandle, JobState, Ledger
from jobledger.projections import Projector, Store

CONCURRENCY: Final = 4
_READY_S: Final = 30.0
_STOP_S: Final = 10.0
_VICTIM_S: Final = 30.0
_LAND_S: Final = 0.05
_RUNNING_MAX: Final = 100


class WorkerProcess:
    """One `jobledger worker` that ends when we end, whatever ends us: it watches its stdin."""

    def __init__(self, process: asyncio.subprocess.Process, identity: str, log_path: Path) -> None:
        self._process = process
        self.identity = identity
        self.log_path = log_path

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; harmless when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self, limit_s: float) -> bool:
        """Wait for its end, at most so long; return whether it came."""
        with anyio.move_on_after(limit_s):
            await self._process.wait()
        return not self.alive

    async def stop(self) -> None:
        """Ask it to stop, make it if it does not, and reap it."""
        with anyio.CancelScope(shield=True):  # bounded by both limits
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            if not await self.ended(_STOP_S):
                self.send(signal.SIGKILL)
                await self.ended(_STOP_S)


class Crew:
    """The workers of the demo."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._started = 0
        self.workers: list[WorkerProcess] = []

    async def start(self) -> WorkerProcess:
        """Start one more worker and wait until it holds its lease.

        Raises: DemoFailedError with the last line of its log.
        """
        self._started += 1
        log_path = self._folder / f"worker-{self._started}.log"
        command = ["-m", "jobledger.cli", "worker", "--app", "jobledger.cli.demo.tasks", "--url", self._url]
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                *("--concurrency", str(CONCURRENCY), "--until-eof", "--json"),
                env=_clean_environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
            )
        worker = WorkerProcess(process, "", log_path)
        self.workers.append(worker)
        assert process.stdout is not None, "it is a pipe"
        with anyio.move_on_after(_READY_S):
            line = await process.stdout.readline()
            if line:
                ready: dict[str, Any] = msgspec.json.decode(line)
                worker.identity = str(ready["worker"])
                return worker
        raise DemoFailedError(f"a worker did not start; the end of its log: {_last_line(log_path)}")

    def check(self) -> None:
        """Raise DemoFailedError if a worker ended that nobody killed."""
        for worker in self.workers:
            if not worker.alive:
                raise DemoFailedError(
                    f"worker {worker.identity} ended by itself: {_last_line(worker.log_path)}"
                )

    async def kill_one(
        self, ledger: Ledger, projector: Projector
    ) -> tuple[WorkerProcess, list[JobHandle[Any]]]:
        """Kill a worker with SIGKILL at a moment when the ledger says that it runs jobs; return it and them.

        It is frozen first and what it had sent is given time to land, so the jobs found are surely unfinished.
        """
        with anyio.fail_after(_VICTIM_S):
            while True:
                for worker in self.workers:
                    worker.send(signal.SIGSTOP)
                    await anyio.sleep(_LAND_S)
                    held = await _held_by(worker, ledger, projector)
                    if held:
                        worker.send(signal.SIGKILL)
                        await worker.ended(_STOP_S)
                        self.workers.remove(worker)
                        return worker, held
                    worker.send(signal.SIGCONT)
                    await anyio.sleep(_LAND_S)

    async def stop(self) -> None:
        """Stop all of them; nobody is left, also when cancelled."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for worker in self.workers:
                    group.start_soon(worker.stop)


async def _held_by(worker: WorkerProcess, ledger: Ledger, projector: Projector) -> list[JobHandle[Any]]:
    """Return the jobs that a worker runs: candidates from the projection, each confirmed by its chain."""
    await projector.wait_for((await ledger.log.head()).last_sequence)
    with Store.open(projector.path) as store:
        running = store.jobs(_RUNNING_MAX, state=JobState.RUNNING)
    held: list[JobHandle[Any]] = []
    for row in running:
        if row.worker == worker.identity:
            handle = await ledger.job(row.id, queue=row.queue)
            attempt = (await handle.snapshot()).running_attempt
            if attempt is not None and attempt.worker == worker.identity:
                held.append(handle)
    return held


@contextlib.asynccontextmanager
async def crew(url: str, folder: Path) -> AsyncGenerator[Crew, None]:
    """Give a crew without workers; those that were started are stopped at the end."""
    made = Crew(url, folder)
    try:
        yield made
    finally:
        await made.stop()


def _clean_environment() -> dict[str, str]:
    """Leave out our own settings: the demo's workers are told everything by their options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("JOBLEDGER_")}


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "(it is empty)"
