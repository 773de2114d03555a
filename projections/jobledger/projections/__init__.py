"""Read models of the ledger in SQLite: followed, rebuilt, compared and queried.

Nothing here is the truth: a projection can be deleted at any time and made again from the ledger.
"""

from typing import TYPE_CHECKING

from jobledger.ledger.on_demand import on_demand
from jobledger.projections.errors import (
    CursorMismatchError,
    DamagedProjectionError,
    EventGapError,
    MomentAheadError,
    MomentArchivedError,
    NewerReadModelError,
    NewerSchemaError,
    NotAProjectionError,
    OlderSchemaError,
    PositionArchivedError,
    PositionMismatchError,
    ProjectionBehindError,
    ProjectionBusyError,
    ProjectionConfigError,
    ProjectionError,
    ProjectionFileError,
    ProjectionMissingError,
    ProjectionStorageError,
    ProjectionTimeoutError,
    ReadModelDefinitionError,
    ReadModelFailedError,
)

if TYPE_CHECKING:
    from jobledger.projections.compare import Difference, difference, verify
    from jobledger.projections.early_counts import counting
    from jobledger.projections.filters import DeadLetterFilter, JobFilter, SaidFilter
    from jobledger.projections.layout import SCHEMA_VERSION
    from jobledger.projections.moments import Moment, as_of, moment_of, refuse_archived
    from jobledger.projections.parquet import write_tables
    from jobledger.projections.projector import Position, Projector, ProjectorConfig
    from jobledger.projections.queries.jobs import FoundJobs, JobCounts, SearchLimits, cursor_at
    from jobledger.projections.queries.lanes import Order
    from jobledger.projections.queries.levels import Level, LevelsAt
    from jobledger.projections.queries.rows import (
        AttemptRow,
        DeadLetterGroup,
        DeadLetterRow,
        JobRow,
        SlowAttempt,
    )
    from jobledger.projections.queries.store import Store
    from jobledger.projections.read_model import ReadModel, ReadModelLayout
    from jobledger.projections.rebuilds import rebuild
    from jobledger.projections.search import parse_search, search_text
    from jobledger.projections.snapshots import SnapshotConfig, Snapshots
    from jobledger.projections.statistics.answers import (
        BucketRow,
        FailureRow,
        Histogram,
        QueueRow,
        TotalsRow,
        WorkerRow,
    )
    from jobledger.projections.statistics.spread import HISTOGRAM_BOUNDS_S
    from jobledger.projections.tables.acts import ActFilter, ActRow
else:  # the same as a table
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "moments": ("Moment", "as_of", "moment_of", "refuse_archived"),
            "compare": ("Difference", "difference", "verify"),
            "early_counts": ("counting",),
            "filters": ("DeadLetterFilter", "JobFilter", "SaidFilter"),
            "layout": ("SCHEMA_VERSION",),
            "parquet": ("write_tables",),
            "projector": ("Position", "Projector", "ProjectorConfig"),
            "queries.jobs": ("FoundJobs", "JobCounts", "SearchLimits", "cursor_at"),
            "queries.lanes": ("Order",),
            "queries.levels": ("Level", "LevelsAt"),
            "queries.rows": ("AttemptRow", "DeadLetterGroup", "DeadLetterRow", "JobRow", "SlowAttempt"),
            "queries.store": ("Store",),
            "read_model": ("ReadModel", "ReadModelLayout"),
            "rebuilds": ("rebuild",),
            "search": ("parse_search", "search_text"),
            "snapshots": ("SnapshotConfig", "Snapshots"),
            "statistics.answers": (
                "BucketRow",
                "FailureRow",
                "Histogram",
                "QueueRow",
                "TotalsRow",
                "WorkerRow",
            ),
            "statistics.spread": ("HISTOGRAM_BOUNDS_S",),
            "tables.acts": ("ActFilter", "ActRow"),
        },
    )

__all__ = [
    "HISTOGRAM_BOUNDS_S",
    "SCHEMA_VERSION",
    "ActFilter",
    "ActRow",
    "AttemptRow",
    "BucketRow",
    "CursorMismatchError",
    "DamagedProjectionError",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "DeadLetterRow",
    "Difference",
    "EventGapError",
    "FailureRow",
    "FoundJobs",
    "Histogram",
    "JobCounts",
    "JobFilter",
    "JobRow",
    "Level",
    "LevelsAt",
    "Moment",
    "MomentAheadError",
    "MomentArchivedError",
    "NewerReadModelError",
    "NewerSchemaError",
    "NotAProjectionError",
    "OlderSchemaError",
    "Order",
    "Position",
    "PositionArchivedError",
    "PositionMismatchError",
    "ProjectionBehindError",
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
    "ReadModel",
    "ReadModelDefinitionError",
    "ReadModelFailedError",
    "ReadModelLayout",
    "SaidFilter",
    "SearchLimits",
    "SlowAttempt",
    "SnapshotConfig",
    "Snapshots",
    "Store",
    "TotalsRow",
    "WorkerRow",
    "as_of",
    "counting",
    "cursor_at",
    "difference",
    "moment_of",
    "parse_search",
    "rebuild",
    "refuse_archived",
    "search_text",
    "verify",
    "write_tables",
]
