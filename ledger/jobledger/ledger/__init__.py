"""The ledger: events, the fold, the log, the client. It knows nothing of workers, projections or the CLI."""

from jobledger.ledger.backoff import Backoff
from jobledger.ledger.client import Ledger, connect
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.context import Context
from jobledger.ledger.decorator import task
from jobledger.ledger.enqueueing import BulkResult
from jobledger.ledger.event_stream import EventStream
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.held_lock import HeldLock
from jobledger.ledger.hooks import Hooks, Notice
from jobledger.ledger.model.errors import AttemptStoppedError, LedgerError
from jobledger.ledger.model.job import Attempt, Job, JobState
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.outcome import Cancel, Retry, Snooze
from jobledger.ledger.subscriptions.subscription import EventDelivery, Subscription
from jobledger.ledger.tasks import Task, TaskRegistry

__all__ = [
    "Attempt",
    "AttemptStoppedError",
    "Backoff",
    "BulkResult",
    "Cancel",
    "Context",
    "EventDelivery",
    "EventStream",
    "HeldLock",
    "Hooks",
    "Job",
    "JobHandle",
    "JobState",
    "Ledger",
    "LedgerConfig",
    "LedgerError",
    "MemoryLog",
    "Notice",
    "Retry",
    "Snooze",
    "Subscription",
    "Task",
    "TaskRegistry",
    "connect",
    "task",
]
