"""`jobledger jobs show`: one job now or as of a past moment, or a section of what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.admin.archived import archived_payloads
from jobledger.admin.objects.jobs import JobShown, checked
from jobledger.admin.views import details_as
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import JOBS
from jobledger.cli.jobs.graph import Form, show_graph
from jobledger.cli.jobs.steps import show_steps
from jobledger.cli.jobs.trail import trail_section
from jobledger.cli.jobs.tree import show_tree
from jobledger.cli.jobs.view import show_job
from jobledger.cli.jobs.why import show_why
from jobledger.cli.one_job import JobId, JobRead, Section, show_section
from jobledger.cli.output import Output
from jobledger.cli.past import asked
from jobledger.ledger.opened_jobs import opened_history

_COMMAND: Final = "jobledger jobs show"
_SECTIONS: Final = "Sections, one at a time"


def _section(flag: str, told: str) -> Any:
    return typer.Option(flag, metavar="", help=told, rich_help_panel=_SECTIONS)


_Why = Annotated[bool, _section("--why", "Say what the job waits for, since when, and which event says so.")]
_Trail = Annotated[
    bool,
    _section("--trail", "Say who did what and when, what the job waited for and how long, which error."),
]
_Steps = Annotated[bool, _section("--steps", "Show the steps of a run and the signals it was sent.")]
_Results = Annotated[bool, _section("--results", "With --steps: what each step was given and returned, too.")]
_Tree = Annotated[bool, _section("--tree", "Show the steps of a run, and all the jobs below it.")]
_Graph = Annotated[bool, _section("--graph", "Show the steps of a run and what came after what.")]
_Format = Annotated[
    Form | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="With --graph: text, mermaid (a flowchart) or svg (a drawing). (default: text)",
        rich_help_panel=_SECTIONS,
    ),
]


@command(JOBS, "show", takes=ROWS)
async def show(
    cli: Cli,
    *,
    job_id: JobId,
    queue: options.Queue = None,
    at: options.At = None,
    sequence: options.Sequence = None,
    archives: options.Archives = None,
    why: _Why = False,
    trail: _Trail = False,
    steps: _Steps = False,
    results: _Results = False,
    tree: _Tree = False,
    graph: _Graph = False,
    form: _Format = None,
) -> None:
    """Show one job with its attempts and every event, or a section, read from its chain and so never stale."""
    named = _named(why=why, trail=trail, steps=steps, tree=tree, graph=graph)
    _refuse_alone("--results", "--steps", is_alone=results and not steps)
    _refuse_alone("--format", "--graph", is_alone=form is not None and not graph)
    past = asked(at, sequence)
    if why or tree:
        if archives:
            raise UsageError(f"{named} shows what the ledger holds: leave out --archive")
        await (show_why if why else show_tree)(cli, job_id, queue, past)
        return
    section: Section = _whole
    if trail:
        section = trail_section
    elif steps:
        section = partial(_steps_section, results=results)
    elif graph:
        section = partial(_graph_section, form=form or "text")
    of = f"{_COMMAND} {named}".rstrip()
    await show_section(cli, of, section, job_id=job_id, queue=queue, past=past, archives=archives)


def _named(**given: bool) -> str:
    """Return the option of the section that was asked for; "" for none. Raises: UsageError."""
    named = [f"--{name}" for name, is_given in given.items() if is_given]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} each show a section of the job: give one of them")
    return named[0] if named else ""


def _refuse_alone(option: str, section: str, *, is_alone: bool) -> None:
    if is_alone:
        raise UsageError(f"{option} is about {section}: give both")


async def _whole(output: Output, read: JobRead) -> Callable[[], None]:
    archived = archived_payloads(read.log)
    more: dict[str, Any] = {"as_of": read.then or msgspec.UNSET, "chain": checked(read.chain)}
    shown = await details_as(JobShown, read.ledger, read.job, read.events, archived, **more)
    if output.as_json:
        return partial(output.object, shown)
    return partial(show_job, output, read.job, shown, read.events, now=read.now, chain=read.chain)


async def _steps_section(output: Output, read: JobRead, *, results: bool) -> Callable[[], None]:
    if results:
        read = read._replace(events=await opened_history(read.ledger.keys, read.events, values=True))
    return partial(show_steps, output, read, results=results)


async def _graph_section(output: Output, read: JobRead, *, form: Form) -> Callable[[], None]:
    return partial(show_graph, output, read, form)
