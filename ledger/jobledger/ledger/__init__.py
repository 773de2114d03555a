"""The ledger: events, the fold, the log, the client. It knows nothing of workers, projections or the CLI."""

from typing import TYPE_CHECKING

from jobledger.ledger.model.errors import (
    AccessDeniedError,
    AmbiguousIdError,
    AppendOutcomeUnknownError,
    AttemptStoppedError,
    ConfigurationError,
    CorruptLedgerError,
    ErasedError,
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
    KeyUnavailableError,
    LedgerClosedError,
    LedgerError,
    LedgerFullError,
    LedgerNotFoundError,
    LedgerThrottledError,
    LimitNotFoundError,
    LockHeldError,
    LockLostError,
    LockReentryError,
    LockTimeoutError,
    MalformedEventError,
    NoDataFolderError,
    NotFoundError,
    OutcomeError,
    OwnerErasingError,
    PayloadMissingError,
    PayloadTooLargeError,
    PermissionRefusedError,
    PortInUseError,
    RefusedError,
    ResultMismatchError,
    ResultTimeoutError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    SealBrokenError,
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
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.hooks.errors import (
    DeliveryNotFoundError,
    RouteNotFoundError,
    SecretUnavailableError,
    WatchNotFoundError,
    WebhookNotFoundError,
)
from jobledger.ledger.on_demand import on_demand

if TYPE_CHECKING:
    from jobledger.ledger.additions.bulk import BulkResult
    from jobledger.ledger.backoff import Backoff
    from jobledger.ledger.client import Ledger
    from jobledger.ledger.config import LedgerConfig
    from jobledger.ledger.connection import connect
    from jobledger.ledger.context import Context
    from jobledger.ledger.declared_route import Route
    from jobledger.ledger.decorator import task
    from jobledger.ledger.event_stream import EventStream
    from jobledger.ledger.graphs.graph import Graph
    from jobledger.ledger.graphs.verbs import GraphRun
    from jobledger.ledger.handle import JobHandle
    from jobledger.ledger.held_lock import HeldLock
    from jobledger.ledger.hooks import Hooks, Notice
    from jobledger.ledger.limits.declared import Limit, Queue
    from jobledger.ledger.model.attempts import Attempt, Progress
    from jobledger.ledger.model.codec import StoredEvent
    from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
    from jobledger.ledger.model.job import Job, JobState
    from jobledger.ledger.model.memory import MemoryLog
    from jobledger.ledger.model.queue_pause import QueueState
    from jobledger.ledger.model.runs.errors import UnknownSignalError
    from jobledger.ledger.model.subjects import JobRef
    from jobledger.ledger.named.verbs import NamedJob
    from jobledger.ledger.nats.attempt_logs import JobLogs, LogLine
    from jobledger.ledger.outcome import Cancel, Fail, Retry, Snooze
    from jobledger.ledger.runs.determinism import NondeterminismWarning
    from jobledger.ledger.runs.ends import RunEnd
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
    from jobledger.ledger.schedules.in_code import Schedule, Skip, Tick
    from jobledger.ledger.subscriptions.errors import SubscriptionMismatchError, SubscriptionNotFoundError
    from jobledger.ledger.subscriptions.subscription import EventDelivery, Subscription
    from jobledger.ledger.tables.errors import TableExpiredError
    from jobledger.ledger.tables.table import Table
    from jobledger.ledger.tasks import Task, TaskRegistry
    from jobledger.ledger.unique.rule import Unique
else:  # the same as a table
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "additions.bulk": ("BulkResult",),
            "backoff": ("Backoff",),
            "client": ("Ledger",),
            "config": ("LedgerConfig",),
            "connection": ("connect",),
            "context": ("Context",),
            "decorator": ("task",),
            "event_stream": ("EventStream",),
            "graphs.graph": ("Graph",),
            "graphs.verbs": ("GraphRun",),
            "handle": ("JobHandle",),
            "held_lock": ("HeldLock",),
            "hooks": ("Hooks", "Notice"),
            "limits.declared": ("Limit", "Queue"),
            "model.codec": ("StoredEvent",),
            "model.job": ("Job", "JobState"),
            "model.hooks.route": ("RouteDefinition", "RouteRule"),
            "model.attempts": ("Attempt", "Progress"),
            "model.memory": ("MemoryLog",),
            "model.queue_pause": ("QueueState",),
            "model.runs.errors": ("UnknownSignalError",),
            "model.subjects": ("JobRef",),
            "nats.attempt_logs": ("JobLogs", "LogLine"),
            "named.verbs": ("NamedJob",),
            "outcome": ("Cancel", "Fail", "Retry", "Snooze"),
            "runs.determinism": ("NondeterminismWarning",),
            "runs.ends": ("RunEnd",),
            "runs.errors": (
                "ChildFailedError",
                "DivergedError",
                "ForeignTaskError",
                "RunTooLongError",
                "StepFailedError",
                "StepInDoubtError",
            ),
            "runs.groups": ("Child", "Outcome"),
            "runs.run": ("Run",),
            "runs.signals": ("Signal",),
            "runs.steps": ("NOT_DONE", "StepFunction", "step"),
            "runs.workflow": ("workflow",),
            "schedules.in_code": ("Schedule", "Skip", "Tick"),
            "subscriptions.errors": ("SubscriptionMismatchError", "SubscriptionNotFoundError"),
            "subscriptions.subscription": ("EventDelivery", "Subscription"),
            "tables.errors": ("TableExpiredError",),
            "tables.table": ("Table",),
            "declared_route": ("Route",),
            "tasks": ("Task", "TaskRegistry"),
            "unique.rule": ("Unique",),
        },
        elsewhere={
            "MemoryLedger": "jobledger.testing",
            "MovableClock": "jobledger.testing",
            "Worker": "jobledger.workers",
            "WorkerConfig": "jobledger.workers",
            "assert_enqueued": "jobledger.testing",
            "run_in_memory": "jobledger.testing",
        },
    )

__all__ = [
    "NOT_DONE",
    "AccessDeniedError",
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
    "ErasedError",
    "EventDelivery",
    "EventStream",
    "Fail",
    "ForeignLoopError",
    "ForeignTaskError",
    "Graph",
    "GraphNotFoundError",
    "GraphRun",
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
    "JobLogs",
    "JobNotFoundError",
    "JobRef",
    "JobState",
    "KeyUnavailableError",
    "Ledger",
    "LedgerClosedError",
    "LedgerConfig",
    "LedgerError",
    "LedgerFullError",
    "LedgerNotFoundError",
    "LedgerThrottledError",
    "Limit",
    "LimitNotFoundError",
    "LockHeldError",
    "LockLostError",
    "LockReentryError",
    "LockTimeoutError",
    "LogLine",
    "MalformedEventError",
    "MemoryLog",
    "NamedJob",
    "NoDataFolderError",
    "NondeterminismWarning",
    "NotFoundError",
    "Notice",
    "Outcome",
    "OutcomeError",
    "OwnerErasingError",
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
    "Route",
    "RouteDefinition",
    "RouteNotFoundError",
    "RouteRule",
    "Run",
    "RunEnd",
    "RunTooLongError",
    "Schedule",
    "ScheduleExistsError",
    "ScheduleNotFoundError",
    "SealBrokenError",
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
