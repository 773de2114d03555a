"""One process of the pool as its worker sees it: started, called, killed, and its end described by a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
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
    FROM_CHILD,
    Answer,
    Call,
    CheckpointAsked,
    Failure,
    FromChild,
    Heartbeat,
    Progress,
    ReturnedValue,
    ReturnedWish,
    Setup,
    ToChild,
    Wish,
    frame_bytes_max,
    read_wish,
    to_answer,
)
from jobledger.workers.processes.child import KILL_LIMIT_S, START_ERRORS, Child, python
from jobledger.workers.processes.messages import BrokenFrameError, Fault, LogLine, Ready

_CHILD: Final = "jobledger.workers.pool.child"
#: Limit from the end of the socket to the end of the process, which may have much memory to free.
_EXIT_LIMIT_S: Final = 2.0
_TRACEBACK_MAX: Final = 16_000
_CHILD_MODULE: Final = Path(__file__).with_name("child.py")


class ChildStartError(LedgerError):
    """A process of the pool could not be started, or could not load the tasks; the sentence says why."""


class Listener(Protocol):
    """Gets the reports of a running task. The caller kills the process if a method raises."""

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
    """The task returned: its value as JSON text, or the outcome that it asked for."""

    value: msgspec.Raw | Wish


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The task failed, and its process lives."""

    error: ErrorInfo
    may_retry: bool  #: decided by the task's `retry_on` and `give_up_on`, which only its process can apply


class ProcessDeath(msgspec.Struct, frozen=True, kw_only=True):
    """The process ended under the task."""

    sentence: str  #: how the process ended, in words fit for a dead letter
    exit_code: int | None = None  #: either `exit_code` or `signal` is given
    signal: int | None = None
    traceback: str = ""  #: where a crash happened, as far as Python could tell

    @property
    def error(self) -> ErrorInfo:
        """The failure to record."""
        return ErrorInfo(
            kind="exception", type="ProcessDied", message=self.sentence, traceback=self.traceback
        )


Result = TaskValue | TaskFailure | ProcessDeath


class ChildProcess:
    """A started process; at most one call at a time. Started by `start`, ended by `leave` or `end`."""

    def __init__(self, child: Child[FromChild], lifeline: int, faults: IO[bytes]) -> None:
        self._child = child
        self._lifeline = lifeline
        self._faults = faults
        self._killed_for = ""
        self.pid = child.pid
        self.calls = 0

    @classmethod
    async def start(cls, setup: Setup, *, limit_s: float) -> ChildProcess:
        """Start a process and wait until it has loaded the tasks.

        Raises: ChildStartError.
        """
        try:
            started = await _spawn(setup)
        except START_ERRORS as error:
            raise ChildStartError(f"no process can be started for tasks: {error}") from error
        try:
            await started.get_ready(setup, limit_s)
        except BaseException:  # cancelled, too: nobody else ends the process
            started.kill()
            await started.end()
            raise
        return started

    async def get_ready(self, setup: Setup, limit_s: float) -> None:
        """Let it load the tasks; called by `start`.

        Raises: ChildStartError.
        """
        self._child.send(setup)
        names = ", ".join(setup.modules)
        try:
            ready = await self._child.until_ready(limit_s)
        except TimeoutError as error:
            raise ChildStartError(f"a process did not load {names} within {limit_s:g} s") from error
        if self._child.fault:
            raise ChildStartError(self._child.fault)
        if ready is None:
            sentence = (await self._death()).sentence.replace("the process running the task", "a process")
            raise ChildStartError(f"while it loaded {names}, {sentence}; see the worker's error output")

    @property
    def ended(self) -> asyncio.Task[None]:
        """A task that is done once the process has ended."""
        return self._child.ended

    @property
    def is_alive(self) -> bool:
        """Whether it can be given a call."""
        return not self.ended.done() and not self._killed_for and not self._child.line.ended

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
            while (result := await self._hear(await self._child.line.receive(), call, listener)) is None:
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
            case LogLine():
                _relay(message, call)
            case Heartbeat():
                if listener is not None:
                    listener.heartbeat()
            case Progress():
                if listener is not None:
                    listener.progress(message.done, message.total, message.note)
            case Ready() | Fault():
                raise BrokenFrameError(f"it sent {message!r} in the middle of a call")
        return None

    async def _send(self, message: ToChild) -> None:
        self._child.send(message)
        await self._child.line.flush()

    def tick(self) -> None:
        """Send a sign of life; skip it if the pipe is full, since earlier ones wait there to be read."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, b".")

    def kill(self, why: str = "") -> None:
        """Kill it, and what it started, at once (SIGKILL): a task cannot delay this."""
        self._killed_for = self._killed_for or why or "the process running the task was killed by its worker"
        self._child.kill()

    async def leave(self, *, limit_s: float) -> None:
        """Ask it to run its exit handlers and exit; kill it after the limit."""
        await self._child.leave(limit_s)
        await self.end()

    async def end(self) -> None:
        """Wait until it is gone, after it was asked to end or killed, and close its files."""
        await self._child.until_ended(KILL_LIMIT_S)
        self._child.reap()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._faults.close()

    async def _death(self) -> ProcessDeath:
        """Return how it ended; a process that closed its socket and lives on is killed."""
        if not await self._child.until_ended(_EXIT_LIMIT_S):
            self.kill("the process running the task was killed: it closed its line to the worker")
            await self._child.until_ended(KILL_LIMIT_S)
        code = self._child.reap()
        if code != -signal.SIGKILL:
            self._killed_for = ""  # it ended before the worker's SIGKILL reached it
        trace = _user_part(os.pread(self._faults.fileno(), _TRACEBACK_MAX, 0).decode("utf-8", "replace"))
        if code == -signal.SIGKILL and trace and not self._killed_for:
            return ProcessDeath(sentence=f"the process running the task ended itself: {trace}", signal=-code)
        sentence = self._killed_for or _sentence(code)
        if code < 0:
            return ProcessDeath(sentence=sentence, signal=-code, traceback=trace)
        return ProcessDeath(sentence=sentence, exit_code=code, traceback=trace)


async def _spawn(setup: Setup) -> ChildProcess:
    """Start the interpreter; the setup is sent by message, since anybody on the machine can read a command line.

    Raises: START_ERRORS.
    """
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        their_lifeline, lifeline = os.pipe()
        theirs.callback(os.close, their_lifeline)
        ours.callback(os.close, lifeline)
        os.set_blocking(lifeline, False)
        faults = ours.enter_context(tempfile.TemporaryFile(prefix="jobledger-faults-"))
        descriptors = (their_lifeline, faults.fileno())
        options = [f"-W{option}" for option in sys.warnoptions]
        child = await Child[FromChild].start(
            lambda line: python(_CHILD, *map(str, (line, *descriptors)), options=options),
            FROM_CHILD,
            what="process of the pool",
            pass_fds=descriptors,
            frame_bytes_max=frame_bytes_max(setup.payload_bytes_max),
            on_log=lambda line: _relay(line, None),
        )
        ours.pop_all()  # `end` closes them
    return ChildProcess(child, lifeline, faults)


def _relay(message: LogLine, call: Call | None) -> None:
    """Log here a record of the process, within the attempt of the current call if that call's code logged it."""
    is_of_call = call is not None and message.of_call == call.number
    if message.printed:
        if is_of_call:
            prints.tell(message.text)
        return
    facts = call.facts if call is not None and message.of_call in (0, call.number) else {}
    before = None if is_of_call else job_filter.current.set(None)
    try:
        message.tell(facts)
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
