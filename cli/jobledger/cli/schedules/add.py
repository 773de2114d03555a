"""`jobledger schedules add`: declare a schedule, as an operator."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Any

from jobledger.admin.schedule_words import next_words, when_words
from jobledger.admin.schedules import like_unloaded
from jobledger.cli import options as shared
from jobledger.cli.command import CREATES, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import SCHEDULES
from jobledger.cli.jobs import options as of_job
from jobledger.cli.jobs.input_text import read_object
from jobledger.cli.pairs import pairs
from jobledger.cli.schedules import options
from jobledger.cli.session import load_tasks, operator
from jobledger.cli.times import time_of
from jobledger.ledger import GraphRun, Task
from jobledger.ledger.graphs.graph_run import run_stored_graph
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.schedules.decisions import Declare
from jobledger.ledger.model.schedules.definition import WINDOW_S_DEFAULT, Definition
from jobledger.ledger.model.schedules.events import Schedule
from jobledger.ledger.model.schedules.ticks import Spec
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import Options
from jobledger.ledger.schedules.verbs import When


@command(SCHEDULES, "add", takes=("url", "environment", CREATES, "as_json"))
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
    queue: of_job.Queue = None,
    priority: of_job.Priority = None,
    max_attempts: of_job.MaxAttempts = None,
    timeout: of_job.Timeout = None,
    tenant: of_job.Tenant = None,
    correlation: of_job.Correlation = None,
    metadata: of_job.Metadata = None,
    limits: of_job.Limits = None,
    overlap: options.Overlap = "skip",
    catchup: options.Catchup = "latest",
    window: options.Window = WINDOW_S_DEFAULT,
    jitter: options.Jitter = 0,
    ends_at: options.EndsAt = None,
    replace: options.Replace = False,
) -> Awaitable[None]:
    """Declare a schedule; one that does the same already stays as it is. With --app the input is checked."""
    check_token("schedule name", name)
    when: When = {
        "cron": cron,
        "every_s": _whole("--every", every or 0),
        "at": time_of("--at", at, ahead=True),
        "timezone": timezone,
        "on_demand": on_demand,
        "overlap": overlap,
        "catchup": catchup,
        "window_s": _whole("--window", window),
        "jitter_s": _whole("--jitter", jitter),
        "ends_at": time_of("--ends-at", ends_at, ahead=True),
    }
    _check(task, graph, when)
    values = read_object(input_text, what=f"input of {f'task {task}' if task else f'graph {graph}'}")
    chosen: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "max_attempts": max_attempts,
        "timeout_s": timeout,
        "tenant": tenant,
        "correlation": correlation,
        "metadata": pairs(metadata, "--metadata") if metadata else None,
        "limits": tuple(limits or ()),
    }
    Options(**{option: value for option, value in chosen.items() if value is not None})
    # All that can be refused without a server is refused here, so a bad request never depends on one.
    if graph:
        _refuse_of_task(app, chosen)
        return _add_graph(cli, name, GraphRun(graph, values), when, replace=replace)
    return _add(cli, name, _checked(app, task, values), chosen, values, when, replace=replace)


def _checked(app: list[str] | None, task: str, values: dict[str, Any]) -> Task[..., Any] | str:
    """Return the task with its code where that is at hand, the input checked by it. Raises: InvalidInputError."""
    found = load_tasks(app).get(task) if app else None
    if found is None:
        return task
    found.signature.encode((), values)
    return found


async def _add(  # noqa: PLR0917 - all that was asked
    cli: Cli,
    name: str,
    task: Task[..., Any] | str,
    chosen: dict[str, Any],
    values: dict[str, Any],
    when: When,
    *,
    replace: bool,
) -> None:
    async with cli.ledger() as ledger:
        if isinstance(task, str):
            like, is_known = await like_unloaded(ledger, task, chosen, values)
            schedule = await ledger.schedules.declare(name, like, replace=replace, by=operator(), **when)
            if not is_known:
                cli.output.note(
                    f"no worker has ever had a task {task}: its jobs go to queue {like.ref.queue} and wait there for one"
                )
        else:
            schedule = await ledger.schedules.add(
                name, task.options(**chosen), input=values, replace=replace, by=operator(), **when
            )
        now = ledger.clock.now()
    _tell(cli, name, schedule, now)


def _refuse_of_task(app: list[str] | None, chosen: dict[str, Any]) -> None:
    """Refuse what is said of a task's jobs where a graph is run. Raises: UsageError."""
    if app or any(value is not None and value != () for value in chosen.values()):
        raise UsageError(
            "--graph takes only --input and what says when: its nodes say how their jobs are tried"
        )


async def _add_graph(cli: Cli, name: str, run: GraphRun, when: When, *, replace: bool) -> None:
    async with cli.ledger() as ledger:
        schedule = await ledger.schedules.add(name, run, replace=replace, by=operator(), **when)
        now = ledger.clock.now()
    _tell(cli, name, schedule, now)


def _tell(cli: Cli, name: str, schedule: Schedule, now: datetime) -> None:
    if cli.output.as_json:
        definition = schedule.definition
        body = {
            "name": name,
            "task": definition.task,
            "queue": definition.queue,
            "next_run_at": schedule.next_at,
        }
        cli.output.object(body)
    else:
        spec = schedule.definition.spec
        when_it_is = when_words(spec.cron, spec.every_s, spec.at, spec.timezone)
        cli.output.say(
            f"schedule {name}: {schedule.definition.task} {when_it_is}; {next_words(schedule.next_at, now)}"
        )


def _whole(option: str, given_s: float) -> int:
    """Return whole seconds. Raises: UsageError."""
    if given_s != int(given_s):
        raise UsageError(f"{option} {given_s:g}: give whole seconds")
    return int(given_s)


def _check(task: str, graph: str, when: When) -> None:
    """Refuse what could never tick. Raises: UsageError, InvalidInputError, InvalidTokenError."""
    if bool(task) == bool(graph):
        raise UsageError("say what it runs: give --task TASK, or --graph NAME")
    given = [option for option, has in _SPECS.items() if when.get(has)]
    if len(given) != 1:
        raise UsageError(
            f"give one of {', '.join(_SPECS)}" + (f", not {' and '.join(given)}" if given else "")
        )
    fields: dict[str, Any] = dict(when)
    spec = Spec(**{field: fields.pop(field) for field in Spec.__struct_fields__})
    queue = "default" if task else BUILT_IN_QUEUE
    Declare(definition=Definition(spec=spec, task=task or run_stored_graph.name, queue=queue, **fields))


_SPECS = {"--cron": "cron", "--every": "every_s", "--at": "at", "--on-demand": "on_demand"}
