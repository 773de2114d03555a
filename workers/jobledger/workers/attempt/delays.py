"""How long a delivery that cannot be carried now is held back. Pure.

Every delay grows with the delivery count: a consumer hands out one dispatch `DELIVERIES_MAX` times, and what stands
in the way for a while must not use them up in moments. When they are used up all the same, the dead-letter reactor
looks at the job; nothing is lost by it.
"""

from __future__ import annotations

from typing import Final

from jobledger.ledger.nats.streams import DELIVERIES_MAX

#: The delivery at which a task that no worker knew is given up; one is left for a worker that dies over it.
UNKNOWN_TASK_DELIVERIES_MAX: Final = DELIVERIES_MAX - 1
_UNKNOWN_TASK_S: Final = 2.5
_UNKNOWN_TASK_S_MAX: Final = 600.0
_FULL_S: Final = 10.0
_FULL_S_MAX: Final = 300.0
_UNREADABLE_S: Final = 30.0
_UNREADABLE_S_MAX: Final = 600.0
_SOON_S_MAX: Final = 300.0
_PATIENT_DELIVERIES: Final = 5


def unknown_task_s(delivered: int) -> float:
    """For a worker that knows the task, which may be busy, or not be there before the next deploy: 82 min in all."""
    return min(_UNKNOWN_TASK_S * delivered * delivered, _UNKNOWN_TASK_S_MAX)


def full_ledger_s(delivered: int) -> float:
    """Until somebody makes room: half an hour in all."""
    return min(_FULL_S * delivered, _FULL_S_MAX)


def unreadable_s(delivered: int) -> float:
    """For a worker of a newer version: an hour and a half in all."""
    return min(_UNREADABLE_S * delivered, _UNREADABLE_S_MAX)


def soon_s(first_s: float, delivered: int) -> float:
    """For what is over in a moment, doubling if it is not: the lease is on its way, a replica lags."""
    return min(first_s * 2.0 ** min(delivered - 1, 20), _SOON_S_MAX)


def busy_s(delivered: int) -> float:
    """For a delivery that found no free slot: at once to another worker, but not round and round all busy ones."""
    return 0.0 if delivered == 1 else soon_s(0.05, delivered - 1)


def held_elsewhere_s(lease_left_s: float, delivered: int) -> float:
    """Until a lease may be over: often at first, so that a dead worker's jobs go on, then ever less often."""
    return lease_left_s * max(1, delivered - _PATIENT_DELIVERIES)
