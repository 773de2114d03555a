"""One trace from a request to every attempt of the job it asked for; needs opentelemetry-sdk."""

import tempfile
from pathlib import Path

import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jobledger.ledger import Backoff, Context, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

exporter = InMemorySpanExporter()  # yours sends them to a collector
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")


@task(queue="email", max_attempts=2, backoff=Backoff(base_s=0.1))
async def send_receipt(ctx: Context, order: int) -> str:
    with tracer.start_as_current_span("talk to the mail server"):
        if ctx.attempt == 1:
            raise ConnectionError("the mail server is restarting")
    return f"receipt {order}"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedServer(Path(folder), port=0) as server,
            connect(server.url, tracing=True) as ledger,
        ):
            with tracer.start_as_current_span("POST /orders"):
                job = await ledger.enqueue(send_receipt, 7)
            worker = Worker(ledger, TaskRegistry([send_receipt]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                print(await job.result(timeout_s=10))
                worker.stop()
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
    for span in spans:
        outcome = (span.attributes or {}).get("jobledger.outcome", "-")
        print(span.name, outcome, span.status.status_code.name.lower())
    print(len({span.context.trace_id for span in spans if span.context}), "trace")


if __name__ == "__main__":
    anyio.run(main)
