"""What every started process has in common: its line, its watch, and its end, whoever started it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.limits import LIMIT_S
from tests.support.processes import exists, until

from jobledger.workers.processes.child import Child
from jobledger.workers.processes.line import Line
from jobledger.workers.processes.messages import BrokenFrameError, LogLine, Ready, Stop, to_frame
from jobledger.workers.processes.parent import FROM_SUPERVISED, Parent, SaidBySupervised, supervised

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

SPOKEN = msgspec.json.Decoder(Ready | LogLine | Stop)
#: A process that speaks as each of ours does.
HEAD = """
import asyncio, logging, os, sys
from jobledger.workers.processes.parent import Parent

async def main():
    parent = Parent(sys.argv[-1])
    async with parent.connected():
        parent.announce("one")
        parent.ready({"where": "here"})
        await asyncio.wait_for(serve(parent), 60)

"""
PATIENT = (
    HEAD
    + """
async def serve(parent):
    asked = []
    await parent.watch(lambda: asked.append("stop"), lambda: asked.append("now"), lambda: asked.append("gone"))
    open(os.environ["ASKED"], "w").write(" ".join(asked))

asyncio.run(main())
"""
)
#: It beats until a message comes, and then blocks its event loop.
BLOCKING = (
    HEAD
    + """
async def serve(parent):
    import time
    await parent.watch(lambda: time.sleep(600), lambda: None)

asyncio.run(main())
"""
)
DEAF = "import time; time.sleep(600)"

Started = Child[SaidBySupervised]
Begin = Callable[..., AbstractAsyncContextManager[Started]]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """Start a program; nothing of it is left after the block."""

    @asynccontextmanager
    async def started(body: str, **options: Any) -> AsyncGenerator[Started]:
        child = await Child[SaidBySupervised].start(
            lambda line: [sys.executable, "-c", body, *supervised("me", line)],
            FROM_SUPERVISED,
            what="test process",
            environment={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "ASKED": str(tmp_path / "asked"),
            },
            **options,
        )
        try:
            yield child
        finally:
            child.kill()
            await child.until_ended(LIMIT_S)
            child.reap()
        assert not exists(child.pid)

    return started


async def heard(child: Started, said: list[Any]) -> None:
    async for message in child.messages():
        said.append(message)  # noqa: PERF401 - what came before an end is there


async def test_what_a_process_says_and_hears(begin: Begin, tmp_path: Path) -> None:
    async with begin(PATIENT) as child:
        ready = await child.until_ready(LIMIT_S)
        assert ready == Ready(facts={"where": "here"})
        child.ask(Stop(), LIMIT_S)
        child.ask(Stop(at_once=True), LIMIT_S)
        assert await child.leave(LIMIT_S) == 0
        assert child.reap() == 0
    assert (tmp_path / "asked").read_text() == "stop now gone"


async def test_an_end_is_seen_where_the_system_has_no_descriptors_of_processes(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    async with begin(DEAF) as child:
        assert not await child.until_ended(0.2)
        os.kill(child.pid, signal.SIGTERM)
        assert await child.until_ended(LIMIT_S)
        assert child.reap() == -signal.SIGTERM


async def test_a_process_that_does_not_stop_is_killed_at_the_shorter_of_two_limits(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    async with begin(DEAF) as child:
        child.ask(Stop(), 600)
        child.ask(Stop(at_once=True), 0.1)
        child.ask(Stop(), 600)
        assert await child.until_ended(LIMIT_S)
        assert child.reap() == -signal.SIGKILL
    assert caplog.messages == [f"test process {child.pid} did not stop in time: it is killed"]


async def test_a_process_whose_loop_is_blocked_is_killed_and_one_that_beats_is_not(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[Any] = []
    async with begin(BLOCKING, silence_s=2.5) as child:
        hearing = asyncio.create_task(heard(child, said))
        await until(lambda: child.is_ready)
        assert not await child.until_ended(4.0)
        child.send(Stop())
        assert await child.until_ended(LIMIT_S)
        await hearing
    assert f"test process {child.pid} has not been heard of for 2 s" in caplog.text


async def test_a_parent_that_stood_still_itself_kills_nobody(begin: Begin) -> None:
    import time  # noqa: PLC0415 - it blocks the loop, which nothing else here may

    said: list[Any] = []
    async with begin(PATIENT, silence_s=2.0) as child:
        hearing = asyncio.create_task(heard(child, said))
        await until(lambda: child.is_ready)
        time.sleep(3.0)  # noqa: ASYNC251 - as a parent that was stopped, or a machine that was suspended
        assert not await child.until_ended(1.0)
        await child.leave(LIMIT_S)
        await hearing


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"\xff\xff\xff\xff", "it announced a frame of 4,294,967,295 bytes"),
        (b"\x00\x00\x00\x02{}", "it sent a frame that is no message"),
    ],
)
async def test_a_process_that_breaks_the_protocol_is_killed(begin: Begin, words: bytes, why: str) -> None:
    body = "import os, sys, time\n" + f"os.write(int(sys.argv[-1].rpartition(':')[2]), {words!r})\n" + DEAF
    async with begin(body) as child:
        assert await child.until_ready(LIMIT_S) is None
        assert why in child.fault
        assert await child.until_ended(LIMIT_S)
        assert child.reap() == -signal.SIGKILL


async def test_what_a_killed_process_said_is_heard_and_a_program_that_it_left_holds_nobody_up(
    begin: Begin,
) -> None:
    body = HEAD + (
        "async def serve(parent):\n    import subprocess\n"
        "    os.set_inheritable(parent._socket.fileno(), True)\n"
        "    subprocess.Popen(['sleep', '600'], close_fds=False)\n    os.kill(os.getpid(), 9)\nasyncio.run(main())\n"
    )
    said: list[Any] = []
    async with begin(body) as child:
        await asyncio.wait_for(heard(child, said), LIMIT_S)
        assert [type(each).__name__ for each in said] == ["Identity", "Ready"]
        assert child.has_ended


async def test_a_message_whose_wait_was_cancelled_comes_again() -> None:
    ours, theirs = socket.socketpair()
    line = await Line[Ready | LogLine | Stop].over(ours, SPOKEN)
    frame = to_frame(Ready(facts={"a": "b"}))
    with theirs:
        for end in (2, 6):  # within the header, and within the body
            theirs.sendall(frame[:end])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(line.receive(), 0.05)
            theirs.sendall(frame[end:])
            assert await asyncio.wait_for(line.receive(), LIMIT_S) == Ready(facts={"a": "b"})
        theirs.sendall(b"\x00\x00\x00\x01x")
        with pytest.raises(BrokenFrameError):
            await line.receive()
    line.abort()


async def test_log_lines_do_not_pile_up_for_who_does_not_read(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    line = await Line[Ready | LogLine | Stop].over(ours, SPOKEN)
    with theirs:
        record = LogLine.of("x" * 1000, 30, "\ud800" + "y" * 100_000)
        assert (len(record.logger), len(record.text)) == (200, 8_000)
        for _ in range(1_000):
            line.offer(record)
        assert line._writer.transport.get_write_buffer_size() < (1 << 20) + 10_000
        await asyncio.to_thread(line.offer, record)
    line.abort()
    line.send(record)  # nobody is there
    record.tell()
    assert caplog.records[-1].name == record.logger


async def test_a_parent_that_speaks_something_else_counts_as_gone() -> None:
    ours, theirs = socket.socketpair()
    asked: list[str] = []
    with ours:
        parent = Parent(f"me:{theirs.detach()}")
        async with parent.connected():
            ours.sendall(b"stop\n")  # the word of an older supervisor
            await asyncio.wait_for(
                parent.watch(lambda: asked.append("stop"), lambda: asked.append("now")), LIMIT_S
            )
    assert asked == ["stop"]
