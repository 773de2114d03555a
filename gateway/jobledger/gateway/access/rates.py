"""Rate limits of one gateway: a token bucket for each key and group of requests, in memory.

They protect this gateway alone. The ledger's limits count for all gateways together.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import msgspec

from jobledger.gateway.access.origins import SAFE, Pairs
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import ConfigurationError

_BUCKETS_MAX: Final = 20_000
_RATE_MAX: Final = 1e6


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The number of requests of a group that one key may send."""

    count: float  #: requests at once, after a pause
    window_s: float  #: an empty bucket is full again after this time

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work. Raises: ConfigurationError."""
        if not (1 <= self.count <= _RATE_MAX and 0 < self.window_s <= _RATE_MAX):
            raise ConfigurationError(
                f"a quota needs a count of at least 1 and a time above 0 s, got {self.count:g} in {self.window_s:g} s"
            )


#: Quotas that suffice for one program, and are too small to block the others. `login` is counted by address.
QUOTAS: Final = {
    "read": Quota(count=6_000, window_s=10),
    "write": Quota(count=6_000, window_s=10),
    "bulk": Quota(count=600, window_s=60),
    "login": Quota(count=20, window_s=60),
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a bucket to one request."""

    headers: Pairs
    retry_after_s: int = 0  #: 0: the request is within its quota


class Rates:
    """The buckets of one gateway; those that were not used for longest are forgotten first."""

    def __init__(self, clock: Clock, quotas: dict[str, Quota] | None = None) -> None:
        """`quotas`: by group, in the place of the usual ones."""
        self._clock = clock
        self._quotas = {**QUOTAS, **(quotas or {})}
        self._policies = {
            group: f'"{group}";q={quota.count:.0f};w={math.ceil(quota.window_s)}'.encode()
            for group, quota in self._quotas.items()
        }
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def take(self, who: str, group: str) -> Verdict:
        """Take one request out of the bucket of somebody."""
        quota, now = self._quotas[group], self._clock.monotonic()
        left, at = self._buckets.pop((who, group), (quota.count, now))
        per_s = quota.count / quota.window_s
        left = min(quota.count, left + (now - at) * per_s)
        is_enough = left >= 1
        left -= is_enough
        self._buckets[who, group] = left, now
        if len(self._buckets) > _BUCKETS_MAX:
            self._buckets.popitem(last=False)
        full_s = math.ceil((quota.count - left) / per_s)
        headers = [
            (b"ratelimit-policy", self._policies[group]),
            (b"ratelimit", f'"{group}";r={int(left)};t={full_s}'.encode()),
        ]
        return Verdict(
            headers=headers, retry_after_s=0 if is_enough else max(1, math.ceil((1 - left) / per_s))
        )


def group_of(method: str, path: str) -> str:
    """Return the group that a request is counted in."""
    if method in SAFE:
        return "read"
    return "bulk" if path in {"/v1/jobs/bulk", "/v1/acts"} else "write"
