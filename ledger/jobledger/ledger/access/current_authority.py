"""The principal for whom the running code acts: each stamp made meanwhile carries that authority, whoever makes it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from jobledger.ledger.model.rights.authority import Principal

#: None: an operator's own program.
ACTING_FOR: Final[ContextVar[Principal | None]] = ContextVar("jobledger_acting_for", default=None)


class ActingFor:
    """A block of code whose commands are decided with the rights of somebody, and recorded as theirs.

    It also holds for asyncio tasks that begin in the block. It is a class since each request enters one, and that costs
    half as much as a generator.
    """

    __slots__ = ("_principal", "_token")

    def __init__(self, principal: Principal | None) -> None:
        """None: as an operator's."""
        self._principal = principal

    def __enter__(self) -> None:
        """Begin."""
        self._token = ACTING_FOR.set(self._principal)

    def __exit__(self, *_: object) -> None:
        """Act for whomever it was before."""
        ACTING_FOR.reset(self._token)


acting_for: Final = ActingFor
