"""`jobledger graphs run`: begin a run of a stored graph, with an input."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jobledger.cli.command import Cli, command
from jobledger.cli.groups import GRAPHS
from jobledger.cli.jobs import enqueue
from jobledger.cli.jobs import options as of_job
from jobledger.cli.jobs.input_text import read_object
from jobledger.cli.session import operator

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The stored graph's name.")]
_Input = Annotated[
    str,
    typer.Option("--input", metavar="JSON", help="Input of the run as a JSON object; - reads it from stdin."),
]
_Id = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="ID", help="Id of the run; the same again begins none. (default: a new one)"
    ),
]


@command(GRAPHS, "run", order=of_job.OF_RUN)
async def run(
    cli: Cli,
    *,
    name: _Name,
    input_text: _Input = "{}",
    job_id: _Id = None,
    order: of_job.Typed,
    wait: enqueue.Wait = False,
    wait_timeout: enqueue.WaitTimeout = None,
) -> None:
    """Begin a run of a stored graph and print {"id", "created", "sequence"}; created is false if the id exists already."""
    values = read_object(input_text, what=f"input of graph {name}")
    how: dict[str, Any] = {**of_job.chosen(order), "id": job_id, "by": operator()}
    waiting = enqueue.EndWait(is_wanted=wait or wait_timeout is not None, timeout_s=wait_timeout)
    await enqueue.add_and_wait(cli, lambda ledger: ledger.graphs.run(name, values, **how), waiting)
