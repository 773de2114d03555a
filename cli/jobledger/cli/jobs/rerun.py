"""`jobledger jobs rerun`: begin a run again as a new job, which copies the steps that were recorded before one."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any

import typer

from jobledger.admin import run_acts
from jobledger.admin.find import find_job
from jobledger.cli import bulk, options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import JOBS
from jobledger.cli.jobs.input_text import read_object
from jobledger.cli.one_job import JobId
from jobledger.cli.output import Output
from jobledger.cli.session import load_tasks, operator
from jobledger.cli.text import colored, shortened
from jobledger.cli.times import time_of
from jobledger.ledger import TaskRegistry
from jobledger.ledger.reruns.beginning import Rerun, RerunPlan

_From = Annotated[
    str,
    typer.Option(
        "--from", metavar="STEP", help="Key of the first step that is executed; those before are copied."
    ),
]
_At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="Take the run as it was at this past time (UTC), by the server's clock."
    ),
]
_Input = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON", help="A whole new input as one object; - reads it from stdin."),
]
_Id = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="ID", help="Id of the new job; the same id twice makes one. (default: made)"
    ),
]


@command(JOBS, "rerun", takes=ROWS)
def rerun(
    cli: Cli,
    *,
    job_id: JobId,
    from_step: _From,
    at: _At = None,
    input_text: _Input = None,
    new_id: _Id = None,
    modules: options.App = None,
    reason: bulk.Why = "",
    queue: options.Queue = None,
    plan: bulk.Plan = False,
) -> Awaitable[None]:
    """Begin a run again as a new job: copy the steps before STEP, execute STEP and all that follow.

    The run itself stays as it is. With --app the task checks a new input.
    """
    how: Rerun = {"id": new_id, "by": operator(), "at": time_of("--at", at), "reason": reason}
    if input_text is not None:
        how["input"] = read_object(input_text, what="input")
    tasks = load_tasks(modules) if input_text is not None and options.split(modules) else None
    return _rerun(cli, job_id, from_step, queue, how, tasks, plan=plan)


async def _rerun(  # noqa: PLR0917 - what the command was told
    cli: Cli,
    job_id: str,
    from_step: str,
    queue: str | None,
    how: Rerun,
    tasks: TaskRegistry | None,
    *,
    plan: bool,
) -> None:
    async with cli.ledger() as ledger:
        rows = cli.rows(ledger)
        if tasks is not None:
            how["task"] = tasks.get((await (await find_job(rows, job_id, queue)).snapshot()).task)
        if plan:
            _show_plan(cli.output, await run_acts.rerun_planned(rows, job_id, from_step, queue, **how))
            return
        made = await run_acts.rerun(rows, job_id, from_step, queue, **how)
        source = (await made.snapshot()).order.rerun_of
    assert source is not None, "a rerun names its source"
    if cli.output.as_json:
        cli.output.object(
            {"id": made.id, "queue": made.ref.queue, "created": made.created, "rerun_of": source}
        )
        return
    if not made.created:
        cli.output.say(f"job {made.id} is this rerun already: nothing was changed")
        return
    copies = f"{source.steps:,} step{'' if source.steps == 1 else 's'}"
    cli.output.say(
        f"job {made.id} begins as {source.job} did: it copies {copies} and goes on with {from_step}"
    )
    cli.output.note(f"`jobledger jobs steps {made.id}` shows what it copied and what it did itself")


def _show_plan(output: Output, plan: RerunPlan) -> None:
    source = plan.rerun_of
    if output.as_json:
        copied = [{"step": step.key, "sequence": step.sequence} for step in plan.copied]
        again = [step.key for step in plan.again]
        output.object({"plan": True, "rerun_of": source, "copied": copied, "not_copied": again})
        return
    rows: list[tuple[Any, ...]] = [
        (step.number, shortened(step.key, 64), step.kind, colored(step.state), step.sequence, what)
        for what, steps in (("copied", plan.copied), ("not copied", plan.again))
        for step in steps
    ]
    output.table(("#>", "step", "kind!", "status!", "sequence>", "in the rerun!"), sorted(rows))
    of = f"{source.job} ({plan.source.state.value.replace('_', ' ')})"
    output.say(
        f"a rerun of {of} as of stream sequence {source.sequence:,} would copy {source.steps:,} of "
        f"{len(plan.source.steps):,} steps; nothing was changed"
    )
