"""What `doctor` says of limits beside its diagnoses: jobs that nobody grants, jobs that nobody starts."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from jobledger.admin.checks import Check
from jobledger.admin.held import present
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.limits.flow import FLOW, MAIN
from jobledger.ledger.model.log import end_of_chain
from jobledger.projections import Store
from jobledger.projections.statistics.tally import microseconds

#: How long the reactor may leave jobs ungranted that could start, before a check warns.
GRANT_WITHIN_S: Final = 3.0
#: How long a job may wait for its worker after it was admitted; later it is put back.
START_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.1
_UNSTARTED: Final = "SELECT count(*) FROM jobs WHERE status = 'queued' AND limits <> '' AND since_us < ?"


async def check_limits(ledger: Ledger, path: Path) -> list[Check]:
    """Check jobs that are held, and jobs that were admitted; return nothing where no job was ever held.

    `path`: the projection's file, which tells how long jobs wait to be started.

    Raises: CorruptLedgerError, PayloadMissingError, UnreachableError, ProjectionError.
    """
    if await ledger.log.last(ledger.names.all_of_type("held")) is None:
        return []
    found: list[Check] = []
    async with present(ledger) as granter:
        waiting = len(granter.lines)
        could = len(granter.decide(ledger.clock.now()).grants)
    if could and not await _is_granted(ledger):
        said = (
            f"{could:,} of {waiting:,} held jobs could start, and nobody grants them for {GRANT_WITHIN_S:g} s"
        )
        advice = "is a worker running that hosts reactors? its log says why the limits stand still"
        found.append(Check(check="limits", status="warn", found=said, advice=advice))
    unstarted = await asyncio.to_thread(_unstarted, ledger.clock.now(), path)
    if unstarted:
        said = f"{unstarted:,} jobs hold their limits for more than {START_WITHIN_S:g} s, and no worker started them"
        advice = "`jobledger workers list` shows who serves their queues, and how busy they are"
        found.append(Check(check="limits", status="warn", found=said, advice=advice))
    return found or [Check(check="limits", status="ok", found=f"{waiting:,} jobs held")]


async def _is_granted(ledger: Ledger) -> bool:
    """Return whether somebody grants jobs within the time that the reactor may take."""
    chain = FLOW.chain(ledger.names, MAIN)
    before = (await end_of_chain(ledger.log, chain)).last_sequence
    deadline = asyncio.get_running_loop().time() + GRANT_WITHIN_S
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_LOOK_S)
        if (await end_of_chain(ledger.log, chain)).last_sequence > before:
            return True
    return False


def _unstarted(now: datetime, path: Path) -> int:
    since = now - timedelta(seconds=START_WITHIN_S)
    with Store.open(path) as store:
        ((count,),) = store.select(_UNSTARTED, (microseconds(since),))
    return int(count)
