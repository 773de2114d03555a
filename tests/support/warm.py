"""Programs that start with their imports done: those are nearly all that a short command costs.

A mother process has imported the project and forks for each start. What it forks is a process like any other, with its
own session, folder, variables, pipes, signals and exit code, and it ends as any interpreter does. Nothing of the project
has run in the mother; a test of the start itself uses `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NamedTuple, TextIO, cast

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = tuple(str(ROOT / portion) for portion in ("ledger", "projections", "workers", "cli"))
_READY_S: Final = 60.0
_WORDS_BYTES_MAX: Final = 1 << 20
_STATUS_FD: Final = 3  # of the four that come with an order: stdin, stdout, stderr, and where its end is told


# In the tests.


_spent_s = [0.0]


def spent_s() -> float:
    """Return the CPU time of the programs that have ended: nobody but their mother waits for them."""
    return _spent_s[0]


class Program:
    """A started program: as much of `subprocess.Popen` as tests use."""

    def __init__(self, status: int, pipes: dict[str, IO[str]]) -> None:
        self.stdin = cast("TextIO | None", pipes.get("stdin"))
        self.stdout = cast("TextIO | None", pipes.get("stdout"))
        self.stderr = cast("TextIO | None", pipes.get("stderr"))
        self.returncode: int | None = None
        self._status = os.fdopen(status, "rb", buffering=0)
        told = self._told(_READY_S)
        assert told is not None, "it did not start"
        self.pid = int(told[0])

    def _told(self, limit_s: float | None) -> list[bytes] | None:
        if not select.select([self._status], [], [], limit_s)[0]:
            return None
        line = self._status.readline()
        assert line, "the process that starts others ended"
        return line.split()

    def poll(self) -> int | None:
        return self._look(0.0)

    def _look(self, limit_s: float | None) -> int | None:
        if self.returncode is None:
            told = self._told(limit_s)
            if told is not None:
                self.returncode = int(told[0])
                _spent_s[0] += float(told[1])
                self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises: subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now, and that is not told yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, limit_s: float) -> tuple[str, str]:
        """Read all that it prints until it ends; return stdout and stderr. Raises: subprocess.TimeoutExpired."""
        found = ["", ""]

        def read(number: int, pipe: TextIO) -> None:
            with pipe:
                found[number] = pipe.read()

        assert self.stdout is not None
        assert self.stderr is not None
        deadline = time.monotonic() + limit_s
        readers = [
            threading.Thread(target=read, args=(number, pipe), daemon=True)
            for number, pipe in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        self.wait(max(0.0, deadline - time.monotonic()))
        for reader in readers:  # what it started may hold its pipes for longer
            reader.join(max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", limit_s)
        return found[0], found[1]


class _Mother:
    """The process that starts the others; one for each process of tests, made when it is first needed."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def order(self, words: dict[str, Any], descriptors: Sequence[int]) -> None:
        with self._lock:
            if self._control is None:
                self._begin()
            assert self._control is not None
            socket.send_fds(self._control, [json.dumps(words).encode() + b"\n"], descriptors)
            assert self._control.recv(1), "the process that starts others ended"

    def _begin(self) -> None:
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.support.warm", str(its.fileno())],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)},
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        ours.settimeout(_READY_S)
        assert ours.recv(1), "the process that starts others did not"
        self._control = ours
        atexit.register(self.end)

    def end(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(_READY_S)
            self._control = self._process = None


_MOTHER = _Mother()


def start(
    *words: str,
    folder: Path,
    variables: dict[str, str],
    stdin: int = subprocess.DEVNULL,
    warnings: str = "",
) -> Program:
    """Start `python -W <warnings> <words>`, where the words begin with `-m <module>` or the path of a script."""
    theirs: list[int] = []
    pipes: dict[str, IO[str]] = {}
    try:
        if stdin == subprocess.PIPE:
            read, write = os.pipe()
            theirs.append(read)
            pipes["stdin"] = os.fdopen(write, "w", encoding="utf-8")
        else:
            theirs.append(os.open(os.devnull, os.O_RDONLY))
        for name in ("stdout", "stderr"):
            read, write = os.pipe()
            theirs.append(write)
            pipes[name] = os.fdopen(read, encoding="utf-8")
        status, write = os.pipe()
        theirs.append(write)
        order = {"words": words, "folder": str(folder), "variables": variables, "warnings": warnings}
        _MOTHER.order(order, theirs)
    finally:
        for each in theirs:
            os.close(each)
    return Program(status, pipes)


# In the mother, and in what it forks.

#: What the project, typer and anyio import when they first need it.
_LATE: Final = (
    "anyio._backends._asyncio",
    "concurrent.futures.thread",
    "queue",
    "sqlite_utils.db",
    "typer._adapters",
    "uvloop",
    "zoneinfo",
)


class _Order(NamedTuple):
    words: list[str]
    folder: str
    variables: dict[str, str]
    warnings: str


def _import_the_project() -> None:
    import importlib  # noqa: PLC0415 - the tests that import this module need none of it
    import pkgutil  # noqa: PLC0415

    for name in _LATE:
        importlib.import_module(name)
    for portion in ("ledger", "projections", "workers", "cli"):
        package = importlib.import_module(f"jobledger.{portion}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def _orders(control: socket.socket, wakeup: socket.socket, running: dict[int, int]) -> Iterator[Any]:
    """Yield each order with its descriptors; tell of those that ended in between."""
    while True:
        ready, _, _ = select.select([control, wakeup], [], [])
        if wakeup in ready:
            wakeup.recv(1024)
            _tell_of_ends(running)
        if control in ready:
            text, descriptors, _, _ = socket.recv_fds(control, _WORDS_BYTES_MAX, 4)
            while text and not text.endswith(b"\n"):
                text += control.recv(_WORDS_BYTES_MAX)
            if not text:
                return
            yield _Order(**json.loads(text)), descriptors


def _tell_of_ends(running: dict[int, int]) -> None:
    while running:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if not pid:
            return
        told = running.pop(pid)
        try:
            os.write(told, b"%d %f\n" % (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime))
        except BrokenPipeError:
            pass  # whoever started it wants to know no more
        finally:
            os.close(told)


def _woken(number: int, frame: FrameType | None) -> None:
    """Do nothing: that a signal came is what counts."""


def _serve(control: socket.socket) -> _Order | None:
    """Fork for each order; return the order in the fork, and None in the mother at the end of all."""
    wakeup, woken = socket.socketpair()
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, _woken)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c at the tests is theirs
    signal.set_wakeup_fd(woken.fileno())
    running: dict[int, int] = {}
    control.sendall(b"r")
    for order, descriptors in _orders(control, wakeup, running):
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for each in (control, wakeup, woken):
                each.close()
            for told in running.values():
                os.close(told)
            _take_place(order, descriptors)
            return cast("_Order", order)
        control.sendall(b"s")
        running[pid] = descriptors[_STATUS_FD]
        os.write(running[pid], b"%d\n" % pid)
        for each in descriptors[:_STATUS_FD]:
            os.close(each)
    return None


def _take_place(order: _Order, descriptors: Sequence[int]) -> None:
    """Become what a new interpreter would be."""
    os.setsid()
    for caught in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(caught, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, given in enumerate(descriptors[:_STATUS_FD]):
        os.dup2(given, number)
    for given in descriptors:
        os.close(given)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.variables)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stdout.reconfigure(write_through=bool(order.variables.get("PYTHONUNBUFFERED")))
    sys.stderr.reconfigure(line_buffering=True)


def _run(order: _Order) -> None:
    import runpy  # noqa: PLC0415 - as above
    import warnings  # noqa: PLC0415

    warnings.resetwarnings()
    sys.warnoptions[:] = [order.warnings] if order.warnings else []
    if order.warnings:
        warnings.simplefilter(cast("Any", order.warnings))
    else:
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
    if order.words[0] == "-m":
        sys.argv = order.words[1:]
        sys.path[0] = order.folder
        runpy.run_module(order.words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(order.words)
        sys.path[0] = str(Path(order.words[0]).parent)
        runpy.run_path(order.words[0], run_name="__main__")


def main() -> None:
    _import_the_project()
    gc.freeze()  # no collection in a fork copies what is shared
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        _run(order)


if __name__ == "__main__":
    main()
