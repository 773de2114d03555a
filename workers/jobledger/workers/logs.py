"""The lines of a worker's log about its jobs: starts and ends, failures, dead letters.

No line shows an input, a result or a checkpoint; lines show the type and the message of an exception.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, Final

from jobledger.ledger.model.commands import ConfirmCancel, Fail, Interrupt, Outcome, Snooze
from jobledger.ledger.model.decisions import outcome_type
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.model.trace import trace_id

logger = logging.getLogger("jobledger.workers.jobs")

_REASON_MAX: Final = 300


def facts_of(job: Job, worker: str) -> dict[str, Any]:
    """Return the fields of lines about a job's newest attempt: all of `FACTS`."""
    return {
        "worker": worker,
        "queue": job.queue,
        "job": job.id,
        "task": job.task,
        "attempt": job.attempts_count,
        "trace_id": trace_id(job.trace),
    }


def is_wordy() -> bool:
    """Return whether starts and good ends are logged; callers keep the answer, to ask once instead of per job."""
    return logger.isEnabledFor(logging.DEBUG)


def tell_start(job: Job) -> None:
    """Log that an attempt begins."""
    logger.debug("attempt %d starts", job.attempts_count)


def tell_end(outcome: Outcome, before: Job, now: datetime) -> None:
    """Log the end of an attempt that did not fail; `before`: the job while it ran."""
    took_s = (now - before.attempts[-1].started_at).total_seconds()
    end = outcome_type(outcome)
    if isinstance(outcome, ConfirmCancel | Interrupt):
        end += f": {_short(outcome.reason)}"
    elif isinstance(outcome, Snooze):
        end += f" until {shown_time(outcome.until)}"
    logger.debug("attempt %d %s, after %.3f s", before.attempts_count, end, took_s)


def tell_failure(fail: Fail, after: Job) -> None:
    """Log why an attempt failed and what happens to the job next; `after`: the job with the outcome."""
    number, reason = after.attempts_count, _reason(fail.error)
    if after.state is JobState.DEAD_LETTERED:
        tell_dead_letter(after)
    elif after.state in (JobState.RETRY_WAIT, JobState.QUEUED):
        when = (
            "once" if after.state is JobState.QUEUED or fail.retry_at is None else shown_time(fail.retry_at)
        )
        logger.info("attempt %d failed: %s; attempt %d starts at %s", number, reason, number + 1, when)
    else:
        logger.info("attempt %d failed: %s; the job is %s", number, reason, after.state.value)


def tell_dead_letter(job: Job, worker: str = "") -> None:
    """Log that a job needs a person; `worker`: if the line comes from no attempt."""
    reason = "" if job.error is None else f": {_reason(job.error)}"
    extra = facts_of(job, worker) if worker else None
    logger.warning(
        "the job is a dead letter (%s) after attempt %d%s",
        job.dead_reason,
        job.attempts_count,
        reason,
        extra=extra,
    )


def _reason(error: ErrorInfo) -> str:
    return _short(f"{error.type}: {error.message}" if error.message else error.type)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_MAX else f"{line[:_REASON_MAX]}..."
