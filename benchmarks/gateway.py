"""What the gateway costs against what it may: `make bench-gateway`.

    python benchmarks/gateway.py [--big] [--only PART ...] [--pairs N] [--rounds N] [--quick] [--json]

Requests are paired with those of `by_hand.py`, a handwritten ASGI program on the same ledger, in one run; their CPU is that
of the process that answers. `--big` adds the lists and sliders of a million jobs (about ten minutes).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import table
from http_load import Connection, Load, load
from shared import LEDGER_BYTES, cpu_s
from targets import Row

from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.adding.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.server import EmbeddedServer

Figures = dict[str, list[float]]

CONNECTIONS: Final = 16
_US: Final = 1e6
_TICK_US: Final = 1.0  #: what a process is charged at the least: a quick look may be shorter than one tick
_MS: Final = 1e3
_JSON: Final = ("content-type: application/json",)

ROWS: Final[Mapping[str, Mapping[str, Row]]] = {
    "requests": {
        "post": Row("POST /v1/jobs: CPU, of a handwritten program's", "x", most=2, digits=2),
        "post us": Row("  CPU a request", "us", digits=0),
        "get": Row("GET of a job: CPU, of a handwritten program's", "x", most=2, digits=2),
        "get us": Row("  CPU a request", "us", digits=0),
    },
    "bulk": {"bulk": Row("{bulk:,} jobs as lines: jobs a second", "jobs/s", least=30_000, digits=0)},
    "stream": {
        "p50": Row("POST to its event in a stream: p50", "ms", most=5, digits=2),
        "p99": Row("  p99", "ms", digits=2),
    },
    "stop": {"stop": Row("stop with {streams} open streams", "s", most=1, digits=2)},
}


class Sizes(NamedTuple):
    """How much of each is measured."""

    pairs: int = 9
    rounds: int = 3
    requests: int = 3_000
    bulk: int = 100_000
    events: int = 500
    streams: int = 100


QUICK: Final = Sizes(pairs=1, rounds=1, requests=20, bulk=200, events=5, streams=3)


@task(name="noop", queue="bench")
async def noop(number: int) -> None:
    """Be enqueued."""


class Served(NamedTuple):
    """A process that answers."""

    url: str
    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid


@contextlib.asynccontextmanager
async def fresh() -> AsyncGenerator[tuple[EmbeddedServer, Ledger, Path], None]:
    """Give a server, a client and a folder."""
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder:
        async with (
            EmbeddedServer(Path(folder) / "nats", port=0, durability="process") as server,
            connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger,
        ):
            entry = entry_of(noop, worker="bench", at=ledger.clock.now())
            await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
            yield server, ledger, Path(folder)


@contextlib.asynccontextmanager
async def gateway(server: EmbeddedServer, folder: Path) -> AsyncGenerator[Served, None]:
    """Run a gateway, as its users do."""
    words = ("gateway", "--url", server.url, "--port", "0", "--json", "--projection", str(folder / "rows.db"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "jobledger.cli", *words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None, "a pipe"
        async with asyncio.timeout(60):
            ready = json.loads(await process.stdout.readline())
        yield Served(ready["gateway"], process)
    finally:
        await _ended(process)


@contextlib.asynccontextmanager
async def by_hand(server: EmbeddedServer) -> AsyncGenerator[Served, None]:
    """Run the handwritten program."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = Path(__file__).with_name("by_hand.py")
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), server.url, str(port))
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    async with Connection(f"http://127.0.0.1:{port}"):
                        break
                await asyncio.sleep(0.02)
        yield Served(f"http://127.0.0.1:{port}", process)
    finally:
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()


def post(number: int) -> tuple[str, str, bytes]:
    """Return a request that enqueues a job."""
    body = {"task": "noop", "queue": "bench", "input": {"number": number}}
    return "POST", "/v1/jobs", json.dumps(body).encode()


async def _cost(
    served: Served, count: int, request: tuple[str, str, bytes] | None, status: int
) -> tuple[float, Load]:
    """Return the CPU of a request in us."""
    began = cpu_s(served.pid)
    found = await load(served.url, CONNECTIONS, count, post if request is None else lambda _: request, status)
    return (cpu_s(served.pid) - began) * _US / count, found


async def requests(pairs: int, count: int) -> Figures:
    """Return what a POST and a GET cost, of what they cost by hand."""
    found: Figures = {"post": [], "post us": [], "get": [], "get us": []}
    async with (
        fresh() as (server, ledger, folder),
        gateway(server, folder) as ours,
        by_hand(server) as theirs,
    ):
        job = await ledger.enqueue(noop, number=1)
        get = ("GET", f"/v1/jobs/bench/{job.id}", b"")
        for turn in range(-1, pairs):
            for name, request, status in (("post", None, 202), ("get", get, 200)):
                order = (ours, theirs) if turn % 2 else (theirs, ours)
                cost = {each: (await _cost(each, count, request, status))[0] for each in order}
                if turn >= 0:  # the first turn warms both up
                    found[name].append(cost[ours] / max(cost[theirs], _TICK_US))
                    found[f"{name} us"].append(cost[ours])
    return found


async def bulk(rounds: int, count: int) -> Figures:
    """Return how many jobs a second are enqueued as lines of one request."""
    lines = b"".join(
        b'{"task":"noop","queue":"bench","input":{"number":%d}}\n' % number for number in range(count)
    )
    found: list[float] = []
    async with fresh() as (server, _, folder), gateway(server, folder) as ours:
        for _ in range(rounds):
            async with Connection(ours.url) as connection:
                began = time.perf_counter()
                answer = await connection.ask(
                    "POST", "/v1/jobs/bulk", lines, ("content-type: application/x-ndjson",)
                )
                found.append(count / (time.perf_counter() - began))
                assert answer.status == 202, answer
    return {"bulk": found}


async def stream(count: int) -> Figures:
    """Return how long after a POST was sent its event is in a stream, in ms."""
    late: list[float] = []
    async with (
        fresh() as (server, _, folder),
        gateway(server, folder) as ours,
        Connection(ours.url) as reader,
        Connection(ours.url) as writer,
    ):
        reader.send("GET", "/v1/events", headers=("accept: text/event-stream",))
        await reader.head()
        for number in range(count):
            began = time.perf_counter()
            writer.send(*post(number), _JSON)
            async with asyncio.timeout(20):
                while not (await reader.line()).startswith(b"data:"):
                    pass
            late.append((time.perf_counter() - began) * _MS)
            await writer.answer()
            await asyncio.sleep(0.002)
    late.sort()
    return {"p50": [late[len(late) // 2]], "p99": [late[len(late) * 99 // 100]]}


async def stop(rounds: int, streams: int) -> Figures:
    """Return how long a gateway takes to stop while streams are open."""
    found: list[float] = []
    for _ in range(rounds):
        async with fresh() as (server, _, folder), contextlib.AsyncExitStack() as stack:
            ours = await stack.enter_async_context(gateway(server, folder))
            for _ in range(streams):
                reader = await stack.enter_async_context(Connection(ours.url))
                reader.send("GET", "/v1/events")
                await reader.head()
            began = time.perf_counter()
            ours.process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(ours.process.wait(), 60)
            found.append(time.perf_counter() - began)
    return {"stop": found}


def main() -> None:
    """Measure what the command line asks for."""
    reader = table.parser(__doc__, ROWS, pairs=Sizes().pairs, rounds=Sizes().rounds)
    options = table.chosen(reader)
    sizes = (QUICK if options.quick else Sizes())._replace(**table.given(options))
    parts = {
        "requests": partial(requests, sizes.pairs, sizes.requests),
        "bulk": partial(bulk, sizes.rounds, sizes.bulk),
        "stream": partial(stream, sizes.events),
        "stop": partial(stop, sizes.rounds, sizes.streams),
    }
    table.show(
        ROWS,
        lambda part: parts[part](),
        is_skipped=lambda part: table.skipped(part, options, ()),
        values=sizes._asdict(),
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
