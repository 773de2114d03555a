"""`jobledger jobs`: lists from the projection, brought up to date first; a single job always from its chain."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.archived import archived_payloads
from jobledger.cli.audit_options import Archives
from jobledger.cli.events.events import parse_time
from jobledger.cli.jobs.view import job_object, show_job
from jobledger.cli.one_job import Found, JobId, OneJob, found_history, newest_life, one_job
from jobledger.cli.output import Output
from jobledger.cli.past import Asked, asked, events_until, rows_begin, said, viewed
from jobledger.cli.session import Target, opened, run
from jobledger.cli.text import age, colored, shortened
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.times import time_text
from jobledger.projections import JobRow, Moment
from jobledger.projections.errors import MomentArchivedError

app = typer.Typer(help="List, show, explain, cancel, retry and run jobs.", no_args_is_help=True)


@app.command("list")
def list_jobs(
    *,
    state: options.State = None,
    queue: options.Queue = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Only jobs of this task.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only jobs created at this time (UTC) or later."),
    ] = None,
    limit: options.Limit = 50,
    at: options.At = None,
    sequence: options.Sequence = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """List jobs, the newest first, as the ledger has them at this moment or had them at a past one."""
    if queue is not None:
        check_token("queue", queue)
    filters = {
        "state": state,
        "queue": queue,
        "task": task,
        "since": time_text(parse_time("--since", since)) if since is not None else None,
    }
    past = asked(at, sequence)
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _list(output, target, projection, limit, filters, past))


async def _list(  # noqa: PLR0917 - what the command was told
    output: Output,
    target: Target,
    chosen: Path | None,
    limit: int,
    filters: dict[str, Any],
    past: Asked | None,
) -> None:
    async with opened(target) as ledger, viewed(ledger, chosen, past, output) as (store, now):
        found, begin = store.jobs(limit, **filters), rows_begin(store)
    if output.as_json:
        for row in found:
            output.object({**msgspec.structs.asdict(row), **begin})
    elif not found:
        plainly = past is not None or any(filters.values())
        output.say("no jobs" if plainly else "no jobs; add one with `jobledger enqueue`")
    else:
        output.table(("id!", "queue", "task", "status!", "age>"), [_row(row, now) for row in found])
        if len(found) == limit:
            output.note(f"the newest {limit} are shown; --limit shows more")


def _row(row: JobRow, now: datetime) -> tuple[Any, ...]:
    created = datetime.fromisoformat(row.created_at)
    return (
        shortened(row.id, 36),
        shortened(row.queue, 64),
        shortened(row.task, 64),
        colored(row.status),
        age(created, now).removesuffix(" ago"),
    )


@app.command("show")
def show(
    *,
    job_id: JobId,
    queue: options.Queue = None,
    at: options.At = None,
    sequence: options.Sequence = None,
    archives: Archives = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Show one job with its attempts and every event, read from its chain and so never stale."""
    past = asked(at, sequence)
    which = one_job(
        job_id, queue=queue, projection=projection, url=url, environment=environment, as_json=as_json
    )
    run(lambda: _show(which, past, archives or ()))


async def _show(which: OneJob, past: Asked | None, archives: Sequence[Path]) -> None:
    output = which.output
    async with found_history(which, archives, "jobledger jobs show") as found:
        then = await _moment(found, past, which.job_id) if past is not None else None
        until = found.history if then is None else events_until(found.history, then)
        events = newest_life(until, output)
        job = fold(events).job
        assert job is not None, "a history is not empty"
        body = await job_object(found.ledger, job, events, archived_payloads(found.log))
        now = found.ledger.clock.now()
    if then is not None:
        body["as_of"] = {"stream_sequence": then.stream_sequence, "at": then.at}
        output.say(said(then), style="dim")
        now = then.at or now
    if output.as_json:
        output.object(body)
    else:
        show_job(output, job, body, events, now)
    if found.missing:
        output.note(found.missing)


async def _moment(found: Found, past: Asked, job_id: str) -> Moment:
    try:
        return await past.moment(found.log, found.ledger.clock)
    except MomentArchivedError as error:
        hint = f"`jobledger jobs show {job_id} {past.words} --archive DIR` reads that as well"
        raise MomentArchivedError(error.what, error.to, hint) from error
