"""Acknowledgements of messages in the ledger that are no events: a person examined one and accepts it."""

from __future__ import annotations

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.codec import Unreadable
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError, RefusedError
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.unreadable import UNREADABLE, Acknowledged, acknowledge


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledgement as the ledger has it."""

    stream_sequence: int  #: that of the event that records it
    event: Acknowledged


async def acknowledge_message(ledger: Ledger, sequence: int, *, reason: str, by: str) -> Acknowledgement:
    """Record who accepts that the message at a stream sequence is no event, and why.

    Raises: InvalidInputError without a reason; NotFoundError if the ledger has no such sequence; RefusedError for
        an event that can be read, and where somebody accepted it before; UnknownEventError for one of a newer version.
    """
    if not reason.strip():
        raise InvalidInputError("give a reason: it is kept in the ledger, for whoever asks later")
    message = await _message(ledger.log, sequence)
    chain = UNREADABLE.chain(ledger.names, str(sequence))

    async def attempt() -> Acknowledgement:
        view = UNREADABLE.view(*await end_of_chain(ledger.log, chain))
        event = acknowledge(message, view.state, reason, ledger.stamp(by))
        stored = await ledger.log.append(UNREADABLE.link(ledger.names, [event], view))
        return Acknowledgement(stream_sequence=stored, event=event)

    return await retry_raced(attempt)


async def _message(log: Log, sequence: int) -> Unreadable:
    message = await log.get(sequence)
    if message is None:
        head = await log.head()
        raise NotFoundError(
            f"the ledger has no stream sequence {sequence}: it begins at {head.first_sequence} and ends at "
            f"{head.last_sequence}"
        )
    if not isinstance(message, Unreadable):
        raise RefusedError(
            f"stream sequence {sequence} is an event that can be read ({message.subject}): there is nothing to acknowledge"
        )
    return message
