"""What a new user has: an empty folder outside the checkout, a virtual environment, and a terminal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

LIMIT_S = 60.0
INSTALL_LIMIT_S = 300.0
_UNREACHABLE = re.compile(r"connection broken|Could not fetch URL|Failed to establish")


class NotInstalledError(Exception):
    """What pip said."""


class UnreachableIndexError(NotInstalledError):
    """A package index does not answer."""


class Machine:
    """Runs programs of one virtual environment in one folder; closing it ends whatever it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables: dict[str, str] = {}  #: for every program from now on
        self._bin = folder / "venv" / "bin"
        self._began = time.monotonic()
        self._started = ExitStack()
        venv.create(folder / "venv", with_pip=True)

    def say(self, text: str) -> None:
        sys.stdout.write(f"newcomer: {time.monotonic() - self._began:5.1f} s  {text}\n")
        sys.stdout.flush()

    def install(self, *what: str) -> None:
        """Raises: NotInstalledError; UnreachableIndexError where that is the network's fault, not a package's."""
        self.say("pip install " + " ".join(what))
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        pip: list[str | Path] = [
            self._bin / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--retries",
            "1",
            *what,
        ]
        ran = _run(pip, self.folder, own, INSTALL_LIMIT_S)
        if ran.returncode and _UNREACHABLE.search(ran.stdout):
            raise UnreachableIndexError(f"no package index can be reached:\n{ran.stdout}")
        if ran.returncode:
            raise NotInstalledError(ran.stdout)

    def run(self, program: str, *words: str) -> tuple[int, str]:
        """Run a program of the environment to its end; return its exit code and all that it said."""
        ran = _run([self._bin / program, *words], self.folder, self._environment(), LIMIT_S)
        return ran.returncode, ran.stdout

    def succeed(self, program: str, *words: str) -> str:
        self.say(" ".join([program, *(word if "\n" not in word else "'...'" for word in words)]))
        code, said = self.run(program, *words)
        assert code == 0, f"{program} exited with {code}:\n{said}"
        return said

    def start(self, program: str, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a program that goes on; return it and the file that takes what it says."""
        self.say(" ".join([program, *words]) + " &")
        log = self.folder / f"{program}-{time.monotonic_ns()}.log"
        with log.open("wb") as sink:
            child = subprocess.Popen(
                [self._bin / program, *words],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.callback(_end, child)
        return child, log

    def serve(self, program: str, *words: str) -> tuple[subprocess.Popen[bytes], str]:
        """Start a web server on a free port, PORT in its words; return it and its address once it answers."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        child, log = self.start(program, *(word.replace("PORT", port) for word in words))
        url = f"http://127.0.0.1:{port}"
        until(lambda: child.poll() is not None or answers(url), f"{program} answers")
        assert child.poll() is None, log.read_text(errors="replace")
        return child, url

    def close(self) -> None:
        """End all that was started, and see that none of it is left."""
        self._started.close()
        until(lambda: not self._left(), "every process has ended")

    def _left(self) -> list[str]:
        """Return the command lines that name the folder: every program of the environment lies in it."""
        found: list[str] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return [line for line in found if str(self.folder) in line]

    def _environment(self) -> dict[str, str]:
        # Nothing else on the path: what is missing in the environment must not be found elsewhere.
        return {"PATH": str(self._bin), "HOME": str(self.folder), "LANG": "C.UTF-8", **self.variables}


def _run(
    command: list[str | Path], folder: Path, environment: dict[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let it stop as its user would, then end whatever is left of its group."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(LIMIT_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(LIMIT_S)


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, f"within {LIMIT_S:.0f} s it did not come to pass that {what}"
        time.sleep(0.05)


def ask(url: str, *, post: bool = False) -> str:
    request = urllib.request.Request(url, data=b"" if post else None)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        text: bytes = answer.read()
    return text.decode()


def answers(url: str) -> bool:
    try:
        ask(url)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
