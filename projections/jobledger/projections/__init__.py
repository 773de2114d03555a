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
    SlowAttempt,
    Store,
)
from jobledger.projections.rebuild import difference, rebuild
from jobledger.projections.schema import SCHEMA_VERSION
from jobledger.projections.stats import HISTOGRAM_BOUNDS_S
from jobledger.projections.stats_rows import (
    BucketRow,
    FailureRow,
    Histogram,
    QueueRow,
    TotalsRow,
    WorkerRow,
)

__all__ = [
    "HISTOGRAM_BOUNDS_S",
    "SCHEMA_VERSION",
    "AttemptRow",
    "BucketRow",
    "DamagedProjectionError",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "DeadLetterRow",
    "EventGapError",
    "FailureRow",
    "Histogram",
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
    "TotalsRow",
    "WorkerRow",
    "difference",
    "rebuild",
]
