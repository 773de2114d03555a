"""Acts on many jobs, as commands do them: a plan first if asked, a question before many, a table of what came of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import anyio.to_thread
import msgspec
import typer

from jobledger.admin.bulk import Act, ActResult, perform, perform_one
from jobledger.admin.choice import Chosen
from jobledger.admin.rows import Rows
from jobledger.cli.command import Cli
from jobledger.cli.errors import DONE, FAILED, REFUSED, UsageError
from jobledger.cli.output import Output
from jobledger.cli.text import shortened

_SHOWN_MAX: Final = 50
_INPUT_SHOWN_MAX: Final = 120

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids or prefixes of ids.")]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")]
Plan = Annotated[bool, typer.Option("--plan", metavar="", help="Show what would happen, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask before changing many.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="At most this many, the oldest first.")
]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to which jobs, and how carefully."""

    find: Callable[[Rows], Awaitable[list[Chosen]]]
    by_id: int  #: how many ids were named; 0: conditions choose
    act: Act
    noun: str  #: what one of them is called
    detail: str = ""  #: what is the same for each, in words
    refused: str = "not dead letters any more"  #: why some may be refused
    plan: bool
    yes: bool


async def perform_all(cli: Cli, asked: Asked) -> int:
    """Do what was asked, or show the plan; return the exit code.

    Raises: UsageError where a program has to say --yes, typer.Exit when a person says no; what finding them raises.
    """
    act, plan = asked.act, asked.plan
    async with cli.ledger() as ledger:
        rows = cli.rows(ledger)
        found = await asked.find(rows)
        # Ids were named one by one; a condition may choose more than was meant.
        if found and not (plan or asked.yes or asked.by_id):
            plural = "s" if len(found) != 1 else ""
            await ask(cli.output, f"{act.verb} {len(found):,} {asked.noun}{plural}{asked.detail}?")
        if asked.by_id == 1:
            outcomes = [await perform_one(ledger, act, found[0], plan=plan)]
        else:
            outcomes = await perform(rows, act, found, plan=plan)
    _tell(cli.output, asked, outcomes)
    return DONE if plan or all(outcome.result == "done" for outcome in outcomes) else FAILED


async def ask(output: Output, question: str) -> None:
    """Ask a person; a program has to say --yes.

    Raises: UsageError without a terminal, typer.Exit when the answer is no.
    """
    if output.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            f"{question.rstrip('?')}: look at them with --plan, then repeat the command with --yes"
        )
    if not await anyio.to_thread.run_sync(lambda: typer.confirm(question), abandon_on_cancel=True):
        output.note("nothing was changed")
        raise typer.Exit(REFUSED)


def _tell(output: Output, asked: Asked, outcomes: Sequence[ActResult]) -> None:
    act, detail, plan = asked.act, asked.detail, asked.plan
    if output.as_json:
        for outcome in outcomes:
            output.object(_object(act, outcome))
        return
    counts: Counter[str] = Counter(outcome.result for outcome in outcomes)
    done = counts["planned"] + counts["done"]
    if plan or counts["refused"] or counts["invalid"]:
        _table(output, outcomes, plan=plan)
    what = f"1 {asked.noun}" if done == 1 else f"{done:,} {asked.noun}s"
    if not outcomes:
        output.say(f"no {asked.noun}s match")
    elif plan:
        output.say(f"{what} would be {act.past}{detail}; nothing was changed")
    elif len(outcomes) == 1 and done:
        output.say(f"job {outcomes[0].chosen.ref.job_id} is {act.past}{detail}")
    else:
        output.say(f"{what} {'was' if done == 1 else 'were'} {act.past}{detail if done else ''}")
    for result, words in (
        ("refused", f"refused: {asked.refused}"),
        ("invalid", "invalid: the request does not fit them"),
    ):
        if counts[result]:
            output.say(f"{counts[result]:,} {words}")
    under_way = sum(bool(outcome.message) for outcome in outcomes if outcome.result in {"planned", "done"})
    if under_way:
        run = (
            "1 of them runs, and ends when its worker receives"
            if under_way == 1
            else f"{under_way:,} of them run, and end when their workers receive"
        )
        output.say(f"{run} the request")


def _table(output: Output, outcomes: Sequence[ActResult], *, plan: bool) -> None:
    """Show what fails before what does not."""
    rows = sorted(outcomes, key=lambda outcome: outcome.result in ("planned", "done"))
    if not plan:
        rows = [outcome for outcome in rows if outcome.result in ("refused", "invalid")]
    cells = [
        (
            shortened(outcome.chosen.ref.job_id, 36),
            shortened(outcome.chosen.task, 40),
            outcome.result,
            shortened(_about(outcome), 300),
        )
        for outcome in rows[:_SHOWN_MAX]
    ]
    if cells:
        output.table(("id!", "task", "result!", "about"), cells)
    if len(rows) > _SHOWN_MAX:
        output.note(f"{len(rows) - _SHOWN_MAX:,} more, all with --json")


def _about(outcome: ActResult) -> str:
    if outcome.message:
        return outcome.message
    if outcome.input_text is not None:
        return f"input {shortened(outcome.input_text.decode(errors='replace'), _INPUT_SHOWN_MAX)}"
    return outcome.chosen.about


def _object(act: Act, outcome: ActResult) -> dict[str, Any]:
    text = outcome.input_text
    return {
        "id": outcome.chosen.ref.job_id,
        "queue": outcome.chosen.ref.queue,
        "task": outcome.chosen.task,
        "action": act.verb,
        "result": outcome.result,
        "message": outcome.message,
        **({"input": msgspec.json.decode(text)} if text is not None else {}),
    }
