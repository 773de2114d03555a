"""How long one run may become: every attempt reads all of it, so that a run without an end would stop the workers."""

from __future__ import annotations

from typing import Final

from jobledger.ledger.model.commands import CompleteStep, RefuseSignal, StartStep, StepCommand
from jobledger.ledger.model.job import Job
from jobledger.ledger.runs.errors import RunTooLongError

EVENTS_WARN: Final = 10_000
EVENTS_MAX: Final = 50_000
BYTES_MAX: Final = 50 << 20
#: How many bytes an event has beside the value that it carries.
_EVENT_BYTES: Final = 350
#: Events that an attempt has beside those of its steps: `queued`, `started` and its end.
_EVENTS_OF_ATTEMPT: Final = 3


class Length:
    """About how many events and bytes a run has: those of its steps, its signals, its attempts."""

    def __init__(self, job: Job) -> None:
        self._run_id = job.id
        steps = job.steps.values()
        started = sum(each.until is not None or each.order is not None for each in steps)
        ends = sum(max(each.tries, 1) for each in steps)
        signals = sum(1 + bool(each.refused) for each in job.signals)
        self.events = started + ends + signals + _EVENTS_OF_ATTEMPT * job.attempts_count
        values = sum(len(bytes(each.result)) + len(bytes(each.items)) for each in steps)
        self.bytes = _EVENT_BYTES * self.events + values

    @property
    def is_long(self) -> bool:
        """Whether the run should end soon."""
        return self.events >= EVENTS_WARN or self.bytes >= BYTES_MAX * EVENTS_WARN // EVENTS_MAX

    def require_room(self) -> None:
        """Refuse a further step of a run that is too long. Raises: RunTooLongError."""
        if self.events >= EVENTS_MAX or self.bytes >= BYTES_MAX:
            raise RunTooLongError(self._run_id, self.events, self.bytes)

    def add(self, command: StepCommand | RefuseSignal) -> None:
        """Count one more event."""
        value = command.result if isinstance(command, CompleteStep) else b""
        if isinstance(command, StartStep):
            value = command.items
        self.events += 1
        self.bytes += _EVENT_BYTES + len(bytes(value))
