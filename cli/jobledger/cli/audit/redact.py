"""`jobledger audit redact`: take the values of jobs out of an archive."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from jobledger.audit.archive.redacted_jobs import JOBS_MAX, WORDS, JobChoice
from jobledger.audit.archive.redactor import Redaction, Redactor, RedactStep
from jobledger.cli.command import LEDGER, Cli, command
from jobledger.cli.errors import ArchiveNotWrittenError, UsageError
from jobledger.cli.groups import AUDIT
from jobledger.cli.options import archive_folder
from jobledger.cli.output import Output
from jobledger.cli.pairs import pairs
from jobledger.cli.session import operator, run
from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import InvalidTokenError
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.dead_copies import erase_dead_copies

#: The slow steps of a run, and the words shown during each.
_STEPS: Final[dict[RedactStep, str]] = {"look": "looking for the jobs", "write": "rewriting an export"}
_LINE_BYTES: Final = 130  # a queue, an id, what is between them and the end of the line


@command(AUDIT, "redact", takes=LEDGER)
def redact(
    cli: Cli,
    *,
    folder: Annotated[
        Path, typer.Option("--archive", metavar="DIR", parser=archive_folder, help="Folder of the archive.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why it is done; kept in the ledger.")
    ],
    jobs: Annotated[
        Path | None,
        typer.Option(
            "--jobs", metavar="FILE", help="File that names the jobs: QUEUE/ID, or an ID alone, a line."
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="WORD=VALUE",
            help=f"Jobs of which this is true; WORD is one of {', '.join(WORDS)}. Repeatable: all must be true.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", metavar="", help="Show what would happen, and change nothing.")
    ] = False,
) -> None:
    """Take inputs, results, errors, notes and other values of finished jobs out of an archive, for good.

    What happened and when stays, and so does the proof. The next run finishes one that was interrupted.
    """
    if (jobs is None) == (not where):
        raise UsageError(
            "name the jobs with --jobs FILE, or choose them with --where WORD=VALUE: one of both"
        )
    choice = JobChoice(
        named=frozenset() if jobs is None else _named(jobs), where=pairs(where or (), "--where")
    )

    async def do() -> Redaction:
        async with cli.ledger() as ledger:
            with cli.output.steps(_STEPS) as progress:
                redactor = Redactor(
                    ledger.log,
                    folder,
                    lambda: ledger.stamp(operator()),
                    progress,
                    erase_dead=partial(erase_dead_copies, ledger.inbox, ledger.names),
                )
                return await (redactor.plan(choice) if plan else redactor.run(choice, reason=reason))

    with _explained(cli.output, folder):
        done = run(do)
    if cli.output.as_json:
        cli.output.object(done)
    else:
        _tell(cli.output, done, is_plan=plan)


def _named(path: Path) -> frozenset[tuple[str, str]]:
    """Return the queue, "" for any, and the id of each job that a file names. Raises: UsageError."""
    try:
        with open_file(path, bytes_max=JOBS_MAX * _LINE_BYTES) as file:
            lines = file.read().decode().splitlines()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"--jobs {path}: {reason}") from error
    found: set[tuple[str, str]] = set()
    for number, line in enumerate(lines, 1):
        queue, _, job = line.strip().rpartition("/")
        try:
            if line.strip():
                found.add((queue and check_token("queue", queue), check_token("job id", job)))
        except InvalidTokenError as error:
            raise UsageError(f"--jobs {path}, line {number}: {error}") from error
    if not found:
        raise UsageError(f"--jobs {path} names no job")
    return frozenset(found)


@contextmanager
def _explained(output: Output, folder: Path) -> Generator[None, None, None]:
    """Say how to go on, when an interrupt or a write error ends the run. Raises: ArchiveNotWrittenError."""
    try:
        yield
    except KeyboardInterrupt:
        output.note("interrupted: run the command again to finish")
        raise
    except OSError as error:
        where, reason = error.filename or folder, error.strerror or str(error)
        raise ArchiveNotWrittenError(
            f"the archive cannot be written, {where}: {reason}; fix that and run the command again"
        ) from error


def _tell(output: Output, done: Redaction, *, is_plan: bool) -> None:
    for name in done.finished:
        output.say(f"export {name}: what an earlier run recorded is finished")
    verb = "would lose" if is_plan else "lost"
    events = "1 event" if done.events == 1 else f"{done.events:,} events"
    output.say(f"{events} {verb} their values", style="" if is_plan else "bold green")
    exports = (("export", name) for name in done.exports)
    copies = ("copies of dead letters erased", done.dead_copies or None)
    output.facts([("jobs", done.jobs), ("jobs left", done.living or None), copies, *exports])
    if done.living:
        output.note(
            "jobs that still have events in the ledger are left: move them with `jobledger audit archive`, and run this again"
        )
    if is_plan:
        output.say("nothing was changed")
    elif done.events:
        output.note(
            "prove it with `jobledger audit verify --archive`; rebuild projections, which may hold the values"
        )
