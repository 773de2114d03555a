"""Traces: one from the enqueuer's span to every attempt, whatever runs it; and nothing at all unless asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from tests.integration.test_owners import fails as owned
from tests.integration.test_owners import keeps, master_file
from tests.integration.test_owners_runs import breaks, takes
from tests.support.working import LIMIT_S, Connect, until, working

from jobledger.admin.verbs.schedules import BackfillSchedule, TriggerSchedule
from jobledger.cli.main import run
from jobledger.ledger import Backoff, Context, JobRef, Ledger, sync, task
from jobledger.ledger.model.events import event_type
from jobledger.ledger.model.trace import own_trace, trace_id

if TYPE_CHECKING:
    from tests.integration.conftest import Process

    from jobledger.ledger.server import EmbeddedServer

APP = """
import sys
from jobledger.ledger import task

@task(queue="told")
async def traces() -> bool:
    return "opentelemetry" in sys.modules
"""
SEEN: list[str] = []
_PAST: Final = datetime(2026, 1, 2, 3, tzinfo=UTC)


def seen() -> None:
    span = trace.get_current_span().get_span_context()
    SEEN.append(f"{span.trace_id:032x}-{span.span_id:016x}")


@task(queue="traced", max_attempts=2, backoff=Backoff(base_s=0.05))
async def fail_once(ctx: Context) -> int:
    seen()
    await ctx.checkpoint(ctx.attempt)
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return ctx.attempt


@task(queue="traced")
def in_thread(number: int) -> None:
    seen()


@pytest.fixture(scope="module")
def provider() -> InMemorySpanExporter:
    """The provider of this process, as an application sets one up; there can be one only."""
    exporter = InMemorySpanExporter()
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(made)
    return exporter


@pytest.fixture
def spans(provider: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    SEEN.clear()
    provider.clear()
    yield provider
    provider.clear()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def trace_of(traceparent: str) -> str:
    _, trace_id, span_id, _ = traceparent.split("-")
    return f"{trace_id}-{span_id}"


def ids(context: SpanContext | None) -> str:
    assert context is not None
    return f"{context.trace_id:032x}-{context.span_id:016x}"


def whole(span: ReadableSpan) -> str:
    return ids(span.get_span_context())


@pytest.mark.anyio
async def test_a_trace_goes_from_the_enqueuer_to_every_attempt(
    connected: Connect, spans: InMemorySpanExporter
) -> None:
    async with connected(tracing=True) as ledger:
        with trace.get_tracer("app").start_as_current_span("request") as request:
            job = await ledger.enqueue(fail_once)
        async with working(ledger, fail_once):
            await job.wait(timeout_s=LIMIT_S)
        history = await job.history()
    (enqueued,) = named(spans, "enqueue traced")
    attempts = named(spans, "run traced")
    assert enqueued.kind is SpanKind.PRODUCER
    assert enqueued.parent == request.get_span_context()
    assert [span.kind for span in attempts] == [SpanKind.CONSUMER] * 2
    assert [ids(span.parent) for span in attempts] == [whole(enqueued)] * 2
    assert [ids(link.context) for span in attempts for link in span.links] == [whole(enqueued)] * 2
    assert [span.attributes and span.attributes["jobledger.attempt"] for span in attempts] == [1, 2]
    assert [span.attributes and span.attributes["jobledger.outcome"] for span in attempts] == [
        "failed",
        "completed",
    ]
    assert attempts[0].status.status_code is StatusCode.ERROR
    assert attempts[0].status.description == "ValueError: not yet"
    assert attempts[1].status.status_code is StatusCode.UNSET
    # The task's own spans are children of the attempt's.
    assert [whole(span) for span in attempts] == SEEN
    # Every event names the span it was decided in, and what nobody traced the enqueuer's.
    told = [(event_type(stored.event), trace_of(stored.event.trace)) for stored in history]
    of_enqueuer, first, second = whole(enqueued), *map(whole, attempts)
    assert told == [
        ("queued", of_enqueuer),
        ("started", of_enqueuer),
        ("checkpointed", first),
        ("failed", first),
        ("queued", of_enqueuer),
        ("started", of_enqueuer),
        ("checkpointed", second),
        ("completed", second),
    ]


@pytest.mark.anyio
async def test_the_span_of_an_attempt_ends_with_it_although_its_task_does_not(
    connected: Connect, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    @task(queue="traced", max_attempts=1, timeout_s=0.1)
    async def stubborn() -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    async with connected(tracing=True) as ledger, working(ledger, stubborn, cancel_grace_s=0.1) as worker:
        await (await ledger.enqueue(stubborn)).wait(timeout_s=LIMIT_S)
        (span,) = named(spans, "run traced")
        gate.set()
        await until(lambda: worker.counts().abandoned == 0)
    assert span.attributes
    assert span.attributes["jobledger.outcome"] == "failed"
    assert len(named(spans, "run traced")) == 1
    assert "ended span" not in caplog.text


@pytest.mark.anyio
async def test_tasks_in_threads_and_bulk_are_traced(connected: Connect, spans: InMemorySpanExporter) -> None:
    async with connected(tracing=True) as ledger:
        await ledger.enqueue_many(
            in_thread, ({"number": n} for n in range(3)), ids=lambda values: f"n{values['number']}"
        )
        async with working(ledger, in_thread):
            for number in range(3):
                await (await ledger.job(f"n{number}")).wait(timeout_s=LIMIT_S)
    (enqueued,) = named(spans, "enqueue traced")
    attempts = named(spans, "run traced")
    assert {ids(span.parent) for span in attempts} == {whole(enqueued)}
    assert sorted(map(whole, attempts)) == sorted(SEEN)


@pytest.mark.anyio
@pytest.mark.usefixtures("spans")
async def test_a_job_of_a_schedule_is_answered_with_the_trace_that_it_carries(connected: Connect) -> None:
    async with connected(tracing=True) as traced:
        await traced.schedules.add("nightly", in_thread, input={"number": 1}, every_s=3600)
        with trace.get_tracer("app").start_as_current_span("request") as span:
            within = await traced.do(TriggerSchedule(name="nightly"))
            (past,) = (await traced.do(BackfillSchedule(name="nightly", begin=_PAST, end=_PAST))).items
        without = await traced.do(TriggerSchedule(name="nightly"))
        assert (
            within.trace_id == past.trace_id == f"{span.get_span_context().trace_id:032x}" != without.trace_id
        )
        for each in (within, past, without):
            job = await traced.job(JobRef(queue=each.queue, job_id=each.id))
            assert trace_id((await job.snapshot()).trace) == each.trace_id


@pytest.mark.anyio
async def test_nothing_is_traced_unless_asked_for(ledger: Ledger, spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("app").start_as_current_span("request"):
        job = await ledger.enqueue(in_thread, 1)
    async with working(ledger, in_thread):
        await job.wait(timeout_s=LIMIT_S)
    assert [span.name for span in spans.get_finished_spans()] == ["request"]
    traces = [stored.event.trace for stored in await job.history()]
    assert traces == ["", "", ""]
    assert (await job.snapshot()).trace == own_trace("traced", job.id)


def test_the_callers_span_is_known_through_the_portal_and_shown_with_the_job(
    nats_server: EmbeddedServer,
    spans: InMemorySpanExporter,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with (
        sync.connect(
            nats_server.url, environment="t_traced", ledger_bytes_max=1 << 20, tracing=True
        ) as ledger,
        trace.get_tracer("app").start_as_current_span("request") as request,
    ):
        job = ledger.enqueue(in_thread, 1)
    (enqueued,) = named(spans, "enqueue traced")
    assert enqueued.parent == request.get_span_context()
    assert run(["jobs", "show", job.id, "--json", "--url", nats_server.url, "--environment", "t_traced"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [trace_of(each["trace"]) for each in (shown, *shown["events"])] == [whole(enqueued)] * 2


def test_a_supervised_worker_is_told_to_trace(
    nats_server: EmbeddedServer, tmp_path: Path, command: Callable[..., Process]
) -> None:
    (tmp_path / "app.py").write_text(APP)
    worker = command(
        "worker",
        "--app",
        "app",
        "--processes",
        "1",
        "--traces",
        "--json",
        "--url",
        nats_server.url,
        "--environment",
        "t_told",
    )
    assert "supervisor" in worker.line()
    enqueue = command(
        "enqueue",
        "traces",
        "--app",
        "app",
        "--wait",
        "--json",
        "--url",
        nats_server.url,
        "--environment",
        "t_told",
    )
    assert '"result":true' in enqueue.rest()[-1]
    assert worker.end(signal.SIGTERM) == 0


def test_the_library_is_not_imported_unless_asked_for() -> None:
    program = (
        "import sys, jobledger.ledger, jobledger.workers, jobledger.cli\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.anyio
@pytest.mark.parametrize("sampled", [True, False])
async def test_a_job_of_an_untraced_caller_has_a_trace_of_its_own(
    connected: Connect, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, sampled: bool
) -> None:
    """Every attempt is in it, and the provider's sampler decides as it does for any first span."""
    monkeypatch.setattr(
        trace.get_tracer_provider(), "sampler", ParentBased(ALWAYS_ON if sampled else ALWAYS_OFF)
    )
    async with connected() as client, connected(tracing=True) as ledger:
        job = await client.enqueue(fail_once.options(id="untraced"))
        async with working(ledger, fail_once):
            await job.wait(timeout_s=LIMIT_S)
        first, history = (await job.snapshot()).trace, await job.history()
    assert first == own_trace("traced", "untraced")
    attempts = named(spans, "run traced")
    assert len(attempts) == (2 if sampled else 0)
    assert {f"{span.context.trace_id:032x}" for span in attempts if span.context} <= {trace_id(first)}
    assert [link for span in attempts for link in span.links] == []
    traces = {event_type(stored.event): stored.event.trace for stored in history[1:]}
    assert traces["started"] == ""  # what the first event says is not said again
    assert trace_id(traces["failed"]) == trace_id(first)


async def test_spans_of_a_job_that_has_an_owner_say_nothing_of_its_values(
    connected: Connect, spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async with (
        connected(tracing=True, master_key=master_file(tmp_path, "m1")) as ledger,
        working(ledger, keeps, owned, breaks, takes),
    ):
        for job in (
            await ledger.enqueue(keeps.options(owner="person:1"), text="Canary"),
            await ledger.enqueue(owned.options(owner="person:1"), text="Canary"),
            await ledger.enqueue(breaks.options(owner="person:1"), "Canary"),
        ):
            await job.wait(timeout_s=LIMIT_S)
    found = "".join(each.to_json() for each in spans.get_finished_spans())
    assert '"ValueError' in found
    assert "RuntimeError" in found
    assert "LookupError" in found
    assert "Canary" not in found
