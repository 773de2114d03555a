"""`jobledger routes set`: define a route, from a file or by options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
import typer

from jobledger.admin.hooks.routes import (
    ChangedRoute,
    definition_of,
    set_route,
    tasks_unheard_of,
)
from jobledger.cli import bulk
from jobledger.cli.command import CREATES, LEDGER, Cli, command
from jobledger.cli.definitions import read_definition
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import ROUTES
from jobledger.cli.jobs.input_text import read_object
from jobledger.cli.session import operator
from jobledger.cli.times import seconds
from jobledger.ledger.model.hooks.route import INTERNAL, RouteDefinition
from jobledger.ledger.model.hooks.schemes import PRESETS
from jobledger.ledger.model.json_text import check_text

_TOLERANCE_S_MAX: Final = 24 * 3600.0
_TASKS_SHOWN: Final = 5

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The route's name, the last word of its address /in/NAME.")
]
_File = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="The whole definition, as JSON or TOML.")
]
_Scheme = Annotated[
    str | None,
    typer.Option(
        "--scheme", metavar="SCHEME", help=f"How requests are proven: {', '.join(PRESETS)}, {INTERNAL}."
    ),
]
_Secret = Annotated[
    list[str] | None,
    typer.Option(
        "--secret", metavar="REF", help="Where a secret is: env:NAME or file:/PATH; may be given again."
    ),
]
_Task = Annotated[
    str | None, typer.Option("--task", metavar="TASK", help="Make a job of this task: the route's one rule.")
]
_Graph = Annotated[
    str | None, typer.Option("--graph", metavar="NAME", help="Instead of --task: run this stored graph.")
]
_Signal = Annotated[
    str | None,
    typer.Option(
        "--signal",
        metavar="NAME",
        help="Send a run this signal; with --task begin the run where it is not there.",
    ),
]
_Run = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="POINTER", help="Where the body has the id of that run, such as /order/id."
    ),
]
_Value = Annotated[
    str | None,
    typer.Option(
        "--value", metavar="SOURCE", help="What it says: a pointer, or JSON. (default: all of the body)"
    ),
]
_When = Annotated[
    str | None,
    typer.Option("--when", metavar="JSON", help="The condition of that rule; default: every delivery."),
]
_Input = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON", help="The input of that rule; default: all of the body."),
]
_Queue = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="The queue of that rule's jobs.")
]
_Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        metavar="SPAN",
        parser=seconds(1.0, _TOLERANCE_S_MAX),
        help="How far the time of a request may be from now. (default: 5m)",
    ),
]
_KeepDays = Annotated[
    int | None,
    typer.Option("--keep-days", min=0, metavar="N", help="How long bodies are kept; 0: not. (default: 7)"),
]
_BodyMax = Annotated[
    int | None,
    typer.Option("--body-max", min=1, metavar="BYTES", help="Larger requests are refused. (default: 1 MiB)"),
]


@command(ROUTES, "set", takes=(*LEDGER, CREATES))
async def set_(
    cli: Cli,
    *,
    name: Name,
    file: _File = None,
    scheme: _Scheme = None,
    secret: _Secret = None,
    task: _Task = None,
    graph: _Graph = None,
    signal: _Signal = None,
    run: _Run = None,
    value: _Value = None,
    when: _When = None,
    input_text: _Input = None,
    queue: _Queue = None,
    tolerance: _Tolerance = None,
    keep_days: _KeepDays = None,
    body_max: _BodyMax = None,
    reason: bulk.Why = "",
    plan: bulk.Plan = False,
) -> None:
    """Define a route: as a whole by --file, or by options, which change only what they name."""
    rule = _rule(task, graph, when, input_text, queue, signal=signal)
    if rule is not None and signal is not None:
        rule |= {"signal": signal, "id": run, "value": None if value is None else _source(value)}
    elif (run, value) != (None, None):
        raise UsageError("--run and --value are about a signal: name it by --signal NAME")
    chosen: dict[str, Any] = {
        "scheme": scheme,
        "secrets": None if secret is None else tuple(secret),
        "rules": None if rule is None else [rule],
        "tolerance_s": None if tolerance is None else int(tolerance),
        "keep_bodies_days": keep_days,
        "body_bytes_max": body_max,
    }
    said = {field: value for field, value in chosen.items() if value is not None}
    if bool(said) == (file is not None):
        raise UsageError(
            "say what the route does: by --file FILE, or by options such as --scheme github --secret env:NAME "
            "--task TASK"
        )
    given = definition_of(read_definition(str(file))) if file is not None else None
    async with cli.ledger() as ledger:
        if given is None:
            known = await ledger.routes.find(name)
            given = _changed(None if known is None else known.definition, said)
        done = await set_route(ledger, name, given, reason=reason, by=operator(), plan=plan)
        unheard_of = await tasks_unheard_of(ledger, given)
    _tell(cli, name, done, given, plan=plan)
    if unheard_of:
        cli.output.note(
            f"no worker has ever had {', '.join(unheard_of[:_TASKS_SHOWN])}: such jobs go to the queue default; start a "
            "worker first, or name a queue in the rule"
        )


def _rule(
    task: str | None,
    graph: str | None,
    when: str | None,
    input_text: str | None,
    queue: str | None,
    *,
    signal: str | None,
) -> dict[str, Any] | None:
    if task is None and graph is None and signal is None:
        if (when, input_text, queue) != (None, None, None):
            raise UsageError(
                "--when, --input and --queue are about a rule: name the task, the graph or the signal"
            )
        return None
    whole = {"*": "/"} if task or graph else {}
    return {
        "name": signal or task or graph,
        "task": task or "",
        "graph": graph or "",
        "when": {} if when is None else read_object(when, what="condition", option="--when"),
        "input": whole if input_text is None else read_object(input_text, what="input"),
        "queue": queue or "",
    }


def _source(text: str) -> Any:
    """Return the source of a signal's value in the form of a rule. Raises: InvalidInputError."""
    if text.startswith("/"):
        return text
    value = msgspec.json.decode(check_text(text.encode("utf-8", "surrogateescape"), what="JSON of --value"))
    return cast("object", value) if isinstance(value, dict) else {"value": value}


def _changed(known: RouteDefinition | None, said: dict[str, Any]) -> RouteDefinition:
    """Return a route with the given fields in place of its own. Raises: InvalidInputError, UsageError."""
    before: dict[str, Any] = {} if known is None else msgspec.to_builtins(known)
    if known is None and "scheme" not in said:
        raise UsageError("the route is not set yet: say --scheme, how its requests are proven")
    return definition_of({**before, **said})


def _tell(cli: Cli, name: str, done: ChangedRoute, definition: RouteDefinition, *, plan: bool) -> None:
    output = cli.output
    if output.as_json:
        output.object(done)
        return
    rules = ", ".join(f"{rule.name} -> {rule.target}" for rule in definition.rules) or "no rule"
    state = "as it was" if not done.changed else definition.scheme_name
    output.say(f"route {name} {'would be' if plan else 'is'} {state}: {rules}")
    if definition.signature is not None and done.changed and not plan:
        output.note(f"requests are taken at /in/{name} of every gateway that has its secrets")
    if plan:
        output.say("nothing was changed")
