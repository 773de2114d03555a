"""What readers cost a gateway: its overview, the lists of many jobs, and moments of the past."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from http_load import Connection, load
from lists import fill
from served import Served, fresh, gateway, noop
from shared import cpu_s

from jobledger.ledger import Ledger
from jobledger.projections import Store

Figures = dict[str, list[float]]
Words = list[tuple[str, str]]

_MS: Final = 1e3
_LIMIT_S: Final = 50.0
_KEPT_S: Final = 2.0  #: longer than a rendering is shared
_LINES: Final = ("content-type: application/x-ndjson",)


class _Reader:
    """Somebody who has the overview open."""

    def __init__(self, live: Connection, page: Connection) -> None:
        self._live = live
        self._page = page

    async def advance(self, sequence: int, *, asks: bool) -> None:
        """Wait until the pages have an event; ask for the overview at once, as a browser does."""
        async with asyncio.timeout(_LIMIT_S):
            while True:
                name, _, value = (await self._live.line()).partition(b": ")
                if name == b"data" and int(value) >= sequence:
                    break
        if asks:
            answer = await self._page.ask("GET", "/")
            assert answer.status == 200, answer.status


async def _looked(ours: Served, ledger: Ledger, readers: int, advances: int, *, asks: bool) -> float:
    """Return the CPU of the gateway for each event that some readers are told of, in ms."""
    async with contextlib.AsyncExitStack() as stack:
        looking: list[_Reader] = []
        for _ in range(readers):
            live = await stack.enter_async_context(Connection(ours.url))
            live.send("GET", "/live")
            await live.head()
            looking.append(_Reader(live, await stack.enter_async_context(Connection(ours.url))))
        began = 0.0
        for turn in range(-1, advances):
            job = await ledger.enqueue(noop, number=turn)
            async with asyncio.TaskGroup() as group:
                for each in looking:
                    group.create_task(each.advance(job.sequence, asks=asks))
            if turn < 0:  # the first one is not counted: it finds nothing warm
                began = cpu_s(ours.pid)
        return (cpu_s(ours.pid) - began) * _MS / advances


async def _bulk(ours: Served, count: int) -> None:
    lines = b"".join(
        b'{"task":"noop","queue":"bench","input":{"number":%d}}\n' % each for each in range(count)
    )
    async with Connection(ours.url) as connection:
        answer = await connection.ask("POST", "/v1/jobs/bulk", lines, _LINES)
        assert answer.status == 202, answer


async def overview(rounds: int, advances: int, readers: int) -> Figures:
    """Return the CPU of a rendering, and what many readers cost, of what one costs."""
    found: Figures = {"rendering": [], "readers": []}
    async with fresh() as (server, ledger, folder), gateway(server, folder) as ours:
        await _bulk(ours, 1_000)
        for _ in range(rounds):
            nobody = await _looked(ours, ledger, 1, advances, asks=False)
            one = await _looked(ours, ledger, 1, advances, asks=True)
            many = await _looked(ours, ledger, readers, advances, asks=True)
            found["rendering"].append(max(one - nobody, 0.0))
            found["readers"].append(many / max(one, _MS / 100 / advances))
    return found


def _questions(store: Store, jobs: int) -> Iterator[Words]:
    """Yield what may be asked of a list: each filter alone, and those that are asked together."""
    (middle,) = store.select("SELECT created_at FROM jobs WHERE rowid = ?", (jobs // 2,))
    (dead,) = store.dead_letters(1)
    one = store.jobs(1)[0]
    alone = {
        "state": "dead_lettered",
        "queue": "queue-3",
        "task": "shop.task_7",
        "since": middle[0],
        "until": middle[0],
        "tenant": "tenant-7",
        "correlation": "order-77",
        "created_by": "nobody",
        "metadata": "region=mars",
        "limited_by": "none",
        "trace_id": "0" * 32,
        "batch": "none",
        "id": one.id,
        "error_type": "ValueError",
        "fingerprint": dead.fingerprint or "",
        "input": f"user_id={jobs - 500}",
        "q": "no such word",
        "members": "true",
    }
    yield []
    yield from ([each] for each in alone.items())
    yield [("state", "completed"), ("state", "dead_lettered")]
    yield [("queue", "queue-3"), ("state", "completed")]
    yield [("task", "shop.task_7"), ("state", "running")]
    yield [("tenant", "tenant-7"), ("state", "dead_lettered")]
    yield [("q", "no such word"), ("queue", "queue-3")]
    yield [("order", "oldest")]


async def _median_ms(connection: Connection, path: str, times: int, pause_s: float = 0.0) -> float:
    """Return how long an answer takes."""
    took: list[float] = []
    for _ in range(times):
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        answer = await connection.ask("GET", path)
        took.append((time.perf_counter() - began) * _MS)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
    return statistics.median(took)


async def lists(rounds: int, jobs: int) -> Figures:
    """Return the time of the slowest list of many jobs and of the slowest counts, each the median of some rounds."""
    found: Figures = {"page": [], "counts": []}
    async with fresh() as (server, _, folder):
        await fill(folder / "rows.db", jobs)
        with Store.open(folder / "rows.db") as store:
            asked = list(_questions(store, jobs))
        async with gateway(server, folder, "--no-projector") as ours, Connection(ours.url) as connection:
            for name, path in (("page", "/v1/jobs"), ("counts", "/v1/jobs/counts")):
                words = [each for each in asked if name == "page" or dict(each).keys().isdisjoint({"order"})]
                took = [await _median_ms(connection, f"{path}?{urlencode(each)}", rounds) for each in words]
                found[name].append(max(took))
    return found


async def past(pairs: int, jobs: int, count: int) -> Figures:
    """Return how long moments of the past take, and how much later other answers come meanwhile."""
    found: Figures = {"job": [], "levels": [], "list": [], "others": []}
    async with (
        fresh() as (server, ledger, folder),
        gateway(server, folder) as ours,
        Connection(ours.url) as connection,
    ):
        await _bulk(ours, jobs)
        job = await ledger.enqueue(noop, number=1)
        await ledger.cancel(job.id, queue="bench")
        request = ("GET", f"/v1/jobs/bench/{job.id}", b"")
        until = await connection.ask("GET", f"/v1/jobs?limit=1&min_sequence={job.sequence}")
        assert until.status == 200, until
        for turn in range(pairs):
            then = job.sequence - 1 - turn
            found["job"].append(await _median_ms(connection, f"{request[1]}?sequence={job.sequence}", 9))
            found["levels"].append(await _median_ms(connection, "/levels", 1, _KEPT_S if turn else 0.0))
            alone = await load(ours.url, 1, count, lambda _: request, 200)
            view = asyncio.create_task(_median_ms(connection, f"/v1/jobs?sequence={then}", 1))
            beside = await load(ours.url, 1, count, lambda _: request, 200)
            found["list"].append(await view)
            found["others"].append(beside.at(0.99) / alone.at(0.99))
    return found
