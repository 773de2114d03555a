"""Jobs that have owners, as people read them: with the words of errors, notes and metadata where the key is at hand."""

from __future__ import annotations

import msgspec

from jobledger.ledger.model.errors import ErasedError, KeyUnavailableError, SealBrokenError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.seals import KeyHolder, ValueKey, unseal_error, unseal_word, unseal_words


async def opened_error(keys: KeyHolder, key: str, error: ErrorInfo | None) -> ErrorInfo | None:
    """Return an error, unsealed; as stored if it cannot be unsealed here. `key`: as in the job's order."""
    if error is None or not key or not error.sealed:
        return error
    try:
        return unseal_error(await keys.key(key), error)
    except (ErasedError, KeyUnavailableError, SealBrokenError):
        return error


async def opened_job(keys: KeyHolder, job: Job) -> Job:
    """Return a job with its errors, progress note and metadata unsealed; as stored, if they cannot be unsealed here."""
    if not job.order.key:
        return job
    try:
        return _opened(await keys.key(job.order.key), job)
    except (ErasedError, KeyUnavailableError, SealBrokenError):
        return job


def _opened(key: ValueKey, job: Job) -> Job:
    def words(error: ErrorInfo | None) -> ErrorInfo | None:
        return None if error is None else unseal_error(key, error)

    attempts = tuple(msgspec.structs.replace(each, error=words(each.error)) for each in job.attempts)
    order = msgspec.structs.replace(job.order, metadata=unseal_words(key, job.order.metadata))
    progress = job.progress
    if progress is not None and progress.note:
        progress = msgspec.structs.replace(progress, note=unseal_word(key, progress.note))
    return msgspec.structs.replace(
        job, order=order, error=words(job.error), attempts=attempts, progress=progress
    )
