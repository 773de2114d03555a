"""`jobledger watches set`, `list`, `show` and `remove`: figures that are held against bounds."""

from __future__ import annotations

from typing import Annotated, Final, cast

import msgspec
import typer

from jobledger.admin.hooks.watches import WatchInfo, list_watches, remove_watch, set_watch, show_watch
from jobledger.cli.bulk import Why
from jobledger.cli.changes import tell_changes
from jobledger.cli.command import CREATES, LEDGER, Cli, command
from jobledger.cli.groups import WATCHES
from jobledger.cli.output import Output
from jobledger.cli.session import operator
from jobledger.cli.text import age, plain, shortened
from jobledger.cli.times import seconds
from jobledger.ledger.model.hooks.watch import FIGURES, FOR_S_MAX, WINDOW_S_MAX, Figure, WatchDefinition

_WINDOW_S: Final = 300.0

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The watch's name.")]
_Figure = Annotated[
    str, typer.Option("--figure", metavar="FIGURE", help=f"What to look at: {', '.join(FIGURES)}.")
]
_Above = Annotated[
    float | None, typer.Option("--above", metavar="X", help="Fire while the figure is greater.")
]
_Below = Annotated[float | None, typer.Option("--below", metavar="X", help="Fire while the figure is less.")]
_For = Annotated[
    float,
    typer.Option(
        "--for",
        metavar="SPAN",
        parser=seconds(0.0, FOR_S_MAX),
        help="How long it must be so before it fires.",
    ),
]
_Window = Annotated[
    float,
    typer.Option(
        "--window",
        metavar="SPAN",
        parser=seconds(60.0, WINDOW_S_MAX),
        help="How far back rates and waits are looked at.",
    ),
]
_Queue = Annotated[str, typer.Option("--queue", metavar="QUEUE", help="Only jobs of this queue.")]
_Task = Annotated[str, typer.Option("--task", metavar="TASK", help="Only jobs of this task.")]


@command(WATCHES, "set", takes=(*LEDGER, CREATES))
async def set_(
    cli: Cli,
    *,
    name: _Name,
    figure: _Figure,
    above: _Above = None,
    below: _Below = None,
    for_: _For = 0.0,
    window: _Window = _WINDOW_S,
    queue: _Queue = "",
    task: _Task = "",
    reason: Why = "",
) -> None:
    """Have a figure watched: it fires while it is beyond a bound, and webhooks can deliver that. A gateway judges it."""
    definition = WatchDefinition(
        figure=cast("Figure", figure),
        queue=queue,
        task=task,
        above=above,
        below=below,
        for_s=for_,
        window_s=round(window),
    )
    async with cli.ledger() as ledger:
        found = await set_watch(ledger, name, definition, reason=reason, by=operator())
    _tell(cli.output, found)


@command(WATCHES, "remove")
async def remove(cli: Cli, *, name: _Name, reason: Why = "") -> None:
    """End a watch; its history stays."""
    async with cli.ledger() as ledger:
        found = await remove_watch(ledger, name, reason=reason, by=operator())
    _tell(cli.output, found)


@command(WATCHES, "list")
async def list_(cli: Cli) -> None:
    """List the watches, those that fire first."""
    async with cli.ledger() as ledger:
        found, now = await list_watches(ledger), ledger.clock.now()
    output = cli.output
    if output.as_json:
        for each in found:
            output.object(msgspec.to_builtins(each))
    elif not found:
        output.say(
            "there is no watch; make one with `jobledger watches set NAME --figure depth --above 1000`"
        )
    else:
        output.table(
            ("watch!", "state!", "value>", "watches", "since!"),
            [
                (
                    each.watch,
                    _state(each),
                    "" if each.value is None else f"{each.value:g}",
                    shortened(each.watches, 80),
                    age(each.changed_at, max(now, each.changed_at)),
                )
                for each in found
            ],
        )


@command(WATCHES, "show")
async def show(cli: Cli, *, name: _Name) -> None:
    """Show a watch, and when it fired."""
    async with cli.ledger() as ledger:
        found = await show_watch(ledger, name)
    output = cli.output
    if output.as_json:
        output.object(msgspec.to_builtins(found))
        return
    _tell(output, found.info)
    tell_changes(output, found.history)


def _state(watch: WatchInfo) -> str:
    if watch.removed:
        return "removed"
    return "fires" if watch.firing else "quiet"


def _tell(output: Output, watch: WatchInfo) -> None:
    if output.as_json:
        output.object(msgspec.to_builtins(watch))
    else:
        output.say(f"watch {watch.watch}, {_state(watch)}: {plain(watch.watches)}")
