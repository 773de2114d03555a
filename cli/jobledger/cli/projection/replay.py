"""`jobledger replay`: the tables of a past moment, in a database of their own."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from jobledger.audit.archive.chain import with_past
from jobledger.audit.export import ExportLog, JoinedLog, read_manifest
from jobledger.cli import options
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import TOP
from jobledger.cli.times import parse_time
from jobledger.ledger.files import rename_over, sync_path
from jobledger.ledger.model.log import Log, events_among
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived
from jobledger.ledger.model.subjects import Names
from jobledger.projections import Store, files, moment_of, rebuild, refuse_archived

_DIGITS_MAX: Final = 19  # digits of the highest number in SQLite and the server
Folders = list[Path] | None
To = Annotated[
    str | None,
    typer.Option("--to", metavar="SEQ|TIME", help="The last event to include. (default: the newest)"),
]


@command(TOP, "replay")
async def replay(
    cli: Cli,
    *,
    into: Annotated[
        Path,
        typer.Option("--into", metavar="FILE", help="SQLite file to write; it must not exist."),
    ],
    to: To = None,
    exports: Annotated[
        Folders,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Read this export instead of a server; repeat it for consecutive exports, the oldest first.",
        ),
    ] = None,
    archives: options.Archives = None,
) -> None:
    """Write the tables as of a past moment to a SQLite file."""
    if exports and archives:
        raise UsageError(
            "--from reads no ledger: name every export with --from, or every archive with --archive"
        )
    if into.exists():
        raise UsageError(f"--into {into}: the file exists; name another")
    if not into.absolute().parent.is_dir():
        raise UsageError(f"--into {into}: there is no folder {into.absolute().parent}")
    end = _moment(to) if to is not None else None
    output = cli.output
    async with _source(cli, exports or (), archives or ()) as log:
        until = await _sequence(log, end)
        if until is not None:
            await refuse_archived(log, until)
        with _made_beside(into) as draft:
            with output.progress("replaying") as progress:
                position = await rebuild(log, draft, until=until, progress=progress)
            with Store.open(draft) as store:
                counts = store.counts_by_state()
    if output.as_json:
        output.object({"file": str(into), "position": position.stream_sequence, "jobs": counts})
        return
    jobs = ", ".join(f"{state} {count:,}" for state, count in sorted(counts.items()) if count) or "none"
    output.facts([("file", str(into)), ("position", f"{position.stream_sequence:,}"), ("jobs", jobs)])


def _moment(text: str) -> int | datetime:
    """Read a stream sequence or a time. Raises: UsageError."""
    if text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX:
        return int(text)
    return parse_time("--to", text, "a stream sequence or ")


@contextlib.contextmanager
def _made_beside(into: Path) -> Generator[Path, None, None]:
    """Yield a file in a temporary folder; at the end of the block it becomes `into`, as a single plain file.

    A projection has a lock and a log beside it, since others read it while it is written. This file has none, so that
    any tool can read it, also one that may not write.

    Raises: UsageError if a file `into` was made meanwhile; ProjectionStorageError.
    """
    with tempfile.TemporaryDirectory(dir=into.absolute().parent, prefix=f".{into.name}.") as folder:
        draft = Path(folder) / into.name
        yield draft
        with files.translated(into, 0.0):
            connection = files.database(draft)
            try:
                connection.execute("PRAGMA journal_mode = DELETE")
            finally:
                connection.close()
            sync_path(draft)
            if into.exists():
                raise UsageError(
                    f"--into {into}: the file was made by another program meanwhile; name another"
                )
            rename_over(draft, into)
            sync_path(into.absolute().parent)


@contextlib.asynccontextmanager
async def _source(cli: Cli, exports: Sequence[Path], archives: Sequence[Path]) -> AsyncGenerator[Log, None]:
    if exports:
        logs = [ExportLog(folder, Names(read_manifest(folder).environment)) for folder in exports]
        _refuse_parts(logs)
        joined = JoinedLog(logs[:-1], logs[-1])
        await _refuse_middle(joined)
        yield joined
        return
    async with cli.ledger() as ledger:
        log: Log = ledger.log
        if archives:
            log = await with_past(log, archives)
        yield log


def _refuse_parts(logs: Sequence[ExportLog]) -> None:
    """Refuse exports that lack events which the tables need.

    Raises: UsageError.
    """
    for log in logs:
        if not log.manifest.complete:
            raise UsageError(
                f"--from {log.folder}: it holds a selection of the events, and the tables need all"
            )
    for before, after in itertools.pairwise(logs):
        end, begin = before.manifest.last_sequence, after.manifest.first_sequence
        if begin != end + 1:
            raise UsageError(
                f"--from {after.folder}: it begins at stream sequence {begin}, and the one before it ends at {end}: "
                "name exports that follow each other, the oldest first"
            )


async def _refuse_middle(log: Log) -> None:
    """Refuse events that begin in the middle of jobs, as those of a range may; an archive run copies open jobs whole.

    Raises: UsageError.
    """
    first = (await log.head()).first_sequence
    if first == 1:
        return
    async with contextlib.aclosing(log.read_messages(subject=REACTOR.chain(log.names, ARCHIVE))) as batches:
        async for batch in batches:
            for message in events_among(batch):
                event = REACTOR.decode(message)
                if isinstance(event, Archived) and event.through_sequence == first - 1:
                    return
    raise UsageError(
        f"--from: the first export begins at stream sequence {first}, in the middle of jobs: "
        "name those before it too, the oldest first"
    )


async def _sequence(log: Log, end: int | datetime | None) -> int | None:
    if end is None:
        return None
    if isinstance(end, datetime):
        return (await moment_of(log, at=end)).stream_sequence
    return (await moment_of(log, stream_sequence=end)).stream_sequence
