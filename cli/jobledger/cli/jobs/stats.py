"""`jobledger stats`: success and speed of jobs in the last hour, or in another span of time."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal

import typer

from jobledger.admin.amounts import duration
from jobledger.admin.lists.stats import stats
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import TOP
from jobledger.cli.text import Cell, shortened
from jobledger.cli.times import seconds
from jobledger.ledger.model.subjects import check_token
from jobledger.projections.statistics.rates import Rates

_SPAN_MIN_S: Final = 60.0
_HEADS: Final = (
    "in>",
    "done>",
    "failed>",
    "dead>",
    "success>",
    "wait p50>",
    "p95>",
    "p99>",
    "run p50>",
    "p95>",
)
_NARROW: Final = ("done>", "failed>", "success>", "wait p50>", "p95>", "p99>", "run p50>")
_Last = Annotated[
    float,
    typer.Option(
        "--last", metavar="SPAN", parser=seconds(_SPAN_MIN_S), help="Which span of time, up to now."
    ),
]
_By = Annotated[
    Literal["queue", "task"],
    typer.Option("--by", metavar="WHAT", help="A line for each queue, or for each task."),
]
_Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only jobs of this task.")]


@command(TOP, "stats", takes=ROWS)
async def stats_command(
    cli: Cli, *, last: _Last = 3_600.0, by: _By = "queue", queue: options.Queue = None, task: _Task = None
) -> None:
    """Show what happened to jobs in a span of time: how many completed and failed, and how long they waited and ran."""
    if queue is not None:
        check_token("queue", queue)
    async with cli.ledger() as ledger, cli.rows(ledger).opened() as view:
        until = view.now + timedelta(minutes=1)  # so that the present minute is included
        found = await stats(view, view.now - timedelta(seconds=last), until, queue=queue, task=task)
    output, rows = cli.output, found.queues if by == "queue" else found.tasks
    if output.as_json:
        output.object(found)
    elif not rows:
        output.say(f"nothing happened in the last {duration(last)}")
    else:
        heads = _NARROW if output.is_narrow else _HEADS
        output.table((f"{by}!", *heads), [_cells(each, narrow=output.is_narrow) for each in rows])


def _cells(each: Rates, *, narrow: bool) -> list[Cell]:
    success = "" if each.success_rate is None else f"{each.success_rate:.1%}"
    waits = [_took(each.wait.p50_s), _took(each.wait.p95_s), _took(each.wait.p99_s)]
    if narrow:
        return [shortened(each.name, 64), each.completed, each.failed, success, *waits, _took(each.run.p50_s)]
    counts = (each.enqueued, each.completed, each.failed, each.dead_lettered)
    return [shortened(each.name, 64), *counts, success, *waits, _took(each.run.p50_s), _took(each.run.p95_s)]


def _took(took_s: float | None) -> str:
    return "" if took_s is None else duration(took_s)
