"""For the tests of applications: a ledger in memory whose time can be moved, runs on a clock that jumps, and assertions.

The pytest plugin has the same as fixtures: `ledger`, `worker`, `assert_enqueued`; `server_ledger` and `server_worker` on
an embedded server. pytest loads this package in every suite, so it imports nothing before it is needed.
"""

from typing import TYPE_CHECKING

from jobledger.ledger.on_demand import on_demand

if TYPE_CHECKING:
    from jobledger.testing.assertions import assert_enqueued
    from jobledger.testing.clock import MovableClock
    from jobledger.testing.memory import MemoryLedger
    from jobledger.testing.plugin import AssertEnqueued, MemoryWorker, ServerWorker
    from jobledger.testing.runs import RunReport, after, run_in_memory
    from jobledger.testing.sync import BlockingMemoryLedger
else:  # the same as a table
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "assertions": ("assert_enqueued",),
            "sync": ("BlockingMemoryLedger",),
            "clock": ("MovableClock",),
            "memory": ("MemoryLedger",),
            "plugin": ("AssertEnqueued", "MemoryWorker", "ServerWorker"),
            "runs": ("RunReport", "after", "run_in_memory"),
        },
    )

__all__ = [
    "AssertEnqueued",
    "BlockingMemoryLedger",
    "MemoryLedger",
    "MemoryWorker",
    "MovableClock",
    "RunReport",
    "ServerWorker",
    "after",
    "assert_enqueued",
    "run_in_memory",
]
