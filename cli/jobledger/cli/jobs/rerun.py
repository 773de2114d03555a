"""`jobledger jobs rerun`: begin a run again as a new job, which copies the steps before one, or all completed steps."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Final

import typer

from jobledger.admin import run_acts
from jobledger.admin.find import find_job
from jobledger.cli import bulk, options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import JOBS
from jobledger.cli.jobs.input_text import read_object
from jobledger.cli.one_job import JobId
from jobledger.cli.output import Output
from jobledger.cli.session import load_tasks, operator
from jobledger.cli.text import colored, shortened
from jobledger.cli.times import time_of
from jobledger.ledger import TaskRegistry
from jobledger.ledger.model.runs.orders import RerunOf
from jobledger.ledger.reruns.plans import RerunPlan, RerunRequest

_PLANNED: Final = (("copied", "copied"), ("not copied", "again"))
_From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="STEP", help="Key of the first step that is executed; those before are copied."
    ),
]
_Failed = Annotated[
    bool,
    typer.Option(
        "--failed", metavar="", help="Copy every step and child that completed, and execute only the others."
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
    from_step: _From = None,
    failed: _Failed = False,
    at: _At = None,
    input_text: _Input = None,
    new_id: _Id = None,
    modules: options.App = None,
    reason: bulk.Why = "",
    queue: options.Queue = None,
    plan: bulk.Plan = False,
) -> Awaitable[None]:
    """Begin a run again as a new job: copy the steps before STEP, execute STEP and all that follow.

    With --failed, for a run that failed or was cancelled: copy all completed steps, also in branches and among
    children, and execute only the others. The run itself stays as it is. With --app the task checks a new input.
    """
    if failed == (from_step is not None):
        raise UsageError("give --failed, or --from STEP: one of the two")
    how: RerunRequest = {"from_step": from_step, "failed": failed}
    how |= {"id": new_id, "by": operator(), "at": time_of("--at", at), "reason": reason}
    if input_text is not None:
        how["input"] = read_object(input_text, what="input")
    tasks = load_tasks(modules) if input_text is not None and options.split(modules) else None
    return _rerun(cli, job_id, queue, how, tasks, plan=plan)


async def _rerun(
    cli: Cli,
    job_id: str,
    queue: str | None,
    how: RerunRequest,
    tasks: TaskRegistry | None,
    *,
    plan: bool,
) -> None:
    async with cli.ledger() as ledger:
        rows = cli.rows(ledger)
        if tasks is not None:
            how["task"] = tasks.get((await (await find_job(rows, job_id, queue)).snapshot()).task)
        if plan:
            _show_plan(cli.output, await run_acts.rerun_planned(rows, job_id, queue, **how))
            return
        made = await run_acts.rerun(rows, job_id, queue, **how)
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
    goes_on = f"goes on with {source.from_step}" if source.from_step else "executes what had not completed"
    cli.output.say(f"job {made.id} begins as {source.job} did: it copies {_copies(source)} and {goes_on}")
    cli.output.note(f"`jobledger jobs show {made.id} --steps` shows what it copied and what it did itself")


def _copies(source: RerunOf) -> str:
    steps = f"{source.steps:,} step{'' if source.steps == 1 else 's'}"
    if not source.children:
        return steps
    return f"{steps} and the ends of {source.children:,} {'child' if source.children == 1 else 'children'}"


def _show_plan(output: Output, plan: RerunPlan) -> None:
    source = plan.rerun_of
    if output.as_json:
        copied = [{"step": step.key, "sequence": step.sequence} for step in plan.copied]
        children = [{"step": each.step.key, "children": each.children} for each in plan.groups]
        told = {"plan": True, "rerun_of": source, "copied": copied, "children_copied": children}
        output.object({**told, "not_copied": [step.key for step in plan.again]})
        return
    steps = [(step, what) for what, some in _PLANNED for step in getattr(plan, some)]
    steps += [(each.step, f"{each.children:,} of {each.step.count or 0:,} copied") for each in plan.groups]
    rows: list[tuple[Any, ...]] = [
        (step.number, shortened(step.key, 64), step.kind, colored(step.state), step.sequence, what)
        for step, what in steps
    ]
    output.table(("#>", "step", "kind!", "status!", "sequence>", "in the rerun!"), sorted(rows))
    of = f"{source.job} ({plan.source.state.value.replace('_', ' ')})"
    output.say(
        f"a rerun of {of} as of stream sequence {source.sequence:,} would copy {_copies(source)}, of "
        f"{len(plan.source.steps):,} steps; nothing was changed"
    )
