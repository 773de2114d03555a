"""`jobledger top`: queues, workers and throughput in a terminal, refreshed every few seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import anyio
import msgspec
import typer

from jobledger.admin.activity import Activity, QueueActivity, Watch
from jobledger.admin.diagnoses import words_of
from jobledger.admin.objects.fleet import pause_shown
from jobledger.admin.projection_files import projection_path
from jobledger.admin.rows import Rows
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import TOP
from jobledger.cli.jobs.queues import COUNTS, counted
from jobledger.cli.output import Output
from jobledger.cli.session import data_folder, stoppable, until_closed
from jobledger.cli.text import LEVEL_STYLES, Cell, age, colored, shortened
from jobledger.cli.times import seconds
from jobledger.ledger.nats.leases import WorkerInfo

_WORKERS_MAX: Final = 100
_HURTS_MAX: Final = 5  #: diagnoses for which a terminal of 24 lines has room
_HEADS: Final = (
    "queue!",
    *(head for head in COUNTS if head != "ended>"),
    "in/s>",
    "done/s>",
    "fail/s>",
    "oldest waits>",
)
_WIDE_ONLY: Final = ("later>", "oldest waits>")  #: no room for these in 80 columns
_Interval = Annotated[
    float,
    typer.Option("--interval", metavar="SPAN", parser=seconds(0.2), help="Time from one look to the next."),
]
#: The figures that `--sort` accepts, by their names in the table; queues with the highest value come first.
_FIGURES: Final[Mapping[str, Callable[[QueueActivity], float]]] = {
    "queued": lambda each: each.row.counts.get("queued", 0),
    "running": lambda each: each.row.counts.get("running", 0),
    "held": lambda each: each.row.counts.get("held", 0),
    "dead": lambda each: each.row.counts.get("dead_lettered", 0),
    "done": lambda each: 0.0 if each.rates is None else each.rates.completed,
    "fail": lambda each: 0.0 if each.rates is None else each.rates.failed,
    "oldest": lambda each: -_waits_since(each) if each.row.oldest_waiting else float("-inf"),
}
_Sort = Annotated[
    Literal["name", "queued", "running", "held", "dead", "done", "fail", "oldest"],
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help=f"Queues with most of it first: {', '.join(_FIGURES)} (who waits longest); or by name.",
    ),
]
_Once = Annotated[bool, typer.Option("--once", metavar="", help="Look over one interval, show it, and end.")]


@command(TOP, "top", takes=ROWS)
async def top(cli: Cli, *, interval: _Interval = 2.0, sort: _Sort = "name", once: _Once = False) -> None:
    """Show queues, what hurts, and workers, again and again until Ctrl-C; once where stdout is no terminal."""
    output = cli.output
    is_live = output.console.is_terminal and not (once or output.as_json)
    async with stoppable(), cli.ledger() as ledger, anyio.create_task_group() as group:
        group.start_soon(until_closed, ledger)
        watch = Watch(Rows(ledger, lambda: projection_path(ledger, data_folder, cli.projection)))
        with output.console.screen() if is_live else contextlib.nullcontext():
            if is_live:
                _show(output, _sorted(await watch.look(), sort))
            else:
                await watch.look()
            while True:
                await anyio.sleep(interval)
                activity = _sorted(await watch.look(), sort)
                if output.as_json:
                    output.object(_object(activity))
                else:
                    _show(output, activity)
                if once or not (is_live or output.as_json):
                    break
        group.cancel_scope.cancel()


def _show(output: Output, activity: Activity) -> None:
    if output.console.is_terminal:
        output.console.clear()
    running = sum(each.row.counts.get("running", 0) for each in activity.queues)
    speed = "" if activity.events_per_s is None else f", {activity.events_per_s:,.0f} events/s"
    output.say(
        f"{activity.at:%H:%M:%S} UTC, {activity.stream_sequence:,} events{speed}, "
        f"{running:,} jobs running, {_number(activity.workers)}",
        style="bold",
    )
    if activity.queues:
        narrow = output.is_narrow
        heads = [head for head in _HEADS if not (narrow and head in _WIDE_ONLY)]
        output.table(heads, [_queue(each, activity.at, narrow=narrow) for each in activity.queues])
    _hurts(output, activity)
    if activity.workers:
        columns = ("worker!", "queues", "running>", "up!", "seen!")
        shown = activity.workers[:_WORKERS_MAX]
        output.table(columns, [_worker(info, activity.at) for info in shown], title="workers")


def _sorted(activity: Activity, sort: str) -> Activity:
    figure = _FIGURES.get(sort)
    if figure is None:
        return activity
    return msgspec.structs.replace(activity, queues=sorted(activity.queues, key=figure, reverse=True))


def _hurts(output: Output, activity: Activity) -> None:
    """Print the diagnoses, as `doctor` does."""
    for each in activity.diagnoses[:_HURTS_MAX]:
        words = words_of(each, lambda at: f"for {age(at, activity.at).removesuffix(' ago')}")
        output.say(shortened(f"{each.object}: {words}", 200), style=LEVEL_STYLES[each.level])
    left = len(activity.diagnoses) - _HURTS_MAX
    if left > 0:
        output.say(f"and {left:,} more: jobledger doctor", style="dim")


def _waits_since(each: QueueActivity) -> float:
    return datetime.fromisoformat(str(each.row.oldest_waiting)).timestamp()


def _number(workers: list[WorkerInfo]) -> str:
    alive = sum(not info.stopped for info in workers)
    return "1 worker" if alive == 1 else f"{alive:,} workers"


def _queue(each: QueueActivity, now: datetime, *, narrow: bool) -> list[Cell]:
    rates = each.rates
    since = each.row.oldest_waiting
    waits = ""
    if since is not None:
        begin = datetime.fromisoformat(since)
        waits = age(begin, max(now, begin)).removesuffix(" ago")
    return [
        shortened(each.row.queue, 64),
        *(
            counted(each.row, COUNTS[head])
            for head in _HEADS
            if head in COUNTS and not (narrow and head in _WIDE_ONLY)
        ),
        *(
            ("", "", "")
            if rates is None
            else (_rate(rates.enqueued), _rate(rates.completed), _rate(rates.failed))
        ),
        *([] if narrow else [waits]),
    ]


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 or not per_s else f"{per_s:.1f}"  # noqa: PLR2004 - two digits are enough


def _worker(info: WorkerInfo, now: datetime) -> tuple[Cell, ...]:
    return (
        info.worker,
        ", ".join(info.queues),
        info.running,
        age(info.started_at, now).removesuffix(" ago"),
        colored("stopped") if info.stopped else age(info.renewed_at, now),
    )


def _object(activity: Activity) -> dict[str, Any]:
    return {
        "at": activity.at,
        "stream_sequence": activity.stream_sequence,
        "events_per_s": activity.events_per_s,
        "queues": [
            {
                "queue": each.row.queue,
                **each.row.counts,
                "oldest_waiting": each.row.oldest_waiting,
                "pause": pause_shown(activity.paused.get(each.row.queue)),
                "per_s": None if each.rates is None else msgspec.structs.asdict(each.rates),
            }
            for each in activity.queues
        ],
        "diagnoses": activity.diagnoses,
        "workers": activity.workers,
    }
