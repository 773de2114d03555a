"""How many bytes a ledger may hold, and the change of that number: the way out if the ledger is full."""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.admin.amounts import size
from jobledger.admin.upgrades import keep_form
from jobledger.ledger import Ledger
from jobledger.ledger.config import LEDGER_BYTES_MIN
from jobledger.ledger.model.errors import InvalidInputError, RefusedError
from jobledger.ledger.nats.streams import give_bytes

_BYTES_END: Final = 1 << 63  #: the server counts in signed 64-bit numbers


class LedgerSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger holds, and what it may hold."""

    stream: str
    stored_bytes: int
    bytes_max: int
    bytes_max_before: int | None  #: None: there was no limit


async def resize_ledger(ledger: Ledger, bytes_max: int) -> LedgerSize:
    """Let a ledger hold up to `bytes_max` bytes, while workers and clients go on; no event is removed.

    Raises: InvalidInputError for a size that no ledger may have; RefusedError below what it holds; LedgerFullError if the server
    has no room for as many; UnreachableError.
    """
    if not LEDGER_BYTES_MIN <= bytes_max < _BYTES_END:
        raise InvalidInputError(
            f"a ledger may hold from {size(LEDGER_BYTES_MIN)} to less than {size(_BYTES_END)}, got {size(bytes_max)}"
        )
    head = await ledger.log.head()
    if head.stored_bytes >= bytes_max:
        raise RefusedError(
            f"the ledger holds {size(head.stored_bytes)}, so it cannot be made as small as {size(bytes_max)}: "
            "move older events into an archive first, with `jobledger audit archive`"
        )
    await give_bytes(ledger.inbox, ledger.names.ledger_stream, bytes_max)
    await keep_form(ledger)
    return LedgerSize(
        stream=ledger.names.ledger_stream,
        stored_bytes=head.stored_bytes,
        bytes_max=bytes_max,
        bytes_max_before=head.bytes_max,
    )
