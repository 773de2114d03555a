"""What operators did, to jobs above all, with actor and reason."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jobledger.admin.archived import missing, with_archive
from jobledger.admin.errors import MissingEvents
from jobledger.admin.rows import Rows
from jobledger.audit.clocks import clocks_of
from jobledger.audit.export import JoinedLog
from jobledger.audit.trail_words import count
from jobledger.audit.verify.links import ChainCheck, check_history
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.times import time_text
from jobledger.projections import ActFilter, EventGapError, Projector, Store
from jobledger.projections.tables.acts import ActGroup

_ACTS_MAX: Final = 100_000  #: the most acts that are searched for groups
_CHAINS_AT_ONCE: Final = 48  # chains of some ten events each, read at once


class Chains(NamedTuple):
    """The chains of the jobs that were acted on, whose hash links were checked."""

    jobs: int
    events: int
    broken: dict[tuple[str, str], ChainCheck]  #: by queue and job id

    def texts(self) -> list[str]:
        """Return what was found for a person, a line for each broken chain."""
        if not self.broken:
            return [f"chains of {count(self.jobs, 'job')}, {count(self.events, 'event')}: unbroken"]
        return [f"{queue}/{job}: {found.text()}" for (queue, job), found in self.broken.items()]


class ActList(NamedTuple):
    """The newest actions, and what the list lacks."""

    newest: list[ActGroup]
    shown: int  #: acts in these groups
    total: int  #: number of all acts that match
    missing: MissingEvents | None  #: None if no earlier action can be missing
    chains: Chains
    own_times: frozenset[
        int
    ]  #: stream sequences of events for which the event's own time is shown, as it is far from the server's


async def operator_acts(
    rows: Rows, chosen: ActFilter, *, limit: int, archives: Sequence[Path] = (), each: bool = False
) -> ActList:
    """Return what operators did, the newest first; also before the ledger's beginning where `archives` is named.

    An act on many jobs at once is one entry, and only its newest job's chain is checked; `each`: one entry a job.

    Raises: as `with_archive`; ProjectionError, UnreachableError.
    """
    log = await with_archive(rows.ledger.log, archives)
    gap = await missing(log, archives, since=chosen.since)
    # Rows older than the log are left out: otherwise two projections of different age would answer differently.
    chosen = msgspec.structs.replace(chosen, from_sequence=(await log.head()).first_sequence)
    with tempfile.TemporaryDirectory(prefix="jobledger-") as folder:
        path = await _projected(rows, log, Path(folder), chosen.from_sequence)
        with Store.open(path) as store, store.one_moment():
            found = store.act_groups(limit, chosen=chosen, together=not each, acts_max=_ACTS_MAX + 1)
            total = store.act_count(chosen)
    acts = [group.newest for group in found.items]
    chains, own = await _chains(log, sorted({(act.queue, act.job) for act in acts if act.job}))
    newest = [
        msgspec.structs.replace(
            group, newest=msgspec.structs.replace(act, at=time_text(own[act.stream_sequence]))
        )
        if (act := group.newest).stream_sequence in own
        else group
        for group in found.items
    ]
    return ActList(newest, found.acts, total, gap, chains, frozenset(own))


async def _chains(log: Log, names: Sequence[tuple[str, str]]) -> tuple[Chains, dict[int, datetime]]:
    """Read the chains of these jobs, some at a time, and check their links.

    Return also, by stream sequence, the times of events for which the event's own time is shown.
    """
    events, broken, own = 0, dict[tuple[str, str], ChainCheck](), dict[int, datetime]()
    for at in range(0, len(names), _CHAINS_AT_ONCE):
        for name, history in (await _histories(log, names[at : at + _CHAINS_AT_ONCE])).items():
            found = await check_history(log, history)
            events += found.events
            if not found.is_unbroken:
                broken[name] = found
            clocks = clocks_of(history)
            if clocks.of == "events":
                sequences = (each.stream_sequence for each in history)
                own.update(zip(sequences, clocks.times, strict=True))
    return Chains(len(names), events, broken), own


async def _histories(log: Log, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[StoredEvent]]:
    """Return the events of some jobs; an archive has no index, so it is read once for all of them."""
    if not isinstance(log, JoinedLog):
        chains = [log.names.chain(JobRef(queue=queue, job_id=job)) for queue, job in names]
        return dict(zip(names, await asyncio.gather(*map(log.read_chain, chains)), strict=True))
    found: dict[tuple[str, str], list[StoredEvent]] = {name: [] for name in names}
    async with contextlib.aclosing(log.read()) as batches:
        async for batch in batches:
            for stored in batch:
                history = found.get((stored.event.queue, stored.event.job))
                if history is not None:
                    history.append(stored)
    return found


async def _projected(rows: Rows, log: Log, folder: Path, first_sequence: int) -> Path:
    """Return a file brought up to the ledger; one in `folder` where an archive is in front, or the beginning is lost."""
    if log is rows.ledger.log:
        with contextlib.suppress(EventGapError):
            await rows.catch_up()
            return await rows.path()
    path = folder / "acts.db"
    with (
        Projector(log, path, begins_at=first_sequence) as projector,
        rows.progress("reading the ledger") as progress,
    ):
        await projector.catch_up(progress=progress)
    return path
