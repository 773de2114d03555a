"""Values that are set under names, such as routes and stored graphs: read and changed on a given log.

Each append is conditional on the newest event of the name's chain, and decided on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from jobledger.ledger.model.aggregate import Aggregate, View
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.subjects import check_token

E = TypeVar("E", bound=Envelope)
S = TypeVar("S")


class ChangedValue(NamedTuple, Generic[S]):
    """What is set under a name, after a command."""

    state: S
    changed: bool  #: False: it was as the command asks already


async def look(log: Log, of: Aggregate[E, S], name: str) -> View[S]:
    """Return what is set under a name now; without a state where nothing ever was.

    Raises: InvalidTokenError, UnreachableError, UnknownEventError.
    """
    check_token(of.name, name)
    return of.view(*await end_of_chain(log, of.chain(log.names, name)))


async def change(
    log: Log,
    of: Aggregate[E, S],
    name: str,
    decided: Callable[[S | None, Stamp], E | None],
    stamp: Callable[[], Stamp],
    *,
    plan: bool = False,
) -> ChangedValue[S]:
    """Append what `decided` returns for the present state; `plan`: append nothing, and return what would follow.

    Raises: InvalidTokenError, WrongSequenceError after too many lost races, what `decided` and `Log` raise.
    """

    async def attempt() -> ChangedValue[S]:
        view = await look(log, of, name)
        event = decided(view.state, stamp())
        if event is None:
            assert view.state is not None, "it is as it was asked to be"
            return ChangedValue(view.state, changed=False)
        if plan:
            return ChangedValue(of.evolve(view.state, event, 0), changed=True)
        sequence = await log.append(of.link(log.names, [event], view))
        return ChangedValue(of.evolve(view.state, event, sequence), changed=True)

    return await retry_raced(attempt)
