"""Preparations of commands: a loop, logs, a ledger, tasks, the projection's file, a stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import getpass
import importlib.util
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.abc
import msgspec

from jobledger.cli.errors import DONE, UsageError, first_of, report
from jobledger.cli.exit import exit_at_once
from jobledger.cli.options import split
from jobledger.ledger.config import CONTEXT
from jobledger.ledger.files import data_folder as folder_of
from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    LedgerError,
    ServerUnreachableError,
    UnreachableError,
    is_for_good,
)
from jobledger.ledger.nats.access import NAMES, NO_ACCESS, Access
from jobledger.ledger.variables import variable

# Modules that connect or read a projection are loaded only by commands that need them, so that others begin in half the
# time.
if TYPE_CHECKING:
    from jobledger.ledger.client import Ledger
    from jobledger.ledger.tasks import TaskRegistry

T = TypeVar("T")
_LAST_TASKS_END_S: Final = 1.0
_COLLECTS_AFTER_S: Final = 1.0  #: a command that ends earlier never collects garbage
CLIENT_NAME: Final = "jobledger-cli"  #: name of a connection without another name
#: Fields of a target that go to `connect` only if they are not None.
_WORDS: Final = ("ledger_bytes_max", "enqueue_in_flight_max", "append_timeout_s")
_RETRY_S: Final = 0.5  #: pause between two tries to connect to a server that is starting
logger = logging.getLogger("jobledger.connection")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger that a command connects to."""

    url: str
    environment: str = ""
    ledger_bytes_max: int | None = None
    enqueue_in_flight_max: int | None = None  #: the most appends in flight of one bulk enqueue
    append_timeout_s: float | None = None  #: how long an append or a read may take across reconnects
    create: bool = False  #: make missing streams; for commands that add or run jobs
    wait_for_server_s: float = (
        0.0  #: how long to retry while no server answers, or its JetStream is not ready
    )
    settings: dict[str, Any] = {}  #: more arguments of `connect`
    setting_variables: dict[str, str] = {}  #: the same settings as variables, for another command of ours
    access: Access = NO_ACCESS

    def variables(self) -> dict[str, str]:
        """Return the variables that give another command of ours the same server, access and settings."""
        nothing = {variable(name): "" for name in NAMES}  # clear variables that a context replaces
        return {
            "JOBLEDGER_URL": self.url,
            CONTEXT: "",
            **nothing,
            **self.access.variables(),
            **self.setting_variables,
        }

    def words(self) -> dict[str, Any]:
        """Return the arguments of `connect` beside the address."""
        found = {name: getattr(self, name) for name in _WORDS if getattr(self, name) is not None}
        named = {"environment": self.environment, "name": CLIENT_NAME, "create": self.create}
        return {**named, **found, **self.settings, **self.access.given()}


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine to its end, on uvloop where it is installed."""
    options = {"use_uvloop": importlib.util.find_spec("uvloop") is not None}

    async def to_the_end() -> T:
        asyncio.get_running_loop().call_later(_COLLECTS_AFTER_S, gc.enable)
        try:
            result = await function()
        except Exception as error:  # any error: tasks that do not end must not prevent its report
            if await _tasks_run_on():
                exit_at_once(report(first_of(error), as_json="--json" in sys.argv))
            raise
        if await _tasks_run_on():
            exit_at_once(DONE)
        return result

    return anyio.run(to_the_end, backend="asyncio", backend_options=options)


async def _tasks_run_on() -> bool:
    """Return whether a job's task ignores every cancellation, so that the end of the loop would wait for it for ever.

    All our resources are closed by then, and the job was given back or is taken over.
    """
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    return bool(left) and bool((await asyncio.wait(left, timeout=_LAST_TASKS_END_S))[1])


@contextlib.asynccontextmanager
async def opened(target: Target) -> AsyncGenerator[Ledger, None]:
    """Connect for the length of the block. Raises: as `connect`; LedgerNotFoundError if the target creates none."""
    async with contextlib.AsyncExitStack() as stack:
        yield await _connected(stack, target, target.words())


async def _connected(stack: contextlib.AsyncExitStack, target: Target, settings: dict[str, Any]) -> Ledger:
    """Connect until the end of `stack`; retry while a server starts, within the target's limit. Raises: as `opened`."""
    from jobledger.ledger.connection import connect  # noqa: PLC0415

    return await retried_at_start(target, lambda: stack.enter_async_context(connect(target.url, **settings)))


async def retried_at_start(target: Target, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `attempt`; while a server is away, try again for as long as the target says.

    Raises: as `attempt`: errors that no wait can help, and the last failure.
    """
    until = anyio.current_time() + target.wait_for_server_s
    is_told = False
    while True:
        try:
            return await attempt()
        except (UnreachableError, JetStreamDisabledError) as error:
            left_s = until - anyio.current_time()
            if is_for_good(error) or left_s <= 0:
                raise
            if not is_told:
                logger.warning("%s; retrying for %.0f s (--wait-for-server)", error, left_s)
                is_told = True
        await anyio.sleep(min(_RETRY_S, left_s))


def named_modules(app: list[str] | None) -> list[str]:
    """Return the modules of --app, after making sure that they are looked for in the current folder first.

    Raises: UsageError without any.
    """
    modules = split(app)
    if not modules:
        raise UsageError(
            "no tasks are loaded: name their module with --app or JOBLEDGER_APP, as in --app myapp.tasks"
        )
    import_path_begins_here()
    return modules


def import_path_begins_here() -> None:
    """Make sure that modules are looked for in the current folder first."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def load_tasks(app: list[str] | None) -> TaskRegistry:
    """Load the modules of --app.

    Raises: UsageError without any, or with the place where a module failed; ConfigurationError.
    """
    from jobledger.ledger.tasks import TaskRegistry  # noqa: PLC0415

    modules = named_modules(app)
    try:
        return TaskRegistry.load(modules)
    except LedgerError:
        raise
    except Exception as error:  # the user's module may raise anything while it is imported
        raise UsageError(_import_failure(", ".join(modules), error)) from error


def _import_failure(modules: str, error: Exception) -> str:
    # The error itself names the place of the mistake; no frame of the traceback does.
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"--app {modules} cannot be imported: {type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"--app {modules} cannot be imported: {type(error).__name__}: {error}{place}"


def operator() -> str:
    """Return the actor for events that a person causes: the name of the account, valid in a subject."""
    from jobledger.admin.rows import safe_name  # noqa: PLC0415

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = ""
    return safe_name(name) or "operator"


def data_folder() -> Path:
    """Return our folder for this user's data, at its usual place on this system. Raises: NoDataFolderError."""
    return folder_of(os.environ, sys.platform)


async def watch_signals(on_signal: Callable[[], None], *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Call `on_signal` for every SIGINT, SIGTERM and SIGHUP until cancelled; under nohup SIGHUP stays ignored.

    For `await group.start(watch_signals, on_signal)`: once that returns no signal is missed.
    """
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    with anyio.open_signal_receiver(*wanted) as signals:
        task_status.started()
        async for _ in signals:
            on_signal()


class StopAction:
    """The present action of a signal: at first it ends the block of `stoppable`; a command may set another."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def on_signal(self) -> None:
        """Do the present action."""
        self.act()


@contextlib.asynccontextmanager
async def stoppable() -> AsyncGenerator[StopAction, None]:
    """Handle signals from here on; until a command sets another action, a signal ends the block without an error."""
    async with anyio.create_task_group() as group:
        stopping = StopAction(group.cancel_scope.cancel)
        await group.start(watch_signals, stopping.on_signal)
        yield stopping
        group.cancel_scope.cancel()


async def until_closed(ledger: Ledger) -> None:
    """Wait until the connection is given up for good.

    Raises: ServerUnreachableError.
    """
    await ledger.connection.closed_for_good.wait()
    raise ServerUnreachableError(
        "the connection to the server was closed for good: check the server, then start again"
    )


async def until_eof(then: Callable[[], None]) -> None:
    """Call `then` when stdin ends: the parent that held its other end is gone."""
    # A stdin that cannot be waited for, such as /dev/null, counts as ended.
    with contextlib.suppress(OSError, ValueError):
        while True:
            await anyio.wait_readable(sys.stdin)
            if not os.read(sys.stdin.fileno(), 1024):
                break
    then()
