"""A process of the pool: `python -m jobledger.workers.pool.child SOCKET LIFELINE FAULTS`, started by the worker only.

The three arguments are file descriptors. The socket carries calls in and messages out. The lifeline is a pipe that ends
when the worker is gone. A crash writes its traceback into the third. Standard output and error are the worker's own.
User code runs in the main thread, one call at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import functools
import importlib
import io
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobledger.ledger.context import done
from jobledger.ledger.logs import job_filter, prints
from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    InvalidError,
    InvalidInputError,
    LedgerError,
    PayloadTooLargeError,
    RefusedError,
    UnknownTaskError,
)
from jobledger.ledger.model.events import ErrorInfo, ErrorKind
from jobledger.ledger.model.json_text import check_text, encode_value
from jobledger.ledger.options import Options
from jobledger.ledger.runs.steps import StepFunction
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.ledger.tracing import within
from jobledger.workers.pool.messages import (
    ENGINE,
    TO_CHILD,
    WISHES,
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
    to_exception,
)
from jobledger.workers.pool.own_ledger import OwnLedger
from jobledger.workers.process import log_what_nobody_catches, tune_collector
from jobledger.workers.processes.messages import (
    HEADER_BYTES,
    Fault,
    LogLine,
    Ready,
    Relay,
    read_body,
    to_frame,
)
from jobledger.workers.retry_policy import describe, error_info

if TYPE_CHECKING:
    from jobledger.ledger import client, sync

if sys.platform != "win32":
    import resource

_NOT_READY_CODE: Final = 2
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG: Final = 1
_PROGRESS_EVERY_S: Final = 0.05
_HEARTBEAT_EVERY_S: Final = 0.05
_OWN_MODULES: Final = frozenset(
    {"__main__", "jobledger.workers.pool.child", "asyncio.runners", "asyncio.base_events"}
)


class Link:
    """The socket to the worker. Any thread may send; only the main thread and a checkpoint's caller receive."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._incoming = self._socket.makefile("rb", buffering=64 * 1024)
        # Reentrant, because a signal handler or a finalizer may log in the middle of sending; its message waits until
        # the frame before it is sent.
        self._lock = threading.RLock()
        self._outgoing: list[bytes] = []
        self._sending = False
        self._owner = os.getpid()

    def send(self, message: FromChild) -> None:
        """Send a message whole; do nothing in a fork of this process, which the worker does not know."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._outgoing.append(to_frame(message))
            if self._sending:
                return
            self._sending = True
            try:
                while self._outgoing:
                    self._socket.sendall(self._outgoing.pop(0))
            finally:
                self._sending = False

    def receive(self) -> ToChild | None:
        """Return the next message, or None once the worker has closed its side."""
        header = self._incoming.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        return read_body(self._incoming.read(int.from_bytes(header, "big")), TO_CHILD)

    def abandon(self) -> None:
        """Close the socket in a fork, so that the worker sees when this process has ended."""
        os.close(self._socket.detach())


class _CallChannel:
    """The channel of one call's context; it sends nothing once the call has ended, even if code still holds it."""

    def __init__(self, link: Link, call: Call, payload_bytes_max: int, own_ledger: OwnLedger) -> None:
        self._link = link
        self._job_id = call.job_id
        self._parent = call.parent
        self._own_ledger = own_ledger
        self._opened_ledger: sync.Ledger | None = None
        self._payload_bytes_max = payload_bytes_max
        self._exchange = threading.Lock()  # a checkpoint and its answer; the call does not end between them
        self._closed = False
        self._heard_at = 0.0
        self._progress_at = 0.0
        self._progress: Progress | None = None  #: held back until `_PROGRESS_EVERY_S` after the last one
        self._timer: threading.Timer | None = None
        self._progress_lock = threading.Lock()

    def heartbeat(self) -> None:
        """See `Context.heartbeat`; a few dozen a second are passed on."""
        now = time.monotonic()
        if not self._closed and now - self._heard_at >= _HEARTBEAT_EVERY_S:
            self._heard_at = now
            self._link.send(Heartbeat())

    def progress(self, done: float, total: float | None, note: str) -> None:
        """See `Context.progress`; of many at once the newest is passed on, a moment later."""
        progress = Progress.of(done, total, note)
        with self._progress_lock:
            if self._closed:
                return
            self._progress = progress
            wait_s = self._progress_at + _PROGRESS_EVERY_S - time.monotonic()
            if wait_s <= 0:
                self._tell_progress()
            elif self._timer is None:
                self._timer = threading.Timer(wait_s, self._on_timer)
                self._timer.daemon = True
                self._timer.start()

    def _on_timer(self) -> None:
        with self._progress_lock:
            self._timer = None
            if not self._closed:
                self._tell_progress()

    def _tell_progress(self) -> None:
        if self._progress is not None:
            self._progress_at = time.monotonic()
            self._link.send(self._progress)
            self._progress = None

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """See `Context.checkpoint`: on a loop it is awaited, elsewhere it returns once the value is stored."""
        text = encode_value(value, what="checkpoint")
        check_text(text, what="checkpoint")
        if len(text) > self._payload_bytes_max:
            raise PayloadTooLargeError("checkpoint", len(text), self._payload_bytes_max)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._store(text)
            return done()
        return asyncio.to_thread(self._store, text)

    def _store(self, text: bytes) -> None:
        with self._exchange:
            if self._closed:
                raise AttemptStoppedError("the attempt has ended: its result has been given")
            self._link.send(CheckpointAsked(msgspec.Raw(text)))
            answer = self._link.receive()
        if not isinstance(answer, Answer):
            raise AttemptStoppedError("the worker is gone")
        if answer.error:
            raise to_exception(answer, self._job_id)

    def ledger(self) -> client.Ledger:
        """See `Context.ledger`, which lives in the worker's loop."""
        raise InvalidInputError(
            "context.ledger is not in the processes of a worker: use context.sync_ledger here, whose verbs block"
        )

    def sync_ledger(self) -> sync.Ledger:
        """See `Context.sync_ledger`."""
        if self._closed:
            raise AttemptStoppedError("the attempt has ended: its result has been given")
        if self._parent is None:
            raise RefusedError("this call is not a job's: it has no ledger")
        if self._opened_ledger is None:
            self._opened_ledger = self._own_ledger.on_behalf_of(self._parent)
        return self._opened_ledger

    def close(self) -> None:
        """Pass on the last progress, wait for a checkpoint under way, and send nothing more."""
        with self._progress_lock:
            if self._timer is not None:
                self._timer.cancel()
            self._tell_progress()
            with self._exchange:
                self._closed = True


def _call_number() -> int:
    """Return the number of the call whose code runs here, maybe in a thread or task that outlived it; 0: unknown."""
    call = job_filter.current.get()
    return call.number if isinstance(call, Call) else 0


class Runner:
    """Runs calls, one after the other."""

    def __init__(
        self, link: Link, tasks: TaskRegistry, payload_bytes_max: int, own_ledger: OwnLedger
    ) -> None:
        self._link = link
        self._own_ledger = own_ledger
        self._tasks = tasks
        self._payload_bytes_max = payload_bytes_max

    def run(self, call: Call) -> None:
        """Run one call and send its result."""
        owner = os.getpid()
        channel = _CallChannel(self._link, call, self._payload_bytes_max, self._own_ledger)
        before = job_filter.current.set(call)
        try:
            result = self._result(call, channel)
        except MemoryError as error:  # our own work on the value raised it; a short message still has room
            result = Failure(number=call.number, error=error_info("exception", error), may_retry=True)
        job_filter.current.reset(before)
        if os.getpid() != owner:
            os._exit(0)  # the task forked, and this is the fork
        channel.close()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the task closed or replaced the stream
                stream.flush()
        self._link.send(result)

    def _result(self, call: Call, channel: _CallChannel) -> ReturnedValue | ReturnedWish | Failure:
        task: Task[Any, Any] | None = None
        try:
            task = _task_of_step(call.step) if call.step else self._tasks.get(call.task)
            arguments = task.signature.decode(call.input)
        except (LedgerError, InvalidInputError) as error:
            kind: ErrorKind = "unknown_task" if task is None else "invalid_input"
            return Failure(number=call.number, error=error_info(kind, error), may_retry=False)
        if task.signature.context_parameter is not None:
            arguments[task.signature.context_parameter] = call.context(channel)
        try:
            with within(call.trace) if call.trace else contextlib.nullcontext():
                value = task.function(**arguments)
                if task.is_async:
                    value = asyncio.run(value)
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is this attempt's failure
            may_retry = task.rules.may_retry(error)
            return Failure(number=call.number, error=_describe(error), may_retry=may_retry)
        return self._outcome(task, call.number, value)

    def _outcome(
        self, task: Task[Any, Any], number: int, value: Any
    ) -> ReturnedValue | ReturnedWish | Failure:
        what = f"result of task {task.name}"
        try:
            for kind, wish in WISHES.items():
                if isinstance(value, wish):
                    fields = encode_value(value, what=what)
                    msgspec.json.decode(fields, type=wish)  # checks its fields
                    return ReturnedWish(number=number, kind=kind, fields=msgspec.Raw(fields))
            text = check_text(encode_value(value, what=what), what=what)
            if len(text) > self._payload_bytes_max:
                raise PayloadTooLargeError(what, len(text), self._payload_bytes_max)
        except (InvalidError, msgspec.MsgspecError) as error:
            return Failure(number=number, error=error_info("invalid_result", error), may_retry=False)
        return ReturnedValue(number=number, value=msgspec.Raw(text))


def _task_of_step(place: str) -> Task[Any, Any]:
    """Return the step of a run as a task, which is what is called here.

    Raises: UnknownTaskError, TaskDefinitionError.
    """
    module, _, name = place.partition(":")
    if module == ENGINE:  # our own module, loaded only when a run calls it
        importlib.import_module(module)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, StepFunction):
        raise UnknownTaskError(place, [])
    return Task(found.function, found.name, Options(), found.rules.rules)


def _describe(error: BaseException) -> ErrorInfo:
    try:
        return describe(error, _OWN_MODULES)
    except Exception:  # noqa: BLE001 - the exception is user code, and so is what describes it
        return error_info("exception", error)


def _watch(lifeline: int, silence_s: float | None, end: Callable[[str], None]) -> None:
    """End this process once the worker is gone, or silent for too long; runs in a thread of its own."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN | select.POLLHUP)
    while True:
        if not poll.poll(None if silence_s is None else int(silence_s * 1000)):
            end(f"the worker gave no sign of life for {silence_s:g} s: it may run this job elsewhere by now")
        elif not os.read(lifeline, 4096):
            end("the worker is gone")


def _end_with(faults: int) -> Callable[[str], None]:
    def end(sentence: str) -> None:
        os.write(faults, sentence.encode())
        os.killpg(os.getpgrp(), signal.SIGKILL)  # kills the processes that the task started, too

    return end


def _tie_to_worker(setup: Setup, lifeline: int, faults: int) -> None:
    """Make sure that this process does not outlive the worker, even if either is blocked."""
    if sys.platform == "linux":  # the kernel ends it even if the task never lets our thread run
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != setup.parent:
        os._exit(_NOT_READY_CODE)  # the worker died before we asked the kernel
    arguments = (lifeline, setup.silence_s, _end_with(faults))
    threading.Thread(target=_watch, args=arguments, name="jobledger-lifeline", daemon=True).start()


def _ignore_stop_signals() -> None:
    """Ignore stop signals, so that only the worker ends this process: they must not shorten the grace of its tasks.

    It sets handlers, because programs that a task starts would inherit SIG_IGN.
    """

    def nothing(_signal: int, _frame: FrameType | None) -> None:
        pass

    before = threading.local()  # the signals that the forking thread had blocked before

    def hold_back() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def be_usual() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        let_through()

    for each in _STOP_SIGNALS:
        signal.signal(each, nothing)
    # These signals end a fork as they end any process, even before it has its own handlers.
    os.register_at_fork(before=hold_back, after_in_child=be_usual, after_in_parent=let_through)


def _limit_memory(setup: Setup) -> None:
    if setup.memory_bytes_max is not None and sys.platform != "win32":
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory_bytes_max, hard))


def _set_up_logs(link: Link, setup: Setup) -> None:
    log_what_nobody_catches()
    root = logging.getLogger()
    root.handlers[:] = [Relay(link.send, _call_number)]
    root.setLevel(setup.log_level)
    for name, level in {**setup.log_levels, "jobledger.task": setup.task_log_level}.items():
        logging.getLogger(name).setLevel(level)
    if setup.log_prints:
        prints.listen(functools.partial(_tell_print, link))


def _tell_print(link: Link, text: str) -> None:
    """Send a line that a task printed; it is lost if the worker is gone."""
    with contextlib.suppress(OSError):
        link.send(LogLine.of(prints.LOGGER, logging.INFO, text, of_call=_call_number(), printed=True))


def _load(link: Link, setup: Setup) -> TaskRegistry:
    """Load the tasks; if they cannot be loaded, tell the worker why and exit."""
    sys.path[:] = setup.import_path
    try:
        return TaskRegistry.load(setup.modules)
    except BaseException as error:  # noqa: BLE001 - whatever the user's module does while it is imported
        link.send(Fault(sentence=_load_failure(setup, error)))
    sys.exit(_NOT_READY_CODE)


def _load_failure(setup: Setup, error: BaseException) -> str:
    words = error_info("exception", error).message
    if isinstance(error, LedgerError):
        return words
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "importlib" not in each.filename]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{', '.join(setup.modules)} cannot be imported: {type(error).__name__}: {words}{where}"


def main(arguments: list[str]) -> None:
    """Serve one worker until it closes the socket."""
    descriptor, lifeline, faults = map(int, arguments)
    for each in (descriptor, lifeline, faults):
        os.set_inheritable(each, False)  # noqa: FBT003 - the programs that a task starts get none of them
    link = Link(descriptor)
    setup = link.receive()
    if not isinstance(setup, Setup):
        return
    _tie_to_worker(setup, lifeline, faults)
    _ignore_stop_signals()
    os.register_at_fork(after_in_child=link.abandon)
    faulthandler.enable(file=faults, all_threads=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that lines printed before a crash are seen
    _limit_memory(setup)
    _set_up_logs(link, setup)
    tasks = _load(link, setup)
    tune_collector()
    link.send(Ready())
    runner = Runner(link, tasks, setup.payload_bytes_max, OwnLedger(setup.connection))
    while isinstance(call := link.receive(), Call):
        runner.run(call)


if __name__ == "__main__":
    main(sys.argv[1:])
