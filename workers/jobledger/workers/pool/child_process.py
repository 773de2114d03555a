"""One process of the pool as its worker sees it: started, called, killed, and how it ended as a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec

from jobledger.ledger.logs import job_filter, prints
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import AttemptStoppedError, LedgerError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.workers.pool.messages import (
    HEADER_BYTES,
    Answer,
    BrokenFrameError,
    Call,
    CheckpointAsked,
    Failure,
    FromChild,
    Heartbeat,
    Logged,
    NotReady,
    Progress,
    Ready,
    ReturnedValue,
    ReturnedWish,
    Setup,
    ToChild,
    Wish,
    body_bytes,
    frame_bytes_max,
    read_from_child,
    read_wish,
    to_answer,
    to_frame,
)

logger = logging.getLogger("jobledger.workers.pool")

#: SIGKILL needs milliseconds; a process that is still there after this hangs in the kernel.
KILL_LIMIT_S: Final = 5.0
#: How long after the end of the process its socket is read; a program that the task left behind may hold it open.
_LAST_WORDS_S: Final = 0.5
#: From the end of the socket to the end of the process, which may have much memory to free.
_EXIT_LIMIT_S: Final = 2.0
_TRACEBACK_MAX: Final = 16_000
_CHILD_MODULE: Final = Path(__file__).with_name("child.py")


class ChildStartError(LedgerError):
    """A process of the pool could not be started, or could not load the tasks; the sentence says why."""


class Listener(Protocol):
    """Hears what a task says through its context while it runs. Whoever calls it kills the process if it raises."""

    def heartbeat(self) -> None:
        """Note a sign of life."""
        ...

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Note how far the task is."""
        ...

    def checkpoint_text(self, text: bytes) -> Awaitable[None]:
        """Store a checkpoint, JSON text; a LedgerError or AttemptStoppedError is raised in the task again."""
        ...


class TaskValue(msgspec.Struct, frozen=True):
    """The task returned: its value as JSON text, or what it wished for."""

    value: msgspec.Raw | Wish


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The task failed, and its process lives."""

    error: ErrorInfo
    may_retry: bool  #: by the task's `retry_on` and `give_up_on`, which only its process can apply


class ProcessDeath(msgspec.Struct, frozen=True, kw_only=True):
    """The process ended under the task."""

    sentence: str  #: how, in words fit for a dead letter
    exit_code: int | None = None  #: one of these two is given
    signal: int | None = None
    traceback: str = ""  #: where a crash happened, as far as Python could tell

    @property
    def error(self) -> ErrorInfo:
        """What to record."""
        return ErrorInfo(
            kind="exception", type="ProcessDied", message=self.sentence, traceback=self.traceback
        )


Result = TaskValue | TaskFailure | ProcessDeath


class ChildProcess:
    """A started process; at most one call at a time. Made by `start`, let go by `leave` or `end`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        lifeline: int,
        faults: IO[bytes],
        frame_limit: int,
    ) -> None:
        self._process = process
        self._reader, self._writer = streams
        self._lifeline = lifeline
        self._faults = faults
        self._frame_limit = frame_limit
        self._killed_for = ""
        self.pid = process.pid
        self.calls = 0
        self.ended = asyncio.create_task(process.wait(), name=f"end of process {process.pid}")
        self.ended.add_done_callback(self._on_end)

    @classmethod
    async def start(cls, setup: Setup, *, limit_s: float) -> ChildProcess:
        """Start a process and wait until it has loaded the tasks.

        Raises: ChildStartError.
        """
        # Not cancelled half-way: that would leave behind a process that nobody knows.
        spawning = asyncio.create_task(_spawn(setup), name="process spawns")
        try:
            child = await asyncio.shield(spawning)
        except OSError as error:
            raise ChildStartError(f"no process can be started for tasks: {error}") from error
        except asyncio.CancelledError:
            await asyncio.wait([spawning])
            if not spawning.cancelled() and spawning.exception() is None:
                spawning.result().kill()
                await spawning.result().end()
            raise
        try:
            await child.get_ready(setup, limit_s)
        except BaseException:  # cancelled, too: nobody else ends the process
            child.kill()
            await child.end()
            raise
        return child

    async def get_ready(self, setup: Setup, limit_s: float) -> None:
        """Let it load the tasks; called by `start`.

        Raises: ChildStartError.
        """
        try:
            async with asyncio.timeout(limit_s):
                await self._send(setup)
                message = await self._receive()
                while isinstance(message, Logged):
                    _relay(message, None)
                    message = await self._receive()
        except TimeoutError as error:
            names = ", ".join(setup.modules)
            raise ChildStartError(f"a process did not load {names} within {limit_s:g} s") from error
        except BrokenFrameError as error:
            raise ChildStartError(f"a process for tasks was killed: {error}") from error
        except ConnectionError:
            message = None
        if isinstance(message, NotReady):
            raise ChildStartError(message.sentence)
        if not isinstance(message, Ready):
            names = ", ".join(setup.modules)
            sentence = (await self._death()).sentence.replace("the process running the task", "a process")
            raise ChildStartError(f"while it loaded {names}, {sentence}; see the worker's error output")

    @property
    def is_alive(self) -> bool:
        """Whether it can be given a call."""
        return not self.ended.done() and not self._killed_for and not self._reader.at_eof()

    async def call(self, call: Call, listener: Listener | None) -> Result:
        """Run a task there. When this is cancelled or the listener raises, the caller must kill the process.

        After a `ProcessDeath` it has ended.
        """
        self.calls += 1
        kept = (
            call.checkpoint if bytes(call.checkpoint) else NO_VALUE
        )  # only NO_VALUE is left out of the message
        call = msgspec.structs.replace(call, number=self.calls, checkpoint=kept)
        try:
            await self._send(call)
            while (result := await self._hear(await self._receive(), call, listener)) is None:
                pass
        except BrokenFrameError as error:
            self.kill(f"the process running the task was killed: {error}")
        except ConnectionError:
            pass
        else:
            return result
        return await self._death()

    async def _hear(self, message: FromChild, call: Call, listener: Listener | None) -> Result | None:
        """Act on one message; return the result if it is one.

        Raises: BrokenFrameError.
        """
        number: int = getattr(message, "number", call.number)
        if number != call.number:
            raise BrokenFrameError(f"it sent a result of call {number} in call {call.number}")
        match message:
            case ReturnedValue():
                return TaskValue(message.value)
            case ReturnedWish():
                return TaskValue(read_wish(message))
            case Failure():
                return TaskFailure(error=message.error, may_retry=message.may_retry)
            case CheckpointAsked():
                await self._send(await _store(message.value, listener))
            case Logged():
                _relay(message, call)
            case Heartbeat():
                if listener is not None:
                    listener.heartbeat()
            case Progress():
                if listener is not None:
                    listener.progress(message.done, message.total, message.note)
            case Ready() | NotReady():
                raise BrokenFrameError(f"it sent {message!r} in the middle of a call")
        return None

    async def _send(self, message: ToChild) -> None:
        self._writer.write(to_frame(message))
        await self._writer.drain()

    async def _receive(self) -> FromChild:
        """Return the next message.

        Raises: BrokenFrameError; ConnectionError when there will be none.
        """
        try:
            header = await self._reader.readexactly(HEADER_BYTES)
            return read_from_child(await self._reader.readexactly(body_bytes(header, self._frame_limit)))
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError(errno.ECONNRESET, "the process has ended") from error

    def tick(self) -> None:
        """Send a sign of life; skip it where the pipe is full, since the process has others to read."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, b".")

    def kill(self, why: str = "") -> None:
        """Kill it, and what it started, at once (SIGKILL): a task cannot put this off."""
        self._killed_for = self._killed_for or why or "the process running the task was killed by its worker"
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # it leads a session of its own, so this is its group

    async def leave(self, *, limit_s: float) -> None:
        """Ask it to exit, and run its exit handlers; kill it after the limit."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()
        await asyncio.wait([self.ended], timeout=limit_s)
        if not self.ended.done():
            self.kill()
        await self.end()

    async def end(self) -> None:
        """Wait until it is gone, which it was asked or killed for, and close all that belongs to it."""
        await asyncio.wait([self.ended], timeout=KILL_LIMIT_S)
        if not self.ended.done():
            logger.error("process %d is still there %g s after SIGKILL", self.pid, KILL_LIMIT_S)
        self._writer.transport.abort()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._faults.close()

    def _on_end(self, _ended: asyncio.Task[int]) -> None:
        transport = self._writer.transport
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, transport.abort)

    async def _death(self) -> ProcessDeath:
        """Return how it ended; a process that closed its socket and lives on is killed."""
        await asyncio.wait([self.ended], timeout=_EXIT_LIMIT_S)
        if not self.ended.done():
            self.kill("the process running the task was killed: it closed its line to the worker")
            await asyncio.wait([self.ended], timeout=KILL_LIMIT_S)
        code = self.ended.result() if self.ended.done() else -signal.SIGKILL
        if code != -signal.SIGKILL:
            self._killed_for = ""  # we did not end it
        trace = _user_part(os.pread(self._faults.fileno(), _TRACEBACK_MAX, 0).decode("utf-8", "replace"))
        if code == -signal.SIGKILL and trace and not self._killed_for:
            return ProcessDeath(sentence=f"the process running the task ended itself: {trace}", signal=-code)
        sentence = self._killed_for or _sentence(code)
        if code < 0:
            return ProcessDeath(sentence=sentence, signal=-code, traceback=trace)
        return ProcessDeath(sentence=sentence, exit_code=code, traceback=trace)


async def _spawn(setup: Setup) -> ChildProcess:
    """Start the interpreter; the setup is sent by message, since anybody on the machine can read a command line.

    Raises: OSError.
    """
    limit = frame_bytes_max(setup.payload_bytes_max)
    async with contextlib.AsyncExitStack() as undo:
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        with theirs:
            their_lifeline, lifeline = os.pipe()
            undo.callback(os.close, lifeline)
            os.set_blocking(lifeline, False)
            faults = tempfile.TemporaryFile(prefix="jobledger-faults-")  # noqa: SIM115 - closed by `end`
            undo.callback(faults.close)
            descriptors = (theirs.fileno(), their_lifeline, faults.fileno())
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *(f"-W{option}" for option in sys.warnoptions),
                    # -P: a file in the current folder must not replace a module of Python's.
                    *("-P", "-m", "jobledger.workers.pool.child"),
                    *map(str, descriptors),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=descriptors,
                    start_new_session=True,  # Ctrl-C is for the worker alone, which lets tasks end
                )
            finally:
                os.close(their_lifeline)
        streams = await asyncio.open_unix_connection(sock=ours)
        undo.pop_all()
    return ChildProcess(process, streams, lifeline, faults, limit)


def _relay(message: Logged, call: Call | None) -> None:
    """Log here what the process logged; what the code of the current call logged counts as logged within its attempt."""
    is_of_call = call is not None and message.of_call == call.number
    if message.printed:
        if is_of_call:
            prints.tell(message.text)
        return
    facts = call.facts if call is not None and message.of_call in (0, call.number) else {}
    before = None if is_of_call else job_filter.current.set(None)
    try:
        logging.getLogger(message.logger).log(message.level, "%s", message.text, extra=facts)
    finally:
        if before is not None:
            job_filter.current.reset(before)


async def _store(value: msgspec.Raw, listener: Listener | None) -> Answer:
    if listener is None:
        return Answer(error="LedgerError", text="nobody keeps checkpoints here")
    try:
        await listener.checkpoint_text(bytes(value))
    except (LedgerError, AttemptStoppedError) as error:
        return to_answer(error)
    return Answer()


def _user_part(trace: str) -> str:
    """Leave out the frames of the process's own module, with which a crash report ends."""
    return trace.partition(f'  File "{_CHILD_MODULE}"')[0].strip()


def _sentence(code: int) -> str:
    if code >= 0:
        return f"the process running the task ended itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    sentence = f"the process running the task was ended by {name}"
    if -code == signal.SIGKILL:
        sentence += ", which the system sends when memory runs out"
    return sentence
