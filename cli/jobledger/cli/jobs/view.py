"""One job for a person: facts, attempts, events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from rich.text import Text

from jobledger.admin.amounts import attempts_words, duration
from jobledger.admin.views import Absent, JobDetails
from jobledger.audit.clocks import clocks_of
from jobledger.audit.verify.links import ChainCheck
from jobledger.cli.events.lines import show_event
from jobledger.cli.output import Output
from jobledger.cli.text import clock_time, colored, day, moment, plain_lines, shortened
from jobledger.ledger import Attempt, Job
from jobledger.ledger.model.attempts import Progress
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import LABELS, ErrorInfo, Order, RerunOf

_VALUE_SHOWN_MAX: Final = 600
_TRACEBACK_LINES_MAX: Final = 12


def show_job(
    output: Output,
    job: Job,
    details: JobDetails,
    history: Sequence[StoredEvent],
    *,
    now: datetime,
    chain: ChainCheck,
) -> None:
    """Print the job for a person."""
    output.say(f"job {job.id}", style="bold")
    tenant, *labels = label_facts(job.order)
    status = colored(job.state.value)
    if job.dead_reason:
        status.append(f" ({job.dead_reason})")
    if job.cancel_requested and not job.is_final:
        status.append(" (asked to end)")
    output.facts(
        [
            ("status", status),
            ("task", job.task),
            (
                "queue",
                job.queue
                if job.order.priority == "normal"
                else f"{job.queue}, priority {job.order.priority}",
            ),
            tenant,
            ("limits", " ".join(job.order.limits) or None),
            *labels,
            ("metadata", _shown(job.order.metadata) if job.order.metadata else None),
            ("created by", job.created_by or None),
            ("made by", f"job {details.made_by}" if details.made_by is not None else None),
            ("rerun of", _source(job.order.rerun_of)),
            ("input", _shown(details.input)),
            ("result", _shown(details.result) if details.result is not None else None),
            ("error", f"{job.error.type}: {job.error.message}" if job.error is not None else None),
            ("reason", job.cancel_reason or None),
            ("progress", progress_text(job.progress) if job.progress is not None else None),
            ("checkpoint", _checkpoint(job)),
            ("created", moment(job.created_at, now)),
            ("due", moment(job.due_at, now) if job.due_at is not None and not job.is_final else None),
            ("deadline", moment(details.deadline_at, now) if details.deadline_at is not None else None),
            ("ended", moment(job.finished_at, now) if job.finished_at is not None else None),
            ("attempts", attempts_words(job)),
            ("timeout", duration(job.order.timeout_s) if job.order.timeout_s is not None else None),
        ]
    )
    show_attempts(output, job)
    show_events(output, history)
    output.say(chain.text(), style="dim" if chain.is_unbroken else "bold red")
    _show_traceback(output, job.error)


def label_facts(order: Order) -> list[tuple[str, str | None]]:
    """Return the labels of an order as facts."""
    return [(name.replace("_", " "), getattr(order, name) or None) for name in LABELS]


def show_attempts(output: Output, job: Job) -> None:
    """Print the table of attempts, if there was one."""
    if job.attempts:
        rows = [_attempt_row(attempt) for attempt in job.attempts]
        output.table(("#>", "status!", "worker", "started (UTC)!", "took>"), rows, title="attempts")


def _attempt_row(attempt: Attempt) -> tuple[Any, ...]:
    took = (
        (attempt.finished_at - attempt.started_at).total_seconds()
        if attempt.finished_at is not None
        else None
    )
    return (
        attempt.number,
        colored(attempt.state),
        shortened(attempt.worker, 64),
        f"{day(attempt.started_at)} {clock_time(attempt.started_at)}",
        duration(max(0.0, took)) if took is not None else "",
    )


def show_events(output: Output, history: Sequence[StoredEvent]) -> None:
    """Print every event of one job, a line each."""
    clocks = clocks_of(history)
    output.say()
    output.say("events" if clocks.of == "server" else f"events; {clocks.text()}", style="bold")
    shown = day(history[0].event.at)  # this date is shown above, in `created`
    for stored, at in zip(history, clocks.times, strict=True):
        if day(at) != shown:
            shown = day(at)
            output.say(shown, style="dim")
        show_event(output, stored, at)


def _show_traceback(output: Output, error: ErrorInfo | None) -> None:
    if error is None or not error.traceback:
        return
    output.say()
    output.say("traceback of the newest error", style="bold")
    lines = plain_lines(error.traceback.rstrip())
    if len(lines) > _TRACEBACK_LINES_MAX:
        output.say(f"  ... ({len(lines) - _TRACEBACK_LINES_MAX} lines before, see --json)", style="dim")
    for line in lines[-_TRACEBACK_LINES_MAX:]:
        output.say(Text(f"  {line}"))


def progress_text(progress: Progress) -> str:
    """Return a report in words: `30 of 100 (30 %) counting`."""
    note = f" {shortened(progress.note, 200)}" if progress.note else ""
    if not progress.total:
        return f"{progress.done:g}{note}"
    return f"{progress.done:g} of {progress.total:g} ({100 * progress.done / progress.total:.0f} %){note}"


def _source(source: RerunOf | None) -> str | None:
    if source is None:
        return None
    why = f": {source.reason}" if source.reason else ""
    return f"job {source.job} as of stream sequence {source.sequence:,}, {source.words}{why}"


def _checkpoint(job: Job) -> str | None:
    if job.checkpoint_ref is not None:
        return f"{job.checkpoint_ref.size_bytes:,} bytes in the object store"
    return None if job.checkpoint is NO_VALUE else shortened(bytes(job.checkpoint).decode(), _VALUE_SHOWN_MAX)


def _shown(value: Any) -> str:
    if isinstance(value, Absent):
        return value.text()
    text = msgspec.json.encode(value).decode()
    return shortened(text, _VALUE_SHOWN_MAX) + (
        f" ({len(text):,} characters)" if len(text) > _VALUE_SHOWN_MAX else ""
    )
