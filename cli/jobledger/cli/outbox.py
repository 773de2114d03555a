"""`jobledger outbox ...`: the relay of jobs that wait in an application's database, and acts of people on its rows."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio
import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.bulk import Yes, ask
from jobledger.cli.command import CREATES, LEDGER, WAITS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.exposure import LOOPBACK, Exposure
from jobledger.cli.groups import OUTBOX
from jobledger.cli.logs import log_as_process
from jobledger.cli.output import Output
from jobledger.cli.processes import options as process
from jobledger.cli.server_options import is_typed
from jobledger.cli.session import retried_at_start, stoppable, until_closed
from jobledger.cli.text import age, shortened
from jobledger.cli.times import seconds
from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.model.errors import InvalidError, NotFoundError
from jobledger.ledger.outbox.addresses import address_in, open_database
from jobledger.ledger.outbox.database import ListedRow, OutboxDatabase
from jobledger.ledger.outbox.relay import Relay
from jobledger.ledger.outbox.table import Dialect, schema
from jobledger.ledger.variables import variable
from jobledger.ledger.written_orders import WrittenOrder

_NAMED_MAX: Final = 10  #: numbers in a sentence


def _no_password(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Refuse a password that `ps` would show. Raises: UsageError."""
    if value is not None and is_typed(context, str(parameter.name)) and _holds_password(value):
        raise UsageError(
            "--database with a password can be read by every user of this machine: "
            f"set {variable('outbox_database')}, or name a file with --database-file"
        )
    return value


def _holds_password(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.password is not None or bool(parse_qs(parts.query).keys() & {"password", "sslpassword"})
    except ValueError:  # an unreadable address may hold a password
        return True


_Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar=variable("outbox_database"),
        metavar="ADDRESS",
        callback=_no_password,
        help="The application's database: postgresql://... or sqlite:PATH; one with a password only by its variable.",
    ),
]
_DatabaseFile = Annotated[
    Path | None,
    typer.Option(
        "--database-file",
        envvar=variable("outbox_database_file"),
        metavar="FILE",
        help="File whose first line is that address.",
    ),
]


class _Place(options.OptionGroup, frozen=True):
    database: _Database = None
    database_file: _DatabaseFile = None


def _opened(place: _Place) -> OutboxDatabase:
    """Return the database that the options name. Raises: UsageError, ConfigurationError."""
    address, file = place.database, place.database_file
    if address is not None and file is None:
        return open_database(address)
    if address is None and file is not None:
        return open_database(address_in(file))
    raise UsageError("give one of --database and --database-file: they say where the outbox is")


@command(OUTBOX, "create", takes=("as_json",))
async def create(cli: Cli, *, place: _Place) -> None:
    """Make the outbox's table in the application's database, where it is missing."""
    async with _opened(place) as outbox:
        await outbox.create()
    if cli.output.as_json:
        cli.output.object({"created": True})
    else:
        cli.output.say("the table jobledger_outbox is there")


@command(OUTBOX, "schema", takes=("as_json",))
def show_schema(
    cli: Cli,
    *,
    dialect: Annotated[Dialect, typer.Argument(metavar="postgresql|sqlite", help="The kind of database.")],
) -> None:
    """Print the statements that make the table, for a migration of the application's own."""
    statements = schema(dialect)
    if cli.output.as_json:
        cli.output.object({"statements": statements})
    else:
        cli.output.raw("".join(f"{each};\n" for each in statements))


@command(OUTBOX, "relay", takes=(*LEDGER, CREATES, WAITS))
async def relay(
    cli: Cli,
    *,
    place: _Place,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of this outbox, where a ledger has several.")
    ] = "main",
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Exit when nothing waits any more.")
    ] = False,
    poll: Annotated[
        float,
        typer.Option(
            "--poll",
            metavar="SPAN",
            parser=seconds(),
            help="How often to look where the database notifies of nothing.",
        ),
    ] = 1.0,
    metrics_port: process.MetricsPort = None,
    metrics_host: process.MetricsHost = LOOPBACK,
    metrics_token_file: process.MetricsTokenFile = None,
) -> None:
    """Make jobs from the rows of an outbox until SIGTERM or Ctrl-C; of several relays one works at a time."""
    if not poll > 0:
        raise UsageError("--poll must be above 0, as in --poll 1s")
    if not once:
        log_as_process()
    output = cli.output
    exposure = Exposure(port=metrics_port, host=metrics_host, token_file=metrics_token_file)
    async with stoppable(), _opened(place) as outbox:
        # A mistake in the address is reported before anything else.
        await retried_at_start(cli.target, outbox.counts)
        async with cli.ledger() as ledger, anyio.create_task_group() as group:
            group.start_soon(until_closed, ledger)
            where: list[str] = []
            made = Relay(
                ledger,
                outbox,
                name=name,
                poll_s=poll,
                on_turn=lambda: None if once else _say_ready(output, name, "".join(where)),
            )
            try:
                async with _shown(exposure, made, _opened(place)) as url:
                    where.append(url)
                    await (made.once() if once else made.run())
            finally:
                if once or made.done != type(made.done)():
                    _tell_done(output, made)
            group.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def _shown(exposure: Exposure, relay: Relay, database: OutboxDatabase) -> AsyncGenerator[str]:
    """Serve the metrics of a relay for the length of the block, if that was asked for; yield where, else ""."""
    if exposure.port is None:
        yield ""
        return
    # Imported here, so that a process without metrics does not load it.
    from jobledger.ledger.outbox.metrics import RelayMetrics  # noqa: PLC0415

    async with database:
        metrics = RelayMetrics(relay, database, SYSTEM_CLOCK)
        with exposure.server(metrics, metrics.health) as server:
            counting = asyncio.create_task(metrics.run(), name="outbox metrics")
            try:
                yield server.url
            finally:
                counting.cancel()
                await asyncio.wait({counting})


def _say_ready(output: Output, name: str, metrics: str) -> None:
    with output.telling():
        if output.as_json:
            output.object({"outbox": name, "pid": os.getpid(), **({"metrics": metrics} if metrics else {})})
        else:
            output.say(f"relays outbox {name}; stop it with Ctrl-C")
            if metrics:
                output.say(f"metrics: {metrics}")


def _tell_done(output: Output, made: Relay) -> None:
    done = made.done
    with output.telling():
        if output.as_json:
            output.object(done)
            return
        jobs = "1 job" if done.created == 1 else f"{done.created:,} jobs"
        output.say(f"made {jobs}; in the ledger already: {done.existing:,}; refused: {done.refused:,}")


@command(OUTBOX, "status", takes=("as_json",))
async def status(cli: Cli, *, place: _Place) -> None:
    """Show how many rows wait, since when, and how many were refused."""
    async with _opened(place) as outbox:
        found = await outbox.counts()
    if cli.output.as_json:
        cli.output.object(found)
        return
    since = "" if found.oldest_at is None else f", the oldest since {_ago(found.oldest_at)}"
    cli.output.say(f"waiting: {found.waiting:,}{since}; refused: {found.refused:,}")


def _ago(at: Any) -> str:
    return age(at, max(SYSTEM_CLOCK.now(), at))


class OutboxJob(msgspec.Struct, frozen=True, kw_only=True):
    """A row as `outbox list --json` shows it; the input stays in the row."""

    number: int
    queue: str | None
    job: str | None
    task: str | None
    added_at: Any
    refused_at: Any
    refusal: str | None

    @classmethod
    def of(cls, row: ListedRow) -> OutboxJob:
        """Return the shown part of a row; without queue and job if the row cannot be read."""
        try:
            written = WrittenOrder.read(row.text)
        except InvalidError:
            written = None
        return cls(
            number=row.number,
            queue=None if written is None else written.queue,
            job=None if written is None else written.id,
            task=None if written is None else written.task,
            added_at=row.added_at,
            refused_at=row.refused_at,
            refusal=row.refusal,
        )


@command(OUTBOX, "list", takes=("as_json",))
async def list_rows(
    cli: Cli,
    *,
    place: _Place,
    refused: Annotated[bool, typer.Option("--refused", metavar="", help="Only refused rows.")] = False,
    limit: options.Limit = 50,
) -> None:
    """List the rows of an outbox, the oldest first: the job that each will be, and why it was refused."""
    async with _opened(place) as outbox:
        found = [OutboxJob.of(row) for row in await outbox.rows(limit, refused_only=refused)]
    if cli.output.as_json:
        for each in found:
            cli.output.object(each)
    elif not found:
        cli.output.say("no row was refused" if refused else "the outbox is empty")
    else:
        rows = [
            (
                each.number,
                each.job or "?",
                each.task or "?",
                _ago(each.added_at),
                shortened(each.refusal or "", 200),
            )
            for each in found
        ]
        cli.output.table(("number>", "job", "task", "added", "refused because"), rows)


class _Rows(options.OptionGroup, frozen=True):
    """The refused rows of an act."""

    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="NUMBER", help="Rows, as `outbox list` shows them.")
    ] = None
    every: Annotated[bool, typer.Option("--all", metavar="", help="All refused rows.")] = False
    yes: Yes = False


@command(OUTBOX, "retry", takes=("as_json",))
async def retry(
    cli: Cli,
    *,
    rows: _Rows,
    place: _Place,
) -> None:
    """Let refused rows wait for the relay again, after the mistake is corrected."""
    async with _opened(place) as outbox:
        chosen = await _chosen(cli.output, outbox, rows, "retry")
        _tell_count(cli.output, chosen, await outbox.retry(chosen), "wait again")


@command(OUTBOX, "discard", takes=("as_json",))
async def discard(
    cli: Cli,
    *,
    rows: _Rows,
    place: _Place,
) -> None:
    """Delete refused rows for good: no job is made of them."""
    async with _opened(place) as outbox:
        chosen = await _chosen(cli.output, outbox, rows, "discard")
        _tell_count(cli.output, chosen, await outbox.discard(chosen), "deleted")


async def _chosen(output: Output, outbox: OutboxDatabase, rows: _Rows, act: str) -> list[int] | None:
    """Return the numbers of the rows, None for all that are refused; ask a person before an act on all.

    Raises: UsageError, typer.Exit when the answer is no.
    """
    if bool(rows.numbers) == rows.every:
        raise UsageError(f"say which rows: `outbox {act} NUMBER`, or --all refused ones")
    if not rows.every:
        return rows.numbers
    refused = (await outbox.counts()).refused
    if refused and not rows.yes:
        await ask(
            output, f"{act} all refused rows, {refused:,} now?", look="`jobledger outbox list --refused`"
        )
    return None


def _tell_count(output: Output, numbers: list[int] | None, count: int, what: str) -> None:
    """Say how many refused rows there were. Raises: NotFoundError where none has one of the numbers."""
    if not count and numbers is not None:
        named = ", ".join(map(str, numbers[:_NAMED_MAX]))
        raise NotFoundError(
            f"no refused row has the number {named}: `jobledger outbox list --refused` shows them"
        )
    if output.as_json:
        output.object({"rows": count})
    else:
        output.say(f"refused rows: {count:,} {what}")
