"""How a delivery is signed and written: the standard-webhooks scheme, with a plain body or a CloudEvent. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from jobledger.ledger.model.hooks.definition import Format
from jobledger.ledger.model.times import time_text
from jobledger.ledger.webhooks.message import EventMessage

_JSON: Final = "application/json"
_CLOUDEVENTS: Final = "application/cloudevents+json"


class Body(NamedTuple):
    """What is posted."""

    data: bytes
    media: str


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the structured mode of CloudEvents 1.0: all of it is in the body."""

    specversion: str = "1.0"
    id: str
    source: str  #: the ledger
    type: str
    subject: str  #: the job or the watch
    time: str
    datacontenttype: str = _JSON
    data: dict[str, object]


def body_of(told: EventMessage, form: Format, *, message_id: str, source: str) -> Body:
    """Return what is posted of an event, the same bytes at every try."""
    if form == "standard":
        return Body(msgspec.json.encode(told), _JSON)
    about = told.data
    subject = f"{about['queue']}/{about['job']}" if "job" in about else str(about.get("watch", ""))
    event = CloudEvent(
        id=message_id,
        source=source,
        type=f"dev.jobledger.{told.type}",
        subject=subject,
        time=time_text(told.timestamp),
        data=about,
    )
    return Body(msgspec.json.encode(event), _CLOUDEVENTS)


def signature(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`: one signature for each key, any of which is enough for a receiver.

    `timestamp`: seconds since 1970, when the message is sent. Source: standardwebhooks.com.
    """
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    digests = (hmac.new(key, signed, hashlib.sha256).digest() for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
