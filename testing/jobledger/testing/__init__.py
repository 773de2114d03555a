"""For the tests of applications: a ledger in memory whose time can be moved, runs on a clock that jumps, and assertions.

The pytest plugin has the same as fixtures: `ledger`, `worker`, `assert_enqueued`; `server_ledger` and `server_worker` on
an embedded server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobledger.testing.asserting import assert_enqueued
    from jobledger.testing.clock import MovableClock
    from jobledger.testing.memory import MemoryLedger
    from jobledger.testing.runs import RunReport, after, run_in_memory

__all__ = ["MemoryLedger", "MovableClock", "RunReport", "after", "assert_enqueued", "run_in_memory"]

_HOMES = {
    "MemoryLedger": "memory",
    "MovableClock": "clock",
    "RunReport": "runs",
    "after": "runs",
    "assert_enqueued": "asserting",
    "run_in_memory": "runs",
}


def __getattr__(name: str) -> object:
    """Import what is asked for: pytest loads this package in every suite, most of which want nothing of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
