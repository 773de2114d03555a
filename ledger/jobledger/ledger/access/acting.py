"""For whom the code that runs now acts: each stamp that is made meanwhile carries that authority, whoever makes it."""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from jobledger.ledger.model.errors import AccessDeniedError
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


def require_limits(named: Iterable[str], own: Container[str]) -> None:
    """Refuse limits that whoever acts names beside those of the task's code, where they are bound to queues or tasks.

    A limit belongs to no queue and no task: whoever names it takes slots from all who do, and may end their jobs by its
    mode. `own`: those that the task's code has.

    Raises: AccessDeniedError.
    """
    principal = ACTING_FOR.get()
    if principal is None or principal.is_everywhere:
        return
    for each in named:
        if each not in own:
            raise AccessDeniedError(
                f"{principal.name} is bound to some queues or tasks, so its jobs have the limits of their task's code and no "
                f"others: leave out limit {each}, or have the task name it"
            )
