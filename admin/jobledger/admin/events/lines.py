"""A stored event as one line of JSON, for programs."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from jobledger.ledger.model.codec import Message, Unreadable
from jobledger.ledger.model.lifecycle import VALUE_FIELDS
from jobledger.ledger.model.times import time_text


def event_json(stored: Message) -> str:
    """Return a stored event as one line of JSON: its fields as stored, with stream sequence and server time.

    What is no event has its subject and a field `unreadable` that says why.
    """
    head = f'{{"stream_sequence":{stored.stream_sequence},"stored_at":"{time_text(stored.stored_at)}",'
    if isinstance(stored, Unreadable):
        said = {"subject": stored.subject, "unreadable": stored.why}
        return head + msgspec.json.encode(said).decode()[1:]
    data = stored.data.strip()
    if b"\n" in data or b"\r" in data:  # written by somebody else's encoder
        data = msgspec.json.format(data, indent=-1)
    return head + data[1:].decode()


def event_json_without_values(stored: Message) -> str:
    """Return the same without the values of users: inputs, results, checkpoints; the fields of values are left out."""
    return msgspec.json.encode(without_values(msgspec.json.decode(event_json(stored)))).decode()


def without_values(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event but for the values of users, at any depth."""
    return {
        name: without_values(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in VALUE_FIELDS
    }
