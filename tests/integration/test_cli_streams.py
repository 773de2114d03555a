"""Standard streams that are closed, full or broken: commands do what they do, and end with the right code."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.limits import LIMIT_S
from tests.support.tables import each_row

from jobledger.cli import logs
from jobledger.cli.output import Output
from jobledger.ledger import Ledger, task
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

TASKS = """
from jobledger.ledger import task

@task(queue="math")
async def double(n: int) -> int:
    return 2 * n
"""
HAS_FULL = Path("/dev/full").exists()
needs_full = pytest.mark.skipif(not HAS_FULL, reason="no /dev/full here")


@task(queue="math")
async def double(n: int) -> int:
    return 2 * n


class Commands:
    """Starts commands as a shell does that was told `<&-` or `2>/dev/full`."""

    def __init__(self, folder: Path, url: str, environment: str) -> None:
        (folder / "some_tasks.py").write_text(TASKS, encoding="utf-8")
        self._folder = folder
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("JOBLEDGER_") and name != "PYTHONUNBUFFERED"
        }
        self._variables = inherited | {
            "JOBLEDGER_URL": url,
            "JOBLEDGER_ENVIRONMENT": environment,
            "XDG_DATA_HOME": str(folder / "data"),
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, redirection: str, *words: str) -> subprocess.Popen[str]:
        shell = f'exec "$@" {redirection}'
        command = ["sh", "-c", shell, "sh", sys.executable, "-P", "-m", "jobledger.cli", *words]
        self._started.append(
            subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self._started[-1]

    def close(self) -> None:
        for each in self._started:
            each.kill()
            each.wait(LIMIT_S)
            for pipe in (each.stdin, each.stdout, each.stderr):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def commands(tmp_path: Path, nats_server: EmbeddedServer, environment: str) -> Any:
    made = Commands(tmp_path, nats_server.url, environment)
    yield made
    made.close()


async def test_a_command_without_a_standard_stream_does_what_it_does(
    commands: Commands, ledger: Ledger
) -> None:
    rows = {
        "<&-": 0,
        ">&-": 0,
        "2>&-": 0,
        "<&- >&- 2>&-": 0,
        **({">/dev/full": 1, "2>/dev/full": 0} if HAS_FULL else {}),
    }
    enqueue = ("enqueue", "--app", "some_tasks.py", "double")
    started = {each: commands.start(each, *enqueue, "n=1", "--id", f"j{n}") for n, each in enumerate(rows)}
    wrong = {each: commands.start(each, *enqueue, "m=1") for each in rows if "2>" in each}
    ended = {each: (process.communicate(timeout=LIMIT_S), process) for each, process in started.items()}
    assert {each: process.returncode for each, (_, process) in ended.items()} == rows
    (out, err), _ = ended["<&-"]
    assert '"id":"j0"' in out.replace(" ", "")
    assert err == ""
    if HAS_FULL:
        (_, err), _ = ended[">/dev/full"]
        assert err == "jobledger: the system refused stdout: No space left on device\n"
    for number in range(len(rows)):
        assert (await (await ledger.job(f"j{number}", queue="math")).snapshot()).task == "double"
    for process in wrong.values():
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 2


@needs_full
@pytest.mark.parametrize("how", ["full", "closed", "broken"])
async def test_a_worker_that_can_tell_nobody_works(commands: Commands, ledger: Ledger, how: str) -> None:
    redirection = {"full": ">/dev/full 2>/dev/full", "closed": "<&- >&- 2>&-", "broken": ""}[how]
    job = await ledger.enqueue(double, 21)
    worker = commands.start(redirection, "--verbose", "worker", "--app", "some_tasks.py")
    if how == "broken":
        for pipe in (worker.stdout, worker.stderr):
            assert pipe is not None
            pipe.close()
    assert await job.result(timeout_s=LIMIT_S) == 42
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(LIMIT_S) == 0


class Broken:
    """A stream that takes nothing."""

    encoding = "utf-8"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def write(self, _: str) -> int:
        raise self._error

    def flush(self) -> None:
        raise self._error

    def fileno(self) -> int:
        raise io.UnsupportedOperation


@each_row(
    "error", [OSError(28, "No space left on device"), BrokenPipeError(), ValueError("I/O on closed file")]
)
def test_a_line_that_cannot_be_logged_comes_to_nobody(error: Exception) -> None:
    logger = logging.getLogger("broken")
    logger.propagate = False
    logger.addHandler(logs._ToStderr())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", Broken(error))
        logger.warning("lease of %s is lost", "w1")
        logger.warning("%d is no number", "this")
        Output().note("stopping")
        patch.setattr(sys, "stdout", Broken(OSError(28, "No space left on device")))
        with (output := Output()).telling():
            output.say("the worker takes jobs")
