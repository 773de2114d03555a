"""What an attempt needs of the ledger it runs in: a connected `Ledger`, or a `Fork` that exists in memory alone."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.tracing import Tracing


class Values(Protocol):
    """Where large values lie; see `Payloads`."""

    def fits_inline(self, text: bytes, *, what: str) -> bool:
        """Return whether an event can carry the value itself."""
        ...

    async def put(self, text: bytes, *, what: str) -> tuple[msgspec.Raw, PayloadRef | None]:
        """Return what an event is to carry."""
        ...

    async def get(self, value: msgspec.Raw, reference: PayloadRef | None) -> bytes:
        """Return the JSON text that an event carries or refers to."""
        ...


class Watched(Protocol):
    """Whoever watches the progress of jobs; see `Hints`."""

    def tell_progress(self, ref: JobRef, report: bytes) -> None:
        """Pass a report on."""
        ...


class HasLoop(Protocol):
    """The loop everything runs on, known without asking the system for it each time."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return it."""
        ...


class Surroundings(Protocol):
    """The part of a `Ledger` that attempts use."""

    @property
    def log(self) -> Log:
        """Where events are appended."""
        ...

    @property
    def clock(self) -> Clock:
        """Whose time counts."""
        ...

    @property
    def inputs(self) -> Values:
        """Large inputs and checkpoints."""
        ...

    @property
    def results(self) -> Values:
        """Large results."""
        ...

    @property
    def hints(self) -> Watched:
        """Who hears of progress."""
        ...

    @property
    def connection(self) -> HasLoop:
        """What knows the loop."""
        ...

    @property
    def tracing(self) -> Tracing | None:
        """The spans of what runs here; None where nothing is traced."""
        ...

    def stamp(self, by: str = "") -> Stamp:
        """Return who and when, for events decided now."""
        ...
