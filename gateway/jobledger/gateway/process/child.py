"""A child process of the gateway: `python -m jobledger.gateway.process.child PROGRAM DESCRIPTOR`, started by it alone.

The descriptor is the line to the gateway. Its first message says which ledger and which file, so that no password stands
on a command line. A child leaves signals to the gateway, and ends when the line does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import logging
import os
import platform
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import ObjectReceiveStream

from jobledger.gateway.acts.asked import QUEUE
from jobledger.gateway.acts.bulk_act import bulk_act
from jobledger.gateway.acts.verification import verify_task
from jobledger.gateway.hooks.addresses import Targets, networks
from jobledger.gateway.hooks.deliver import DeliverySender, deliver_task
from jobledger.gateway.hooks.poster import Poster
from jobledger.gateway.process.line import TO_CHILD, Failed, Line, Ready, Relay, Setup, ToChild
from jobledger.ledger import Ledger, Task, TaskRegistry, connect
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.webhooks.secrets import Secrets
from jobledger.projections import Projector, Snapshots
from jobledger.projections.errors import ProjectionError
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.reactors.hooks.reactor import WebhookReactor
from jobledger.workers.reactors.reactor import host

# The child *worker*: runs the gateway's own tasks, and makes a job of each event that matches a webhook.
# It holds a lease as every worker does, and hosts the reactors and timers of its environment.

_CONCURRENCY: Final = 64


def own_tasks(setup: Setup) -> list[Task[..., Any]]:
    """Return the tasks that a gateway runs itself. Raises: ConfigurationError for a network that is none."""
    secrets = Secrets(os.environ, Path(setup.key_file) if setup.key_file else None)
    poster = Poster(Targets(networks(setup.allow_targets)))
    return [deliver_task(DeliverySender(poster, secrets)), bulk_act, verify_task(Path(setup.projection))]


async def work(ledger: Ledger, setup: Setup, line: Line, _requests: ObjectReceiveStream[ToChild]) -> None:
    """Work until cancelled; say so once jobs are taken. Raises: LedgerError, ConnectionLostError."""
    config = WorkerConfig(queues=(DELIVERIES_QUEUE, QUEUE), concurrency=_CONCURRENCY, schedules=False)
    worker = Worker(ledger, TaskRegistry(own_tasks(setup)), config)

    async def tell() -> None:
        await worker.taking.wait()
        line.send(Ready())

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(tell)
            group.start_soon(host, ledger, WebhookReactor(ledger))
            await worker.run()
            group.cancel_scope.cancel()
    except ExceptionGroup as errors:
        # Several may fail at once for one reason, such as a silent server: say it once.
        raise errors.exceptions[0] from errors


# How a child process steps back where processors are scarce: a process that answers requests runs at once, in its place.
# Three settings decide that on Linux, each only where the kernel has it. Other systems have `nice` alone.
#
# - `nice`: the share of a processor beside others of its group.
# - The nice value of its group. A process with a session of its own is weighed as a group, beside which its own nice value
# counts for nothing (sched(7), "The autogroup feature").
# - The length of its turns. From Linux 6.12 on a process with shorter turns, when it wakes, ends a longer one at once. On
# others it may wait for the next tick of the clock, 4 ms with the usual kernels (sched_setattr(2), sched_runtime).

_AUTOGROUP: Final = Path("/proc/self/autogroup")
#: Numbers of the system call sched_setattr: C libraries have a function for it only since 2025.
_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
#: `struct sched_attr` in its first version: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_TURN_NS: Final = 100_000_000  #: the longest that the kernel accepts


def step_back(nice: int) -> None:
    """Let others run first. `nice`: how much is added to the nice value. For a process that has no other threads yet."""
    now = os.nice(nice)
    if os.getsid(0) == os.getpid():  # in another session it would slow down the whole terminal
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(now), encoding="ascii")
    number = _SET_ATTRIBUTES.get(platform.machine())
    if platform.system() == "Linux" and number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, now, 0, _TURN_NS, 0, 0)
        # A kernel that refuses it leaves the turns as they are.
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


# The child *projector*: follows the ledger into the projection's file, so that no request waits for a fold


async def project(ledger: Ledger, setup: Setup, line: Line, _requests: ObjectReceiveStream[ToChild]) -> None:
    """Follow until cancelled; say so once the file is there.

    Raises: ProjectionError, and what `Log.read` raises.
    """
    path = Path(setup.projection)
    with Projector(ledger.log, path, snapshots=Snapshots(path)) as projector:
        await projector.prepare(mend=True)
        line.send(Ready())
        await projector.run()


#: Does its work until cancelled; given what the gateway asks, in order.
Program = Callable[[Ledger, Setup, Line, ObjectReceiveStream[ToChild]], Awaitable[None]]

#: The nice value of each: where processors are scarce, requests and appends come first, then lists, then the past.
_NICE: Final[Mapping[str, int]] = {"projector": 5, "past": 10}
_FAILED_CODE: Final = 1
_REQUESTS_MAX: Final = 64
_logger = logging.getLogger("jobledger.gateway.process")


def _program(name: str) -> Program:
    """Import a program, and none of what the others need."""
    match name:
        case "projector":
            from jobledger.gateway.process.child import project  # noqa: PLC0415

            return project
        case "past":
            from jobledger.gateway.process.past_rows import lend  # noqa: PLC0415

            return lend
        case _:
            assert name == "worker", name
            from jobledger.gateway.process.child import work  # noqa: PLC0415

            return work


async def run(program: Program, end: socket.socket) -> int:
    """Work until the line ends, and return the exit code."""
    line = await Line.over(end)
    codes: list[int] = []
    async with contextlib.aclosing(line.messages(TO_CHILD)) as messages:
        setup = await anext(messages, None)
        if setup is None:
            return 0  # the gateway went away at once
        assert isinstance(setup, Setup), "the first message is the setup"
        _set_up_logs(line, setup)
        send, receive = anyio.create_memory_object_stream[ToChild](_REQUESTS_MAX)
        async with send, anyio.create_task_group() as group:

            async def work() -> None:
                codes.append(await _work(program, setup, line, receive))
                group.cancel_scope.cancel()

            group.start_soon(work)
            async for message in messages:
                await send.send(message)
            group.cancel_scope.cancel()
    await line.close()
    return codes[0] if codes else 0


async def _work(program: Program, setup: Setup, line: Line, requests: ObjectReceiveStream[ToChild]) -> int:
    try:
        async with connect(**setup.connection) as ledger:
            await program(ledger, setup, line, requests)
    except Exception as error:  # whatever it is, the gateway says so and begins again
        if not isinstance(error, LedgerError | ProjectionError | ConnectionLostError | OSError):
            _logger.exception("a child process of the gateway failed")
        line.send(Failed(sentence=str(error) or "the connection to the server was lost"))
    return _FAILED_CODE


def _set_up_logs(line: Line, setup: Setup) -> None:
    root = logging.getLogger()
    root.handlers[:] = [Relay(line)]
    logging.getLogger("jobledger").setLevel(setup.log_level)


def main() -> None:
    """Run the program that the command line names."""
    _, name, descriptor = sys.argv
    if name in _NICE:
        step_back(_NICE[name])
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # a process manager sends them to all; it starts no programs
    end = socket.socket(fileno=int(descriptor))
    program = _program(name)
    gc.freeze()  # what was imported is never garbage
    options = {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
    sys.exit(anyio.run(run, program, end, backend="asyncio", backend_options=options))


if __name__ == "__main__":
    main()
