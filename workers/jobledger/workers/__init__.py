"""Workers: they take jobs from the ledger, run them, and record what came of it."""

from jobledger.ledger.logs.job_filter import JobFilter
from jobledger.workers.config import WorkerConfig
from jobledger.workers.worker import Worker

__all__ = ["JobFilter", "Worker", "WorkerConfig"]
