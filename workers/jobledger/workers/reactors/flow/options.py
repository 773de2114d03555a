"""What the reactor of the limits can be told."""

from __future__ import annotations

from typing import Final

import msgspec

_CLAIM_WITHIN_S: Final = 60.0
_SNAPSHOT_EVENTS: Final = 20_000
_SNAPSHOT_S: Final = 3600.0
_POLITE_S: Final = 1.0


class FlowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times and sizes; the defaults are what production has."""

    claim_within_s: float = (
        _CLAIM_WITHIN_S  #: how long a job keeps its slots without being claimed by a worker
    )
    polite_s: float = _POLITE_S  #: how long a follower waits for grants that are due before it grants itself
    snapshot_events: int = _SNAPSHOT_EVENTS  #: events read between two snapshots
    snapshot_s: float = _SNAPSHOT_S  #: seconds between two snapshots, where anything was stored meanwhile
