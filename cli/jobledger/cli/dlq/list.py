"""`jobledger dlq list`: dead letters, one by one or grouped by error."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from jobledger.admin.dead_letters import cause, list_dead_letters
from jobledger.cli import options
from jobledger.cli.command import CHOOSES, Cli, command
from jobledger.cli.dlq import choice
from jobledger.cli.groups import DLQ
from jobledger.cli.text import age, shortened
from jobledger.projections import DeadLetterGroup, DeadLetterRow


@command(DLQ, "list", takes=CHOOSES)
async def list_command(
    cli: Cli,
    *,
    queue: options.Queue = None,
    task: choice.Task = None,
    reason: choice.Reason = None,
    fingerprint: choice.Fingerprint = None,
    since: choice.Since = None,
    older_than: choice.OlderThan = None,
    group: Annotated[
        bool, typer.Option("--group", metavar="", help="One line for each error, the most frequent first.")
    ] = False,
    limit: options.Limit = 50,
) -> None:
    """List dead letters, the newest first, as the ledger has them at this moment."""
    wanted = choice.choose(
        said=cli.said,
        queue=queue,
        task=task,
        reason=reason,
        fingerprint=fingerprint,
        since=since,
        older_than=older_than,
    )
    async with cli.ledger() as ledger:
        count, rows, groups, now = await list_dead_letters(
            cli.rows(ledger), wanted, limit=limit, grouped=group
        )
    output = cli.output
    if output.as_json:
        for each in groups or rows:
            output.object(each)
    elif not count:
        output.say("no dead letters")
    elif group:
        columns = ("count>", "fingerprint!", "task", "error", "newest>")
        output.table(columns, [_group_row(each, now) for each in groups])
        output.note(f"{count:,} dead letters; show one group with --fingerprint")
    else:
        output.table(("id!", "task", "error", "fingerprint!", "age>"), [_row(each, now) for each in rows])
        if count > len(rows):
            output.note(f"the newest {len(rows):,} of {count:,} are shown; --limit shows more, --group less")


def _row(row: DeadLetterRow, now: datetime) -> tuple[Any, ...]:
    return (
        shortened(row.job_id, 36),
        shortened(row.task, 64),
        shortened(cause(row), 200),
        row.fingerprint,
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
