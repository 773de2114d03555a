"""The exporter's counts against the audit's, on a real server: after restarts, rebuilds, in company, and without a server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from prometheus_client.openmetrics import parser
from tests.conftest import ServerFactory
from tests.support.history import History, write_history
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.working import Connect, working

from jobledger.audit.verify import verify
from jobledger.cli.main import run
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.metrics.exposition import scrape
from jobledger.ledger.metrics.server import MetricsServer
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.nats.streams import ensure_streams, specifications
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, rebuild
from jobledger.projections.metrics.exporter import Exporter, ExporterConfig
from jobledger.projections.metrics.names import COUNTERS, EXPORTER_METRICS

pytestmark = pytest.mark.anyio


class Scrape:
    """One scrape, as Prometheus would keep it."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, str] = {}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in parser.text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
            self.families[family.name] = family.type
            for sample in family.samples:
                self.samples[sample.name, frozenset(sample.labels.items())] = sample.value

    def sum(self, name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(
            value
            for (found, has), value in self.samples.items()
            if found == name and wanted <= dict(has).items()
        )

    def by(self, name: str, label: str) -> Counter[str]:
        """Return the sums by one label, without the zeros."""
        found: Counter[str] = Counter()
        for (sample, labels), value in self.samples.items():
            if sample == name and value:
                found[dict(labels)[label]] += int(value)
        return found

    def one(self, name: str) -> float | None:
        found = [value for (sample, _), value in self.samples.items() if sample == name]
        return found[0] if found else None

    def counters(self) -> dict[Any, float]:
        """Return what only ever grows: counters and histograms."""
        ends = ("_total", "_bucket", "_count", "_sum")
        return {key: value for key, value in self.samples.items() if key[0].endswith(ends)}


async def scraped(exporter: Exporter) -> Scrape:
    accept = "application/openmetrics-text; version=1.0.0"
    _, text = await anyio.to_thread.run_sync(lambda: scrape(exporter, accept))
    assert text.endswith(b"# EOF\n")
    return Scrape(text.decode())


async def scraped_at_head(exporter: Exporter, ledger: Ledger) -> Scrape:
    head = (await ledger.log.head()).last_sequence
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await scraped(exporter)
            at_head = found.one("jobledger_projection_position_sequence") == head
            # One that was started anew tells where the file is before it has looked at the ledger, and counts after that.
            if at_head and found.one("jobledger_up") == 1:
                return found
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def exporting(ledger: Ledger, path: Path, **config: Any) -> AsyncGenerator[Exporter, None]:
    exporter = Exporter(ledger, path, ExporterConfig(**config))
    running = asyncio.create_task(exporter.run())
    try:
        yield exporter
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def assert_equals_audit(found: Scrape, ledger: Ledger) -> None:
    report = await verify(ledger.log)
    assert report.sound, report.text()
    assert found.one("jobledger_ledger_events") == report.events
    assert found.one("jobledger_projection_position_sequence") == report.head_sequence
    assert found.by("jobledger_queue_jobs", "state") == report.states
    assert found.sum("jobledger_queue_jobs") == report.jobs
    assert found.sum("jobledger_queue_jobs", state="dead_lettered") == report.states.get("dead_lettered", 0)
    assert found.sum("jobledger_attempts_started_total") == report.attempts
    assert found.sum("jobledger_attempts_lost_total") == report.attempts_lost
    assert found.one("jobledger_timers_pending") == report.timers_pending
    for column in (
        "completed",
        "failed",
        "interrupted",
        "snoozed",
        "paused",
        "cancelled",
        "dead_lettered",
        "fenced",
    ):
        assert found.sum(COUNTERS[column].name) == report.types.get(column, 0), column
    assert found.sum("jobledger_jobs_enqueued_total") == report.jobs
    assert found.sum("jobledger_jobs_requeued_total") == report.causes.get("requeued", 0)
    assert found.sum("jobledger_task_failures_total") == report.types.get("failed", 0)
    assert found.sum("jobledger_task_dead_letters_total") == report.types.get("dead_lettered", 0)
    ends = (
        report.types.get("completed", 0)
        + report.types.get("cancelled", 0)
        + report.types.get("dead_lettered", 0)
    )
    assert found.sum("jobledger_job_total_seconds_count") == ends
    assert found.sum("jobledger_job_wait_seconds_count") <= report.attempts


async def test_counts_equal_the_audit_also_after_a_restart_and_a_rebuild(
    ledger: Ledger, tmp_path: Path
) -> None:
    path = tmp_path / "p.db"
    await write_history(ledger.log)
    async with exporting(ledger, path) as exporter:
        first = await scraped_at_head(exporter, ledger)
        assert await anyio.to_thread.run_sync(exporter.health) == ""
        await assert_equals_audit(first, ledger)
        assert first.by("jobledger_task_failures_total", "error_type") == {
            "ValueError": 2,
            "KeyError": 1,
            "OSError": 2,
        }
        assert (first.one("jobledger_up"), first.one("jobledger_projection_lag_events")) == (1, 0)
        documented = {measure.family: measure.kind for measure in EXPORTER_METRICS}
        assert first.families == documented
        await rebuild(ledger.log, path)
        rebuilt = await scraped_at_head(exporter, ledger)
        assert rebuilt.counters() == first.counters()
        await write_history(ledger.log, "b")
        await assert_equals_audit(await scraped_at_head(exporter, ledger), ledger)
    async with exporting(ledger, path) as again:
        restarted = await scraped_at_head(again, ledger)
        await assert_equals_audit(restarted, ledger)
    async with exporting(ledger, tmp_path / "other.db") as elsewhere:
        assert (await scraped_at_head(elsewhere, ledger)).counters() == restarted.counters()


@task(queue="mail")
async def mail(number: int) -> int:
    if number % 5 == 0:
        raise ValueError(number)
    return number


async def test_two_exporters_and_two_workers_count_nothing_twice(connected: Connect, tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    async with (
        connected() as ledger,
        connected() as other,
        connected() as third,
        exporting(ledger, path) as first,
        exporting(other, path) as second,
        working(other, mail),
        working(third, mail),
    ):
        await ledger.enqueue_many(mail.options(max_attempts=1), ({"number": n} for n in range(60)))
        async with asyncio.timeout(LIMIT_S):
            while (found := await scraped(first)).sum("jobledger_job_total_seconds_count") < 60:
                await asyncio.sleep(0.01)
        one, two = await scraped_at_head(first, ledger), await scraped_at_head(second, ledger)
        assert one.counters() == two.counters()
        await assert_equals_audit(one, ledger)
        assert found.by("jobledger_queue_jobs", "state") == {"completed": 48, "dead_lettered": 12}
        assert one.one("jobledger_workers") == 2
        assert one.by("jobledger_queue_workers", "queue") == {"mail": 2}
        assert one.sum("jobledger_queue_undelivered") == 0


async def test_scrapes_during_rebuilds_are_whole(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    await write_history(ledger.log)
    async with exporting(ledger, path) as exporter:
        expected = (await scraped_at_head(exporter, ledger)).counters()
        seen = 0

        async def scrape_on() -> None:
            nonlocal seen
            while True:
                assert (await scraped(exporter)).counters() == expected
                seen += 1

        scraping = asyncio.create_task(scrape_on())
        for _ in range(5):
            await rebuild(ledger.log, path)
            at = seen
            async with asyncio.timeout(LIMIT_S):
                while seen == at and not scraping.done():
                    await asyncio.sleep(0.005)
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping
    assert seen >= 5


async def test_cardinality_is_bounded_and_no_series_changes_hands(ledger: Ledger, tmp_path: Path) -> None:
    history = History(ledger.log)
    for number in range(3):
        # Names that sort before the ones that are there already.
        queue, name = f"q{9 - number}", f"t{9 - number}"
        await history.complete(await history.enqueue(f"j{number}", queue=queue, task=name))
        await history.die(await history.enqueue(f"d{number}", queue=queue, task=name), f"Error{9 - number}")
        await history.enqueue(f"w{number}", queue=queue, task=f"{name}-2")
    before: dict[Any, float] = {}
    async with exporting(ledger, tmp_path / "p.db", label_values_max=2) as exporter:
        for number in range(3):
            found = await scraped_at_head(exporter, ledger)
            now = found.counters()
            assert all(now[key] >= value for key, value in before.items())
            before = now
            await history.complete(await history.enqueue(f"later{number}", queue=f"a{number}", task="a"))
        found = await scraped_at_head(exporter, ledger)
        await assert_equals_audit(found, ledger)
        completed = {
            dict(labels)["queue"] + "/" + dict(labels)["task"]
            for name, labels in found.samples
            if name == "jobledger_jobs_completed_total"
        }
        assert completed == {"q9/t9", "q9/t9-2", "q8/(other)", "(other)/(other)"}
        folded = {
            label: found.sum("jobledger_folded_label_values", label=label)
            for label in ("queue", "task", "error_type")
        }
        assert folded == {"queue": 4, "task": 7, "error_type": 2}
        assert found.by("jobledger_task_dead_letters_total", "error_type") == {"Error9": 1, "(other)": 2}


async def test_without_a_server_nothing_old_is_told_as_new(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory(tmp_path / "store")
    await server.start()
    async with connect(server.url, ledger_bytes_max=16 << 20) as ledger:
        await write_history(ledger.log)
        async with exporting(ledger, tmp_path / "p.db") as exporter:
            before = await scraped_at_head(exporter, ledger)
            await server.stop()
            reason = await _health(exporter, lambda text: "does not answer" in text)
            assert reason.startswith("the server does not answer")
            found = await scraped(exporter)
            assert (found.one("jobledger_up"), found.one("jobledger_workers")) == (0, None)
            assert (
                found.one("jobledger_ledger_events") is found.one("jobledger_projection_lag_events") is None
            )
            assert (found.one("jobledger_server_silence_seconds") or 0) > 0
            assert found.counters() == before.counters()
            again = server_factory(tmp_path / "store", port=server.port)
            await again.start()
            await _health(exporter, lambda text: not text)
            await History(ledger.log).complete(await History(ledger.log).enqueue("after"))
            await assert_equals_audit(await scraped_at_head(exporter, ledger), ledger)


async def _health(exporter: Exporter, wanted: Callable[[str], bool]) -> str:
    async with asyncio.timeout(LIMIT_S):
        while not wanted(reason := await anyio.to_thread.run_sync(exporter.health)):
            await asyncio.sleep(0.05)
        return reason


async def test_a_projection_that_cannot_go_on_or_is_behind_is_red(connected: Connect, tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    async with connected() as ledger:
        await write_history(ledger.log)
        await rebuild(ledger.log, path)
        async with (
            connect(ledger.config.url, environment="another", ledger_bytes_max=1 << 20) as another,
            exporting(another, path) as exporter,
        ):
            reason = await _health(exporter, lambda text: "was made from" in text)
            assert reason.startswith("the projection is not followed")
            assert (await scraped(exporter)).one("jobledger_projection_following") == 0
        behind = Exporter(ledger, path, ExporterConfig(lag_s_max=0.01))
        behind._stopped, behind._is_whole = "", True  # it is followed, by somebody who does not get on
        await History(ledger.log).enqueue("unseen")
        assert (await _health(behind, lambda text: "behind" in text)).startswith(
            "the projection is 1 events, "
        )
        found = await scraped(behind)
        assert (found.one("jobledger_up"), found.one("jobledger_projection_lag_events")) == (0, 1)
        assert (found.one("jobledger_projection_lag_seconds") or 0) > 0
        assert found.one("jobledger_projection_agrees") == 1


async def test_counters_never_go_back_while_a_lost_file_is_made_anew(ledger: Ledger, tmp_path: Path) -> None:
    await write_history(ledger.log)
    path, half = tmp_path / "p.db", tmp_path / "half.db"
    async with exporting(ledger, path) as exporter:
        whole = await scraped_at_head(exporter, ledger)
    with Projector(ledger.log, half) as projector:
        await projector.catch_up(until=30)
    exporter._path = half
    found = await scraped(exporter)
    assert found.one("jobledger_projection_position_sequence") == 30
    assert not found.counters()
    async with exporting(ledger, half):
        assert (await scraped_at_head(exporter, ledger)).counters() == whole.counters()


async def test_a_ledger_that_lost_its_end_is_red(connected: Connect, tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    async with connected() as ledger:
        await History(ledger.log).complete(await History(ledger.log).enqueue("kept"))
        async with exporting(ledger, path) as exporter:
            await scraped_at_head(exporter, ledger)
            answer = await api(ledger.inbox, f"STREAM.DELETE.{ledger.names.ledger_stream}", {})
            assert answer["success"]
            await ensure_streams(
                ledger.inbox, specifications(ledger.names, ledger_bytes_max=1 << 20, lease_s=2.0, replicas=1)
            )
            await _health(exporter, lambda text: "it lost its end" in text or "is not followed" in text)
            found = await scraped(exporter)
            assert (found.one("jobledger_up"), found.one("jobledger_projection_agrees")) == (0, 0)
            lags = ("jobledger_projection_lag_events", "jobledger_projection_lag_seconds")
            assert [found.one(name) for name in lags] == [None, None]  # what is not there has no lag


async def test_an_empty_ledger_has_figures_too(ledger: Ledger, tmp_path: Path) -> None:
    async with exporting(ledger, tmp_path / "p.db") as exporter:
        await _health(exporter, lambda text: not text)
        found = await scraped(exporter)
        assert (
            found.one("jobledger_ledger_events") == found.one("jobledger_projection_position_sequence") == 0
        )
        assert found.one("jobledger_workers") == 0


@pytest.mark.parametrize("options", [{"label_values_max": 0}, {"label_values_max": 1.5}, {"lag_s_max": 0}])
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ExporterConfig(**options)


@pytest.fixture
async def written(nats_server: EmbeddedServer) -> AsyncIterator[str]:
    async with connect(nats_server.url, environment="cli", ledger_bytes_max=16 << 20) as ledger:
        await write_history(ledger.log)
        yield nats_server.url


def _get(port: int, path: str, **headers: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        link.request("GET", path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


async def test_the_command_serves_until_it_is_told_to_stop(written: str, command: Callable[..., Any]) -> None:
    def use() -> None:
        there = ("--url", written, "--environment", "cli")
        process, spare = (
            command("metrics", "--port", "0", *there),
            command("metrics", "--port", "0", "--json", *there),
        )
        said = re.match(
            r"metrics at http://127\.0\.0\.1:(\d+)/metrics, from", process._lines.get(timeout=LIMIT_S)
        )
        assert said is not None
        ready = spare.line()
        assert ready.keys() == {"metrics", "projection", "pid"}
        spare_port = int(ready["metrics"].rpartition(":")[2].removesuffix("/metrics"))
        for port in (int(said[1]), spare_port):
            while _get(port, "/healthz")[0] != 200:
                pass
            found = Scrape(_get(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")[1])
            assert found.by("jobledger_queue_jobs", "state")["dead_lettered"] == 2
        assert process.end(signal.SIGTERM) == 0
        assert spare.end(signal.SIGINT) == 0

    await anyio.to_thread.run_sync(use)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--host", "0.0.0.0"), 2, "give a token file too"),
        (("--host", "nowhere.invalid"), 2, "is no address to listen on"),
        (("--metrics-token-file", "/nonexistent/token"), 2, "cannot be read"),
        (("--lag-max", "0"), 2, "--lag-max"),
        (("--label-values-max", "0"), 2, "--label-values-max"),
        (("--port", "TAKEN"), 4, "choose another port"),
        (("--url", "nats://127.0.0.1:1"), 5, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    *,
    words: tuple[str, ...],
    code: int,
    sentence: str,
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    anyio.run(_made, nats_server.url)
    with MetricsServer(Nothing(), lambda: "") as other:
        port = ("--port", "0") if words[0] != "--port" else ()
        given = [str(other.port) if word == "TAKEN" else word for word in words]
        there = () if words[0] == "--url" else ("--url", nats_server.url, "--environment", "cli")
        file = ("--projection", str(tmp_path / "p.db"))
        assert run(["metrics", *port, *there, *file, *given]) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


async def _made(url: str) -> None:
    """Make the ledger: a command that reads makes none."""
    async with connect(url, environment="cli", ledger_bytes_max=16 << 20):
        pass


class Nothing:
    def collect(self) -> list[Any]:
        return []
