"""What goes wrong in one schedule: which kinds at all, how often, and until when."""

from __future__ import annotations

from collections import Counter
from random import Random

#: Per message: the chance that it happens, where the schedule has the kind at all.
MESSAGE_FAULTS: dict[str, float] = {
    "lost request": 0.02,  # never processed: as if it had not been sent
    "lost reply": 0.04,  # an append is stored, a read is answered, and nobody hears of it
    "delayed request": 0.03,
    "delayed reply": 0.05,
    "lost ack": 0.15,  # of a delivery: ack, nak, in progress
    "duplicate delivery": 0.10,
    "reordered delivery": 0.5,
    "stale read": 0.05,  # a replica that lags answers a read of a chain
    "lost advisory": 0.5,
    "duplicate timer": 0.5,
    "late timer": 0.5,
}
#: Per process and moment; how often is decided where they are made.
PROCESS_FAULTS: tuple[str, ...] = (
    "crash",
    "freeze",
    "lost connection",
    "held network",
    "clock jump",
    "server restart",
    "server clock jump",
    "stop",
    "lost consumer",
    "lost timers",
)
KINDS: tuple[str, ...] = (*MESSAGE_FAULTS, *PROCESS_FAULTS)
#: Breaks the rule that the server's clock is slewed (ADR 006): then leases end early, and runs may overlap.
RULE_BREAKERS = frozenset({"server clock jump"})


class Faults:
    """One schedule's faults. Few kinds at a time find more than all at once: each hides others."""

    def __init__(self, random: Random, always: frozenset[str] = frozenset()) -> None:
        """`always` are active whatever the seed says: to find a planted bug sooner."""
        self.random = random
        self.counts: Counter[str] = Counter()
        share = random.choice((0.0, 0.15, 0.3, 0.3, 0.5, 0.8))
        self.active = {kind for kind in KINDS if random.random() < share}
        if random.random() < 0.9:
            self.active -= RULE_BREAKERS
        self.active |= always
        self.breaks_rules = bool(self.active & RULE_BREAKERS)
        self.until = random.choice((0.5, 2.0, 5.0, 12.0)) * (0.5 + random.random())
        self._chances = {kind: chance for kind, chance in MESSAGE_FAULTS.items() if kind in self.active}

    @property
    def over(self) -> bool:
        return not self.active

    def end(self) -> None:
        """Let none happen any more."""
        self.active, self._chances = set(), {}

    def hit(self, kind: str) -> bool:
        """Return whether the fault happens now, and count it."""
        chance = self._chances.get(kind)
        if chance is None or self.random.random() >= chance:
            return False
        self.counts[kind] += 1
        return True

    def note(self, kind: str) -> None:
        self.counts[kind] += 1
