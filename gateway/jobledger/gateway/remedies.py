"""Remedies as HTTP requests: sentences of the ledger name commands, which clients over HTTP do not have. Pure."""

from __future__ import annotations

import re
from typing import Final

#: By command: the address that does the same. Each `{}` is the next word behind the command, `{queue}` the job's queue
#: or the one that the command names.
ADDRESSES: Final[dict[str, str]] = {
    "jobs list": "GET /v1/jobs",
    "jobs show": "GET /v1/jobs/{}",
    "jobs rerun": "POST /v1/jobs/{queue}/{}/rerun",
    "jobs retry": "POST /v1/jobs/{queue}/{}/retry",
    "jobs cancel": "POST /v1/jobs/{queue}/{}/cancel",
    "jobs resume": "POST /v1/jobs/{queue}/{}/resume",
    "jobs signal": "POST /v1/jobs/{queue}/{}/signals/{}",
    "dlq requeue": "POST /v1/jobs/{queue}/{}/requeue",
    "queues list": "GET /v1/queues",
    "queues resume": "POST /v1/queues/{}/resume",
    "limits list": "GET /v1/limits",
    "limits show": "GET /v1/limits/{}",
    "limits set": "PUT /v1/limits/{}",
    "schedules list": "GET /v1/schedules",
    "schedules show": "GET /v1/schedules/{}",
    "schedules reset": "POST /v1/schedules/{}/reset",
    "workers list": "GET /v1/workers",
    "graphs list": "GET /v1/graphs",
    "graphs show": "GET /v1/graphs/{}",
    "routes list": "GET /v1/routes",
    "routes show": "GET /v1/routes/{}",
    "routes deliveries": "GET /v1/routes/{}/deliveries",
    "webhooks list": "GET /v1/webhooks",
    "webhooks show": "GET /v1/webhooks/{}",
    "watches list": "GET /v1/watches",
    "watches show": "GET /v1/watches/{}",
    "keys list": "GET /v1/keys",
}
_COMMAND: Final = re.compile(r"`jobledger ([a-z]+ [a-z]+)((?: [^`]*)?)`")
#: By option of a command: the body of the request; `{}` is the word behind the option.
_BODIES: Final[dict[str, str]] = {
    "--failed": '{{"failed": true}}',
    "--from": '{{"from": "{}"}}',
    "--slots": '{{"slots": {}}}',
    "--value": "{}",
}
_OPTIONS: Final = {"--replace": "`replace`"}


def over_http(sentence: str, queue: str = "QUEUE") -> str:
    """Return a sentence with addresses in place of commands; a command without one stays, for people with a terminal.

    `queue`: queue of the job that the sentence is about, if known.
    """
    sentence = _COMMAND.sub(lambda found: _address(found, queue), sentence)
    for option, field in _OPTIONS.items():
        sentence = sentence.replace(option, field)
    return sentence


def hint_over_http(command: str, queue: str) -> str:
    """Return the request that does the same as a command for a job of a queue, or the command itself without one."""
    return over_http(f"`{command}`", queue).strip("`")


def _address(found: re.Match[str], queue: str) -> str:
    words = found[2].split()
    address = None if "--archive" in words else ADDRESSES.get(found[1])  # archives are files of the machine
    given = words[: 0 if address is None else address.count("{}")]
    if address is None or len(given) < address.count("{}") or any(each.startswith("-") for each in given):
        return found[0]
    if "--queue" in words[:-1]:
        queue = words[words.index("--queue") + 1]
        address = address.replace("/v1/jobs/{}", "/v1/jobs/{queue}/{}")
    return f"`{address.format(*words, queue=queue)}{_body(words)}`"


def _body(words: list[str]) -> str:
    """Return the body that stands for a command's options, after a space; "" if the request needs none."""
    for at, word in enumerate(words):
        if word in _BODIES:
            value = words[at + 1] if at + 1 < len(words) else ""
            return " " + _BODIES[word].format("VALUE" if value == "'...'" else value)
    return ""
