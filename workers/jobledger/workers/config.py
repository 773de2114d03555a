"""The settings of a worker, checked before it takes any work."""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.subjects import check_token
from jobledger.workers.pool.pool import PoolConfig

_CONCURRENCY_MAX: Final = 10_000
_QUEUES_MAX: Final = 100
_STALL_S_MIN: Final = 0.1
_WEIGHT_MAX: Final = 100
_ACK_WAIT_S_MAX: Final = 3600
_CANCEL_GRACE_S_MIN: Final = 0.05
_CANCEL_GRACE_S_MAX: Final = 3600
_TABLE_MEMORY_BYTES_MIN: Final = 32 << 20
_TABLE_THREADS_MAX: Final = 256
_LOG_BYTES_MAX: Final = 512 << 10  # a message of the server has at most 1 MiB


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process's settings."""

    queues: tuple[str, ...] = ()  #: empty: those that the loaded tasks name
    weights: dict[str, int] = {}  #: share of a queue in relation to the others, 1 to 100; by default 1
    concurrency: int = 100  #: attempts that may run at once, threads included
    #: How long a stop may take. Running attempts may go on until its last fifth (at most 5 s), in which their jobs are
    #: given back.
    grace_s: float = 30.0
    cancel_grace_s: float = (
        5.0  #: how long a task that was told to end may take; then its attempt is ended without it
    )
    ack_wait_s: float = 10.0  #: silence after which consumers created here redeliver
    ack_pending_max: int = 20_000  #: most unsettled deliveries of a consumer created here
    pool_size: int | None = None  #: processes for tasks with `run_in="process"`; None: one per CPU
    pool_memory_bytes_max: int | None = None  #: address space of each of them; None: no limit
    #: Memory of one query of a run, in bytes; None: half of `pool_memory_bytes_max`; without that an equal share of
    #: half of this machine's memory for each process.
    table_memory_bytes_max: int | None = None
    table_threads: int | None = None  #: threads of a query; None: an equal share of the CPUs for each process
    tables_cache_bytes_max: int = 1 << 30  #: limit of table files kept here for other attempts
    pool_calls_max: int | None = None  #: a process is replaced after this many attempts; None: never
    stall_s: float = 1.0  #: a task that blocks the event loop for this many seconds is named in the log
    #: How many of the newest bytes that one attempt's code logs are kept for `jobs logs`; 0: none.
    log_bytes_max: int = 64 << 10
    log_prints: bool = False  #: keep what the code of attempts prints as well
    reactors: bool = True  #: host the reactors (timers, ...) too; some worker of the environment has to
    schedules: bool = (
        True  #: declare the schedules of the loaded modules whose jobs go to a queue that is served
    )
    jobs_max: int | None = (
        None  #: it takes at most this number of deliveries, and stops when they are done; None: any number
    )
    supervisor: str = ""  #: identity of the process that supervises this one, for `workers list`; "": none

    def pool(self, lease_s: float, payload_bytes_max: int) -> PoolConfig:
        """Return the settings of the process pool, under leases of `lease_s`.

        Raises: ConfigurationError.
        """
        size = {} if self.pool_size is None else {"size": self.pool_size}
        return PoolConfig(
            **size,
            calls_max=self.pool_calls_max,
            memory_bytes_max=self.pool_memory_bytes_max,
            payload_bytes_max=payload_bytes_max,
            silence_s=lease_s / 2,
            log_prints=self.log_prints and self.log_bytes_max > 0,
        )

    def __post_init__(self) -> None:
        """Check every value.

        Raises: ConfigurationError, InvalidTokenError.
        """
        for queue in self.queues:
            check_token("queue", queue)
        _require(len(self.queues) <= _QUEUES_MAX, f"a worker serves at most {_QUEUES_MAX} queues")
        for queue, weight in self.weights.items():
            _require(
                not self.queues or queue in self.queues, f"queue {queue!r} has a weight but is not served"
            )
            _require(
                type(weight) is int and 1 <= weight <= _WEIGHT_MAX,
                f"the weight of queue {queue!r} must be a whole number from 1 to {_WEIGHT_MAX}, got {weight!r}",
            )
        _require(
            type(self.concurrency) is int and 1 <= self.concurrency <= _CONCURRENCY_MAX,
            f"concurrency must be a whole number from 1 to {_CONCURRENCY_MAX}, got {self.concurrency!r}",
        )
        _require(
            self.jobs_max is None or (type(self.jobs_max) is int and self.jobs_max >= 1),
            f"jobs_max must be a whole number from 1, got {self.jobs_max!r}",
        )
        _require(0 <= self.grace_s <= 24 * 3600, f"grace_s must be from 0 to 86400, got {self.grace_s!r}")
        _require(
            _CANCEL_GRACE_S_MIN <= self.cancel_grace_s <= _CANCEL_GRACE_S_MAX,
            f"cancel_grace_s must be from {_CANCEL_GRACE_S_MIN} to {_CANCEL_GRACE_S_MAX}, got {self.cancel_grace_s!r}",
        )
        _require(
            1 <= self.ack_wait_s <= _ACK_WAIT_S_MAX,
            f"ack_wait_s must be from 1 to 3600, got {self.ack_wait_s!r}",
        )
        _require(
            _STALL_S_MIN <= self.stall_s <= _ACK_WAIT_S_MAX,
            f"stall_s must be from {_STALL_S_MIN} to 3600, got {self.stall_s!r}",
        )
        _require(
            self.table_memory_bytes_max is None or self.table_memory_bytes_max >= _TABLE_MEMORY_BYTES_MIN,
            f"table_memory_bytes_max must be at least {_TABLE_MEMORY_BYTES_MIN}, got {self.table_memory_bytes_max!r}",
        )
        _require(
            self.table_threads is None or 1 <= self.table_threads <= _TABLE_THREADS_MAX,
            f"table_threads must be from 1 to {_TABLE_THREADS_MAX}, got {self.table_threads!r}",
        )
        _require(
            self.tables_cache_bytes_max >= 0,
            f"tables_cache_bytes_max must be 0 or more, got {self.tables_cache_bytes_max!r}",
        )
        _require(
            0 <= self.log_bytes_max <= _LOG_BYTES_MAX,
            f"log_bytes_max must be from 0 to {_LOG_BYTES_MAX}, got {self.log_bytes_max!r}",
        )
        _require(
            self.concurrency <= self.ack_pending_max,
            f"ack_pending_max must be at least concurrency, got {self.ack_pending_max!r}",
        )


def _require(holds: bool, sentence: str) -> None:  # noqa: FBT001 - reads as the condition it is
    if not holds:
        raise ConfigurationError(sentence)
