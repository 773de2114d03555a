"""How many bytes a ledger may hold, and the change of that: the way out where it is full."""

from __future__ import annotations

import msgspec

from jobledger.admin.amounts import size
from jobledger.ledger import Ledger
from jobledger.ledger.config import LEDGER_BYTES_MIN
from jobledger.ledger.model.errors import InvalidInputError, RefusedError
from jobledger.ledger.nats.streams import find_stream, give_bytes


class LedgerSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger holds, and what it may hold."""

    stream: str
    stored_bytes: int
    bytes_max: int
    bytes_max_before: int  #: -1: there was no limit


async def resize_ledger(ledger: Ledger, bytes_max: int) -> LedgerSize:
    """Let a ledger hold up to `bytes_max` bytes, while workers and clients go on; no event goes.

    Raises: InvalidInputError below the smallest size; RefusedError below what it holds; LedgerFullError where the server
    has no room for as many; UnreachableError.
    """
    if bytes_max < LEDGER_BYTES_MIN:
        raise InvalidInputError(
            f"a ledger needs room for {size(LEDGER_BYTES_MIN)} at least, got {bytes_max:,} bytes"
        )
    stream = ledger.names.ledger_stream
    info = await find_stream(ledger.inbox, stream)
    if info is not None and info.state.bytes >= bytes_max:
        raise RefusedError(
            f"the ledger holds {size(info.state.bytes)}, so it cannot be made as small as {size(bytes_max)}: "
            "move older events into an archive first, with `jobledger audit archive`"
        )
    before = await give_bytes(ledger.inbox, stream, bytes_max)
    return LedgerSize(
        stream=stream,
        stored_bytes=before.state.bytes,
        bytes_max=bytes_max,
        bytes_max_before=int(before.config.get("max_bytes", -1)),
    )
