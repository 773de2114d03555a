"""For whom the code that runs now acts: each stamp that is made meanwhile carries that authority, whoever makes it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from jobledger.ledger.model.rights.authority import Principal

#: None: an operator's own program.
ACTING_FOR: Final[ContextVar[Principal | None]] = ContextVar("jobledger_acting_for", default=None)


@contextmanager
def acting_for(principal: Principal | None) -> Generator[None]:
    """Have commands of this block decided with the rights of somebody, and recorded as theirs; None: as an operator's.

    It holds for tasks of the event loop that are begun in the block, too.
    """
    token = ACTING_FOR.set(principal)
    try:
        yield
    finally:
        ACTING_FOR.reset(token)
