"""Values that are set under names, such as limits, routes and stored graphs: read and changed on a given log.

Each append is conditional on the newest event of the name's chain, and decided on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from jobledger.ledger.model.aggregate import Aggregate, View
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.log import Log, end_of_chain, events_among
from jobledger.ledger.model.subjects import check_token

E = TypeVar("E", bound=Envelope)
S = TypeVar("S")


class ChangedValue(NamedTuple, Generic[S]):
    """The value under a name, after a command."""

    state: S
    changed: bool  #: False: the command changed nothing
    before: S | None = None  #: the state that the command was decided on; None: nothing was ever set


async def look(log: Log, of: Aggregate[E, S], name: str) -> View[S]:
    """Return the present value under a name; without a state if none was ever set.

    Raises: InvalidTokenError, UnreachableError, UnknownEventError.
    """
    key = words_of(of, name)
    for each in key:
        check_token(of.name, each)
    return of.view(*await end_of_chain(log, of.chain(log.names, *key)))


def words_of(of: Aggregate[E, S], name: str) -> tuple[str, ...]:
    """Return the words of a name; if a chain has several, colons separate them."""
    return tuple(name.split(":", len(of.key) - 1)) if len(of.key) > 1 else (name,)


async def change(
    log: Log,
    of: Aggregate[E, S],
    name: str,
    decided: Callable[[S | None, Stamp], E | None],
    stamp: Callable[[], Stamp],
    *,
    plan: bool = False,
    prepare: Callable[[S | None, E], Awaitable[None]] | None = None,
) -> ChangedValue[S]:
    """Append the event that `decided` returns for the present state; `plan`: append nothing, return what would follow.

    `prepare`: awaited with that state and the event before each append.

    Raises: InvalidTokenError, WrongSequenceError after too many lost races, what `decided` and `Log` raise.
    """

    async def attempt() -> ChangedValue[S]:
        view = await look(log, of, name)
        event = decided(view.state, stamp())
        if event is None:
            assert view.state is not None, "it is as it was asked to be"
            return ChangedValue(view.state, changed=False, before=view.state)
        if plan:
            return ChangedValue(of.evolve(view.state, event, 0), changed=True, before=view.state)
        if prepare is not None:
            await prepare(view.state, event)
        sequence = await log.append(of.link(log.names, [event], view))
        return ChangedValue(of.evolve(view.state, event, sequence), changed=True, before=view.state)

    return await retry_raced(attempt)


async def states(
    log: Log, of: Aggregate[E, S], name: str | None = None
) -> AsyncGenerator[tuple[str, S], None]:
    """Yield the name and the state after each event of every value of a kind, or of one alone, the oldest first.

    Raises: CorruptLedgerError, UnreachableError.
    """
    known: dict[str, S] = {}
    subject = of.everything(log.names) if name is None else of.chain(log.names, *words_of(of, name))
    async with contextlib.aclosing(log.read_messages(subject=subject)) as batches:
        async for batch in batches:
            for message in events_among(batch):
                key = ":".join(of.key_in(message.subject))
                known[key] = of.evolve(known.get(key), of.decode(message), message.stream_sequence)
                yield key, known[key]


async def histories(log: Log, of: Aggregate[E, S], name: str | None = None) -> dict[str, list[S]]:
    """Return the states that each value of a kind had, or one alone, the oldest first. Raises: as `states`."""
    found: dict[str, list[S]] = {}
    async for key, state in states(log, of, name):
        found.setdefault(key, []).append(state)
    return found


async def newest(log: Log, of: Aggregate[E, S], name: str | None = None) -> dict[str, S]:
    """Return each value of a kind, or only one, after its newest event; also removed ones. Raises: as `states`."""
    return {key: state async for key, state in states(log, of, name)}
