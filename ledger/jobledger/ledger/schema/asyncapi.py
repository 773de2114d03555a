"""The events as an AsyncAPI 3.0 document: subjects as channels, schemas as messages. Pure.

For tools that make documentation or code from such documents. Its addresses come from `Names`, its schemas from the
classes, so that it cannot say anything else than what is stored.
"""

from __future__ import annotations

import re
from typing import Any, Final

from jobledger.ledger.model.aggregates import AGGREGATES, JOB, event_name
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.subjects import Names, leaves_of
from jobledger.ledger.schema.events import SchemaBuilder, described

#: Of what this document says, by the rules of semantic versioning; the distribution has another.
CONTRACT_VERSION: Final = "1.0.0"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_DESCRIPTION: Final = (
    "Every transition of every job is one message in the JetStream stream LEDGER, whose sequence is dense from 1. "
    "Read it with a consumer of that stream, filtered by these subjects; a core NATS subscription would also see "
    "messages that the stream then refuses. Only jobledger may append. Messages of one chain (a job, a lock, a reactor: "
    "the subject without its last words) are linked: `prev` is the hex sha256 of the previous one's bytes as stored, "
    "and empty in the first. An archived id may be used again: a chain may have a first message again, with an empty "
    "`prev`, once an `archived` message names a `through_sequence` at or above the stream sequence of its newest one. "
    "New fields and new events may be added: ignore fields that you do not know, and stop at events that you do not "
    "know. In an environment with a name, subjects begin with `<environment>_ledger` and the stream is "
    "`<ENVIRONMENT>_LEDGER`."
)
_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "queue": {"description": "The queue: 1 to 64 of A-Z a-z 0-9 _ and -."},
    "job": {"description": "The job's id: 1 to 64 of A-Z a-z 0-9 _ and -; a UUIDv7 where nobody chose one."},
    "priority": {"description": "Which lane of the queue.", "enum": list(PRIORITIES)},
    "parent": {"description": "The id of the run whose child the job is."},
    "scope": {"description": "What kind of thing is locked."},
    "lock": {"description": "Which one."},
    "reactor": {"description": "Whose chain it is."},
    "limit": {"description": "The limit's name."},
    "schedule": {"description": "The schedule's name."},
    "route": {"description": "The route's name, the last word of its address."},
    "delivery": {"description": "The provider's id of the delivery, or a hash of it."},
}


def asyncapi_document() -> dict[str, Any]:
    """Return the whole document, ready to be written as JSON."""
    builder = SchemaBuilder("#/components/schemas/")
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for aggregate, tag, cls in described():
        name = event_name(aggregate, tag)
        schemas[name] = builder.of_struct(cls)
        summary = str(schemas[name]["description"])
        messages[name] = {
            "name": tag,
            "title": f"{aggregate}: {tag.replace('_', ' ')}",
            "summary": summary,
            "contentType": "application/json",
            "payload": {"$ref": f"#/components/schemas/{name}"},
        }
        for address in addresses_of(aggregate, tag):
            key = "_".join((aggregate, *(word for word in _after_key(address, aggregate) if word[0] != "{")))
            channels[key] = _channel(address, name, summary)
            operations[f"append_{key}"] = {
                "action": "send",
                "channel": {"$ref": f"#/channels/{key}"},
                "summary": f"The ledger stores {tag} here.",
                "messages": [{"$ref": f"#/channels/{key}/messages/{name}"}],
            }
    return {
        "asyncapi": "3.0.0",
        "id": "urn:jobledger:events",
        "info": {
            "title": "jobledger events",
            "version": CONTRACT_VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "What `jobledger up` starts.",
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": {**schemas, **builder.definitions}},
    }


def addresses_of(aggregate: str, tag: str) -> list[str]:
    """Return the subjects of a type of event in the plain environment, with names in braces where tokens stand."""
    of = AGGREGATES[aggregate]
    leaves = leaves_of(tag) if of is JOB else (tag,)
    key = [f"{{{field}}}" for field in of.key]
    return [
        of.of_type(Names(), leaf.replace("*", "{parent}" if tag == "completed" else "{priority}"), *key)
        for leaf in leaves
    ]


def _after_key(address: str, aggregate: str) -> list[str]:
    return address.split(".")[2 + len(AGGREGATES[aggregate].key) :]


def _channel(address: str, name: str, summary: str) -> dict[str, Any]:
    return {
        "address": address,
        "summary": summary,
        "parameters": {token: _PARAMETERS.get(token, {}) for token in _PARAMETER.findall(address)},
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
    }
