"""The keys that one gateway knows, in memory, and how fresh that knowledge is. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.keys import take
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.key import Key
from jobledger.ledger.model.rights.authority import Principal, principal_of

#: How long the keys are trusted after they were last up to date: a revoked key works for at most this long.
STALE_S: Final = 10.0


class KeyRing:
    """Every key of the ledger as its newest event says."""

    def __init__(self, clock: Clock) -> None:
        """Begin without keys: `find` raises until `prove` was called."""
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self._principals: dict[str, tuple[Key, Principal]] = {}
        self._proven_at: float | None = None
        self._listeners: list[Callable[[], None]] = []
        self.reached = 0  #: the stream sequence of the newest message of a key that was read

    def replace(self, keys: dict[str, Key], reached: int) -> None:
        """Replace all known keys by these."""
        self._keys, self.reached = dict(keys), reached
        self._principals.clear()
        self._tell()

    def take(self, batch: list[Message]) -> None:
        """Take a newer event of a key. A known event, and a message that is no event, change nothing."""
        known = {key.key: key.sequence for key in self._keys.values()}
        take(self._keys, [each for each in batch if _is_news(each, known)])
        self.reached = max(self.reached, batch[-1].stream_sequence)
        self._tell()

    def prove(self, at: float) -> None:
        """Note that the keys were up to date at a moment of the monotonic clock."""
        self._proven_at = at

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have a function called after each change."""
        self._listeners.append(listener)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    @property
    def age_s(self) -> float | None:
        """Seconds since the keys were last up to date; None: they never were."""
        return None if self._proven_at is None else self._clock.monotonic() - self._proven_at

    def require_fresh(self) -> None:
        """Refuse to judge by keys that may have been revoked. Raises: ProblemError (LEDGER_UNREACHABLE)."""
        age_s = self.age_s
        if age_s is None or age_s > STALE_S:
            since = "yet" if age_s is None else f"for {age_s:.0f} s"
            raise ProblemError(
                "LEDGER_UNREACHABLE",
                f"the gateway could not read {since} which keys were revoked, so it lets nobody in: try again in a moment",
            )

    def find(self, key_id: str) -> Key | None:
        """Return a key. Raises: ProblemError (LEDGER_UNREACHABLE) if the known keys may be out of date."""
        self.require_fresh()
        return self._keys.get(key_id)

    @property
    def has_keys(self) -> bool:
        """Whether the ledger has a key, even an ended one; links do not count."""
        return any(not key.is_link for key in self._keys.values())

    def has_live_key(self, now: datetime) -> bool:
        """Whether somebody could use a key now."""
        return any(key.standing(now) == "live" for key in self._keys.values())

    def principal(self, key: Key) -> Principal:
        """Return the principal of a key."""
        found = self._principals.get(key.key)
        if found is None or found[0] is not key:
            name = f"key:{key.name}/{key.key}"
            found = key, principal_of(name, key.allowed, key.scope, key.key)
            self._principals[key.key] = found
        return found[1]


def _is_news(message: Message, known: dict[str, int]) -> bool:
    tokens = message.subject.split(".")
    return message.stream_sequence > known.get(tokens[2] if len(tokens) > 2 else "", 0)  # noqa: PLR2004 - root, aggregate, key
