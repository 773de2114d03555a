"""A process as its parent sees it: started, heard, watched, asked to stop, killed after a limit, and reaped.

It is the leader of a session of its own, so Ctrl-C reaches the parent alone, and its process group can be killed as
one. It is reaped only by a call of its owner: until then no other process gets its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final, Generic

import msgspec

from jobledger.workers.processes.line import Line
from jobledger.workers.processes.messages import (
    FRAME_BYTES_MAX,
    Beat,
    BrokenFrameError,
    Fault,
    LogLine,
    Message,
    Ready,
)

logger = logging.getLogger("jobledger.workers.processes")

#: SIGKILL needs milliseconds; a process that is still there after this hangs in the kernel.
KILL_LIMIT_S: Final = 5.0
#: Pause between two looks at a process where the system has no descriptors of processes, and before the second look at
#: a silent one.
POLL_S: Final = 0.05
#: How long after the end of the process its line is read; a program that it left behind may hold it open.
_LAST_WORDS_S: Final = 0.5
#: Errors for which no process can be started.
START_ERRORS: Final = (OSError, ValueError, subprocess.SubprocessError)


def python(module: str, *words: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a module of ours with this interpreter, and options of it."""
    # -P, as in the installed command: a file of the current folder must not be loaded in place of a library.
    return [sys.executable, *options, "-P", "-m", module, *words]


class Child(Generic[Message]):
    """A started process; `Message`: the type of messages it sends."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        line: Line[Message],
        what: str,
        silence_s: float | None,
        on_log: Callable[[LogLine], None],
    ) -> None:
        self.line = line
        self.what = what
        self.pid = process.pid  #: also the number of its process group
        self.is_ready = False
        self.fault = ""  #: why it ends, as it said itself
        self.ended: Final = asyncio.create_task(_end_of(process), name=f"end of process {process.pid}")
        self.ended.add_done_callback(self._on_end)
        self._process = process
        self._silence_s = silence_s
        self._on_log = on_log
        self._loop = asyncio.get_running_loop()
        self.started_at = self._loop.time()
        self._kill_at = math.inf
        self._killing: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        command: Callable[[int], Sequence[str]],
        decoder: msgspec.json.Decoder[Message],
        *,
        what: str,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        stdout: int | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        silence_s: float | None = None,
        on_log: Callable[[LogLine], None] = LogLine.tell,
    ) -> Child[Message]:
        """Start a process. Its owner reads its messages, and reaps it at the end, by `leave` or `reap`.

        `command` is given the descriptor of the process's end of the line; no other process may get that descriptor.
        `what`: its name in the log. `silence_s`: once ready, it is killed after so long without a message; None: never.

        Raises: START_ERRORS.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            line = await Line[Message].over(ours, decoder, frame_bytes_max=frame_bytes_max)
            try:
                # Blocks while the program is started, as asyncio's own function does, which would reap it at once.
                process = subprocess.Popen(  # noqa: ASYNC220, S603 - the caller's own program
                    list(command(theirs.fileno())),
                    env=None if environment is None else dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    pass_fds=(theirs.fileno(), *pass_fds),
                    start_new_session=True,
                )
            except BaseException:  # Ctrl-C, too: without a process nobody else closes our end
                line.abort()
                raise
        return cls(process, line, what, silence_s, on_log)

    def send(self, message: msgspec.Struct) -> None:
        """Send the process a message."""
        self.line.send(message)

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Yield the messages of the process until its line ends; lines of its log go to ours.

        A process that breaks the protocol is killed.
        """
        try:
            async for message in self.line.messages():
                if isinstance(message, LogLine):
                    self._on_log(message)
                elif isinstance(message, Fault):
                    self.fault = message.sentence
                elif not isinstance(message, Beat):
                    if isinstance(message, Ready):
                        self._note_ready()
                    yield message
        except BrokenFrameError as error:
            self.fault = f"the process was killed: {error}"
            logger.error("%s %d is killed: %s", self.what, self.pid, error)  # noqa: TRY400 - a sentence
            self.kill()

    async def until_ready(self, limit_s: float) -> Ready | None:
        """Wait until it is ready; return None if its line ended before that, maybe after a `fault`.

        Raises: TimeoutError.
        """
        async with asyncio.timeout(limit_s), contextlib.aclosing(self.messages()) as messages:
            async for message in messages:
                if isinstance(message, Ready):
                    return message
        return None

    def _note_ready(self) -> None:
        self.is_ready = True
        if self._silence_s is not None and self._watching is None:
            silent = self._until_silent(self._silence_s)
            self._watching = asyncio.create_task(silent, name=f"silence of process {self.pid}")

    # The end.

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; it may not be reaped yet."""
        return self.ended.done()

    async def until_ended(self, limit_s: float | None = None) -> bool:
        """Wait until the process has ended; return whether it did within the limit."""
        await asyncio.wait([self.ended], timeout=limit_s)
        return self.ended.done()

    def ask(self, message: msgspec.Struct, limit_s: float) -> None:
        """Tell it to stop; it is killed after `limit_s`, or sooner if an earlier call set a shorter limit."""
        self.send(message)
        self._allow(limit_s)

    def _allow(self, limit_s: float) -> None:
        kill_at = self._loop.time() + limit_s
        if kill_at < self._kill_at:
            self._kill_at = kill_at
            if self._killing is not None:
                self._killing.cancel()
            self._killing = self._loop.call_at(kill_at, self._on_late)

    def _on_late(self) -> None:
        if not self.ended.done():
            logger.error("%s %d did not stop in time: it is killed", self.what, self.pid)
            self.kill()

    def kill(self) -> None:
        """Kill it and its process group at once; do nothing once it was reaped, when others may have its number."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def leave(self, limit_s: float) -> int:
        """Hang up, so that it ends; kill it after the limit; reap it and return its exit code."""
        self.line.hang_up()
        self._allow(limit_s)
        await self.until_ended(limit_s + KILL_LIMIT_S)
        return self.reap()

    def reap(self) -> int:
        """Return the exit code of a process that has ended, negative for a signal, and release all that it held.

        One that hangs in the kernel, where SIGKILL does not reach it, counts as killed.
        """
        for each in (self._killing, self._watching):
            if each is not None:
                each.cancel()
        self.line.abort()
        code = self._process.poll()
        if code is None:
            self.ended.cancel()
            logger.error("%s %d is still there %g s after SIGKILL", self.what, self.pid, KILL_LIMIT_S)
            return -signal.SIGKILL
        return code

    def _on_end(self, _ended: asyncio.Task[None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_later(_LAST_WORDS_S, self.line.abort)

    # The watch for a blocked event loop. It begins once the process is ready: imports may block the loop for long.

    async def _until_silent(self, silence_s: float) -> None:
        # This process itself may have stood still: only the second look counts, after messages that waited are read.
        looks_left = 2
        while looks_left:
            left_s = self.line.heard_at + silence_s - self._loop.time()
            looks_left = looks_left - 1 if left_s <= 0 else 2
            await asyncio.sleep(max(left_s, POLL_S))
        logger.error(
            "%s %d has not been heard of for %.0f s: it is killed. "
            "A task may block its event loop: see its log",
            self.what,
            self.pid,
            silence_s,
        )
        self.kill()


async def _end_of(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has ended, without reaping it."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # no Linux, or one without descriptors of processes
        while not _has_ended(process):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(POLL_S)
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # another part of this program reaps every child
        return True


def how_ended(code: int) -> str:
    """Return an exit code as words."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
