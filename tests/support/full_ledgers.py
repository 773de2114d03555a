"""Ledgers that are filled to their last byte, past the point where clients stop by themselves."""

from __future__ import annotations

from jobledger.ledger import Ledger
from jobledger.ledger.throttle import Throttle


class _Unlimited(Throttle):
    def passes(self, size: int) -> bool:
        return True

    def holds_claims(self) -> bool:
        return False


def unthrottled(ledger: Ledger) -> Ledger:
    """Let a client and its workers append until the server refuses, as one of an earlier release does."""
    ledger.throttle = _Unlimited.__new__(_Unlimited)
    ledger.throttle.close = lambda: None  # type: ignore[method-assign]
    return ledger
