"""Who holds limits and who waits for them at this moment, as values: of one limit, of one job, of all."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from jobledger.audit.why_held import HeldFacts, LimitState
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.limits.rates import moment_of, nanoseconds

if TYPE_CHECKING:
    from jobledger.ledger.model.limits.grants import Granter

HOLDERS_MAX: Final = 20  #: the most holders that are named of each limit


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits for a limit."""

    queue: str
    job: str
    held: int  #: stream sequence of its `held`
    limits: tuple[str, ...]  #: all limits that it names


class LimitNow(msgspec.Struct, frozen=True, kw_only=True):
    """A limit or one key of it, with those that wait for it in the order of their `held`."""

    state: LimitState
    waits: tuple[Waits, ...]  #: those that have waited longest
    keys: tuple[LimitState, ...] = ()  #: keys in use of a name without a key, those with most jobs first


@contextlib.asynccontextmanager
async def present(ledger: Ledger) -> AsyncGenerator[Granter, None]:
    """Give waiting jobs and holders of slots for the length of a block; see `workers.reactors.flow.view`."""
    # Imported here: most acts need nothing of workers.
    from jobledger.workers.reactors.flow.view import present as looked  # noqa: PLC0415

    async with looked(ledger) as granter:
        yield granter


async def held_facts(ledger: Ledger, job: Job) -> HeldFacts:
    """Return what surrounds a job that is held. Raises: CorruptLedgerError, PayloadMissingError, UnreachableError."""
    async with present(ledger) as granter:
        name, now = (job.queue, job.id), ledger.clock.now()
        holding = granter.holders.jobs.get(name)
        place = 0
        entry = granter.lines.find(name)
        if entry is not None and entry.line is not None:
            place = 1 + sum(other.held < entry.held for other in granter.lines.of(entry.line))
        needs, waits = granter.holders.needs(name, job.order.limits), waiting(granter)
        return HeldFacts(
            limits=tuple(_state(granter, limit, now, waits) for limit in needs),
            place=place,
            is_open=job.queue not in granter.picker.closed,
            grant=0 if holding is None else holding.grant,
        )


async def limit_now(ledger: Ledger, limit: str, *, waits_max: int = HOLDERS_MAX) -> LimitNow:
    """Return who holds a limit, or one key of it, and who waits for it.

    Raises: CorruptLedgerError, PayloadMissingError, UnreachableError.
    """
    async with present(ledger) as granter:
        first = (entry for entry, line in granter.lines.oldest() if limit in line[3])
        waits = tuple(
            Waits(queue=entry.queue, job=entry.job, held=entry.held, limits=entry.limits)
            for entry in itertools.islice(first, waits_max)
        )
        now, counts = ledger.clock.now(), waiting(granter)
        used = (each for each in _in_use(granter, counts) if each.startswith(f"{limit}:"))
        most = heapq.nsmallest(
            HOLDERS_MAX, used, key=lambda each: (-counts[each], -granter.holders.used(each), each)
        )
        keys = tuple(_state(granter, each, now, counts) for each in most)
        return LimitNow(state=_state(granter, limit, now, counts), waits=waits, keys=keys)


def _in_use(granter: Granter, counts: Mapping[str, int]) -> set[str]:
    """Return the keys that somebody holds or waits for."""
    return {*counts, *granter.holders.keys()}


def _state(granter: Granter, limit: str, now: datetime, counts: Mapping[str, int]) -> LimitState:
    key = granter.picker.key(limit)
    free_at = 0
    if key.terms is not None and key.terms.rate is not None:
        free_at = granter.rates.free_at(limit, key.terms)
    return LimitState(
        limit=limit,
        terms=key.terms,
        used=granter.holders.used(limit),
        holders=tuple("/".join(job) for job in itertools.islice(granter.holders.of(limit), HOLDERS_MAX)),
        waiting=counts.get(limit, 0),
        free_at=moment_of(free_at) if free_at > nanoseconds(now) else None,
        unstarted=len(key.unstarted),
    )


def waiting(granter: Granter) -> Counter[str]:
    """Return how many jobs wait for a slot of each limit, in one pass over the lines."""
    counts: Counter[str] = Counter()
    for line in granter.lines.lines.values():
        jobs = sum(entry.line is not None for entry in line.heads) + line.spilled
        counts.update({key: jobs for key in line.keys if key})
    return counts
