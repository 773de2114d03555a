"""The unique keys of a task, with the jobs that they name: for whoever asks who holds one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from jobledger.ledger.model.chain import load
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import Log, end_of_chain, events_among
from jobledger.ledger.model.unique import UNIQUE, Taken, is_held


class KeyHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and the job that took it last."""

    taken: Taken  #: by which event
    job: Job | None  #: None: it is not in the ledger, not yet or no more
    is_held: bool  #: whether the job still holds the key


async def find_keys(
    log: Log, task: str, *, now: datetime, arguments: Mapping[str, str] | None = None, limit: int
) -> list[KeyHolder]:
    """Return the keys of a task, those that were taken last first, at most `limit`.

    `arguments`: only keys that were made from these, as text or as JSON; all others a key may have.

    Raises: CorruptLedgerError, UnreachableError.
    """
    newest: dict[str, Taken] = {}
    subject = UNIQUE.chain(log.names, task)
    async with contextlib.aclosing(log.read_messages(subject=subject)) as batches:
        async for batch in batches:
            for message in events_among(batch):
                taken = UNIQUE.decode(message)
                if _fits(taken, arguments or {}):
                    newest.pop(taken.key, None)  # the newest stand last
                    newest[taken.key] = taken
                    if len(newest) > limit:
                        del newest[next(iter(newest))]
    return [await _with_job(log, taken, now) for taken in reversed(newest.values())]


async def find_key(log: Log, task: str, key: str, *, now: datetime) -> KeyHolder | None:
    """Return one key, None where no job has taken it. Raises: CorruptLedgerError, UnreachableError."""
    newest = (await end_of_chain(log, UNIQUE.chain(log.names, task, key))).event
    return None if newest is None else await _with_job(log, UNIQUE.decode(newest), now)


async def _with_job(log: Log, taken: Taken, now: datetime) -> KeyHolder:
    key = UNIQUE.evolve(None, taken, 0)
    job = (await load(log, key.owner)).job
    return KeyHolder(taken=taken, job=job, is_held=is_held(key, job, now))


def _fits(taken: Taken, arguments: Mapping[str, str]) -> bool:
    if not arguments:
        return True
    if taken.arguments is NO_VALUE:
        return False
    values = msgspec.json.decode(taken.arguments, type=dict[str, Any])
    return all(name in values and _is_word(word, values[name]) for name, word in arguments.items())


def _is_word(word: str, value: Any) -> bool:
    """Return whether a person may have meant a value by a word."""
    if isinstance(value, str) and value == word:
        return True
    with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        return bool(msgspec.json.decode(word) == value)
    return False
