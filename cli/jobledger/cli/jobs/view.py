"""One job for a program, as an object, and for a person: facts, attempts, trail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from rich.text import Text

from jobledger.audit.export.payloads import PayloadFiles
from jobledger.cli.events.events import show_event
from jobledger.cli.output import Output
from jobledger.cli.text import colored, duration, moment, plain_lines, shortened
from jobledger.ledger import Attempt, Job, Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import PayloadMissingError
from jobledger.ledger.model.events import ErrorInfo, PayloadRef
from jobledger.ledger.model.job import Progress
from jobledger.ledger.model.lifecycle import VALUE_FIELDS
from jobledger.ledger.nats.payloads import Payloads

_VALUE_SHOWN_MAX: Final = 600
_TRACEBACK_LINES_MAX: Final = 12


async def job_object(
    ledger: Ledger, job: Job, history: Iterable[StoredEvent], archived: PayloadFiles | None = None
) -> dict[str, Any]:
    """Return the job as JSON shows it, with its events.

    Inputs and results in the object store are fetched, those that are gone from there out of the archive.
    """
    progress = job.progress
    return {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "status": job.state.value,
        "priority": job.order.priority,
        "input": await _value(ledger.inputs, job.order.input, job.order.input_ref, archived),
        "result": await _value(ledger.results, job.result, job.result_ref, archived),
        "error": _error(job.error),
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "completed_at": job.finished_at,
        "due_at": job.due_at,
        "max_attempts": job.order.max_attempts,
        "timeout_s": job.order.timeout_s,
        "dead_reason": job.dead_reason,
        "cancel_requested": job.cancel_requested,
        "cancel_reason": job.cancel_reason or None,
        "progress": msgspec.structs.asdict(progress) if progress is not None else None,
        "last_sequence": job.last_sequence,
        "trace": job.order.trace or None,
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "events": [_event(stored) for stored in history],
    }


async def _value(
    store: Payloads, value: msgspec.Raw, ref: PayloadRef | None, archived: PayloadFiles | None
) -> Any:
    """Return a value; one that the object store no longer holds is shown as its reference."""
    if value is NO_VALUE and ref is None:
        return None
    try:
        return msgspec.json.decode(await store.get(value, ref))
    except PayloadMissingError:
        assert ref is not None, "only a referenced value can be missing"
    with contextlib.suppress(PayloadMissingError):
        if archived is not None:
            return msgspec.json.decode(await archived.get(value, ref))
    return {"sha256": ref.sha256, "size_bytes": ref.size_bytes, "missing": True}


def _event(stored: StoredEvent) -> dict[str, Any]:
    """Return an event with the fields that it was stored with, but for values: the job's own stand beside it."""
    fields: dict[str, Any] = _without_payloads(msgspec.json.decode(stored.data))
    return {"stream_sequence": stored.stream_sequence, "stored_at": stored.stored_at, **fields}


def _without_payloads(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_payloads(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in VALUE_FIELDS
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "status": attempt.state,
        "worker": attempt.worker,
        "started_at": attempt.started_at,
        "finished_at": attempt.finished_at,
        "error": _error(attempt.error),
    }


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    return None if error is None else msgspec.structs.asdict(error)


def show_job(
    output: Output, job: Job, body: dict[str, Any], history: Sequence[StoredEvent], now: datetime
) -> None:
    """Print the job for a person."""
    output.say(f"job {job.id}", style="bold")
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
            ("input", _shown(body["input"])),
            ("result", _shown(body["result"]) if body["result"] is not None else None),
            ("error", f"{job.error.type}: {job.error.message}" if job.error is not None else None),
            ("reason", job.cancel_reason or None),
            ("progress", progress_text(job.progress) if job.progress is not None else None),
            ("checkpoint", _checkpoint(job)),
            ("created", moment(job.created_at, now)),
            ("due", moment(job.due_at, now) if job.due_at is not None and not job.is_final else None),
            ("ended", moment(job.finished_at, now) if job.finished_at is not None else None),
            ("attempts", f"{len(job.attempts)} of {job.order.max_attempts + job.attempts_given_back}"),
            ("timeout", duration(job.order.timeout_s) if job.order.timeout_s is not None else None),
        ]
    )
    show_attempts(output, job)
    show_trail(output, history)
    _show_traceback(output, job.error)


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
        f"{attempt.started_at:%Y-%m-%d %H:%M:%S}",
        duration(max(0.0, took)) if took is not None else "",
    )


def show_trail(output: Output, history: Sequence[StoredEvent]) -> None:
    """Print every event of one job, a line each, times as the server has them."""
    output.say()
    output.say("events", style="bold")
    for stored in history:
        show_event(output, stored)


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


def _checkpoint(job: Job) -> str | None:
    if job.checkpoint_ref is not None:
        return f"{job.checkpoint_ref.size_bytes:,} bytes in the object store"
    return None if job.checkpoint is NO_VALUE else shortened(bytes(job.checkpoint).decode(), _VALUE_SHOWN_MAX)


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return shortened(text, _VALUE_SHOWN_MAX) + (
        f" ({len(text):,} characters)" if len(text) > _VALUE_SHOWN_MAX else ""
    )
