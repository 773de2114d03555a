"""A child process of the gateway or of `up`: `python -m jobledger.gateway.process.child PROGRAM DESCRIPTOR`.

The descriptor is the line to the parent process. The first message names the ledger and the file, so that no password
is on a command line. A child leaves signals to its parent, and ends when the line ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import anyio
from anyio.abc import ObjectReceiveStream

from jobledger.gateway.process.low_priority import step_back
from jobledger.gateway.process.messages import TO_CHILD, Setup, ToChild, ToGateway
from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.projections.errors import ProjectionError
from jobledger.workers.processes.line import Line
from jobledger.workers.processes.messages import Fault

#: A function that works until cancelled; it gets the gateway's messages in order.
Program = Callable[[Ledger, Setup, ToGateway, ObjectReceiveStream[ToChild]], Awaitable[None]]

#: Nice values by program: if processors are scarce, requests and appends come first, then lists, then the past.
_NICE: Final[Mapping[str, int]] = {"projector": 5, "keeper": 10, "past": 10}
_FAILED_CODE: Final = 1
_REQUESTS_MAX: Final = 64
_logger = logging.getLogger("jobledger.gateway.process")


def _program(name: str) -> Program:
    """Import a program, and no modules that only others need."""
    match name:
        case "projector":
            from jobledger.gateway.process.projector import project  # noqa: PLC0415

            return project
        case "keeper":
            from jobledger.gateway.process.keeper import move_events  # noqa: PLC0415

            return move_events
        case "past":
            from jobledger.gateway.process.past_rows import lend  # noqa: PLC0415

            return lend
        case _:
            assert name == "worker", name
            from jobledger.gateway.process.worker import work  # noqa: PLC0415

            return work


async def run(program: Program, end: socket.socket) -> int:
    """Work until the line ends, and return the exit code."""
    line = await Line[ToChild].over(end, TO_CHILD)
    codes: list[int] = []
    async with contextlib.aclosing(line.messages()) as messages:
        setup = await anext(messages, None)
        if setup is None:
            return 0  # the gateway ended at once
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


async def _work(
    program: Program, setup: Setup, line: ToGateway, requests: ObjectReceiveStream[ToChild]
) -> int:
    try:
        async with connect(**setup.connection) as ledger:
            await program(ledger, setup, line, requests)
    except Exception as error:  # whatever it is, the gateway logs it and starts another child
        if not isinstance(error, LedgerError | ProjectionError | ConnectionLostError | OSError):
            _logger.exception("a child process of the gateway failed")
        line.send(Fault(sentence=str(error) or "the connection to the server was lost"))
    return _FAILED_CODE


def _set_up_logs(line: ToGateway, setup: Setup) -> None:
    root = logging.getLogger()
    root.handlers[:] = [line.relay()]
    logging.getLogger("jobledger").setLevel(setup.log_level)


def main() -> None:
    """Run the program that the command line names."""
    _, name, descriptor = sys.argv
    if name in _NICE:
        step_back(_NICE[name])
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # a process manager sends them to all; this child starts none
    end = socket.socket(fileno=int(descriptor))
    gc.disable()
    program = _program(name)
    gc.freeze()  # what was imported is never garbage
    gc.enable()
    options = {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
    sys.exit(anyio.run(run, program, end, backend="asyncio", backend_options=options))


if __name__ == "__main__":
    main()
