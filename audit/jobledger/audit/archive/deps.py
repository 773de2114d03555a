"""Dependencies of an archive run beside the log: who acts, leases, large values, timers, and the progress.

A run itself is `archive.Archiver`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from jobledger.audit.archive.plan import FindUnread, LiveHolders, Unread, unread
from jobledger.audit.counts import CountEverything
from jobledger.audit.export.payloads import PayloadSource
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.schedules.decisions import Carry
from jobledger.ledger.nats.payloads import Stores
from jobledger.ledger.timers import Timer, Timers

#: What a run does, in this order; each is begun after all before it are on the disk.
Step = Literal["export", "copy", "check", "send", "carry", "count", "record", "purge", "end"]
OnProgress = Callable[[Step, int, int], None]


class ArchiveDeps(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs beside the log."""

    clock: Clock
    stamp: Callable[[], Stamp]
    leases: LiveHolders
    unread: FindUnread  #: given the last sequence that goes
    set_timer: Callable[[Timer], Awaitable[None]]
    carry_schedule: Callable[[str, int], Awaitable[object]]  #: given its name and the last sequence that goes
    payloads: PayloadSource | None = (
        None  #: where large values are copied from; None leaves them where they are
    )
    count: CountEverything | None = None  #: None: counters of rebuilt projections begin where the ledger does
    on_progress: OnProgress = lambda _step, _done, _total: None


def archive_deps(
    ledger: Ledger,
    *,
    by: str,
    on_progress: OnProgress,
    count: CountEverything | None = None,
    with_payloads: bool = True,
) -> ArchiveDeps:
    """Return what a run on a connected ledger needs; `by` is who acts, `count` what `projections.counting` returns.

    Without `count` the counters of a projection that is rebuilt after the run begin where the ledger then does.
    """
    timers = Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)

    async def find_unread(through: int) -> list[Unread]:
        return await unread(ledger.log, ledger.inbox, through)

    streams: list[str] = []  # empty, or the one stream of the timers, after it was looked up

    async def set_timer(timer: Timer) -> None:
        if not streams:
            streams.append(await timers.ensure())
        await timers.set(timer, ledger.clock.now())

    async def carry_schedule(name: str, through: int) -> None:
        await ledger.schedules.act(name, Carry(through=through), by=by)

    return ArchiveDeps(
        clock=ledger.clock,
        stamp=lambda: ledger.stamp(by),
        leases=ledger.leases,
        unread=find_unread,
        set_timer=set_timer,
        carry_schedule=carry_schedule,
        payloads=Stores(ledger.inputs, ledger.results) if with_payloads else None,
        count=count,
        on_progress=on_progress,
    )
