"""What every command about a single job begins with: connect, and find the job by its id or a prefix of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from jobledger.cli.archived import Missing, missing, refuse_hole, with_archive
from jobledger.cli.errors import JobNotHeldError
from jobledger.cli.output import Output
from jobledger.cli.session import Target, caught_up, opened, projection_path
from jobledger.ledger import JobHandle, Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import AmbiguousIdError, JobNotFoundError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.projections import JobRow, Store
from jobledger.projections.queries import FIND_MATCHES_MAX

JobId = Annotated[
    str, typer.Argument(metavar="ID", help="The job's id, or a prefix of it that only one job has.")
]


class OneJob(msgspec.Struct, frozen=True, kw_only=True):
    """Which job a command was asked about, where to look for it, and where the answer goes."""

    job_id: str  #: or a prefix
    queue: str | None
    projection: Path | None
    target: Target
    output: Output


def one_job(
    job_id: str, *, queue: str | None, projection: Path | None, url: str, environment: str, as_json: bool
) -> OneJob:
    """Return what a command's options say."""
    return OneJob(
        job_id=job_id,
        queue=queue,
        projection=projection,
        target=Target(url=url, environment=environment),
        output=Output(as_json=as_json),
    )


@contextlib.asynccontextmanager
async def found_job(which: OneJob) -> AsyncGenerator[tuple[Ledger, JobHandle[Any]], None]:
    """Connect for the length of the block and find the job; its history is one read away.

    Raises: InvalidTokenError, JobNotFoundError, AmbiguousIdError.
    """
    async with opened(which.target) as ledger:
        yield ledger, await find_job(ledger, which.output, which.projection, which.job_id, which.queue)


class Found(NamedTuple):
    """One job, with what its archive has of it."""

    ledger: Ledger
    log: Log  #: the ledger with the archive of --archive in front of it
    history: list[StoredEvent]
    missing: str  #: a sentence where events of the job are not among them, else ""


@contextlib.asynccontextmanager
async def found_history(which: OneJob, archives: Sequence[Path], command: str) -> AsyncGenerator[Found, None]:
    """Connect for the length of the block, and read the job's events, those in its archive before the others.

    `command` is the one to be named where --archive helps.

    Raises: as `found_job`, and as `with_archive`.
    """
    async with opened(which.target) as ledger:
        log = await with_archive(ledger.log, archives)
        gap = await missing(log, archives)
        if archives:
            history = await _archived_history(log, which, gap, command)
            await refuse_hole(log, ledger.log, archives)
        else:
            handle = await find_job(
                ledger, which.output, which.projection, which.job_id, which.queue, command=command
            )
            history = await handle.history()
        is_part = bool(history[0].event.prev)
        sentence = gap.sentence(f"{command} {history[0].event.job}") if is_part and gap is not None else ""
        yield Found(ledger, log, history, sentence)


def newest_life(history: Sequence[StoredEvent], output: Output) -> list[StoredEvent]:
    """Return the events of the newest job among those of one id, and tell of an older one.

    A job that was archived leaves its id free.
    """
    begins = [at for at, stored in enumerate(history) if at and not stored.event.prev]
    if not begins:
        return list(history)
    older, job_id = history[begins[-1] - 1], history[0].event.job
    output.note(
        f"an older job had the id {job_id}: `jobledger jobs show {job_id} --archive DIR "
        f"--sequence {older.stream_sequence}` shows that one"
    )
    return list(history[begins[-1] :])


async def _archived_history(log: Log, which: OneJob, gap: Missing | None, command: str) -> list[StoredEvent]:
    """Return every event of the job from archive and ledger; its projection may know less than they do.

    Raises: InvalidTokenError, JobNotHeldError, AmbiguousIdError.
    """
    job_id, names = check_token("job id", which.job_id), log.names
    if which.queue is None:
        chain = names.chains_of_id(job_id)
    else:
        chain = names.chain(JobRef(queue=check_token("queue", which.queue), job_id=job_id))
    history = await log.read_chain(chain)
    found = {_ref(stored) for stored in history}
    if not history:
        found = await _of_prefix(log, which)
        history = await log.read_chain(names.chain(next(iter(found)))) if len(found) == 1 else []
    if not found:
        rest = "" if gap is None else f": {gap.sentence(command)}"
        raise JobNotHeldError(f"no job {job_id!r} is in the ledger, or in what --archive names{rest}")
    if len(found) > 1:
        raise AmbiguousIdError(job_id, sorted(f"{ref.queue}/{ref.job_id}" for ref in found))
    return history


async def _of_prefix(log: Log, which: OneJob) -> set[JobRef]:
    """Return jobs whose id begins so, by reading every event until there are more than can be shown."""
    found: set[JobRef] = set()
    head = (await log.head()).last_sequence
    with which.output.progress("reading archive and ledger") as progress:
        async with contextlib.aclosing(log.read()) as batches:
            while len(found) < FIND_MATCHES_MAX and (batch := await anext(batches, None)) is not None:
                fitting = (ref for ref in map(_ref, batch) if which.queue in (None, ref.queue))
                found |= {ref for ref in fitting if ref.job_id.startswith(which.job_id)}
                progress(batch[-1].stream_sequence, head)
    return found


def _ref(stored: StoredEvent) -> JobRef:
    return JobRef(queue=stored.event.queue, job_id=stored.event.job)


async def find_job(
    ledger: Ledger,
    output: Output,
    chosen: Path | None,
    job_id: str,
    queue: str | None,
    *,
    command: str = "jobledger jobs show",
) -> JobHandle[Any]:
    """Return the job of that id, else the only one whose id begins with it, found in the projection.

    `command` is the one to be named that shows a job which was archived.

    Raises: InvalidTokenError, JobNotFoundError, AmbiguousIdError.
    """
    try:
        return await ledger.job(job_id, queue=queue)
    except JobNotFoundError:
        row = await _known(ledger, output, chosen, job_id, queue)
        gap = await missing(ledger.log)
        if row is not None:
            with contextlib.suppress(JobNotFoundError):
                return await ledger.job(row.id, queue=row.queue)
        if gap is None:
            raise
        if row is None:
            where = f"no job {job_id!r} is in the ledger"
        else:
            state = row.status.replace("_", " ")
            where = f"job {row.id} of queue {row.queue} ({state}) is in the projection, and no longer in the ledger"
        found = job_id if row is None else row.id
        raise JobNotHeldError(f"{where}: {gap.sentence(f'{command} {found}')}") from None


async def _known(
    ledger: Ledger, output: Output, chosen: Path | None, job_id: str, queue: str | None
) -> JobRow | None:
    """Return the projection's only row whose id begins so.

    Raises: AmbiguousIdError.
    """
    path = await projection_path(ledger, chosen)
    await caught_up(ledger, path, output)
    with Store.open(path) as store:
        matches = store.find(job_id, queue=queue)
        if len(matches) > 1:
            raise AmbiguousIdError(job_id, [f"{ref.queue}/{ref.job_id}" for ref in matches])
        return store.job(matches[0].queue, matches[0].job_id) if matches else None
