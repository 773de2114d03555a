"""Unique keys across an archive run: those that a job still holds are said again, the others go away."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.unique import UNIQUE, KeyRef, Taken, said_again
from jobledger.ledger.unique.holders import find_holder


async def carry_keys(log: Log, keys: Mapping[KeyRef, Taken], through: int, clock: Clock) -> None:
    """Append `taken` again for each key that is held, where its newest event goes away with those up to `through`.

    Does nothing where that was done before. The jobs that live on were carried already.

    Raises: CorruptLedgerError, LedgerFullError, UnreachableError.
    """
    for ref, taken in keys.items():
        holder = await find_holder(log, ref)
        again = said_again(taken, holder.chain.job, clock.now())
        if again is not None and 0 < holder.key.last_sequence <= through:
            with contextlib.suppress(WrongSequenceError):  # another job took it meanwhile
                await log.append(UNIQUE.link(log.names, [again], holder.key))
