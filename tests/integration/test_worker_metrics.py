"""What a worker tells of itself at `/metrics`, on a real server, and what `--processes` makes of it."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from prometheus_client import parser
from tests.support.history import History
from tests.support.limits import LIMIT_S
from tests.support.ports import kept_ports
from tests.support.working import Connect, ended, until, working

from jobledger.cli.main import run
from jobledger.ledger import Ledger, task
from jobledger.ledger.metrics.server import MetricsServer
from jobledger.ledger.model.commands import TakeOver
from jobledger.ledger.model.job import JobState
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers.metrics import WORKER_METRICS, WorkerCollector, measured

TASKS = """
from jobledger.ledger import task

@task(queue="math")
async def add(a: int, b: int = 1) -> int:
    return a + b
"""


@task(queue="m")
async def wait_for(released: str) -> None:
    await EVENTS[released].wait()


@task(queue="m")
async def block(seconds: float) -> None:
    SEEN.wait(seconds)  # what the lag is there to show


EVENTS: dict[str, anyio.Event] = {}
SEEN = threading.Event()


def _scrape(port: int, path: str = "/metrics", token: str = "") -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        link.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


def _values(text: str) -> dict[str, float]:
    """Return the samples by name; of histograms the counts and sums."""
    return {
        sample.name: sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


@pytest.mark.anyio
async def test_a_worker_tells_what_it_alone_knows(connected: Connect) -> None:
    async with (
        connected(commit="group") as ledger,
        working(ledger, wait_for, concurrency=3, ack_wait_s=2.0) as worker,
        measured(ledger, worker) as collector,
    ):
        assert collector.health() == "the worker does not take work yet"
        await _check(ledger, collector)


async def _check(ledger: Ledger, collector: WorkerCollector) -> None:
    EVENTS["first"] = anyio.Event()
    with MetricsServer(collector, collector.health) as server:
        await until(lambda: collector.health() == "")
        jobs = [await ledger.enqueue(wait_for.options(id=f"w{n}"), released="first") for n in range(2)]
        await ledger.enqueue(wait_for.options(id="w1"), released="first")  # exists: a lost race

        async def scrape() -> dict[str, float]:
            status, text = await anyio.to_thread.run_sync(_scrape, server.port)
            assert status == 200
            return _values(text)

        found = await scrape()
        while found["jobledger_worker_running"] < 2:
            found = await scrape()
        assert (found["jobledger_worker_concurrency"], found["jobledger_worker_free_slots"]) == (3, 1)
        assert found["jobledger_worker_held_deliveries"] == 2
        EVENTS["first"].set()
        for job in jobs:
            await ended(job)
        found = await scrape()
        assert found["jobledger_worker_append_conflicts_total"] == 1
        # Two queued, two started, two completed; reactors may have appended besides.
        assert found["jobledger_worker_append_seconds_count"] >= 6
        assert found["jobledger_worker_append_seconds_sum"] > 0
        assert found["jobledger_worker_group_commit_messages_count"] >= 1
        assert found["jobledger_worker_grouping"] == 1
        again = found["jobledger_worker_redeliveries_total"]  # none, but where the loop stood still for long
        assert found["jobledger_worker_deliveries_total"] - again == 2
        assert found["jobledger_worker_lease_renewals_total"] >= 1
        assert found["jobledger_worker_fenced_total"] == found["jobledger_worker_lease_losses_total"] == 0
        await _lose_a_claim(ledger)
        while (found := await scrape())["jobledger_worker_redeliveries_total"] <= again:
            pass
        assert found["jobledger_worker_fenced_total"] == 1
        documented = {measure.name for measure in WORKER_METRICS}
        assert {name.removesuffix("_count").removesuffix("_sum") for name in found} == documented


async def _lose_a_claim(ledger: Ledger) -> None:
    """Let a job be taken over while it runs, by nobody: its outcome is refused, and it is delivered again."""
    EVENTS["second"] = anyio.Event()
    job = await ledger.enqueue(wait_for.options(id="taken"), released="second")
    async with asyncio.timeout(LIMIT_S):
        while (await job.state()) is not JobState.RUNNING:
            await asyncio.sleep(0.005)
    epoch = (await job.history())[-1].stream_sequence
    await History(ledger.log).act(job.ref, TakeOver(worker="nobody", lease_s=2, lost_epoch=epoch))
    EVENTS["second"].set()


@pytest.mark.anyio
async def test_a_blocked_loop_is_seen_while_it_is_blocked(connected: Connect) -> None:
    async with connected() as ledger, working(ledger, block) as worker, measured(ledger, worker) as collector:
        with MetricsServer(collector, collector.health) as server:
            await until(lambda: collector.health() == "")
            seen: list[float] = []
            SEEN.clear()

            def watch() -> None:
                deadline = time.monotonic() + LIMIT_S
                while time.monotonic() < deadline and max(seen, default=0) < 0.5:
                    seen.append(_values(_scrape(server.port)[1])["jobledger_worker_loop_late_seconds"])
                SEEN.set()

            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, watch)
                await ended(await ledger.enqueue(block, seconds=LIMIT_S))
            assert max(seen) >= 0.5
            await until(
                lambda: sum(collector._lag.late_s.counts[-4:]) >= 1
            )  # it was half a second late, or more


Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, command: Start) -> Start:
    (tmp_path / "tasks_of_metrics.py").write_text(TASKS, encoding="utf-8")
    (tmp_path / "token").write_text("0123456789abcdef\n", encoding="utf-8")
    return command


def _ports(process: Any, count: int) -> list[int]:
    return [int(process.said("metrics of process").rpartition(":")[2].split("/")[0]) for _ in range(count)]


def test_each_process_has_a_port_of_its_own_and_its_successor_keeps_it(
    start: Start, nats_server: EmbeddedServer
) -> None:
    first, _ = kept_ports(2)
    words = ("worker", "--app", "tasks_of_metrics", "--processes", "2", "--metrics-port", str(first))
    there = ("--url", nats_server.url, "--environment", "places", "--ledger-bytes-max", "16000000", "--json")
    supervisor = start(*words, "--metrics-token-file", "token", *there)
    assert sorted(_ports(supervisor, 2)) == [first, first + 1]
    supervisor.line()
    pids = [supervisor.line()["pid"] for _ in range(2)]
    status, text = _scrape(first, token="0123456789abcdef")
    assert status == 200
    assert _values(text)["jobledger_worker_lease_valid"] == 1
    assert _scrape(first + 1)[0] == 401
    assert "0123456789abcdef" not in text
    os.kill(pids[0], signal.SIGKILL)
    assert _ports(supervisor, 1)[0] in (first, first + 1)
    supervisor.line()
    assert {_scrape(first + n, "/healthz", token="0123456789abcdef")[0] for n in range(2)} == {200}
    assert supervisor.end(signal.SIGTERM) == 0


class _Nothing:
    def collect(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--metrics-port", "TAKEN"), 4, "cannot be listened on"),
        (("--metrics-port", "0", "--metrics-host", "0.0.0.0"), 2, "give a token file too"),
        (("--metrics-port", "0", "--metrics-token-file", "missing"), 2, "cannot be read"),
        (("--metrics-port", "65535", "--processes", "2"), 2, "2 processes need 2 ports"),
    ],
)
def test_a_port_that_cannot_be_served_stops_the_worker_with_a_sentence(
    *,
    words: tuple[str, ...],
    code: int,
    sentence: str,
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    with MetricsServer(_Nothing(), lambda: "") as other:
        given = [str(other.port) if word == "TAKEN" else word for word in words]
        there = ("--url", nats_server.url, "--environment", "taken", "--ledger-bytes-max", "16000000")
        assert run(["worker", "--app", str(tmp_path / "tasks.py"), *there, *given]) == code
    assert sentence in capsys.readouterr().err
