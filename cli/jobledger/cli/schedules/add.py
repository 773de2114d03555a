"""`jobledger schedules add`: declare a schedule, as an operator."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from jobledger.admin.objects.schedules import schedule_made
from jobledger.admin.verbs.schedules import DeclareSchedule
from jobledger.cli import options as shared
from jobledger.cli.command import CREATES, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import SCHEDULES
from jobledger.cli.jobs import options as of_job
from jobledger.cli.jobs.input_text import read_object
from jobledger.cli.schedules import options
from jobledger.cli.session import load_tasks, operator
from jobledger.cli.times import time_of
from jobledger.cli.verbs import perform, tell_answer
from jobledger.ledger import Task
from jobledger.ledger.graphs.graph_run import run_stored_graph
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.schedules.decisions import Declare
from jobledger.ledger.model.schedules.definition import WINDOW_S_DEFAULT, Definition
from jobledger.ledger.model.schedules.ticks import Spec
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import Options


@command(SCHEDULES, "add", takes=("url", "environment", CREATES, "as_json"), order=of_job.LATER)
def add(
    cli: Cli,
    *,
    name: options.Name,
    task: options.Task = "",
    graph: options.Graph = "",
    cron: options.Cron = "",
    timezone: options.Timezone = "UTC",
    every: options.Every = None,
    at: options.At = None,
    on_demand: options.OnDemand = False,
    input_text: options.Input = "{}",
    app: shared.App = None,
    order: of_job.Typed,
    overlap: options.Overlap = "skip",
    catchup: options.Catchup = "latest",
    window: options.Window = WINDOW_S_DEFAULT,
    jitter: options.Jitter = 0,
    ends_at: options.EndsAt = None,
    replace: options.Replace = False,
) -> Awaitable[None]:
    """Declare a schedule; an existing one with the same definition stays as it is. With --app the input is checked."""
    check_token("schedule name", name)
    wish = DeclareSchedule(
        name=name,
        task=task,
        graph=graph,
        input=read_object(input_text, what=f"input of {f'task {task}' if task else f'graph {graph}'}"),
        cron=cron,
        every_s=_whole("--every", every or 0),
        at=time_of("--at", at, ahead=True),
        timezone=timezone,
        on_demand=on_demand,
        overlap=overlap,
        catchup=catchup,
        window_s=_whole("--window", window),
        jitter_s=_whole("--jitter", jitter),
        ends_at=time_of("--ends-at", ends_at, ahead=True),
        replace=replace,
        **of_job.chosen(order),
    )
    _check(wish)
    return _add(cli, wish, app)


def _add(cli: Cli, wish: DeclareSchedule, app: list[str] | None) -> Awaitable[None]:
    """Declare a schedule, by its task's code if --app has it. Raises: UsageError, and the errors of the input check."""
    if wish.graph and app:
        raise UsageError("--app has the code of a task: leave it out beside --graph")
    code = load_tasks(app).get(wish.task) if app else None
    if code is None:
        return perform(cli, wish)
    code.signature.encode((), wish.input)
    return _add_by_code(cli, wish, code)


async def _add_by_code(cli: Cli, wish: DeclareSchedule, code: Task[..., Any]) -> None:
    """Declare a schedule of a task whose code is here, with the options that the code gives its jobs."""
    async with cli.ledger() as ledger:
        schedule = await ledger.schedules.add(
            wish.name,
            code.options(**wish.chosen),
            input=wish.input,
            replace=wish.replace,
            by=operator(),
            **wish.when,
        )
        now = ledger.clock.now()
    tell_answer(cli.output, wish, schedule_made(wish.name, schedule, now, is_known=True), now)


def _whole(option: str, given_s: float) -> int:
    """Return whole seconds. Raises: UsageError."""
    if given_s != int(given_s):
        raise UsageError(f"{option} {given_s:g}: give whole seconds")
    return int(given_s)


def _check(wish: DeclareSchedule) -> None:
    """Refuse, without a server, a schedule that can make no job. Raises: InvalidInputError, InvalidTokenError."""
    Options(**{name: value for name, value in wish.chosen.items() if value is not None})
    fields: dict[str, Any] = dict(wish.when)
    spec = Spec(**{field: fields.pop(field) for field in Spec.__struct_fields__})
    task, queue = (wish.task, "default") if wish.task else (run_stored_graph.name, BUILT_IN_QUEUE)
    Declare(definition=Definition(spec=spec, task=task, queue=queue, **fields))
