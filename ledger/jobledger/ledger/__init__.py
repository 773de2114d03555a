"""The ledger: events, the fold, the log, the client. It knows nothing of workers, projections or the CLI."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jobledger.ledger.adding.bulk import BulkResult
from jobledger.ledger.backoff import Backoff
from jobledger.ledger.client import Ledger
from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.connecting.connect import connect
from jobledger.ledger.context import Context
from jobledger.ledger.decorator import task
from jobledger.ledger.event_stream import EventStream
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.held_lock import HeldLock
from jobledger.ledger.hooks import Hooks, Notice
from jobledger.ledger.limits.declared import Limit, Queue
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import (
    AmbiguousIdError,
    AppendOutcomeUnknownError,
    AttemptStoppedError,
    ConfigurationError,
    CorruptLedgerError,
    ForeignLoopError,
    IllegalTransitionError,
    InputMismatchError,
    InvalidError,
    InvalidInputError,
    InvalidTokenError,
    JetStreamDisabledError,
    JobCancelledError,
    JobExistsError,
    JobFailedError,
    JobNotFoundError,
    LedgerClosedError,
    LedgerError,
    LedgerFullError,
    LedgerNotFoundError,
    LimitNotFoundError,
    LockHeldError,
    LockLostError,
    LockReentryError,
    LockTimeoutError,
    MalformedEventError,
    NotFoundError,
    OutcomeError,
    PayloadMissingError,
    PayloadTooLargeError,
    PermissionRefusedError,
    PortInUseError,
    RefusedError,
    ResultMismatchError,
    ResultTimeoutError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    SequenceGapError,
    ServerBinaryMissingError,
    ServerStartError,
    ServerUnreachableError,
    StaleClaimError,
    StoreInUseError,
    StreamMismatchError,
    TaskDefinitionError,
    TaskNotFoundError,
    UniqueKeyTakenError,
    UnknownEventError,
    UnknownTaskError,
    UnreachableError,
    UnsafeFolderError,
    UnsupportedServerError,
    WrongSequenceError,
)
from jobledger.ledger.model.hooks.errors import (
    DeliveryNotFoundError,
    RouteNotFoundError,
    SecretUnavailableError,
    WatchNotFoundError,
    WebhookNotFoundError,
)
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.jobs.attempts import Attempt, Progress
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.queues.pause import QueueState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.outcome import Cancel, Retry, Snooze
from jobledger.ledger.schedules.in_code import Schedule, Skip, Tick
from jobledger.ledger.subscriptions.errors import SubscriptionMismatchError, SubscriptionNotFoundError
from jobledger.ledger.subscriptions.subscription import EventDelivery, Subscription
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.ledger.unique.rule import Unique

if TYPE_CHECKING:
    from jobledger.ledger.graphs.graph import Graph
    from jobledger.ledger.model.runs.errors import UnknownSignalError
    from jobledger.ledger.named.verbs import NamedJob
    from jobledger.ledger.runs.determinism import NondeterminismWarning
    from jobledger.ledger.runs.ending import RunEnd
    from jobledger.ledger.runs.errors import (
        ChildFailedError,
        DivergedError,
        ForeignTaskError,
        RunTooLongError,
        StepFailedError,
        StepInDoubtError,
    )
    from jobledger.ledger.runs.groups import Child, Outcome
    from jobledger.ledger.runs.run import Run
    from jobledger.ledger.runs.signals import Signal
    from jobledger.ledger.runs.steps import NOT_DONE, StepFunction, step
    from jobledger.ledger.runs.workflow import workflow
    from jobledger.ledger.tables.errors import TableExpiredError
    from jobledger.ledger.tables.table import Table

#: What most processes do not need, such as what is for workflows, and where it is: loaded when it is first asked for.
_OF_SOME = {
    "Child": "runs.groups",
    "ChildFailedError": "runs.errors",
    "DivergedError": "runs.errors",
    "ForeignTaskError": "runs.errors",
    "Graph": "graphs.graph",
    "NOT_DONE": "runs.steps",
    "NamedJob": "named.verbs",
    "NondeterminismWarning": "runs.determinism",
    "Outcome": "runs.groups",
    "Run": "runs.run",
    "RunEnd": "runs.ending",
    "RunTooLongError": "runs.errors",
    "Signal": "runs.signals",
    "StepFailedError": "runs.errors",
    "StepFunction": "runs.steps",
    "StepInDoubtError": "runs.errors",
    "Table": "tables.table",
    "TableExpiredError": "tables.errors",
    "UnknownSignalError": "model.runs.errors",
    "step": "runs.steps",
    "workflow": "runs.workflow",
}


def __getattr__(name: str) -> Any:
    module = _OF_SOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


__all__ = [
    "NOT_DONE",
    "AmbiguousIdError",
    "AppendOutcomeUnknownError",
    "Attempt",
    "AttemptStoppedError",
    "Backoff",
    "BulkResult",
    "Cancel",
    "Child",
    "ChildFailedError",
    "ConfigurationError",
    "Context",
    "CorruptLedgerError",
    "DeliveryNotFoundError",
    "DivergedError",
    "EventDelivery",
    "EventStream",
    "ForeignLoopError",
    "ForeignTaskError",
    "Graph",
    "HeldLock",
    "Hooks",
    "IllegalTransitionError",
    "InputMismatchError",
    "InvalidError",
    "InvalidInputError",
    "InvalidTokenError",
    "JetStreamDisabledError",
    "Job",
    "JobCancelledError",
    "JobExistsError",
    "JobFailedError",
    "JobHandle",
    "JobNotFoundError",
    "JobRef",
    "JobState",
    "Ledger",
    "LedgerClosedError",
    "LedgerConfig",
    "LedgerError",
    "LedgerFullError",
    "LedgerNotFoundError",
    "Limit",
    "LimitNotFoundError",
    "LockHeldError",
    "LockLostError",
    "LockReentryError",
    "LockTimeoutError",
    "MalformedEventError",
    "MemoryLog",
    "NamedJob",
    "NondeterminismWarning",
    "NotFoundError",
    "Notice",
    "Outcome",
    "OutcomeError",
    "PayloadMissingError",
    "PayloadTooLargeError",
    "PermissionRefusedError",
    "PortInUseError",
    "Progress",
    "Queue",
    "QueueState",
    "RefusedError",
    "ResultMismatchError",
    "ResultTimeoutError",
    "Retry",
    "RouteNotFoundError",
    "Run",
    "RunEnd",
    "RunTooLongError",
    "Schedule",
    "ScheduleExistsError",
    "ScheduleNotFoundError",
    "SecretUnavailableError",
    "SequenceGapError",
    "ServerBinaryMissingError",
    "ServerStartError",
    "ServerUnreachableError",
    "Signal",
    "Skip",
    "Snooze",
    "StaleClaimError",
    "StepFailedError",
    "StepFunction",
    "StepInDoubtError",
    "StoreInUseError",
    "StoredEvent",
    "StreamMismatchError",
    "Subscription",
    "SubscriptionMismatchError",
    "SubscriptionNotFoundError",
    "Table",
    "TableExpiredError",
    "Task",
    "TaskDefinitionError",
    "TaskNotFoundError",
    "TaskRegistry",
    "Tick",
    "Unique",
    "UniqueKeyTakenError",
    "UnknownEventError",
    "UnknownSignalError",
    "UnknownTaskError",
    "UnreachableError",
    "UnsafeFolderError",
    "UnsupportedServerError",
    "WatchNotFoundError",
    "WebhookNotFoundError",
    "WrongSequenceError",
    "connect",
    "step",
    "task",
    "workflow",
]
