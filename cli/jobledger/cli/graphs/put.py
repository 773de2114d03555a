"""`jobledger graphs put`: store a graph under a name from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from jobledger.admin.graphs import changed_graph
from jobledger.cli import bulk
from jobledger.cli.command import CREATES, LEDGER, Cli, command
from jobledger.cli.definitions import read_definition
from jobledger.cli.groups import GRAPHS
from jobledger.cli.session import operator
from jobledger.ledger.graphs.named import named_graph
from jobledger.ledger.model.errors import InvalidInputError

Name = Annotated[str, typer.Argument(metavar="NAME", help="The stored graph's name.")]
_File = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="The graph with its nodes, as JSON or TOML.")
]


@command(GRAPHS, "put", takes=(*LEDGER, CREATES))
async def put(cli: Cli, *, name: Name, file: _File, reason: bulk.Why = "", plan: bulk.Plan = False) -> None:
    """Store a graph under a name, as its next version; one that says the same stays as it is. Runs go on with theirs."""
    given = named_graph(_named(name, read_definition(file)))
    async with cli.ledger() as ledger:
        done = await ledger.graphs.put(given, reason=reason, by=operator(), plan=plan)
    if cli.output.as_json:
        cli.output.object(changed_graph(done))
        return
    info = changed_graph(done).info
    state = f"stored as version {info.version}" if done.changed else f"as it was, version {info.version}"
    nodes = f"{info.nodes:,} node{'' if info.nodes == 1 else 's'}"
    cli.output.say(f"graph {info.graph} {'would be' if plan else 'is'} {state}: {nodes}")
    if plan:
        cli.output.say("nothing was changed")


def _named(name: str, given: object) -> object:
    """Return what a file says with the name that the command gives. Raises: InvalidInputError for another one."""
    if not isinstance(given, dict):
        return given
    said = cast("dict[str, Any]", given)
    if said.setdefault("name", name) != name:
        raise InvalidInputError(
            f"the file has the name {ascii(said['name'])[:80]}, not {name}: leave it out, or give the same"
        )
    return said
