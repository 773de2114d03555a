"""For the tests of applications: a ledger in memory whose time can be moved, and assertions on what was enqueued.

The pytest plugin has the same as fixtures: `ledger`, `worker`, `assert_enqueued`; `server_ledger` and `server_worker` on
an embedded server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobledger.testing.asserting import assert_enqueued
    from jobledger.testing.clock import MovableClock
    from jobledger.testing.memory import MemoryLedger

__all__ = ["MemoryLedger", "MovableClock", "assert_enqueued"]

_HOMES = {"MemoryLedger": "memory", "MovableClock": "clock", "assert_enqueued": "asserting"}


def __getattr__(name: str) -> object:
    """Import what is asked for: pytest loads this package in every suite, most of which want nothing of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
