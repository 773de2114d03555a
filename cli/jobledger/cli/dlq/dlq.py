"""`jobledger dlq list` and `show`: dead letters, one by one or grouped by error."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.dlq import choice as dlq_choice
from jobledger.cli.dlq.choice import Choice, choose, why
from jobledger.cli.errors import NotADeadLetterError
from jobledger.cli.jobs.view import job_object, show_job
from jobledger.cli.one_job import JobId, OneJob, found_job, one_job
from jobledger.cli.output import Output
from jobledger.cli.session import Target, caught_up, opened, projection_path, run
from jobledger.cli.text import age, shortened
from jobledger.ledger import JobState
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.fingerprint import job_fingerprint
from jobledger.projections import DeadLetterGroup, DeadLetterRow, Store

app = typer.Typer(help="List, show, requeue and discard dead letters.", no_args_is_help=True)

#: Digits of a fingerprint in a table: enough for --fingerprint.
_FINGERPRINT_SHOWN: Final = 8


@app.command("list")
def list_dead_letters(
    *,
    queue: options.Queue = None,
    task: dlq_choice.Task = None,
    reason: dlq_choice.Reason = None,
    fingerprint: dlq_choice.Fingerprint = None,
    since: dlq_choice.Since = None,
    older_than: dlq_choice.OlderThan = None,
    group: Annotated[
        bool, typer.Option("--group", metavar="", help="One line for each error, the most frequent first.")
    ] = False,
    limit: options.Limit = 50,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """List dead letters, the newest first, as the ledger has them at this moment."""
    choice = choose(
        queue=queue, task=task, reason=reason, fingerprint=fingerprint, since=since, older_than=older_than
    )
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _list(output, target, projection, choice, group=group, limit=limit))


async def _list(
    output: Output, target: Target, chosen: Path | None, choice: Choice, *, group: bool, limit: int
) -> None:
    async with opened(target) as ledger:
        path = await projection_path(ledger, chosen)
        await caught_up(ledger, path, output)
        now = ledger.clock.now()
    condition = choice.filter(now)
    with Store.open(path) as store:
        count = store.dead_letter_count(condition)
        groups = store.dead_letter_groups(limit, chosen=condition) if group else []
        rows = [] if group else store.dead_letters(limit, chosen=condition)
    if output.as_json:
        for each in groups or rows:
            output.object(msgspec.structs.asdict(each))
    elif not count:
        output.say("no dead letters")
    elif group:
        columns = ("count>", "fingerprint!", "task", "error", "newest>")
        output.table(columns, [_group_row(each, now) for each in groups])
        output.note(f"{count:,} dead letters; show one group with --fingerprint")
    else:
        output.table(("id!", "task", "error", "fingerpr!", "age>"), [_row(each, now) for each in rows])
        if count > len(rows):
            output.note(f"the newest {len(rows):,} of {count:,} are shown; --limit shows more, --group less")


def _row(row: DeadLetterRow, now: datetime) -> tuple[Any, ...]:
    return (
        shortened(row.job_id, 36),
        shortened(row.task, 64),
        shortened(why(row), 200),
        row.fingerprint[:_FINGERPRINT_SHOWN],
        _age(row.dead_at, now),
    )


def _group_row(group: DeadLetterGroup, now: datetime) -> tuple[Any, ...]:
    said = f"{group.error_type}: {group.error}" if group.error_type else group.error or group.reason
    return (
        group.count,
        group.fingerprint,
        shortened(group.task, 64),
        shortened(said, 200),
        _age(group.newest, now),
    )


def _age(at: str, now: datetime) -> str:
    return age(datetime.fromisoformat(at), now).removesuffix(" ago")


@app.command("show")
def show(
    *,
    job_id: JobId,
    queue: options.Queue = None,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Show one dead letter: why it is one, its fingerprint, attempts, every event, and the newest traceback."""
    which = one_job(
        job_id, queue=queue, projection=projection, url=url, environment=environment, as_json=as_json
    )
    run(lambda: _show(which))


async def _show(which: OneJob) -> None:
    output = which.output
    async with found_job(which) as (ledger, handle):
        history = await handle.history()
        job = fold(history).job
        assert job is not None, "a history is not empty"
        if job.state is not JobState.DEAD_LETTERED:
            raise NotADeadLetterError(
                f"job {job.id} is {job.state.value.replace('_', ' ')} and no dead letter: "
                f"see `jobledger jobs show {job.id}`"
            )
        name = job_fingerprint(job)
        body = await job_object(ledger, job, history)
        if output.as_json:
            output.object({**body, "fingerprint": name})
            return
        show_job(output, job, body, history, ledger.clock.now())
        output.say()
        output.say(
            f"fingerprint {name}: `jobledger dlq list --fingerprint {name}` lists those of the same error"
        )
