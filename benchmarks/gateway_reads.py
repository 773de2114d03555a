"""What readers cost a gateway: its overview, the lists of many jobs, and moments of the past."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from http_load import Connection, load
from lists import fill
from served import Served, fresh, gateway, noop
from shared import cpu_s

from jobledger.gateway.pages.table import PAGES
from jobledger.ledger import Ledger
from jobledger.projections import Store

Figures = dict[str, list[float]]
Words = list[tuple[str, str]]

_MS: Final = 1e3
_OK: Final = 200
_LIMIT_S: Final = 50.0
_KEPT_S: Final = 1.6  #: longer than a rendering is shared
_LEVELS_JOBS: Final = 20_000  #: whose rows tell of each minute of three days
_RENDERINGS: Final = 12
#: What a page is asked beside its range.
_ASKED: Final = {
    "/jobs": "&q=state:dead&share=true",
    "/plan": "&state=dead_lettered",
    "/suggest": "&q=tenant:t",
}
_LINES: Final = ("content-type: application/x-ndjson",)


class _Reader:
    """Somebody who has the overview open."""

    def __init__(self, live: Connection, page: Connection) -> None:
        self._live = live
        self._page = page

    async def heard(self, sequence: int) -> None:
        """Wait until the pages have an event."""
        async with asyncio.timeout(_LIMIT_S):
            while True:
                name, _, value = (await self._live.line()).partition(b": ")
                if name == b"data" and int(value) >= sequence:
                    break

    async def ask(self) -> None:
        """Ask for the overview, as a browser does."""
        answer = await self._page.ask("GET", "/")
        assert answer.status == _OK, answer.status


class _Looks(NamedTuple):
    """The CPU of a gateway for each event that readers are told of, in ms."""

    made_ms: float  #: where all ask at once after it
    sent_ms: float  #: where all ask once more: what was made is sent again


async def _looked(ours: Served, ledger: Ledger, readers: int, advances: int) -> _Looks:
    async with contextlib.AsyncExitStack() as stack:
        looking: list[_Reader] = []
        for _ in range(readers):
            live = await stack.enter_async_context(Connection(ours.url))
            live.send("GET", "/live")
            await live.head()
            looking.append(_Reader(live, await stack.enter_async_context(Connection(ours.url))))
        made_s = sent_s = 0.0
        for turn in range(-1, advances):
            job = await ledger.enqueue(noop, number=turn)
            await _all(each.heard(job.sequence) for each in looking)
            before = cpu_s(ours.pid)
            await _all(each.ask() for each in looking)
            between = cpu_s(ours.pid)
            await _all(each.ask() for each in looking)
            if turn >= 0:  # the first one finds nothing warm
                made_s += between - before
                sent_s += cpu_s(ours.pid) - between
        return _Looks(made_s * _MS / advances, sent_s * _MS / advances)


async def _all(each: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in each:
            group.create_task(one)


async def add_lines(ours: Served, count: int) -> int:
    """Add jobs as the lines of one request; return the highest stream sequence."""
    lines = b"".join(
        b'{"task":"noop","queue":"bench","input":{"number":%d}}\n' % each for each in range(count)
    )
    async with Connection(ours.url) as connection:
        answer = await connection.ask("POST", "/v1/jobs/bulk", lines, _LINES)
        assert answer.status == 202, answer
    return int(json.loads(answer.body)["last_sequence"])


async def caught_up(ours: Served, sequence: int) -> None:
    """Wait until the lists have an event."""
    async with asyncio.timeout(_LIMIT_S), Connection(ours.url) as connection:
        path = f"/v1/jobs?limit=1&min_sequence={sequence}"
        while (
            await connection.ask("GET", path)
        ).status != _OK:  # it answers after some seconds at the latest
            pass


async def overview(rounds: int, advances: int, readers: int) -> Figures:
    """Return the CPU of a rendering, that of one for many readers, of that, and what each reader more costs."""
    found: Figures = {"rendering": [], "readers": [], "sending": []}
    async with fresh() as (server, ledger, folder), gateway(server, folder) as ours:
        await add_lines(ours, 1_000)
        for _ in range(rounds):
            one = await _looked(ours, ledger, 1, advances)
            many = await _looked(ours, ledger, readers, advances)
            rendering = one.made_ms - one.sent_ms
            found["rendering"].append(rendering)
            found["readers"].append((many.made_ms - many.sent_ms) / max(rendering, 1e-3))
            found["sending"].append(many.sent_ms / readers)
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
        assert answer.status == _OK, (path, answer.status, answer.body[:500])
    return statistics.median(took)


async def _slowest_page(ours: Served, connection: Connection, rounds: int) -> float:
    """Return the CPU of the page that takes most, the median of some renderings, in ms; pages of one job are not among them."""
    slowest = (0.0, "")
    for page in PAGES:
        if page.path.startswith("/jobs/"):
            continue
        more = _ASKED.get(page.path, "")
        for span in ("1h", "7d"):
            path = f"{page.path.format(task='noop')}?range={span}{more}"
            await _median_ms(connection, path, 1)
            took: list[float] = []
            for _ in range(rounds):
                await asyncio.sleep(_KEPT_S)
                before = cpu_s(ours.pid)
                await _median_ms(connection, path, 1)
                took.append((cpu_s(ours.pid) - before) * _MS)
            slowest = max(slowest, (statistics.median(took), path))
    print(f" slowest: {slowest[1]} ...", end="", file=sys.stderr)
    return slowest[0]


async def pages(rounds: int, jobs: int) -> Figures:
    """Return the CPU of the page that takes most beside many jobs."""
    async with fresh() as (server, _, folder):
        await fill(folder / "rows.db", jobs)
        async with gateway(server, folder, "--no-projector") as ours, Connection(ours.url) as connection:
            return {"slowest": [await _slowest_page(ours, connection, rounds)]}


async def lists(rounds: int, jobs: int, kept: Path | None) -> Figures:
    """Return the time of the slowest list of many jobs, of its counts and of its page, each the median of some rounds.

    Also that of the levels, and the CPU of an overview that is made again and again.
    """
    async with fresh() as (server, _, folder):
        rows = kept or folder / "rows.db"
        if not rows.exists():
            await fill(rows, jobs)
        with Store.open(rows) as store:
            asked = list(_questions(store, jobs))
        found: Figures = {}
        async with (
            gateway(server, folder, "--no-projector", rows=rows) as ours,
            Connection(ours.url) as connection,
        ):
            for name, path in (("page", "/v1/jobs"), ("counts", "/v1/jobs/counts"), ("pages", "/jobs")):
                words = [each for each in asked if name != "counts" or "order" not in dict(each)]
                took: dict[str, list[float]] = {urlencode(each): [] for each in words}
                for _ in range(rounds):  # all in turn, so that no page is one that was kept
                    for query, times in took.items():
                        times.append(await _median_ms(connection, f"{path}?{query}", 1))
                    await asyncio.sleep(_KEPT_S)
                slowest = max((statistics.median(times), query) for query, times in took.items())
                print(f" {path}: slowest with {slowest[1] or 'nothing'} ...", end="", file=sys.stderr)
                found[name] = [slowest[0]]
            found["levels"] = [await _median_ms(connection, "/levels", min(rounds, 3), _KEPT_S)]
            await _median_ms(connection, "/", 1)
            began = cpu_s(ours.pid)
            await _median_ms(connection, "/", _RENDERINGS, _KEPT_S)
            found["overview"] = [(cpu_s(ours.pid) - began) * _MS / _RENDERINGS]
            found["every"] = [await _slowest_page(ours, connection, min(rounds, 3))]
    return found


async def _levels(rounds: int) -> list[float]:
    """Return how long the levels of three days take, which is as long as each minute has a row."""
    async with fresh() as (server, _, folder):
        await fill(folder / "rows.db", _LEVELS_JOBS)
        async with gateway(server, folder, "--no-projector") as ours, Connection(ours.url) as connection:
            found = [await _median_ms(connection, "/levels", 1, _KEPT_S) for _ in range(rounds + 1)]
    return found[1:]


async def past(moments: int, jobs: int, count: int) -> Figures:
    """Return how long moments of the past take, and how much later other answers come meanwhile.

    Lists are of moments anywhere in the ledger, one after the other, as somebody asks for them who moves the slider.
    """
    found: Figures = {"job": [], "levels": await _levels(moments), "list": [], "others": []}
    when = random.Random(1)
    async with fresh() as (server, ledger, folder), gateway(server, folder) as ours:
        await add_lines(ours, jobs)
        job = await ledger.enqueue(noop, number=1)
        await ledger.cancel(job.id, queue="bench")
        request = ("GET", f"/v1/jobs/bench/{job.id}", b"")
        # The newest job of a ledger that is quiet is no measure: nats-server 2.15 reads a whole block for each look at its
        # last two messages, and its GET takes four times as long alone.
        await caught_up(ours, await add_lines(ours, 10))
        async with Connection(ours.url) as connection:  # one that says nothing for 10 s is closed
            for _ in range(moments):
                found["job"].append(await _median_ms(connection, f"{request[1]}?sequence={job.sequence}", 9))
                alone = await load(ours.url, 1, count, lambda _: request, _OK)
                then = when.randint(1, job.sequence - 1)
                view = asyncio.create_task(_median_ms(connection, f"/v1/jobs?sequence={then}", 1))
                beside = await load(ours.url, 1, count, lambda _: request, _OK)
                found["list"].append(await view)
                found["others"].append(beside.at(0.99) / alone.at(0.99))
    found["slowest"] = [max(found["list"])]
    return found
