"""The options of a check of the ledger: how strict it is, and what its caller knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.model.errors import InvalidInputError

#: How far two machines' clocks may be apart before a dispatch counts as early.
TIMER_TOLERANCE_S: Final = 1.0
#: How long a moment may be over before a job that still waits for it counts as forgotten: the process that keeps the
#: timers may be down for a while.
OVERDUE_GRACE_S: Final = 3_600.0
VIOLATIONS_MAX: Final = 100
MEMORY_BYTES_MAX: Final = 64 << 20

JobName = tuple[str, str]  #: queue, job id


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """What a work consumer still holds."""

    consumer: str
    pending: int  #: dispatches not delivered yet
    ack_pending: int  #: delivered and not acknowledged


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the caller knows, and with which the ledger must agree at its end; facts left out are not checked."""

    enqueued: Iterable[JobName] | None = None  #: exactly the jobs whose enqueue was acknowledged
    unsure: Collection[JobName] = ()  #: jobs enqueued without an answer, which may be there or not
    all_final: bool = False  #: True: no job is under way any more
    timers_until: datetime | None = None  #: no job may still wait for a moment before this one
    now: datetime | None = None  #: the present time, if later than the newest event, to find overdue jobs
    leftovers: Iterable[Leftover] | None = None  #: the result of `leftovers`: each one is a fault


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a ledger is checked."""

    timer_tolerance_s: float = TIMER_TOLERANCE_S  #: how early a dispatch may seem
    overdue_grace_s: float = OVERDUE_GRACE_S  #: how long a job may wait beyond its moment
    violations_max: int = VIOLATIONS_MAX  #: the most violations that are kept; all are counted
    memory_bytes_max: int | None = MEMORY_BYTES_MAX  #: memory for records of jobs; None: as much as they need

    signatures_checked: bool = (
        False  #: the signature of a signed earlier report was checked with trusted keys
    )

    def __post_init__(self) -> None:
        """Check each option."""
        for name in ("timer_tolerance_s", "overdue_grace_s", "violations_max"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidInputError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.memory_bytes_max is not None and self.memory_bytes_max < 1:
            raise InvalidInputError(f"memory_bytes_max must be above 0, got {self.memory_bytes_max}")


DEFAULT_OPTIONS: Final = CheckOptions()
