"""`jobledger dlq list`: dead letters, one by one or grouped by error."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from jobledger.admin.dead_letters import cause
from jobledger.admin.lists.dead_letters import (
    DeadLetterGroupPage,
    DeadLetterPage,
    group_dead_letters,
    list_dead_letters,
)
from jobledger.admin.lists.search import unknown_values
from jobledger.cli import options, search
from jobledger.cli.command import CHOOSES, Cli, command
from jobledger.cli.dlq.choice import LetterChoice, choose
from jobledger.cli.groups import DLQ
from jobledger.cli.text import age, shortened
from jobledger.projections import DeadLetterGroup, DeadLetterRow
from jobledger.projections.search import read_words


@command(DLQ, "list", takes=CHOOSES)
async def list_command(
    cli: Cli,
    *,
    query: search.Query = None,
    chosen: LetterChoice,
    group: Annotated[
        bool, typer.Option("--group", metavar="", help="One line for each error, the most frequent first.")
    ] = False,
    limit: options.Limit = 50,
    after: options.After = None,
) -> None:
    """List dead letters, the newest first, as the ledger has them at this moment."""
    wanted = choose(cli.said, chosen, search=search.search_of(query))
    page: DeadLetterGroupPage | DeadLetterPage
    async with cli.ledger() as ledger, cli.rows(ledger).opened() as view:
        read = group_dead_letters if group else list_dead_letters
        page, now = await read(view, wanted.filter(view.now), cursor=after, limit=limit), view.now
        unknown = [] if page.items else unknown_values(read_words(wanted.search), view.store)
    output = cli.output
    if output.as_json:
        for each in page.items:
            output.object(each)
    elif not page.items:
        output.say("no dead letters")
        for sentence in unknown:
            output.note(sentence)
    elif isinstance(page, DeadLetterGroupPage):
        columns = ("count>", "fingerprint!", "task", "error", "newest>")
        output.table(columns, [_group_row(each, now) for each in page.items])
        output.note(f"{page.total:,} dead letters; show one group with --fingerprint")
    else:
        output.table(
            ("id!", "task", "error", "fingerprint!", "age>"), [_row(each, now) for each in page.items]
        )
        if page.next is not None and after is None:
            output.note(f"the newest {limit:,} of {page.total:,} are shown; --limit shows more, --group less")
    if page.next is not None:
        output.note(f"the next page: add `--after {page.next}`")


def _row(row: DeadLetterRow, now: datetime) -> tuple[Any, ...]:
    return (
        row.job_id,
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
