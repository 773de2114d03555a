"""Refusals that do not name tasks which the principal may not see."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from jobledger.ledger.model.errors import TaskNotFoundError
from jobledger.ledger.model.rights.authority import Principal


@contextlib.contextmanager
def naming_no_hidden_task(principal: Principal) -> Generator[None]:
    """Leave similar task names out of a refusal for a principal who may not see all tasks."""
    try:
        yield
    except TaskNotFoundError as error:
        if error.near and not principal.is_everywhere:
            error.args = (str(error).replace(f": did you mean {' or '.join(error.near)}?", ":"),)
        raise
