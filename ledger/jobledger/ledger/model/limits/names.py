"""The names of limits as a job's order has them: `tenant`, or `tenant:acme` for one key of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.subjects import check_token

#: Limits whose keys the ledger makes itself: `queue:<queue>`, `task:<task>`, `schedule:<schedule>`.
RESERVED: Final = frozenset({"queue", "task", "schedule"})
LIMITS_MAX: Final = 8  #: of one job
KEY_MAX: Final = 128  #: characters


def split(limit: str) -> tuple[str, str]:
    """Return a limit's name and key; the key is "" where the limit has none."""
    name, _, key = limit.partition(":")
    return name, key


def joined(name: str, key: str) -> str:
    """Return the limit of a name and a key, as a job's order has it."""
    return f"{name}:{key}" if key else name


def is_key(key: object) -> bool:
    """Return whether a limit may have this key: 1 to 128 printable characters without spaces."""
    return isinstance(key, str) and 0 < len(key) <= KEY_MAX and key.isprintable() and " " not in key


def check_key(limit: str, key: object) -> str:
    """Return `key` if a limit may have it.

    Raises: InvalidInputError, naming the limit.
    """
    if isinstance(key, str) and is_key(key):
        return key
    raise InvalidInputError(
        f"limit {limit}: {key!r:.80} cannot be its key: use 1 to {KEY_MAX} printable characters without spaces"
    )


def check_limit(limit: object) -> str:
    """Return `limit` if it is `name` or `name:key`.

    Raises: InvalidTokenError for a wrong name, InvalidInputError for a wrong key.
    """
    if not isinstance(limit, str):
        raise InvalidInputError(f"{limit!r:.80} is no limit: give its name as text, such as tenant:acme")
    name, separator, key = limit.partition(":")
    check_token("limit", name)
    if separator:
        check_key(name, key)
    return limit


def check_limits(limits: Iterable[str]) -> tuple[str, ...]:
    """Return the limits of one job in the order in which every order has them: sorted, each once.

    Raises: InvalidTokenError, InvalidInputError.
    """
    found = tuple(sorted({check_limit(limit) for limit in limits}))
    if len(found) > LIMITS_MAX:
        raise InvalidInputError(
            f"a job may have {LIMITS_MAX} limits, this one has {len(found)} ({', '.join(found)}): leave some out"
        )
    return found
