"""Grants decided again, to compare them, and simulated with other limits. Both read the ledger and change nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.inputs import checked_limits
from jobledger.ledger.model.limits.definition import LIMIT, Definition, Override, Terms, problem_of
from jobledger.ledger.model.limits.flow import FLOW
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.limits.recompute import GrantComparison
from jobledger.ledger.model.limits.simulation import (
    KeyWaits,
    TooManyWaitsError,
    WaitRecord,
    recorded,
    simulated,
)
from jobledger.ledger.model.log import events_among
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.ledger.model.times import shown_time

_OTHERS: Final[dict[str, Aggregate[Any, Any]]] = {FLOW.name: FLOW, LIMIT.name: LIMIT}
_UNBOUNDED: Final = ("slots", "rate")


class SimulatedWaits(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs waited, by key, as it was and as it would have been."""

    begin: datetime
    end: datetime
    waits: int  #: how often a job waited
    recorded: dict[str, KeyWaits]
    simulated: dict[str, KeyWaits]


async def compare_grants(ledger: Ledger) -> GrantComparison:
    """Decide every grant of the ledger again from what its author knew, for each author separately.

    Raises: UnreachableError, CorruptLedgerError, ScratchSpaceError.
    """
    from jobledger.admin.grant_authors import authors, decided_again  # noqa: PLC0415

    head = await ledger.log.head()
    found = GrantComparison()
    for each in await authors(ledger, head):
        found += GrantComparison(archived=each.archived)
        if each.last:
            found += await decided_again(ledger, head, each)
    return found


async def simulate_limits(
    ledger: Ledger, begin: datetime, end: datetime, changes: Mapping[str, Any]
) -> SimulatedWaits:
    """Return how long the jobs of a span of time would have waited with other limits.

    `changes`: by limit, or by `name:key` for one key of it, its slots; by `limit.field` another field of `Terms`, such
    as `tenant:acme.rate`. None: no bound; for one key: as the limit says. They hold for the whole span; a limit that is
    not named is as it was, and changes when it did.

    Raises: InvalidTokenError, InvalidInputError for a limit that cannot be, a span that ends before it begins or holds too
        many waits; UnreachableError, CorruptLedgerError.
    """
    wished = _by_limit(changes)
    if end <= begin:
        raise InvalidInputError(
            f"the span ends at {shown_time(end)} and begins at {shown_time(begin)}: give the earlier time first"
        )
    recording = WaitRecord(begin, end)
    try:
        async with contextlib.aclosing(_events(ledger)) as events:
            async for event, message in events:
                if message.stored_at > end:
                    break
                recording.feed(event, message.stream_sequence, message.stored_at)
        recording.done()
    except TooManyWaitsError as error:
        raise InvalidInputError(
            "too many jobs waited in that span to simulate it: choose a shorter one"
        ) from error
    changed = _changed(recording.first_known, wished, begin)
    return SimulatedWaits(
        begin=begin,
        end=end,
        waits=len(recording.waits),
        recorded=recorded(recording),
        simulated=simulated(recording, changed),
    )


async def _events(ledger: Ledger) -> AsyncGenerator[tuple[Envelope, Message], None]:
    """Yield every event of jobs, grants and limits up to the present end."""
    last = (await ledger.log.head()).last_sequence
    async with contextlib.aclosing(ledger.log.read_messages()) as batches:
        async for batch in batches:
            for message in events_among(batch):
                if message.stream_sequence > last:
                    return
                of = _OTHERS.get(aggregate_of(message.subject))
                if isinstance(message, StoredEvent):
                    yield message.event, message
                elif of is not None:
                    yield of.decode(message), message
            if batch[-1].stream_sequence >= last:
                return


def _by_limit(changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what changes by limit. Raises: InvalidTokenError, InvalidInputError."""
    found: dict[str, dict[str, Any]] = {}
    for word, value in changes.items():
        limit, _, field = word.rpartition(".")
        if not limit or field not in Override.__struct_fields__:
            limit, field = word, "slots"
        checked_limits((limit,))
        if value is None and field not in _UNBOUNDED and not split(limit)[1]:
            raise InvalidInputError(f"{word} needs a value: only slots and rate may be none")
        found.setdefault(limit, {})[field] = value
    return found


def _changed(
    limits: Mapping[str, Definition], changes: Mapping[str, dict[str, Any]], at: datetime
) -> dict[str, Definition]:
    """Return the definitions that change. Raises: InvalidInputError for numbers that cannot work."""
    found: dict[str, Definition] = {}
    for limit, terms in changes.items():
        name, key = split(limit)
        before = found.get(name) or limits.get(name)
        if before is None:
            before = Definition(limit=name, sequence=0, at=at, by="")
        common = before.common or Terms()
        if key:
            override = msgspec.structs.replace(before.overrides.get(key, Override()), **terms)
            before = msgspec.structs.replace(
                before, common=common, overrides={**before.overrides, key: override}
            )
        else:
            before = msgspec.structs.replace(before, common=msgspec.structs.replace(common, **terms))
        assert before.common is not None, "it has terms now"
        problem = problem_of(before.common, before.overrides)
        if problem:
            raise InvalidInputError(f"limit {limit}: {problem}")
        found[name] = before
    return found
