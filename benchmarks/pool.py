"""What a call of a task in a process costs: warm and cold, small and large, one at a time and on all processes.

    python benchmarks/pool.py [--calls N] [--rounds N] [--json]

No server takes part: the pool alone is measured, between `ProcessPool.run` and its return. `echo` is the
floor: the same number of bytes there and back over a socket to a process that does nothing with them, in the
same minute. These figures drift with the machine: compare ratios within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from jobledger.ledger import Context, task
from jobledger.workers.pool.pool import Call, Listener, PoolConfig, ProcessPool, TaskValue

ECHO = """
import socket, sys
line = socket.socket(fileno=int(sys.argv[1]))
while received := line.recv(65536):
    line.sendall(received)
"""


@task(run_in="process")
def noop(text: str) -> str:
    """Give back what came."""
    return text


@task(run_in="process")
async def noop_async(text: str) -> str:
    """Give back what came, from a loop."""
    return text


@task(run_in="process")
def beat(context: Context, times: int) -> None:
    """Report progress that often; nearly all of it is held back."""
    for done in range(times):
        context.progress(done, times)


@task(run_in="process")
def keep(context: Context, times: int) -> None:
    """Keep that many checkpoints, which are stored nowhere."""
    for number in range(times):
        _ = context.checkpoint(number)


class Deaf:
    """Hears all and keeps nothing."""

    def heartbeat(self) -> None:
        """Hear a sign of life."""

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Hear of progress."""

    async def checkpoint_text(self, text: bytes) -> None:
        """Store nothing."""


def call(name: str, **arguments: Any) -> Call:
    """Return a call of a task."""
    text = msgspec.Raw(msgspec.json.encode(arguments))
    return Call(task=name, input=text, job_id="job", queue="bench", attempt=1, worker="bench-1-a")


async def timed_us(count: int, once: Callable[[], Awaitable[Any]]) -> float:
    """Return microseconds of each of `count` calls, one after the other."""
    began = time.perf_counter()
    for _ in range(count):
        await once()
    return (time.perf_counter() - began) / count * 1e6


async def echo_us(count: int) -> float:
    """Return microseconds of a round trip of 200 bytes to a process that only echoes."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ECHO, str(theirs.fileno()), pass_fds=(theirs.fileno(),)
        )
    reader, writer = await asyncio.open_unix_connection(sock=ours)

    async def once() -> None:
        writer.write(b"x" * 200)
        await reader.readexactly(200)

    await once()
    taken = await timed_us(count, once)
    writer.close()
    await process.wait()
    return taken


async def measure(count: int) -> dict[str, float]:
    """Return one round's figures."""
    figures = {"echo_us": await echo_us(count)}
    async with ProcessPool([__file__], PoolConfig(size=os.cpu_count() or 1)) as pool:

        def run(asked: Call, listener: Listener | None = None) -> Callable[[], Awaitable[Any]]:
            async def once() -> None:
                result = await pool.run(asked, listener)
                assert isinstance(result, TaskValue), result

            return once

        small, large = call("noop", text="x" * 60), call("noop", text="x" * (1 << 20))
        figures["cold_ms"] = await timed_us(1, run(small)) / 1000
        figures["warm_us"] = await timed_us(count, run(small))
        figures["warm_async_us"] = await timed_us(count // 4, run(call("noop_async", text="x" * 60)))
        figures["warm_1_mib_us"] = await timed_us(count // 50, run(large))
        figures["progress_us"] = await timed_us(1, run(call("beat", times=count), Deaf())) / count
        figures["checkpoint_us"] = await timed_us(1, run(call("keep", times=count), Deaf())) / count
        await asyncio.gather(*(run(small)() for _ in range(100)))
        began = time.perf_counter()
        await asyncio.gather(*(run(small)() for _ in range(count)))
        figures["all_processes_calls_per_s"] = count / (time.perf_counter() - began)
    return figures


def main() -> None:
    """Measure and print the median of each figure."""
    parser = argparse.ArgumentParser(description="cost of calls in the process pool")
    parser.add_argument("--calls", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop  # noqa: PLC0415 - not on every platform

        loop_factory = uvloop.new_event_loop
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            rounds.append(runner.run(measure(options.calls)))
    medians = {name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}
    if options.json:
        print(json.dumps(medians))
        return
    for name, figure in medians.items():
        print(f"{name:28} {figure:>12,.1f}")


if __name__ == "__main__":
    main()
