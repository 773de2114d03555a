"""`jobledger projection`: follow the ledger, see how far the rows are, make them anew, prove them right."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from jobledger.audit.archive.chain import with_past
from jobledger.cli import options
from jobledger.cli.audit_options import Archives
from jobledger.cli.errors import ProjectionDiffersError, UsageError
from jobledger.cli.output import Output
from jobledger.cli.projection.read_models import Plan, run_read_model
from jobledger.cli.session import Target, caught_up, opened, projection_path, run, until_closed, watch_signals
from jobledger.cli.text import age, duration, size
from jobledger.ledger import Ledger
from jobledger.ledger.config import DEFAULT_URL
from jobledger.projections import (
    EventGapError,
    Position,
    PositionArchivedError,
    PositionMismatchError,
    ProjectionError,
    ProjectionMissingError,
    Projector,
    Snapshots,
    Store,
    rebuild,
    verify,
)
from jobledger.projections.agreement import refuse_disagreement

app = typer.Typer(help="Follow, inspect and rebuild the projection of the ledger.", no_args_is_help=True)


@app.command("run")
def run_projector(
    *,
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:Class",
            help="A read model of your own, instead of the projection; a .py file may be named.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="End when the ledger's end is reached.")
    ] = False,
    anew: Annotated[
        bool, typer.Option("--rebuild", metavar="", help="Make the read model anew from the first event.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="SQLite file of the read model. (default: one per ledger and model in your data folder)",
        ),
    ] = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Follow the ledger and keep the projection, or a read model of your own, up to date until Ctrl-C."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    if model is not None:
        source = context.get_parameter_source("projection")
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError("--projection names the projection's file: for a read model it is --file")
        plan = Plan(model=model, file=file, anew=anew, once=once)
        run(lambda: run_read_model(output, target, plan))
        return
    if anew or file is not None:
        instead = "`jobledger projection rebuild`" if anew else "--projection"
        raise UsageError(
            f"{'--rebuild' if anew else '--file'} is for a read model, as in MODULE:Class; here it is {instead}"
        )
    run(lambda: _run(output, target, projection, once=once))


async def _run(output: Output, target: Target, chosen: Path | None, *, once: bool) -> None:
    async with opened(target) as ledger, anyio.create_task_group() as group:
        await group.start(watch_signals, group.cancel_scope.cancel)
        group.start_soon(until_closed, ledger)
        path = await projection_path(ledger, chosen)
        position = await caught_up(ledger, path, output)
        if position.missing:
            output.note(position.missing)
        if output.as_json:
            output.object({"projection": str(path), "position": position.stream_sequence})
        elif once:
            output.say(f"{path} holds the ledger up to stream sequence {position.stream_sequence:,}")
        else:
            output.say(
                f"{path} follows the ledger from stream sequence {position.stream_sequence:,}; stop with Ctrl-C"
            )
        if not once:
            with Projector(ledger.log, path, snapshots=Snapshots(path)) as projector:
                await projector.run()
        group.cancel_scope.cancel()


@app.command("status")
def status(
    *,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Show how far the projection has read, and how far that is behind the ledger."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _status(output, target, projection))


async def _status(output: Output, target: Target, chosen: Path | None) -> None:
    async with opened(target) as ledger:
        path = await projection_path(ledger, chosen)
        body, problem = await projection_status(ledger, path)
        now = ledger.clock.now()
    if output.as_json:
        output.object(body)
    else:
        _show_status(output, path, body, now)
    if problem is not None:
        raise problem


def _show_status(output: Output, path: Path, body: dict[str, Any], now: datetime) -> None:
    if body["missing"]:
        output.note(body["missing"])
    updated_at = body["updated_at"]
    when = age(datetime.fromisoformat(updated_at), now) if updated_at else "never"
    if body["lag_events"] is None:
        lag = "unknown: it cannot go on in this ledger"
    else:
        lag = f"{body['lag_events']:,} events" + (
            f", {duration(body['lag_s'])}" if body["lag_events"] else ""
        )
    output.facts(
        [
            ("file", str(path)),
            ("position", f"{body['position']:,} of {body['head']:,}"),
            ("begins at", f"{body['begins_at']:,}"),
            ("counts begin at", f"{body['counts_begin_at']:,}" if body["missing"] else None),
            ("lag", lag),
            ("updated", when),
            ("schema", str(body["schema_version"] or "none yet")),
            ("size", size(body["size_bytes"])),
        ]
    )


async def projection_status(ledger: Ledger, path: Path) -> tuple[dict[str, Any], ProjectionError | None]:
    """Return what is known of a projection beside its ledger, and why it cannot go on there, None where it can.

    A missing file counts as position 0.
    """
    problem: ProjectionError | None = None
    try:
        with Store.open(path) as store:
            position: Position | None = store.position()
        size_bytes = _size_bytes(path)
    except ProjectionMissingError:
        position, size_bytes = None, 0
    head = await ledger.log.head()  # after the position, so that a sound ledger is never shorter
    if position is not None:
        try:
            await refuse_disagreement(ledger.log, path, position)
        except (PositionMismatchError, PositionArchivedError, EventGapError) as error:
            problem = error
    at = position.stream_sequence if position is not None else 0
    missing = None
    if problem is None and at < head.last_sequence:
        missing = await ledger.log.get(max(at + 1, head.first_sequence))
    body = {
        "projection": str(path),
        "exists": position is not None,
        "position": at,
        "head": head.last_sequence,
        "begins_at": position.begins_at if position is not None else head.first_sequence,
        "counts_begin_at": position.counts_begin_at if position is not None else None,
        "missing": position.missing if position is not None else "",
        "problem": "" if problem is None else str(problem),
        "lag_events": max(0, head.last_sequence - max(at, head.first_sequence - 1)),
        # The server's time of the oldest event that is not in the rows, by this machine's clock.
        "lag_s": max(0.0, (ledger.clock.now() - missing.stored_at).total_seconds()) if missing else 0.0,
        "updated_at": position.updated_at if position is not None else None,
        "schema_version": position.schema_version if position is not None else None,
        "size_bytes": size_bytes,
    }
    if problem is not None:  # rows of another past are not behind this one
        body |= {"lag_events": None, "lag_s": None}
    return body, problem


def _size_bytes(path: Path) -> int:
    return path.stat().st_size


@app.command("rebuild")
def rebuild_projection(
    *,
    archives: Archives = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Make the projection anew from the first event, beside the old one, and swap it in."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _rebuild(output, target, projection, archives or ()))


async def _rebuild(output: Output, target: Target, chosen: Path | None, archives: Sequence[Path]) -> None:
    async with opened(target) as ledger:
        path = await projection_path(ledger, chosen)
        log = await with_past(ledger.log, archives) if archives else ledger.log
        with output.progress("rebuilding") as progress:
            position = await rebuild(log, path, progress=progress)
    if output.as_json:
        output.object(
            {
                "projection": str(path),
                "position": position.stream_sequence,
                "begins_at": position.begins_at,
                "counts_begin_at": position.counts_begin_at,
            }
        )
        return
    if position.missing:
        output.note(position.missing)
    begins = f" from {position.begins_at:,}" if position.begins_at > 1 else ""
    output.say(f"{path} is rebuilt{begins} up to stream sequence {position.stream_sequence:,}")


@app.command("verify")
def verify_projection(
    *,
    archives: Archives = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Prove that the projection equals one made anew, row for row; else name the first difference."""
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _verify(output, target, projection, archives or ()))


async def _verify(output: Output, target: Target, chosen: Path | None, archives: Sequence[Path]) -> None:
    async with opened(target) as ledger:
        path = await projection_path(ledger, chosen)
        log = await with_past(ledger.log, archives) if archives else ledger.log
        with Projector(log, path) as projector, output.progress("reading the ledger") as progress:
            await projector.catch_up(progress=progress)
        with output.progress("rebuilding") as progress, output.progress("comparing") as comparing:
            position, found = await verify(log, path, progress=progress, comparing=comparing)
    sequence = position.stream_sequence
    if output.as_json:
        equal = found is None
        output.object({"projection": str(path), "position": sequence, "equal": equal, "difference": found})
    if found is not None:
        more = f"; {found.rows:,} rows differ" if found.rows > 1 else ""
        raise ProjectionDiffersError(f"the projection differs from a rebuilt one: {found.sentence}{more}")
    if not output.as_json:
        output.say(f"{path} equals a rebuilt one, row for row, up to stream sequence {sequence:,}")
