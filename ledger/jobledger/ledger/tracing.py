"""OpenTelemetry: one trace from the enqueue of a job to all its attempts, through the `trace` field of its events.

Off unless `connect(..., tracing=True)`: then nothing here is called and the library is not imported. Spans go to the
tracer provider that the application has set up; span names and attributes follow the semantic conventions for
messaging. Only the trace context travels, in the W3C form of `traceparent`; baggage does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from jobledger.ledger.model.commands import Fail, Outcome
from jobledger.ledger.model.decisions import outcome_type
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.trace import is_own, trace_id
from jobledger.ledger.model.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_HEADER: Final = "traceparent"
_SYSTEM: Final = "jobledger"


class AttemptSpan(Protocol):
    """The worker's span of an attempt."""

    def ended(self, outcome: Outcome) -> None:
        """Note how the attempt ended, before its outcome is recorded."""
        ...

    def close(self) -> None:
        """End the span before its block ends: a task that does not end would keep the block open."""
        ...


class _NoTrace(AbstractContextManager["_NoTrace"]):
    """Stands for every span when nothing is traced."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def ended(self, outcome: Outcome) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


UNTRACED: Final = _NoTrace()


class Tracing:
    """One client's spans."""

    def __init__(self) -> None:
        """Raises: ConfigurationError without the library."""
        try:
            from opentelemetry import trace  # noqa: PLC0415 - an extra
            from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise ConfigurationError(
                "tracing needs the library opentelemetry-api: install it with pip install 'jobledger[otel]'"
            ) from error
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer: Tracer = trace.get_tracer("jobledger", VERSION)

    def current(self) -> str:
        """Return the traceparent of the span that is current, "" where none is recorded or passed on."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get(_HEADER, "")

    @contextlib.contextmanager
    def enqueuing(self, task: str, queue: str, job_id: str = "") -> Generator[None, None, None]:
        """Open the span in which jobs are added; their events carry it."""
        attributes = _attributes("enqueue", "send", task, queue)
        if job_id:
            attributes["messaging.message.id"] = job_id
        kind = self._trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(f"enqueue {queue}", kind=kind, attributes=attributes):
            yield

    @contextlib.contextmanager
    def attempt(self, job: Job) -> Generator[AttemptSpan, None, None]:
        """Open the span of a claimed attempt: a child of the enqueuer's span, and linked to it."""
        parent = self._context(job.trace)
        attributes: dict[str, str | int] = {
            **_attributes("run", "process", job.task, job.queue),
            "messaging.message.id": job.id,
            "jobledger.attempt": job.attempts[-1].number,
            "jobledger.worker": job.attempts[-1].worker,
            "jobledger.priority": job.order.priority,
        }
        from_enqueuer = self._trace.get_current_span(parent).get_span_context()
        is_linked = from_enqueuer.is_valid and not is_own(job.trace)
        links = [self._trace.Link(from_enqueuer)] if is_linked else []
        span = self._tracer.start_span(
            f"run {job.queue}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        attempt = _Attempt(span, self._trace)
        try:
            with self._trace.use_span(span):
                yield attempt
        finally:
            attempt.close()

    def _context(self, traceparent: str) -> Context:
        if not is_own(traceparent):
            return self._propagator.extract({_HEADER: traceparent} if traceparent else {})
        # The trace begins with the job, so nobody has decided yet whether to record it: the provider does, as for any
        # first span, and all attempts of the job are in one trace.
        numbers = int(trace_id(traceparent), 16), int(traceparent[36:52], 16)
        sampler = getattr(self._trace.get_tracer_provider(), "sampler", None)
        chosen = sampler is None or sampler.should_sample(None, numbers[0], "").decision.is_sampled()
        flags = self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED if chosen else 0)
        begin = self._trace.SpanContext(*numbers, is_remote=True, trace_flags=flags)
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(begin))


@contextlib.contextmanager
def within(traceparent: str) -> Generator[None, None, None]:
    """Make a span of another process the current one; without the library, do nothing."""
    try:
        from opentelemetry import context  # noqa: PLC0415 - an extra
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )
    except ImportError:
        yield
        return
    token = context.attach(TraceContextTextMapPropagator().extract({_HEADER: traceparent}))
    try:
        yield
    finally:
        context.detach(token)


class _Attempt:
    def __init__(self, span: Span, trace: Any) -> None:
        self._span = span
        self._trace = trace

    def ended(self, outcome: Outcome) -> None:
        self._span.set_attribute("jobledger.outcome", outcome_type(outcome))
        if isinstance(outcome, Fail):
            error = outcome.error
            self._span.set_attribute("error.type", error.type)
            self._span.set_status(
                self._trace.StatusCode.ERROR,
                f"{error.type}: {error.message}" if error.message else error.type,
            )

    def close(self) -> None:
        if self._span.is_recording():  # ended twice, it would warn
            self._span.end()


def _attributes(operation: str, kind: str, task: str, queue: str) -> dict[str, str]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "jobledger.task": task,
    }
