"""Which attempt a log line comes from: kept in a context variable, and put onto the records of every logger by a filter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

#: What a line may say of where it comes from, in this order. The trace id is the one of the job's `trace`.
FACTS: Final = ("worker", "queue", "job", "task", "attempt", "trace_id")


class LogContext(Protocol):
    """The source of the facts that log lines show, such as an attempt."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Some of `FACTS` with their values."""
        ...


#: The attempt whose code runs now; tasks, threads and hooks that it starts inherit it.
current: ContextVar[LogContext | None] = ContextVar("jobledger_attempt", default=None)

#: The name of the step of a run whose function runs now, "" outside of steps; inherited as `current` is.
step: ContextVar[str] = ContextVar("jobledger_step", default="")


class JobFilter(logging.Filter):
    """Puts `FACTS` onto every record that is made within an attempt, whichever logger made it. It lets all pass.

    For a handler, which then may show `%(job)s` of each record: `handler.addFilter(JobFilter())`. What is not known is
    "". Outside of attempts `worker()` gives the worker's name for the line.
    """

    def __init__(self, worker: Callable[[], str] = str) -> None:
        super().__init__()
        self.worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is known; what the record says already stays."""
        attempt = current.get()
        known: Mapping[str, Any] = {"worker": self.worker()} if attempt is None else attempt.facts
        for name in FACTS:
            if not hasattr(record, name):
                setattr(record, name, known.get(name, ""))
        return True
