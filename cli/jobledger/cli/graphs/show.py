"""`jobledger graphs list` and `show`: which graphs are stored, and one of them with its versions."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from jobledger.admin.graphs import ShownGraph, list_graphs, show_graph
from jobledger.cli.changes import tell_changes
from jobledger.cli.command import Cli, command
from jobledger.cli.graphs.change import Name
from jobledger.cli.groups import GRAPHS
from jobledger.cli.output import Output
from jobledger.cli.text import age, shortened

_SHOWN_MAX = 40

_Version = Annotated[
    int, typer.Option("--version", min=0, metavar="N", help="An older version. (default: the newest)")
]


@command(GRAPHS, "list")
async def list_(cli: Cli) -> None:
    """List the stored graphs: their versions, how many nodes they have, and who changed them last."""
    async with cli.ledger() as ledger:
        found, now = await list_graphs(ledger), ledger.clock.now()
    output = cli.output
    if output.as_json:
        for each in found:
            output.object(each)
    elif not found:
        output.say("no graph is stored; store one with `jobledger graphs put NAME --file FILE`")
    else:
        output.table(
            ("graph", "version>", "nodes>", "takes", "changed by", "since!"),
            [
                (
                    each.graph,
                    each.version,
                    each.nodes,
                    shortened(", ".join(each.takes), _SHOWN_MAX),
                    shortened(each.changed_by, 30),
                    age(each.changed_at, max(now, each.changed_at)),
                )
                for each in found
            ],
        )


@command(GRAPHS, "show")
async def show(cli: Cli, *, name: Name, version: _Version = 0) -> None:
    """Show a stored graph: its nodes, what it takes of a run's input, and its history. --json has it as it can be put."""
    async with cli.ledger() as ledger:
        found = await show_graph(ledger, name, version=version)
    if cli.output.as_json:
        cli.output.object(found)
    else:
        _tell(cli.output, found)


def _tell(output: Output, found: ShownGraph) -> None:
    info, definition = found.info, found.definition
    output.say(f"graph {info.graph}", style="bold")
    if definition is None:
        output.facts([("removed by", info.changed_by), ("reason", info.reason or None)])
    else:
        output.facts(
            [
                ("version", str(info.version)),
                ("takes", ", ".join(info.takes) or "nothing of a run's input"),
                ("limit", f"{definition.limit:,} nodes at once" if definition.limit else None),
                ("on failure", definition.on_failure),
                ("changed by", info.changed_by),
                ("reason", info.reason or None),
            ]
        )
        rows = [
            (
                node.name,
                node.task,
                node.queue,
                shortened(", ".join(dict.fromkeys((*node.takes.values(), *node.after))), _SHOWN_MAX),
                shortened(msgspec.json.encode(node.input).decode(), _SHOWN_MAX),
            )
            for node in definition.nodes
        ]
        output.table(("node", "task", "queue", "after", "input"), rows)
    tell_changes(output, found.history)
