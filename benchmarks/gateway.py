"""What the gateway costs against what it may: `make bench-gateway`.

    python benchmarks/gateway.py [--big] [--file PATH] [--only PART ...] [--pairs N] [--rounds N] [--quick] [--json]

Requests are paired with those of `by_hand.py`, a handwritten ASGI program on the same ledger, in one run; their CPU is that
of the process that answers. Without options it takes about five minutes. `--big` adds the lists of a million jobs: their
projection is filled without a ledger, which takes five minutes more, and `--file` keeps it, or uses one that is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import gateway_reads
import table
from http_load import LIMIT_S, Connection, Load, load
from served import Served, by_hand, fresh, gateway, noop, post
from shared import cpu_s
from targets import Row

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
    "bulk": {
        "bulk": Row("{bulk:,} jobs as lines: jobs a second", "jobs/s", least=30_000, digits=0),
        "gateway us": Row("  gateway's CPU a job", "us"),
        "server us": Row("  server's CPU a job", "us"),
        "projector us": Row("  projector's CPU a job meanwhile", "us"),
    },
    "stream": {
        "p50": Row("POST to its event in a stream: p50", "ms", most=5, digits=2),
        "p99": Row("  p99", "ms", digits=2),
    },
    "stop": {"stop": Row("stop with {streams} open streams", "s", most=1, digits=2)},
    "overview": {
        "rendering": Row("overview: CPU a rendering", "ms", most=20, digits=1),
        "readers": Row("  with {readers} readers, of that with one", "x", most=1.5, digits=2),
        "sending": Row("  each further reader: CPU to send it", "ms", digits=2),
    },
    "pages": {"slowest": Row("{listed:,} jobs: CPU of the slowest of all pages", "ms", most=20, digits=1)},
    "past": {
        "job": Row("a job as it was, beside {past:,} others", "ms", most=50, digits=1),
        "levels": Row("the fleet's levels, each minute of three days", "ms", most=50, digits=1),
        "list": Row("a list as it was anywhere among {past:,} jobs", "ms", most=2_000, digits=0),
        "slowest": Row("  the slowest of them", "ms", digits=0),
        "others": Row("  p99 of GET of a job meanwhile", "x", most=2, digits=2),
    },
    "big": {
        "page": Row("{jobs:,} jobs: the slowest filter", "ms", most=100, digits=1),
        "counts": Row("  its counts", "ms", most=100, digits=1),
        "pages": Row("  the page /jobs with it", "ms", most=100, digits=1),
        "levels": Row("  levels of their minutes", "ms", most=50, digits=1),
        "overview": Row("  an overview of them: CPU a rendering", "ms", most=20, digits=1),
        "every": Row("  CPU of the slowest of all pages", "ms", most=100, digits=1),
    },
}


class Sizes(NamedTuple):
    """How much of each is measured."""

    pairs: int = 9
    rounds: int = 3
    requests: int = 3_000
    bulk: int = 100_000
    events: int = 500
    streams: int = 100
    advances: int = 8
    readers: int = 20
    past: int = 100_000
    moments: int = 21  # of nine lists the p99 beside them varied by half from run to run
    reads: int = 500
    listed: int = 100_000
    jobs: int = 1_000_000


QUICK: Final = Sizes(
    pairs=1,
    rounds=1,
    requests=20,
    bulk=200,
    events=5,
    streams=3,
    advances=1,
    readers=2,
    past=200,
    moments=1,
    reads=5,
    listed=2_000,
    jobs=2_000,
)


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
    """Return how many jobs a second are enqueued as lines of one request, and what each costs which process."""
    found: Figures = {"bulk": [], "gateway us": [], "server us": [], "projector us": []}
    async with fresh() as (server, _, folder), gateway(server, folder) as ours:
        pids = {
            "gateway us": ours.pid,
            "server us": server.pid,
            "projector us": ours.child("projector"),
        }
        for _ in range(rounds):
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            began = time.perf_counter()
            last_sequence = await gateway_reads.add_lines(ours, count)
            found["bulk"].append(count / (time.perf_counter() - began))
            for name, pid in pids.items():
                found[name].append((cpu_s(pid) - before[name]) * _US / count)
            await gateway_reads.caught_up(ours, last_sequence)
    return found


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
            await asyncio.wait_for(ours.process.wait(), LIMIT_S)
            found.append(time.perf_counter() - began)
    return {"stop": found}


def main() -> None:
    """Measure what the command line asks for."""
    reader = table.parser(__doc__, ROWS, pairs=Sizes().pairs, rounds=Sizes().rounds)
    reader.add_argument("--big", action="store_true", help="the lists of a million jobs, too")
    reader.add_argument("--file", type=Path, help="where the rows of a million jobs are kept")
    options = table.chosen(reader)
    sizes = (QUICK if options.quick else Sizes())._replace(**table.given(options))
    parts = {
        "requests": partial(requests, sizes.pairs, sizes.requests),
        "bulk": partial(bulk, sizes.rounds, sizes.bulk),
        "stream": partial(stream, sizes.events),
        "stop": partial(stop, sizes.rounds, sizes.streams),
        "overview": partial(gateway_reads.overview, sizes.rounds, sizes.advances, sizes.readers),
        "pages": partial(gateway_reads.pages, sizes.rounds, sizes.listed),
        "past": partial(gateway_reads.past, sizes.moments, sizes.past, sizes.reads),
        "big": partial(gateway_reads.lists, sizes.pairs, sizes.jobs, options.file),
    }
    table.show(
        ROWS,
        lambda part: parts[part](),
        is_skipped=lambda part: table.skipped(part, options, ("big",)),
        values=sizes._asdict(),
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
