"""Read models of the ledger in SQLite: followed, rebuilt, compared and queried.

Nothing here is the truth: a projection can be deleted at any time and made again from the ledger.
"""

from jobledger.projections.errors import (
    DamagedProjectionError,
    EventGapError,
    NewerSchemaError,
    NotAProjectionError,
    OlderSchemaError,
    PositionMismatchError,
    ProjectionBusyError,
    ProjectionConfigError,
    ProjectionError,
    ProjectionFileError,
    ProjectionMissingError,
    ProjectionStorageError,
    ProjectionTimeoutError,
)
from jobledger.projections.projector import Position, Projector, ProjectorConfig
from jobledger.projections.queries import (
    AttemptRow,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterRow,
    JobRow,
    QueueRow,
    SlowAttempt,
    Store,
)
from jobledger.projections.rebuild import difference, rebuild
from jobledger.projections.schema import SCHEMA_VERSION

__all__ = [
    "SCHEMA_VERSION",
    "AttemptRow",
    "DamagedProjectionError",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "DeadLetterRow",
    "EventGapError",
    "JobRow",
    "NewerSchemaError",
    "NotAProjectionError",
    "OlderSchemaError",
    "Position",
    "PositionMismatchError",
    "ProjectionBusyError",
    "ProjectionConfigError",
    "ProjectionError",
    "ProjectionFileError",
    "ProjectionMissingError",
    "ProjectionStorageError",
    "ProjectionTimeoutError",
    "Projector",
    "ProjectorConfig",
    "QueueRow",
    "SlowAttempt",
    "Store",
    "difference",
    "rebuild",
]
