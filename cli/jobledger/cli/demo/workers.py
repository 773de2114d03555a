"""The demo's worker processes: started like any others; one is killed while it runs jobs."""

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
from jobledger.ledger import JobState, Ledger
from jobledger.ledger.files import open_file, open_to_write
from jobledger.projections import JobRow, Projector, Store

CONCURRENCY: Final = 4
_READY_S: Final = 30.0
_STOP_S: Final = 10.0
_VICTIM_S: Final = 30.0
_LAND_S: Final = 0.05
_RUNNING_MAX: Final = 100


class Crew:
    """The running workers, by identity; each ends when its stdin closes, so none outlives this process."""

    def __init__(self, url: str, folder: Path, app: str, concurrency: int) -> None:
        self._url = url
        self._folder = folder
        self._app = app
        self._concurrency = concurrency
        self._started = 0
        self._workers: dict[str, asyncio.subprocess.Process] = {}

    async def start(self) -> str:
        """Start one more worker, wait until it takes jobs, and return its identity.

        Raises: DemoFailedError with the last line of its log.
        """
        self._started += 1
        name = f"worker-{self._started}"
        log_path = self._folder / f"{name}.log"
        command = ["-m", "jobledger.cli", "worker", "--app", self._app, "--url", self._url]
        with open_to_write(log_path, "wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                *("--concurrency", str(self._concurrency), "--until-eof", "--json"),
                # The options of the demo's workers say everything, so variables must not.
                env={name: value for name, value in os.environ.items() if not name.startswith("JOBLEDGER_")},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
            )
        self._workers[name] = process  # noted before it is ready, so that it is stopped in any case
        assert process.stdout is not None, "it is a pipe"
        with anyio.move_on_after(_READY_S):
            if line := await process.stdout.readline():
                ready: dict[str, Any] = msgspec.json.decode(line)
                identity = str(ready["worker"])
                self._workers[identity] = self._workers.pop(name)
                return identity
        raise DemoFailedError(f"a worker did not start; the end of its log: {_last_line(log_path)}")

    def check(self) -> None:
        """Raise DemoFailedError if a worker ended that nobody killed."""
        for identity, process in self._workers.items():
            if process.returncode is not None:
                raise DemoFailedError(f"worker {identity} ended by itself, with code {process.returncode}")

    async def kill_one(self, ledger: Ledger, projector: Projector) -> tuple[str, list[JobRow]]:
        """Kill a worker with SIGKILL while the ledger shows that it runs jobs; return its identity and these jobs.

        SIGSTOP halts it first, and the server gets time to store what it sent, so these jobs are surely unfinished.
        """
        with anyio.fail_after(_VICTIM_S):
            while True:
                for identity, process in self._workers.items():
                    process.send_signal(signal.SIGSTOP)
                    await anyio.sleep(_LAND_S)
                    await projector.wait_for((await ledger.log.head()).last_sequence)
                    with Store.open(projector.path) as store:
                        running = store.jobs(_RUNNING_MAX, state=JobState.RUNNING)
                    if held := [row for row in running if row.worker == identity]:
                        process.kill()
                        await process.wait()
                        del self._workers[identity]
                        return identity, held
                    process.send_signal(signal.SIGCONT)
                    await anyio.sleep(_LAND_S)

    async def stop(self) -> None:
        """Stop all workers, even if this is cancelled."""
        with anyio.CancelScope(shield=True):  # bounded in time for each worker
            async with anyio.create_task_group() as group:
                for process in self._workers.values():
                    group.start_soon(_stop, process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.terminate()
    with anyio.move_on_after(_STOP_S):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def crew(
    url: str, folder: Path, app: str, concurrency: int = CONCURRENCY
) -> AsyncGenerator[Crew, None]:
    """Yield a crew without workers yet; each will run `concurrency` jobs of `app` at once. The end stops it."""
    made = Crew(url, folder, app, concurrency)
    try:
        yield made
    finally:
        await made.stop()


def _last_line(path: Path) -> str:
    with open_file(path) as file:
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "(it is empty)"
