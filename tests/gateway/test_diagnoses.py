"""What hurts, as one list in four places: `doctor`, `GET /v1/diagnoses`, the metric and the overview."""

from __future__ import annotations

import asyncio
import html
import re
import socket
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest
from markupsafe import Markup
from tests.support import waiting_runs as runs
from tests.support.command_line import CommandLine
from tests.support.dashboard import Someone
from tests.support.working import LIMIT_S, bury, ended, working

from jobledger.admin.diagnoses import KINDS, counted, diagnose
from jobledger.admin.limits import set_limit
from jobledger.admin.rows import Rows
from jobledger.gateway.gateway import Gateway
from jobledger.ledger import JobState, Ledger, Limit, Run, Signal, connect, task, workflow
from jobledger.ledger.model.clock import SystemClock
from jobledger.ledger.nats.fleet_clock import FleetClock
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections.metrics.exporter import Exporter

pytestmark = pytest.mark.anyio


@task(queue="mail", max_attempts=1)
async def send(to: str) -> None:
    """Be enqueued only."""


async def _hurt(ledger: Ledger) -> None:
    for number in range(40):
        await ledger.enqueue(send, to=f"{number}")
    await bury(ledger, await ledger.enqueue(send.options(queue="bills"), to="nobody"))
    await ledger.enqueue(send.options(queue="slow"), to="x")
    await ledger.pause_queue("slow", reason="night", by="ann")
    await ledger.enqueue(send.options(queue="mail", limits=("nobodys",)), to="x")
    await set_limit(ledger, "tenant", {"slots": 5}, by="ann")
    await set_limit(ledger, "tenant:initech", {"slots": 0}, reason="unpaid", by="ann")
    await ledger.enqueue(send.options(limits=("tenant:initech",)), to="x")


async def test_doctor_http_metrics_and_the_overview_show_the_same_list(  # noqa: PLR0917 - all the places
    http: httpx.AsyncClient,
    ledger: Ledger,
    gateway: Gateway,
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await _hurt(ledger)
    items: list[dict[str, Any]] = (await http.get("/v1/diagnoses")).json()["items"]
    assert [(each["kind"], each["level"], each["object"]) for each in items] == [
        ("queue_without_worker", "fail", "queue mail"),
        ("limit_undefined", "fail", "limit nobodys"),
        ("reactor_late", "fail", "reactor limits"),
        ("queue_paused", "warn", "queue slow"),
        ("limit_closed", "warn", "limit tenant:initech"),
        ("dead_letters", "warn", "task send"),
    ]
    told = {each["object"]: each for each in items}
    assert told["queue mail"]["found"] == "42 jobs wait, and no worker serves the queue"
    assert told["queue mail"]["since"] is not None
    assert told["queue mail"]["advice"] == "`jobledger worker --app MODULE --queue mail` serves it"
    assert told["queue slow"]["found"] == "paused by ann: night; 1 job waits"
    assert told["queue slow"]["advice"] == "`POST /v1/queues/slow/resume` ends that"
    assert told["limit tenant:initech"]["found"] == (
        "it has 0 slots, so none of its jobs starts (1 held); ann set that: unpaid"
    )
    assert told["limit tenant:initech"]["advice"].count("`") == 4  # set it, or take it back
    assert told["reactor limits"]["since"] is not None
    assert "1 dead letter of one cause: ValueError" in told["task send"]["found"]

    cli = CommandLine(nats_server.url, capsys)
    path = tmp_path / "rows.db"
    words = ("doctor", "--json", "--environment", ledger.names.environment, "--projection", str(path))
    found = await anyio.to_thread.run_sync(lambda: cli.run(*words, "--url", nats_server.url))
    assert found.code == 1, found
    compared = ("kind", "level", "object", "found", "since", "queue", "count")
    assert [[each[name] for name in compared] for each in found.lines[0]["diagnoses"]] == [
        [each[name] for name in compared] for each in items
    ]
    text = await anyio.to_thread.run_sync(lambda: cli.run("doctor", *words[2:], "--url", nats_server.url).out)
    assert "42 jobs wait, and no worker serves the queue (since" in " ".join(text.split())

    page = (await http.get("/")).text
    said = re.findall(r'<div class="said"><b>(.+)</b>: (.+)</div>', page)
    shown = [tuple(Markup(each).striptags() for each in one) for one in said]
    assert shown == [(each["object"], each["found"]) for each in items]

    await Rows(ledger, path).catch_up()
    counts = await counted(ledger, path)
    assert {kind: number for kind, number in counts.items() if number} == {each["kind"]: 1 for each in items}
    assert set(counts) == set(KINDS)
    exporter = Exporter(ledger, path, diagnose=counted)
    following = asyncio.create_task(exporter.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            while not (figures := await anyio.to_thread.run_sync(_figures, exporter)):
                await asyncio.sleep(0.05)
    finally:
        following.cancel()
    assert figures == counts


def _figures(exporter: Exporter) -> dict[str, float]:
    families = [each for each in exporter.collect() if each.name == "jobledger_diagnoses"]
    return {sample.labels["kind"]: sample.value for each in families for sample in each.samples}


async def test_who_is_bound_to_a_queue_is_told_of_that_one_alone(
    gateway: Gateway, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    await _hurt(ledger)
    gateway.access = Someone("viewer", queues=("slow",))
    items = (await http.get("/v1/diagnoses")).json()["items"]
    assert [each["object"] for each in items] == ["queue slow"]


GO = Signal("go", int)


def _kept(key: str) -> Limit:
    return Limit(key, slots=1, keep="job")


@task(queue="kids", limits=(_kept("a"),))
async def needs_a() -> None: ...


@task(queue="kids", limits=(_kept("b"),))
async def needs_b() -> None: ...


@workflow(queue="runs", limits=(_kept("a"),))
async def has_a(run: Run) -> None:
    await run.wait(GO)
    await run.call(needs_b)


@workflow(queue="runs", limits=(_kept("b"),))
async def has_b(run: Run) -> None:
    await run.wait(GO)
    await run.call(needs_a)


async def test_runs_that_wait_for_each_others_slots_are_named(gateway: Gateway, ledger: Ledger) -> None:
    async def named() -> list[str]:
        async with gateway.projection.opened() as view:
            found = await diagnose(ledger, view)
        return [each.object for each in found if each.kind == "runs_wait_for_each_other"]

    async with working(ledger, has_a, has_b, needs_a, needs_b):
        runs = [await ledger.enqueue(each.options(id=f"r{n}")) for n, each in enumerate((has_a, has_b))]
        async with asyncio.timeout(LIMIT_S):
            for run in runs:
                while (await run.snapshot()).state is not JobState.WAITING:
                    await asyncio.sleep(0.02)
        assert await named() == []
        for run in runs:
            await ledger.signal(run, GO, 1)
        async with asyncio.timeout(LIMIT_S):
            while await named() != ["run runs/r0", "run runs/r1"]:
                await asyncio.sleep(0.05)
        await set_limit(ledger, "b", {"slots": 2}, by="ann")
        for run in runs:
            assert (await ended(run)).state is JobState.COMPLETED
        assert await named() == []


async def test_a_run_that_waits_for_a_person_is_named_with_the_request_that_lets_it_go_on(
    ledger: Ledger, http: httpx.AsyncClient
) -> None:
    async def named() -> list[dict[str, Any]]:
        found = (await http.get("/v1/diagnoses")).json()["items"]
        return [each for each in found if each["kind"] == "run_waits_for_person"]

    await runs.for_children(ledger, "still-runs")
    await runs.for_a_child_after_a_failed_one(ledger, "counted")
    assert await named() == []
    await runs.for_a_dead_child(ledger, "r")
    (told,) = await named()
    assert (told["level"], told["object"], told["queue"]) == ("warn", "run orders/r", "orders")
    assert told["found"] == (
        "1 child is a dead letter (r-2-1: the bank does not answer); it goes on once a person requeued or discarded "
        "what is dead"
    )
    child = await ledger.job("r-2-1")
    assert datetime.fromisoformat(told["since"]) == (await child.history())[-1].event.at
    page = html.unescape((await http.get("/runs")).text)
    assert (
        page.count("a person: 1 dead letter among its children") == 2
    )  # among those that wait, and the newest
    requeue, why = re.findall(r"`([A-Z]+) ([^`]+)`", told["advice"])
    assert (await http.request(*why)).status_code == 200
    assert (await http.request(*requeue, json={})).status_code == 200
    assert await named() == []


class Ahead(SystemClock):
    """A machine's clock that is an hour ahead."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


async def test_a_host_whose_clock_is_apart_is_named(
    nats_server: EmbeddedServer, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    environment = ledger.names.environment
    before = ledger.clock.now()
    async with (
        connect(nats_server.url, environment=environment, clock=FleetClock(Ahead())) as other,
        working(other, send) as worker,
    ):
        await worker.taking.wait()
        found = (await http.get("/v1/diagnoses")).json()["items"]
    assert [(each["kind"], each["level"], each["object"], each["found"]) for each in found] == [
        ("clock_apart", "warn", f"host {socket.gethostname()}", "its clock is 1 h ahead of the server's")
    ]
    # By the server's time, which this test's clock knows to a second.
    second = timedelta(seconds=1)
    assert before - second <= datetime.fromisoformat(found[0]["since"]) <= ledger.clock.now() + second
