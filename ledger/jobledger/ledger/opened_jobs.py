"""Jobs that have owners, as people read them: with the words of errors, notes and metadata, if the key is at hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import ErasedError, KeyUnavailableError, SealBrokenError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.seals import KeyHolder, ValueKey, unseal_error, unseal_struct


async def opened_error(keys: KeyHolder, key: str, error: ErrorInfo | None) -> ErrorInfo | None:
    """Return an error, unsealed; as stored if it cannot be unsealed here. `key`: as in the job's order."""
    if error is None or not key or not error.sealed:
        return error
    try:
        return unseal_error(await keys.key(key), error)
    except (ErasedError, KeyUnavailableError, SealBrokenError):
        return error


async def opened_job(keys: KeyHolder, job: Job) -> Job:
    """Return a job with the words of its errors, steps, signals, progress and metadata unsealed, or as stored.

    It is as stored if nobody here can unseal them.
    """
    if not job.order.key:
        return job
    try:
        return unseal_struct(await keys.key(job.order.key), job)
    except (ErasedError, KeyUnavailableError, SealBrokenError):
        return job


async def opened_history(
    keys: KeyHolder, history: Sequence[StoredEvent], *, values: bool = False
) -> list[StoredEvent]:
    """Return events with their words, for who may read payloads; as they are stored where nobody here can read them.

    What is worked out of them has the words, too. Their bytes stay, so links are checked as before. `values`: small values
    as well, for who shows them as the events have them.
    """
    known: dict[str, ValueKey | None] = {"": None}
    found: list[StoredEvent] = []
    for stored in history:
        name = stored.event.key
        if name not in known:
            known[name] = await _key(keys, name)
        key = known[name]
        found.append(stored if key is None else _opened_event(key, stored, values=values))
    return found


async def _key(keys: KeyHolder, name: str) -> ValueKey | None:
    try:
        return await keys.key(name)
    except (ErasedError, KeyUnavailableError):
        return None


def _opened_event(key: ValueKey, stored: StoredEvent, *, values: bool) -> StoredEvent:
    try:
        event = unseal_struct(key, stored.event, values=values)
    except SealBrokenError:
        return stored
    return stored if event is stored.event else msgspec.structs.replace(stored, event=event)
