"""`If-Match`: an act that is stored only if the job has not changed since the caller saw it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, cast

from jobledger.gateway.problems import ProblemError
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.subjects import JobRef


def acting_on(ledger: Ledger, ref: JobRef, sequence: int | None) -> Ledger:
    """Return a client that appends to this job only right after the event at `sequence`; None: after any event.

    Each append names the last event of the chain that it was decided on; that sequence is compared.
    """
    if sequence is None:
        return ledger
    own = copy.copy(ledger)
    own.log = cast("Log", _PinnedLog(ledger.log, ledger.names.chain(ref), sequence))
    return own


def require_at(wanted: int, sequence: int) -> None:
    """Refuse a job that is at another sequence than the one wanted. Raises: ProblemError (PRECONDITION_FAILED)."""
    if sequence != wanted:
        raise ProblemError(
            "PRECONDITION_FAILED",
            f"the job is at sequence {sequence:,} by now, not at {wanted:,}: look at it again, then decide again",
        )


class _PinnedLog:
    """A log that refuses an append to one chain, unless the append expects the wanted sequence.

    All else is done by the log behind it.
    """

    def __init__(self, log: Log, chain: str, sequence: int) -> None:
        self._log = log
        self._chain = chain
        self._sequence = sequence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, entries: Sequence[Entry]) -> int:
        """Append as the log does. Raises: ProblemError (PRECONDITION_FAILED)."""
        self._compare(entries)
        return await self._log.append(entries)

    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        """Submit as the log does. Raises: ProblemError (PRECONDITION_FAILED)."""
        self._compare(entries)
        return self._log.submit(entries)

    def _compare(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.chain == self._chain and entry.expected is not None:
                require_at(self._sequence, entry.expected)
