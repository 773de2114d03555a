"""Refusals that tell nobody of tasks which do not exist for him."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from jobledger.ledger.model.errors import TaskNotFoundError
from jobledger.ledger.model.rights.authority import Principal


@contextlib.contextmanager
def naming_no_hidden_task(principal: Principal) -> Generator[None]:
    """Leave out of a refusal which other tasks have a name like that, for whom some tasks do not exist."""
    try:
        yield
    except TaskNotFoundError as error:
        if error.near and not principal.is_everywhere:
            error.args = (str(error).replace(f": did you mean {' or '.join(error.near)}?", ":"),)
        raise
