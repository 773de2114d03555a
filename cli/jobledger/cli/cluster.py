"""`jobledger cluster`: the servers of each stream, and a change of the number of copies."""

from __future__ import annotations

from typing import Annotated

import typer

from jobledger.admin.replicas import (
    Replica,
    StreamAway,
    StreamCopies,
    change_replicas,
    list_copies,
    plan_replicas,
)
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import DONE, FAILED
from jobledger.cli.groups import CLUSTER
from jobledger.cli.text import shortened
from jobledger.cli.times import seconds

_Number = Annotated[int, typer.Argument(metavar="N", help="How many copies each stream has: 1, 3 or 5.")]
_Plan = Annotated[
    bool, typer.Option("--plan", metavar="", help="Show what would be changed, and change nothing.")
]
_Limit = Annotated[
    float,
    typer.Option("--limit", metavar="SPAN", parser=seconds(), help="How long each stream may take."),
]


@command(CLUSTER, "show")
async def show(cli: Cli) -> int:
    """Show on which servers each stream lies, which one leads it, and which copies are away or behind.

    Exits with 1 if a copy is missing, away or behind.
    """
    async with cli.ledger() as ledger:
        found = await list_copies(ledger)
    if cli.output.as_json:
        for each in found:
            cli.output.object(each)
    else:
        rows = [(each.stream, *_row(each)) for each in found]
        cli.output.table(("stream", "copies>", "leader", "others"), rows)
    whole = all(isinstance(each, StreamCopies) and each.is_whole for each in found)
    return DONE if whole else FAILED


@command(CLUSTER, "replicas")
async def replicas(cli: Cli, *, number: _Number, plan: _Plan = False, limit_s: _Limit = 300.0) -> None:
    """Give every stream N copies, on as many servers: grow from one server to three while work goes on.

    The command changes one stream after the other, and waits each time until the copies are up to date. It skips
    streams that have N copies already, so that the same command goes on after an interruption.
    """
    output = cli.output
    async with cli.ledger() as ledger:
        if plan:
            todo = await plan_replicas(ledger, number)
        else:
            with output.progress("streams") as progress:
                todo = await change_replicas(
                    ledger,
                    number,
                    limit_s=limit_s,
                    on_stream=lambda _stream, done, total: progress(done, total),
                )
    if output.as_json:
        for each in todo:
            output.object(each)
    elif not todo:
        output.say(f"every stream has {_copies(number)} already")
    elif plan:
        output.table(
            ("stream", "copies now>", "then>"), [(each.stream, each.replicas, number) for each in todo]
        )
    else:
        output.say(f"{len(todo)} streams have {_copies(number)} now, each up to date", style="bold green")


def _copies(number: int) -> str:
    return "one copy" if number == 1 else f"{number} copies"


def _row(each: StreamCopies | StreamAway) -> tuple[int | str, str, str]:
    if isinstance(each, StreamAway):
        return "", "none", shortened(each.error, 100)
    said = [other.server + _lack(other) for other in each.others]
    missing = each.replicas - 1 - len(each.others)
    return (
        each.replicas,
        each.leader or "none",
        ", ".join(said + ([f"{missing} missing"] if missing > 0 else [])),
    )


def _lack(other: Replica) -> str:
    if other.away:  # a new leader reports a copy as away before it has measured how long the copy is silent
        return f" (away for {other.silent_s:.0f} s)" if other.silent_s >= 1 else " (away)"
    return "" if other.current else f" (lacks {other.behind:,})"
