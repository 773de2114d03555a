"""The part of a ledger that an attempt needs: of a connected `Ledger`, or of one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from jobledger.ledger.children import Parent
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.seals import KeyHolder
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.outage import Outage
from jobledger.ledger.protocols import Values
from jobledger.ledger.tracing import Tracing


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a ledger that attempts use."""

    log: Log
    clock: Clock
    loop: asyncio.AbstractEventLoop  #: everything runs on it; kept, since asking for it each time is slow
    inputs: Values  #: large inputs and checkpoints
    results: Values  #: large results
    keys: KeyHolder | None = None  #: holds the keys of owners; None: no job of an owner runs here
    stamp: Callable[[str], Stamp]  #: identity of the worker -> who and when, for events decided now
    tell_progress: Callable[[JobRef, bytes], None]  #: passes a report on to those who watch the job
    #: Returns the ledger in which a job's own code makes jobs and the like; None: it may make nothing here.
    on_behalf_of: Callable[[Parent], Ledger] | None = None
    outage: Outage = msgspec.field(default_factory=Outage)
    tracing: Tracing | None = None  #: makes the spans of jobs that run here; None: nothing is traced

    @classmethod
    def of(cls, ledger: Ledger) -> Surroundings:
        """Return what attempts use of a connected ledger."""
        return cls(
            log=ledger.log,
            clock=ledger.clock,
            loop=ledger.connection.loop,
            inputs=ledger.inputs,
            results=ledger.results,
            keys=ledger.keys,
            stamp=ledger.stamp,
            tell_progress=ledger.hints.tell_progress,
            on_behalf_of=ledger.on_behalf_of,
            outage=ledger.connection.outage,
            tracing=ledger.tracing,
        )
