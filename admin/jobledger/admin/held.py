"""Who holds limits and who waits for them at this moment, as values: of one limit, of one job, of all."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from jobledger.audit.why_held import HeldFacts, LimitState
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.limits.rates import moment_of, nanoseconds

if TYPE_CHECKING:
    from jobledger.ledger.model.limits.grants import Granter

HOLDERS_MAX: Final = 20  #: that are named of each limit


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits for a limit."""

    queue: str
    job: str
    held: int  #: stream sequence of its `held`
    limits: tuple[str, ...]  #: all that it names


class LimitNow(msgspec.Struct, frozen=True, kw_only=True):
    """A limit or one key of it, with those that wait for it in the order of their `held`."""

    state: LimitState
    waits: tuple[Waits, ...]  #: the oldest
    keys: tuple[LimitState, ...] = ()  #: of a name without a key: its keys in use, those with most jobs first


class Undefined(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that jobs name and nobody defined."""

    limit: str
    jobs: int


@contextlib.asynccontextmanager
async def present(ledger: Ledger) -> AsyncGenerator[Granter, None]:
    """Give who waits and who holds slots for the length of a block; see `workers.reactors.flow.looking`."""
    # Imported here: most of what a person does needs nothing of workers.
    from jobledger.workers.reactors.flow.looking import present as looked  # noqa: PLC0415

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
        needs = granter.holders.needs(name, job.order.limits)
        return HeldFacts(
            limits=tuple(_state(granter, limit, now) for limit in needs),
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
        now = ledger.clock.now()
        keys = sorted(
            (_state(granter, each, now) for each in _in_use(granter) if each.startswith(f"{limit}:")),
            key=lambda each: (-each.waiting, -each.used, each.limit),
        )
        return LimitNow(state=_state(granter, limit, now), waits=waits, keys=tuple(keys[:HOLDERS_MAX]))


def _in_use(granter: Granter) -> set[str]:
    """Return the keys that somebody holds or waits for."""
    waited = {key for line in granter.lines.lines.values() for key in line.keys if key}
    return waited | set(granter.holders.keys())


def _state(granter: Granter, limit: str, now: datetime) -> LimitState:
    key = granter.picker.key(limit)
    free_at = 0
    if key.terms is not None and key.terms.rate is not None:
        free_at = granter.rates.free_at(limit, key.terms)
    return LimitState(
        limit=limit,
        terms=key.terms,
        used=granter.holders.used(limit),
        holders=tuple("/".join(job) for job in itertools.islice(granter.holders.of(limit), HOLDERS_MAX)),
        waiting=waiting(granter, limit),
        free_at=moment_of(free_at) if free_at > nanoseconds(now) else None,
        unstarted=len(key.unstarted),
    )


def waiting(granter: Granter, limit: str) -> int:
    """Return how many jobs wait for a slot of a limit."""
    lines = (line for line in granter.lines.lines.values() if limit in line.keys)
    return sum(sum(entry.line is not None for entry in line.heads) + line.spilled for line in lines)


def undefined(granter: Granter) -> list[Undefined]:
    """Return the limits that jobs wait for and nobody defined, those with most jobs first."""
    missing = (key for key in _in_use(granter) if granter.picker.key(key).terms is None)
    found = [Undefined(limit=key, jobs=waiting(granter, key)) for key in missing]
    return sorted((each for each in found if each.jobs), key=lambda each: (-each.jobs, each.limit))
