"""Values that are set under names, as a client of the ledger changes them; see `model.named_chain`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from jobledger.ledger.model import named_chain
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.named_chain import ChangedValue
from jobledger.ledger.patience import Patience

E = TypeVar("E", bound=Envelope)
S = TypeVar("S")


class Writer(Protocol):
    """The part of a ledger's client that appends decisions made now."""

    @property
    def log(self) -> Log:
        """The events."""
        ...

    @property
    def patience(self) -> Patience:
        """How long its calls wait."""
        ...

    def stamp(self, by: str = "") -> Stamp:
        """Return author and time for events decided now."""
        ...


async def change(
    client: Writer,
    of: Aggregate[E, S],
    name: str,
    decided: Callable[[S | None, Stamp], E | None],
    *,
    by: str = "",
    plan: bool = False,
    prepare: Callable[[S | None, E], Awaitable[None]] | None = None,
) -> ChangedValue[S]:
    """Do as `named_chain.change`, within the client's patience.

    Raises: as `named_chain.change`; ServerUnreachableError, after which another call is safe.
    """
    return await client.patience.read(
        lambda: named_chain.change(
            client.log, of, name, decided, lambda: client.stamp(by), plan=plan, prepare=prepare
        )
    )
