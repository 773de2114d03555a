"""The copies of dead letters in the stream `DLQ`, for code that erases those of jobs whose values were redacted."""

from __future__ import annotations

from collections.abc import Collection

from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats import api
from jobledger.ledger.nats.inbox import Inbox


async def erase_dead_copies(inbox: Inbox, names: Names, hashes: Collection[str]) -> int:
    """Delete the copies of these events, and write other bytes over them on the server's disk; return how many were there.

    `hashes`: sha256 (hex) of the events as they were stored. Raises: UnreachableError, LedgerError.
    """
    if not hashes:
        return 0
    sequence, erased = 1, 0
    last = (await api.stream_info(inbox, names.dlq_stream)).state.last_sequence
    while sequence <= last:
        request = {"seq": sequence, "next_by_subj": names.all_of_type("dead_lettered")}
        found = await api.get_message(inbox, names.dlq_stream, request)
        if found is None:
            break
        sequence = found.stream_sequence + 1
        if digest(found.content) in hashes:
            erased += await api.erase_if_there(inbox, names.dlq_stream, found.stream_sequence)
    return erased
