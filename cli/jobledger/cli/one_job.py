"""Parts of the commands about a single job: its id on the command line, its chain, and how its archive is named."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import typer

from jobledger.admin.errors import JobNotHeldError
from jobledger.admin.find import find_history, newest_life
from jobledger.admin.past import AsOf, events_until, moment_words
from jobledger.audit.verify.links import ChainCheck
from jobledger.cli.command import Cli
from jobledger.cli.errors import LedgerNotSoundError
from jobledger.cli.output import Output
from jobledger.cli.past import option_words
from jobledger.ledger import Job, Ledger
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.log import Log
from jobledger.ledger.opened_jobs import opened_history
from jobledger.projections import Moment
from jobledger.projections.errors import MomentArchivedError

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or a prefix that only one job has.")]


class FoundJob(NamedTuple):
    """One job and its events, including those in its archive."""

    ledger: Ledger
    log: Log  #: the ledger with the archive of --archive in front of it
    history: list[StoredEvent]  #: words of a job that has an owner are unsealed
    missing: str  #: a sentence if the history lacks events of the job, else ""
    chain: ChainCheck  #: whether the hash links of the history hold


@contextlib.asynccontextmanager
async def found_history(
    cli: Cli, job_id: str, queue: str | None, archives: Sequence[Path] | None, command: str
) -> AsyncGenerator[FoundJob, None]:
    """Connect for the length of the block, and read the job's events, beginning with those in its archive.

    `command`: the command that messages name if --archive helps.

    Raises: as `find_history`.
    """
    async with cli.ledger() as ledger:
        try:
            found = await find_history(cli.rows(ledger), job_id, queue, archives=archives or ())
        except JobNotHeldError as error:
            raise error.read_by(command) from None
        way = f"`{command} {found.history[0].event.job} --archive DIR`"
        sentence = "" if found.missing is None else found.missing.sentence(way)
        history = await opened_history(ledger.keys, found.history)  # who has the master key may read payloads
        yield FoundJob(ledger, found.log, history, sentence, found.chain)


class JobRead(NamedTuple):
    """One job as of the moment that was asked for."""

    ledger: Ledger
    log: Log  #: as in `FoundJob`
    job: Job
    events: list[StoredEvent]  #: never empty
    chain: ChainCheck
    then: Moment | None  #: the past moment, if one was asked for
    now: datetime  #: by which ages are counted: at a past moment the time then


#: Looks up what it shows of a job while the connection is open, and returns what prints it.
Section: TypeAlias = Callable[[Output, JobRead], Awaitable[Callable[[], None]]]


async def show_section(
    cli: Cli,
    command: str,
    section: Section,
    *,
    job_id: str,
    queue: str | None,
    past: AsOf | None,
    archives: Sequence[Path] | None,
) -> None:
    """Read one job from its chain, now or as of a past moment, and print a section of it.

    `command`: as in `found_history`.

    Raises: as `found_history`; MomentAheadError, MomentArchivedError, JobNotYetError, LedgerNotSoundError.
    """
    output = cli.output
    async with found_history(cli, job_id, queue, archives, command) as found:
        then = await _moment(found, past, job_id, command) if past is not None else None
        events = newest(found.history if then is None else events_until(found.history, then), output)
        job = fold(events).job
        assert job is not None, "a history is not empty"
        now = found.ledger.clock.now() if then is None else then.at or events[-1].stored_at
        read = JobRead(found.ledger, found.log, job, events, found.chain, then, now)
        show = await section(output, read)
    if then is not None:
        output.note(moment_words(then))
    show()
    if found.missing:
        output.note(found.missing)
    refuse_broken(found.chain, f"job {job.id}")


async def _moment(found: FoundJob, past: AsOf, job_id: str, command: str) -> Moment:
    """Return the past moment in the log that the job was read from; an error names `command` where --archive helps.

    Raises: MomentAheadError, MomentArchivedError, UnreachableError.
    """
    try:
        return await past.moment(found.log, found.ledger.clock)
    except MomentArchivedError as error:
        hint = f"`{command} {job_id} {option_words(past)} --archive DIR` reads that as well"
        raise MomentArchivedError(error.what, error.to, error.hint or hint) from error


def status_of(job: Job) -> dict[str, str]:
    """Return a job's reference and state, for programs."""
    return {"id": job.id, "queue": job.queue, "status": job.state.value}


def refuse_broken(check: ChainCheck, label: str) -> None:
    """Refuse a history with a broken hash link: the job that was shown cannot be trusted.

    Raises: LedgerNotSoundError.
    """
    if not check.is_unbroken:
        raise LedgerNotSoundError(
            f"the chain of {label} is BROKEN at stream sequence {check.broken_at}: {check.problem}; "
            "`jobledger audit verify` says what else is wrong"
        )


def newest(history: Sequence[StoredEvent], output: Output) -> list[StoredEvent]:
    """Return the events of the newest job among several of one id, and mention an older one."""
    events, older = newest_life(history)
    if older is not None:
        job_id = older.event.job
        output.note(
            f"an older job had the id {job_id}: `jobledger jobs show {job_id} --archive DIR "
            f"--sequence {older.stream_sequence}` shows that one"
        )
    return events
