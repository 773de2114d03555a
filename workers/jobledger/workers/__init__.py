"""Workers: they take jobs from the ledger, run them, and record their outcomes."""

from typing import TYPE_CHECKING

from jobledger.ledger.logs.job_filter import JobFilter
from jobledger.ledger.on_demand import on_demand

if TYPE_CHECKING:
    from jobledger.workers.config import WorkerConfig
    from jobledger.workers.worker import Worker
else:  # the same as a table
    __getattr__, __dir__ = on_demand(
        __name__,
        {"config": ("WorkerConfig",), "worker": ("Worker",)},
        elsewhere=dict.fromkeys(
            ("Context", "Ledger", "TaskRegistry", "connect", "task", "workflow"), "jobledger.ledger"
        ),
    )

__all__ = ["JobFilter", "Worker", "WorkerConfig"]
