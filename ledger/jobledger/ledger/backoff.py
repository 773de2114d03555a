"""The wait of a failed job before its next attempt: pure, and the same for every worker."""

from __future__ import annotations

import random
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.errors import ConfigurationError

_DELAY_S_LIMIT: Final = 30 * 24 * 3600.0
_DOUBLINGS_MAX: Final = 64  # beyond it every growing delay is over its cap


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The wait after each failure; by default 1 s, 2 s, 4 s, ... up to five minutes."""

    kind: Literal["exponential", "linear", "fixed"] = "exponential"
    base_s: float = 1.0  #: after the first failure, in seconds
    cap_s: float = 300.0  #: never longer, jitter included
    jitter: float = 0.1  #: up to this share is added at random, so that many jobs do not come back at once

    def __post_init__(self) -> None:
        """Check every value.

        Raises: ConfigurationError.
        """
        if self.kind not in ("exponential", "linear", "fixed"):
            raise ConfigurationError(f"backoff kind must be exponential, linear or fixed, got {self.kind!r}")
        for name in ("base_s", "cap_s"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value <= _DELAY_S_LIMIT):
                message = f"backoff {name} must be from 0 to {_DELAY_S_LIMIT:g} (30 days), got {value!r}"
                raise ConfigurationError(message)
        if not (_is_number(self.jitter) and 0 <= self.jitter <= 1):
            raise ConfigurationError(f"backoff jitter must be from 0 to 1, got {self.jitter!r}")

    def delay_s(self, failures: int, chance: random.Random) -> float:
        """Return how long to wait after the `failures`-th failure, counted from 1, in seconds."""
        if self.kind == "exponential":
            delay = self.base_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX)
        else:
            delay = self.base_s * failures if self.kind == "linear" else self.base_s
        return min(delay * (1 + chance.random() * self.jitter), self.cap_s)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - no NaN
