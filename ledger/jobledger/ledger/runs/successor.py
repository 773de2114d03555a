"""Going on in another run: the value that `Run.again` returns, and the id of the next run."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.runs.orders import ID_MAX

_SUCCESSOR: Final = re.compile(r"(.+)-r(\d+)")


class Again(msgspec.Struct, frozen=True):
    """A value that a workflow returns to end its run and begin the next one in the same moment."""

    input: bytes  #: input of the next run, JSON text
    successor: str  #: id of the next run


def successor_id(run_id: str) -> str:
    """Return the id of the run that goes on where one ends: `order-r2` behind `order`, `order-r3` behind that.

    Raises: InvalidInputError for an id that is too long for the ending.
    """
    match = _SUCCESSOR.fullmatch(run_id)
    root, number = (match[1], int(match[2])) if match else (run_id, 1)
    found = f"{root}-r{number + 1}"
    if len(found) > ID_MAX:
        raise InvalidInputError(
            f"run {run_id} cannot go on as {found}: an id has at most {ID_MAX} characters, so give runs shorter ones"
        )
    return found
