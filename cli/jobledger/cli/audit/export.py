"""`jobledger audit export`: a range of the ledger as files that can be checked without a server."""

from __future__ import annotations

import contextlib
import functools
from datetime import datetime
from pathlib import Path
from typing import Annotated

import anyio.to_thread
import msgspec
import typer

from jobledger.admin.amounts import size
from jobledger.admin.past import AsOf
from jobledger.audit.export import FileFormat, Manifest, Selection, write_export
from jobledger.audit.export.parquet import need_pyarrow
from jobledger.cli import options
from jobledger.cli.audit import options as audit
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import AUDIT
from jobledger.cli.output import Output
from jobledger.cli.past import viewed
from jobledger.cli.times import time_of
from jobledger.ledger.model.errors import JobNotFoundError, NotFoundError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.payloads import Stores
from jobledger.projections.moments import moment_of
from jobledger.projections.parquet import write_tables

_Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only what was stored since this time (UTC).")
]
_Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only what was stored up to this time (UTC).")
]
_Tables = Annotated[
    bool,
    typer.Option(
        "--tables",
        metavar="",
        help="Write the tables of jobs and attempts instead, as Parquet, at the moment of --to or --until.",
    ),
]


class _EventChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of events on the command line: at most one beginning and one end."""

    first: int | None
    last: int | None
    since: datetime | None
    until: datetime | None
    selection: Selection


@command(AUDIT, "export", takes=ROWS)
async def export(
    cli: Cli,
    *,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder to write the export to; it must not exist.")
    ],
    file_format: Annotated[
        FileFormat,
        typer.Option("--format", metavar="FORMAT", help="How the events are written: jsonl or parquet."),
    ] = "jsonl",
    first: audit.First = None,
    last: audit.Last = None,
    since: _Since = None,
    until: _Until = None,
    queue: options.Queue = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Only the job with exactly this id.")
    ] = None,
    without_payloads: audit.WithoutPayloads = False,
    tables: _Tables = False,
) -> None:
    """Write events and a manifest of them to FOLDER; `jobledger audit verify FOLDER` proves them without a server."""
    if tables:
        only_for_events = {
            "--from": first is not None,
            "--since": since is not None,
            "--queue": queue is not None,
            "--job": job is not None,
            "--without-payloads": without_payloads,
        }
        await _export_tables(
            cli, folder, [name for name, given in only_for_events.items() if given], last, until
        )
        return
    if first is not None and since is not None:
        raise UsageError("--from and --since both say where to begin: give one of them")
    if last is not None and until is not None:
        raise UsageError("--to and --until both say where to end: give one of them")
    if first is not None and last is not None and last < first:
        raise UsageError(f"--to {last} comes before --from {first}")
    wanted = _EventChoice(
        first=first,
        last=last,
        since=time_of("--since", since),
        until=time_of("--until", until),
        selection=Selection(queue=queue, job=job),
    )
    manifest = await _export(cli, folder, wanted, file_format, with_payloads=not without_payloads)
    if cli.output.as_json:
        cli.output.raw(msgspec.json.encode(manifest).decode())
    else:
        _show(cli.output, folder, manifest)


async def _export_tables(
    cli: Cli, folder: Path, refused: list[str], last: int | None, until: str | None
) -> None:
    if refused:
        raise UsageError(
            f"{refused[0]} is for events, and --tables writes every row of a moment: leave one out"
        )
    if last is not None and until is not None:
        raise UsageError("--to and --until both say where to end: give one of them")
    need_pyarrow()
    past = (
        None if last is None and until is None else AsOf(at=time_of("--until", until), stream_sequence=last)
    )
    async with viewed(cli, past) as view:
        with cli.output.progress("writing the tables") as progress:
            rows = await anyio.to_thread.run_sync(
                functools.partial(write_tables, view.store, folder, on_progress=progress)
            )
        position = view.store.position().stream_sequence
    if cli.output.as_json:
        cli.output.object({"folder": str(folder), "position": position, "rows": rows})
        return
    cli.output.say(f"tables in {folder}, as of stream sequence {position:,}", style="bold green")
    cli.output.facts([(f"{name}.parquet", f"{number:,} rows") for name, number in rows.items()])


async def _export(
    cli: Cli, folder: Path, wanted: _EventChoice, file_format: FileFormat, *, with_payloads: bool
) -> Manifest:
    async with cli.ledger() as ledger:
        first, last = await _range(ledger.log, wanted)
        await _check_selected(ledger.log, wanted.selection)
        payloads = Stores(ledger.inputs, ledger.results) if with_payloads else None
        with (
            cli.output.progress("exporting the ledger") as progress,
            cli.output.progress("copying large values") as on_payload,
        ):
            return await write_export(
                ledger.log,
                folder,
                first=first,
                last=last,
                selection=wanted.selection,
                file_format=file_format,
                payloads=payloads,
                clock=ledger.clock,
                on_progress=progress,
                on_payload=on_payload,
            )


async def _range(log: Log, wanted: _EventChoice) -> tuple[int | None, int | None]:
    """Return both ends as stream sequences; None stands for an end of the ledger.

    Raises: NotFoundError when nothing was stored between two times.
    """
    first, last = wanted.first, wanted.last
    if wanted.since is not None:
        first = await _stored_since(log, wanted.since)
    if wanted.until is not None:
        last = (await moment_of(log, at=wanted.until)).stream_sequence
    if wanted.since is not None or wanted.until is not None:
        head = await log.head()
        begin, end = first or max(1, head.first_sequence), head.last_sequence if last is None else last
        if begin > end:
            raise NotFoundError("no event was stored in that time: nothing was exported")
    return first, last


async def _check_selected(log: Log, selection: Selection) -> None:
    """Refuse a queue or job id without events: it was mistyped.

    Raises: JobNotFoundError, NotFoundError; InvalidTokenError.
    """
    for name, value in (("queue", selection.queue), ("job id", selection.job)):
        if value is not None:
            check_token(name, value)
    subject = selection.subject(log.names)
    if subject is None or await log.last(subject) is not None:
        return
    if selection.job is not None:
        raise JobNotFoundError(selection.job)
    raise NotFoundError(f"the ledger has no event of queue {selection.queue}: nothing was exported")


async def _stored_since(log: Log, moment: datetime) -> int:
    async with contextlib.aclosing(log.read_messages(from_time=moment)) as batches:
        async for batch in batches:
            return batch[0].stream_sequence
    return (await log.head()).last_sequence + 1


def _show(output: Output, folder: Path, manifest: Manifest) -> None:
    events = "1 event" if manifest.count == 1 else f"{manifest.count:,} events"
    files = "1 file" if len(manifest.files) == 1 else f"{len(manifest.files):,} files"
    held = size(sum(entry.bytes for entry in manifest.files))
    output.say(f"{events} in {folder}", style="bold green")
    output.facts(
        [
            ("range", f"{manifest.first_sequence:,} to {manifest.last_sequence:,}{_selected(manifest)}"),
            ("files", f"{files}, {held}"),
            ("large values", payloads_text(manifest)),
            ("hash", manifest.head_hash or None),
            ("digest", manifest.digest),
        ]
    )
    output.note(f"check it with `jobledger audit verify {folder}`")


def payloads_text(manifest: Manifest) -> str | None:
    """Return the sentence on large inputs and results in an export; None without any."""
    payloads = manifest.payloads
    if isinstance(payloads, msgspec.UnsetType) or not payloads.count:
        return None
    if not payloads.included:
        return f"{payloads.count:,}, left out"
    gone = f", {payloads.gone:,} gone" if payloads.gone else ""
    differs = f", {payloads.differs:,} differ from what was stored" if payloads.differs else ""
    return f"{payloads.stored:,} stored, {size(payloads.bytes)}{gone}{differs}"


def _selected(manifest: Manifest) -> str:
    chosen = manifest.selection
    words = [
        f"{name} {value}"
        for name, value in (("queue", chosen.queue), ("job", chosen.job))
        if value is not None
    ]
    return f", of {' and '.join(words)} alone" if words else ""
