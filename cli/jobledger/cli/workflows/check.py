"""`jobledger workflows check`: before a deploy, check that recorded runs can go on with the new code."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Final

import msgspec
import typer

from jobledger.admin.workflows.checks import RunCheck, RunsCheck, check_runs
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import RunsDivergeError, UsageError
from jobledger.cli.groups import WORKFLOWS
from jobledger.cli.output import Output
from jobledger.cli.session import load_tasks
from jobledger.cli.text import shortened
from jobledger.cli.times import time_of
from jobledger.ledger.graphs.batch_run import run_batch
from jobledger.ledger.graphs.graph_run import run_graph, run_stored_graph

_ROWS_MAX: Final = 20
_NOT_SIMPLE: Final = {
    "diverges": "diverging, so that a worker would make a dead letter of each",
    "fails": "ending in an error of their own code, perhaps the one that they had",
    "in_part": "compared up to a step that is new to them",
    "missing": "of a workflow or version that this code does not have",
    "unread": "not compared",
}


@command(WORKFLOWS, "check", takes=ROWS)
def check(
    cli: Cli,
    *,
    modules: options.App = None,
    is_open: Annotated[
        bool,
        typer.Option(
            "--open", metavar="", help="Check the runs that did not end, and dead letters that diverged."
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Check all runs that were made since, ended or not."),
    ] = None,
) -> Awaitable[None]:
    """Replay recorded runs against the code of --app, in memory: no step is called, nothing is appended.

    Names each run that would diverge, and exits with 4 if there is one.
    """
    if is_open == (since is not None):
        raise UsageError("say which runs to check: --open, or --since TIME")
    moment = time_of("--since", since)
    tasks = load_tasks(modules)
    for built_in in (run_graph, run_stored_graph, run_batch):
        tasks.add_built_in(built_in)

    async def checking() -> None:
        async with cli.ledger() as ledger:
            found = await check_runs(cli.rows(ledger), tasks, since=moment)
        _tell(cli.output, found)
        first = found.first_diverged
        if first is not None:
            raise RunsDivergeError(_sentence(found, first))

    return checking()


def _sentence(found: RunsCheck, first: RunCheck) -> str:
    count = found.counts["diverges"]
    runs = (
        "1 run diverges from this code"
        if count == 1
        else f"{count:,} runs diverge from this code, the first is"
    )
    return f"{runs}{': ' if count == 1 else ' '}{first.id} ({first.queue}): {first.sentence}"


def _tell(output: Output, found: RunsCheck) -> None:
    if output.as_json:
        output.object(
            {
                "runs": found.runs,
                **_counts(found),
                "named": [msgspec.to_builtins(each) for each in found.named],
            }
        )
        return
    runs = "1 run" if found.runs == 1 else f"{found.runs:,} runs"
    fits = found.counts.get("fits", 0)
    output.say(f"{runs} read; fitting this code, as far as they are recorded: {fits:,}")
    for outcome, words in _NOT_SIMPLE.items():
        count = found.counts.get(outcome, 0)
        if not count:
            continue
        output.say()
        output.say(f"{words}: {count:,}", style="bold red" if outcome == "diverges" else "bold")
        named = [each for each in found.named if each.outcome == outcome][:_ROWS_MAX]
        for each in named:
            version = f" v{each.version}" if each.version else ""
            output.say(f"  {each.id} ({each.task}{version}, {each.status}): {shortened(each.sentence, 400)}")
        if count > len(named):
            output.say(f"  and {count - len(named):,} more")


def _counts(found: RunsCheck) -> dict[str, int]:
    return {outcome: found.counts.get(outcome, 0) for outcome in ("fits", *_NOT_SIMPLE)}
