"""What to do, in the words of HTTP: sentences of the ledger name commands, and who asks over HTTP has none. Pure."""

from __future__ import annotations

import re
from typing import Final

#: The address that does what a command does; `{}` is the first word behind the command.
ADDRESSES: Final[dict[str, str]] = {
    "jobs list": "GET /v1/jobs",
    "jobs show": "GET /v1/jobs/{}",
    "jobs why": "GET /v1/jobs/{}",
    "jobs steps": "GET /v1/jobs/{}",
    "jobs rerun": "POST /v1/jobs/QUEUE/{}/rerun",
    "queues list": "GET /v1/queues",
    "queues resume": "POST /v1/queues/{}/resume",
    "limits list": "GET /v1/limits",
    "limits show": "GET /v1/limits/{}",
    "limits set": "PUT /v1/limits/{}",
    "schedules list": "GET /v1/schedules",
    "schedules show": "GET /v1/schedules/{}",
    "schedules reset": "POST /v1/schedules/{}/reset",
    "workers list": "GET /v1/workers",
    "routes list": "GET /v1/routes",
    "routes show": "GET /v1/routes/{}",
    "webhooks list": "GET /v1/webhooks",
    "webhooks show": "GET /v1/webhooks/{}",
    "watches list": "GET /v1/watches",
    "watches show": "GET /v1/watches/{}",
    "keys list": "GET /v1/keys",
}
_COMMAND: Final = re.compile(r"`jobledger ([a-z]+ [a-z]+)((?: [^`]*)?)`")
_OPTIONS: Final = {"--replace": "`replace`"}


def over_http(sentence: str) -> str:
    """Return a sentence with addresses in place of the commands that have one; the others are for the machine's owner."""
    sentence = _COMMAND.sub(_address, sentence)
    for option, field in _OPTIONS.items():
        sentence = sentence.replace(option, field)
    return sentence


def _address(found: re.Match[str]) -> str:
    address = ADDRESSES.get(found[1])
    words = found[2].split()
    if address is None or ("{}" in address and not words):
        return found[0]
    return f"`{address.format(*words[:1])}`"
