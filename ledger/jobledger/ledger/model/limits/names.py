"""The names of limits in a job's order: `tenant`, or `tenant:acme` for one key of it. Pure."""

from __future__ import annotations

from typing import Final

from jobledger.ledger.model.subjects import DELIVERIES_QUEUE

#: Limits whose keys the ledger makes itself: `queue:<queue>`, `task:<task>`, `schedule:<schedule>`.
RESERVED: Final = ("queue", "task", "schedule")
#: Limits that no job can name: those, and `webhooks-out:<webhook>`, which limits the posts of a webhook.
UNNAMED: Final = (*RESERVED, DELIVERIES_QUEUE)


def split(limit: str) -> tuple[str, str]:
    """Return a limit's name and key; the key is "" if the limit has none."""
    name, _, key = limit.partition(":")
    return name, key


def joined(name: str, key: str) -> str:
    """Return the limit of a name and a key, in the form of a job's order."""
    return f"{name}:{key}" if key else name
