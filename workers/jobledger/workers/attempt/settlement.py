"""The settlement of a delivery at the broker, and the delay of one that cannot run now. Pure.

Every delay grows with the delivery count: a consumer delivers one dispatch at most `DELIVERIES_MAX` times, and an
obstacle that lasts for a while must not use them up in moments. If they are used up all the same, the dead-letter
reactor checks the job, so nothing is lost.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from jobledger.ledger.nats.durables import DELIVERIES_MAX


class Settlement(msgspec.Struct, frozen=True):
    """The settlement of one delivery."""

    #: `ack`: its dispatch is done. `nak`: deliver it again, after `delay_s`. `drop`: the broker gets no reply, and
    #: delivers it again after the ack wait. `join`: it is settled with the attempt of the same job that runs here.
    word: Literal["ack", "nak", "drop", "join"]
    delay_s: float = 0.0  #: the delay of a nak


ACK: Final = Settlement("ack")
DROP: Final = Settlement("drop")
JOIN: Final = Settlement("join")


def nak(delay_s: float) -> Settlement:
    """Have the delivery delivered again, to any worker, after `delay_s`."""
    return Settlement("nak", delay_s)


AGAIN: Final = nak(0.0)  #: the same dispatch serves the next attempt
#: Up to this delivery a failed job is offered again by its present dispatch; after that it gets a new one. A small
#: number, since later deliveries are delayed longer if the worker dies.
AGAIN_DELIVERIES_MAX: Final = 5

#: The delivery at which a job of an unknown task is given up; one more is left in case the worker dies then.
UNKNOWN_TASK_DELIVERIES_MAX: Final = DELIVERIES_MAX - 1
_UNKNOWN_TASK_S: Final = 2.5
_UNKNOWN_TASK_S_MAX: Final = 600.0
_FULL_S: Final = 10.0
_FULL_S_MAX: Final = 300.0
_UNREADABLE_S: Final = 30.0
_UNREADABLE_S_MAX: Final = 600.0
_NO_LEASE_S: Final = 0.5
_NO_LEASE_S_MAX: Final = 30.0
_SOON_S_MAX: Final = 300.0
_STEADY_DELIVERIES: Final = 5


def unknown_task_s(delivered: int) -> float:
    """Return the delay until a worker may have the task, which may be busy or not deployed yet. 82 min in all."""
    return min(_UNKNOWN_TASK_S * delivered * delivered, _UNKNOWN_TASK_S_MAX)


def full_ledger_s(delivered: int) -> float:
    """Return the delay until somebody may have made room: half an hour in all."""
    return min(_FULL_S * delivered, _FULL_S_MAX)


def unreadable_s(delivered: int) -> float:
    """Return the delay until a worker of a newer version may read the job: an hour and a half in all."""
    return min(_UNREADABLE_S * delivered, _UNREADABLE_S_MAX)


def no_lease_s(delivered: int) -> float:
    """Return the delay until this worker may have a lease again, or another one takes the job: 7 min in all.

    It is bounded, also for a dispatch that was delivered often because its workers died, since a lease is back in
    seconds.
    """
    return min(soon_s(_NO_LEASE_S, delivered), _NO_LEASE_S_MAX)


def soon_s(first_s: float, delivered: int) -> float:
    """Return the delay until a short obstacle may be gone, such as a replica that lags; it doubles each time."""
    return min(first_s * 2.0 ** min(delivered - 1, 20), _SOON_S_MAX)


def elsewhere_s(delivered: int) -> float:
    """Return the delay until another worker may take the job, or its queue is resumed: 0 first, then it grows."""
    return 0.0 if delivered == 1 else soon_s(0.05, delivered - 1)


def held_elsewhere_s(lease_left_s: float, delivered: int) -> float:
    """Return the delay until the holder's lease may have expired: short at first, as the holder may be dead."""
    return lease_left_s * max(1, delivered - _STEADY_DELIVERIES)
