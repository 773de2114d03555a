"""The present limits for readers: folded as by the reactor, and written nowhere."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.limits.grants import Granter
from jobledger.workers.reactors.flow.chain import Chain
from jobledger.workers.reactors.flow.fold import GrantFold
from jobledger.workers.reactors.flow.seats import fleet_of
from jobledger.workers.reactors.flow.start import begin


@contextlib.asynccontextmanager
async def present(ledger: Ledger) -> AsyncGenerator[Granter, None]:
    """Yield a granter with the waiting jobs and the holders of slots, up to the ledger's present end.

    It reads the newest snapshot and the events after it: a second or two for each 20,000 waiting jobs.

    Raises: CorruptLedgerError, PayloadMissingError, ScratchSpaceError, UnreachableError.
    """
    chain = Chain(ledger)
    folding = GrantFold(chain)
    try:
        await begin(ledger, chain, folding)
        folding.see(fleet_of(await ledger.leases.all()), ledger.clock.now())
        yield folding.granter
    finally:
        folding.close()
