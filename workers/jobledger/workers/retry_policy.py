"""The effect of a task's end on its job: turns a value or an exception into the command that records it. Pure."""

from __future__ import annotations

import random
import traceback
from datetime import datetime, timedelta
from typing import Any, Final

from jobledger.ledger.model.commands import Fail
from jobledger.ledger.model.events import ErrorInfo, ErrorKind
from jobledger.ledger.model.job import Job
from jobledger.ledger.options import Rules
from jobledger.ledger.outcome import Retry

_NAME_MAX: Final = 200
_MESSAGE_MAX: Final = 2_000
_TRACEBACK_MAX: Final = 16_000


class RetryPolicy:
    """Decides when failed attempts are retried; `chance` spreads the retries of many jobs that failed together."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def raised(self, job: Job, rules: Rules, error: BaseException, now: datetime) -> Fail:
        """Return the command that follows from an exception of the task."""
        if not rules.may_retry(error):
            return Fail(epoch=job.claim_epoch, error=describe(error), give_up="rejected")
        return self.failed(job, rules, describe(error), now)

    def failed(self, job: Job, rules: Rules, error: ErrorInfo, now: datetime) -> Fail:
        """Return the command that follows from a failure that may be retried."""
        failures = job.attempts_count - job.attempts_given_back
        delay_s = rules.backoff.delay_s(max(failures, 1), self._chance)
        return Fail(epoch=job.claim_epoch, error=error, retry_at=after(now, delay_s))

    def asked_again(self, job: Job, rules: Rules, asked: Retry, now: datetime) -> Fail:
        """Return the command that follows from a `Retry`."""
        error = ErrorInfo(kind="exception", type="Retry", message=asked.reason[:_MESSAGE_MAX])
        fail = self.failed(job, rules, error, now)
        retry_at = fail.retry_at if asked.delay_s is None else after(now, asked.delay_s)
        return Fail(epoch=fail.epoch, error=fail.error, retry_at=retry_at, retry_priority=asked.priority)


def unknown_task(job: Job, deliveries: int) -> Fail:
    """Return the command for a job whose task no worker had in that many deliveries."""
    version = f"version {job.order.version!r} of " if job.order.version else ""
    message = (
        f"no worker of queue {job.queue} knew {version}task {job.task!r} in {deliveries} deliveries: "
        "start one with the module that holds it, then requeue the job"
    )
    error = ErrorInfo(kind="unknown_task", type="UnknownTaskError", message=message)
    return Fail(epoch=job.claim_epoch, error=error, give_up="rejected")


def after(now: datetime, delay_s: float) -> datetime:
    """Return the moment `delay_s` from now; delays are limited, so only a clock near the year 9999 can fail."""
    return now + timedelta(seconds=delay_s)


def describe(error: BaseException, own_modules: frozenset[str] = frozenset()) -> ErrorInfo:
    """Return the error to record for an exception: its type, its message, the frames of user code; all cut to size."""
    frames = _user_frames(error, own_modules | _OWN_MODULES)
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # noqa: BLE001 - the exception is user code, and so is what describes it
        text = ""
    return error_info("exception", error, text[-_TRACEBACK_MAX:])


def _user_frames(error: BaseException, own_modules: frozenset[str]) -> Any:
    """Leave out the frames of the worker itself."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in own_modules:
        frames = frames.tb_next
    return frames or error.__traceback__


_OWN_MODULES: Final = frozenset(
    {
        "jobledger.workers.attempt.execution",
        "jobledger.workers.attempt.threads",
        "anyio.to_thread",
        "anyio._backends._asyncio",
    }
)


def recordable(text: str) -> str:
    """Return a user's text cut to size and without half surrogate pairs, so that an event can hold it."""
    return text[:_MESSAGE_MAX].encode("utf-8", "replace").decode()


def error_info(kind: ErrorKind, error: BaseException, text: str = "") -> ErrorInfo:
    """Return an exception's name and message as an error of `kind`, with `text` as its traceback."""
    try:
        message = str(error)
    except BaseException as broken:  # noqa: BLE001 - a broken __str__ must not hide the failure it belongs to, nor end the worker
        message = f"(its text cannot be shown: {type(broken).__name__})"
    return ErrorInfo(
        kind=kind, type=type(error).__name__[:_NAME_MAX], message=message[:_MESSAGE_MAX], traceback=text
    )
