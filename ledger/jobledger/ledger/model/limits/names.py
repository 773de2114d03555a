"""The names of limits as a job's order has them: `tenant`, or `tenant:acme` for one key of it. Pure."""

from __future__ import annotations

from typing import Final

from jobledger.ledger.model.subjects import DELIVERIES_QUEUE

#: Limits whose keys the ledger makes itself: `queue:<queue>`, `task:<task>`, `schedule:<schedule>`.
RESERVED: Final = ("queue", "task", "schedule")
#: Those and what keeps posts of webhooks apart, `webhooks-out:<webhook>`: no job is given one of them by its name.
UNNAMED: Final = (*RESERVED, DELIVERIES_QUEUE)


def split(limit: str) -> tuple[str, str]:
    """Return a limit's name and key; the key is "" where the limit has none."""
    name, _, key = limit.partition(":")
    return name, key


def joined(name: str, key: str) -> str:
    """Return the limit of a name and a key, as a job's order has it."""
    return f"{name}:{key}" if key else name
