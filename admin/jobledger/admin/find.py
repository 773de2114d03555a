"""Finding one job by its id or a prefix of it, or another chain by its name: in the ledger, and in its archive."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobledger.admin.archived import missing, refuse_hole, with_archive
from jobledger.admin.errors import JobNotHeldError, MissingEvents
from jobledger.admin.rows import Rows
from jobledger.audit.verify.links import ChainCheck, check_history
from jobledger.ledger.client import Ledger
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.aggregates import AGGREGATES, JOB
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import AmbiguousIdError, InvalidInputError, JobNotFoundError, NotFoundError
from jobledger.ledger.model.log import Log, events_among
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.projections import JobRow, Store
from jobledger.projections.queries.store import FIND_MATCHES_MAX


class JobHistory(NamedTuple):
    """One job's events, with what its archive has of it."""

    log: Log  #: the ledger, behind its archive if one was named
    history: list[StoredEvent]  #: oldest first; events of several jobs if one took an archived job's id
    missing: MissingEvents | None  #: None if every event of the job is there
    chain: ChainCheck  #: whether the hash links of the history hold


async def find_job(rows: Rows, job_id: str, queue: str | None = None) -> JobHandle[Any]:
    """Return the job of that id, else the only one whose id begins with it, found in the projection.

    Raises: InvalidTokenError, JobNotFoundError, JobNotHeldError, AmbiguousIdError.
    """
    ledger = rows.ledger
    try:
        return await ledger.job(job_id, queue=queue)
    except JobNotFoundError:
        row = await _known(rows, job_id, queue)
        gap = await missing(ledger.log)
        if row is not None:
            with contextlib.suppress(JobNotFoundError):
                return await ledger.job(row.id, queue=row.queue)
        if gap is None:
            raise
    if row is None:
        raise JobNotHeldError(f"no job {job_id!r} is in the ledger", job_id, gap)
    state = row.status.replace("_", " ")
    where = f"job {row.id} of queue {row.queue} ({state}) is in the projection, and no longer in the ledger"
    raise JobNotHeldError(where, row.id, gap)


async def find_history(
    rows: Rows, job_id: str, queue: str | None = None, *, archives: Sequence[Path] = ()
) -> JobHistory:
    """Read a job's events, those in its archive before the others.

    Raises: as `find_job` and `with_archive`.
    """
    live = rows.ledger.log
    log = await with_archive(live, archives)
    gap = await missing(log, archives)
    if archives:
        history = await _archived_history(log, rows, job_id, queue, gap)
        await refuse_hole(log, live, archives)
    else:
        history = await (await find_job(rows, job_id, queue)).history()
    is_part = bool(history[0].event.prev)
    return JobHistory(log, history, gap if is_part else None, await check_history(log, history))


def newest_life(history: Sequence[StoredEvent]) -> tuple[list[StoredEvent], StoredEvent | None]:
    """Return the events of the newest job among those of one id, and the last event of the one before, if any.

    A job that was archived leaves its id free.
    """
    begins = [at for at, stored in enumerate(history) if at and not stored.event.prev]
    if not begins:
        return list(history), None
    return list(history[begins[-1] :]), history[begins[-1] - 1]


async def _archived_history(
    log: Log, rows: Rows, job_id: str, queue: str | None, gap: MissingEvents | None
) -> list[StoredEvent]:
    """Return every event of the job from archive and ledger; its projection may know less than they do.

    Raises: InvalidTokenError, JobNotHeldError, AmbiguousIdError.
    """
    names = log.names
    check_token("job id", job_id)
    if queue is None:
        chain = names.chains_of_id(job_id)
    else:
        chain = names.chain(JobRef(queue=check_token("queue", queue), job_id=job_id))
    history: list[StoredEvent] = await log.read_chain(chain)
    found = {_ref(stored) for stored in history}
    if not history:
        found = await _of_prefix(log, rows, job_id, queue)
        history = await log.read_chain(names.chain(next(iter(found)))) if len(found) == 1 else []
    if not found:
        raise JobNotHeldError(
            f"no job {job_id!r} is in the ledger, or in the archive that was named", job_id, gap
        )
    if len(found) > 1:
        raise AmbiguousIdError(job_id, sorted(f"{ref.queue}/{ref.job_id}" for ref in found))
    return history


async def _of_prefix(log: Log, rows: Rows, job_id: str, queue: str | None) -> set[JobRef]:
    """Return jobs whose id begins so, by reading every event until there are more than can be shown."""
    found: set[JobRef] = set()
    head = (await log.head()).last_sequence
    with rows.progress("reading archive and ledger") as progress:
        async with contextlib.aclosing(log.read()) as batches:
            while len(found) < FIND_MATCHES_MAX and (batch := await anext(batches, None)) is not None:
                matching = (ref for ref in map(_ref, batch) if queue in (None, ref.queue))
                found |= {ref for ref in matching if ref.job_id.startswith(job_id)}
                progress(batch[-1].stream_sequence, head)
    return found


def _ref(stored: StoredEvent) -> JobRef:
    return JobRef(queue=stored.event.queue, job_id=stored.event.job)


async def _known(rows: Rows, job_id: str, queue: str | None) -> JobRow | None:
    """Return the projection's only row whose id begins with `job_id`, None without one.

    Raises: AmbiguousIdError.
    """
    await rows.catch_up()
    with Store.open(await rows.path()) as store:
        matches = store.find(job_id, queue=queue)
        if len(matches) > 1:
            raise AmbiguousIdError(job_id, [f"{ref.queue}/{ref.job_id}" for ref in matches])
        return store.job(matches[0].queue, matches[0].job_id) if matches else None


class Chain(NamedTuple):
    """The history of something other than a job: a lock, a reactor."""

    label: str  #: what a person calls it: `lock account/42`
    messages: list[Message]  #: oldest first, at least one
    check: ChainCheck  #: whether their hash links hold


async def find_chain(ledger: Ledger, name: str, archives: Sequence[Path] = ()) -> Chain:
    """Read the chain that `name` means, such as `lock/account/42`, its archived events before the others.

    Raises: InvalidInputError, InvalidTokenError for what cannot be the name of a chain, NotFoundError without events,
        and as `with_archive`.
    """
    kind, *key = name.split("/")
    aggregate = AGGREGATES.get(kind)
    if aggregate is None or aggregate is JOB or len(key) != len(aggregate.key):
        forms = ", ".join(
            "/".join((each.name, *map(str.upper, each.key)))
            for each in AGGREGATES.values()
            if each is not JOB
        )
        raise InvalidInputError(
            f"{name[:80]!r} names nothing in the ledger: give the id of a job, or {forms}"
        )
    for field, word in zip(aggregate.key, key, strict=True):
        check_token(field, word)
    log = await with_archive(ledger.log, archives)
    batches = log.read_messages(subject=aggregate.chain(log.names, *key))
    async with contextlib.aclosing(batches):
        messages = [message async for batch in batches for message in events_among(batch)]
    if not messages:
        raise NotFoundError(f"no event of {aggregate.label(tuple(key))} is in the ledger")
    return Chain(aggregate.label(tuple(key)), messages, await check_history(log, messages))
