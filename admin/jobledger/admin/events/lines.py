"""A stored event as one line of JSON, for programs."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.lifecycle import VALUE_FIELDS
from jobledger.ledger.model.rights.marks import Hidden, hide
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.ledger.model.times import time_text


def event_json(stored: Message) -> str:
    """Return a stored event as one line of JSON: its fields as stored, with stream sequence and server time.

    A message that is no event has its subject and a field `unreadable` that says why. An archived event without its values
    has a field `redacted`, the sha256 of the bytes that it had.
    """
    head = _head(stored)
    if isinstance(stored, Unreadable):
        said = {"subject": stored.subject, "unreadable": stored.why}
        return head + msgspec.json.encode(said).decode()[1:]
    data = stored.data.strip()
    if b"\n" in data or b"\r" in data:  # written by somebody else's encoder
        data = msgspec.json.format(data, indent=-1)
    return head + data[1:].decode()


def _head(stored: Message) -> str:
    redacted = f'"redacted":"{stored.redacted}",' if stored.redacted else ""
    return (
        f'{{"stream_sequence":{stored.stream_sequence},"stored_at":"{time_text(stored.stored_at)}",{redacted}'
    )


def event_json_for(stored: Message, hidden: Hidden) -> str:
    """Return the line of an event without hidden fields, such as inputs and results; see `rights.marks`.

    Where something is hidden, a field that only a newer version knows is left out, too: nobody knows what it holds.
    """
    if not hidden.marks or isinstance(stored, Unreadable):
        return event_json(stored)
    event: Envelope = (
        stored.event
        if isinstance(stored, StoredEvent)
        else AGGREGATES[aggregate_of(stored.subject)].decode(stored)
    )
    shown = msgspec.json.encode(hide(event, hidden, by_default=True)).decode()
    return f"{_head(stored)}{shown[1:]}"


_HOLDERS: Final = frozenset({dict, list})


def without_values(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event without those in `VALUE_FIELDS`, which hold users' values, at any depth."""
    return {
        name: _without_values(value) if type(value) in _HOLDERS else value
        for name, value in fields.items()
        if name not in VALUE_FIELDS
    }


def _without_values(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_values(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return without_values(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
