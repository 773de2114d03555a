"""`jobledger limits set` and `remove`: define a limit, or what differs for one key of it, and take that back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jobledger.admin.limits import ChangedLimit, remove_limit, set_limit
from jobledger.cli import bulk
from jobledger.cli.command import Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import LIMITS
from jobledger.cli.session import operator
from jobledger.cli.times import seconds
from jobledger.ledger.model.limits.definition import KEEPS, MODES, PERIOD_S_MAX, Terms, terms_words

Name = Annotated[
    str, typer.Argument(metavar="LIMIT", help="The limit's name, or NAME:KEY for one key of it.")
]
_Slots = Annotated[
    str | None, typer.Option("--slots", metavar="N|none", help="How many jobs may hold it at once; 0: none.")
]
_Rate = Annotated[
    str | None, typer.Option("--rate", metavar="N|none", help="How many jobs may start in the time of --per.")
]
_Per = Annotated[
    float | None,
    typer.Option(
        "--per",
        metavar="SPAN",
        parser=seconds(0.001, PERIOD_S_MAX),
        help="The period of --rate, such as 1m. (default: 1s)",
    ),
]
_Burst = Annotated[
    int | None, typer.Option("--burst", min=1, metavar="N", help="How many may start at once after a pause.")
]
_Mode = Annotated[
    str | None,
    typer.Option("--mode", metavar="MODE", help=f"What a job does that finds it full: {', '.join(MODES)}."),
]
_Keep = Annotated[
    str | None,
    typer.Option(
        "--keep",
        metavar="KEEP",
        help=f"When a job gives its slot back, after each attempt or at its end: {', '.join(KEEPS)}.",
    ),
]
_Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="PATTERN",
        help="Only jobs of such queues may name it; may be repeated. '*': all may, none: nobody says any more.",
    ),
]
_Tasks = Annotated[
    list[str] | None, typer.Option("--task", metavar="PATTERN", help="The same of tasks; may be repeated.")
]
_Weight = Annotated[
    float | None, typer.Option("--weight", metavar="X", help="Its share beside others, 1 by default.")
]


@command(LIMITS, "set")
async def set_(
    cli: Cli,
    *,
    limit: Name,
    slots: _Slots = None,
    rate: _Rate = None,
    per: _Per = None,
    burst: _Burst = None,
    mode: _Mode = None,
    keep: _Keep = None,
    weight: _Weight = None,
    queue: _Queues = None,
    task: _Tasks = None,
    reason: bulk.Why = "",
    plan: bulk.Plan = False,
) -> None:
    """Define a limit, or what differs for one key; what is not named stays. Nothing that runs is ended for it."""
    given = {
        "slots": _number("--slots", slots, int),
        "rate": _number("--rate", rate, float),
        "per_s": per,
        "burst": burst,
        "mode": mode,
        "keep": keep,
        "weight": weight,
        "queues": _patterns(queue),
        "tasks": _patterns(task),
    }
    unbound = {name: None for name, word in (("slots", slots), ("rate", rate)) if word == "none"}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None} | unbound
    if not changes:
        raise UsageError(
            "say what is to hold: --slots N, --rate N --per SPAN, --slots none for no bound, or who may name it: "
            "--queue PATTERN, --task PATTERN"
        )
    async with cli.ledger() as ledger:
        found = await set_limit(ledger, limit, changes, reason=reason, by=operator(), plan=plan)
    _tell(cli, found, plan=plan)


@command(LIMITS, "remove")
async def remove(cli: Cli, *, limit: Name, reason: bulk.Why = "", plan: bulk.Plan = False) -> None:
    """Take back what a person said of a limit, or of one key (NAME:KEY): it is then as the code of a running worker says.

    Where no running worker's code has the limit, nothing defines it any more, and its jobs stay held.
    """
    async with cli.ledger() as ledger:
        found = await remove_limit(ledger, limit, reason=reason, by=operator(), plan=plan)
    _tell(cli, found, plan=plan)


def _patterns(given: list[str] | None) -> tuple[str, ...] | None:
    """Return patterns of names; none of the word `none`, None where nothing was said."""
    return None if not given else () if given == ["none"] else tuple(sorted(set(given)))


def _number(option: str, word: str | None, kind: type[int | float]) -> int | float | None:
    """Read a number. Raises: UsageError."""
    if word is None or word == "none":
        return None
    try:
        return kind(word)
    except ValueError as error:
        what = "a whole number" if kind is int else "a number"
        raise UsageError(f"{option} {word[:60]!r} is not {what} and not none") from error


def _tell(cli: Cli, found: ChangedLimit, *, plan: bool) -> None:
    if cli.output.as_json:
        cli.output.object(found)
        return
    before, after = _words(found.before), _words(found.after)
    was = f" (before: {before})" if before != after else ""
    if found.after is None:
        verb = "would be removed" if plan else "is removed"
        cli.output.say(f"limit {found.limit} {verb}{was}")
        cli.output.note(
            "jobs that name it stay held until it is set again, by a person or by the code that has it"
        )
    else:
        verb = "would be" if plan else "is"
        cli.output.say(f"limit {found.limit} {verb}: {after}{was}")
        if (found.source_before, found.source) == ("code", "operator"):
            cli.output.note(
                f"the code does not change it from here on; `jobledger limits remove {found.limit}` gives it back"
            )
        elif found.source == "code":
            cli.output.note("that is as the code has it, which may change it")
    if plan:
        cli.output.say("nothing was changed")


def _words(terms: Terms | None) -> str:
    return "not set" if terms is None else terms_words(terms)
