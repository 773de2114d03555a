"""Acts of commands on many jobs: a plan if asked for, a question before acts on many, a table of the results."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

import anyio.to_thread
import msgspec
import typer

from jobledger.admin.bulk import Act, ActResult, Result, perform, perform_one
from jobledger.admin.choice import Choice, ChosenJob
from jobledger.admin.objects.acts import act_done
from jobledger.admin.rows import Rows
from jobledger.cli.command import Cli
from jobledger.cli.errors import DONE, FAILED, REFUSED, UsageError
from jobledger.cli.options import OptionGroup
from jobledger.cli.output import Output
from jobledger.cli.search import completions
from jobledger.cli.text import shortened
from jobledger.projections.filters import SaidFilter

_SHOWN_MAX: Final = 50
_INPUT_SHOWN_MAX: Final = 120
_FINE: Final = ("planned", "done")

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID|QUERY",
        help="Ids or prefixes of ids; or a search, such as 'tenant:acme error:CardDeclined'.",
        autocompletion=completions,
    ),
]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")]
Plan = Annotated[bool, typer.Option("--plan", metavar="", help="Show what would happen, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask before changing many.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="At most this many, the oldest first.")
]


class ActOptions(OptionGroup, frozen=True):
    """The options of an act on jobs that a command chooses: how many of them, planned or done, asked or not."""

    limit: Limit = None
    plan: Plan = False
    yes: Yes = False


class BulkAct(msgspec.Struct, frozen=True, kw_only=True):
    """An act, its jobs, and whether to plan it or to ask first."""

    find: Callable[[Rows], Awaitable[list[ChosenJob]]]
    by_id: int  #: number of ids that were named; 0: conditions choose the jobs
    act: Act
    noun: str  #: word for one of the jobs
    detail: str = ""  #: words on details that are the same for all jobs
    refused: str = "not dead letters any more"  #: reason why some may be refused
    doing: ActOptions


def check_chosen(choice: Choice, noun: str, conditions: str) -> None:
    """Refuse a command that chooses no jobs, or chooses them in two ways, so that no act on many happens by mistake.

    `conditions`: options for jobs of this kind only, as words of the sentence. Raises: UsageError.
    """
    if choice.names_twice:
        raise UsageError("name jobs by their ids or choose them by options, not both")
    if choice.names_nothing:
        *said, last = (f"--{name.replace('_', '-')}" for name in SaidFilter.__struct_fields__)
        raise UsageError(
            f"choose {noun}: by id, by a search, by --queue, --task, {conditions}, --since, --older-than, "
            f"{', '.join(said)} or {last}, or --all of them"
        )


async def perform_all(cli: Cli, asked: BulkAct) -> int:
    """Do the act, or show the plan; return the exit code.

    Raises: UsageError if a program has to give --yes, typer.Exit if a person says no; the errors of finding the jobs.
    """
    act, plan = asked.act, asked.doing.plan
    async with cli.ledger() as ledger:
        rows = cli.rows(ledger)
        found = await asked.find(rows)
        # Ids were named one by one, but a condition may choose more jobs than intended.
        if found and not (plan or asked.doing.yes or asked.by_id):
            await ask(cli.output, f"{act.verb} {_counted(len(found), asked.noun)}{asked.detail}?")
        if asked.by_id == 1:
            outcomes = [await perform_one(ledger, act, found[0], plan=plan)]
        else:
            outcomes = await perform(rows, act, found, plan=plan)
    _tell(cli.output, asked, outcomes)
    return DONE if plan or all(outcome.result == "done" for outcome in outcomes) else FAILED


async def ask(output: Output, question: str, *, look: str = "--plan") -> None:
    """Ask a person; a program has to say --yes. `look`: what shows what would be changed.

    Raises: UsageError without a terminal, typer.Exit when the answer is no.
    """
    if output.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            f"{question.rstrip('?')}: look at them with {look}, then repeat the command with --yes"
        )
    if not await anyio.to_thread.run_sync(lambda: typer.confirm(question), abandon_on_cancel=True):
        output.note("nothing was changed")
        raise typer.Exit(REFUSED)


def _tell(output: Output, asked: BulkAct, outcomes: Sequence[ActResult]) -> None:
    if output.as_json:
        for outcome in outcomes:
            output.object(act_done(asked.act.verb, outcome))
        return
    fine = [outcome for outcome in outcomes if outcome.result in _FINE]
    failed = [outcome for outcome in outcomes if outcome.result not in _FINE]
    _table(output, [*failed, *fine] if asked.doing.plan else failed)
    for line in (
        _in_all(asked, outcomes, len(fine)),
        _why_not(failed, "refused", asked.refused),
        _why_not(failed, "invalid", "the request does not fit them"),
        _under_way(sum(bool(outcome.message) for outcome in fine)),
    ):
        if line:
            output.say(line)


def _in_all(asked: BulkAct, outcomes: Sequence[ActResult], done: int) -> str:
    """Return the sentence on how many jobs the act was done to, or would be."""
    past, what = f"{asked.act.past}{asked.detail}", _counted(done, asked.noun)
    if not outcomes:
        return f"no {asked.noun}s match"
    if asked.doing.plan:
        return f"{what} would be {past}; nothing was changed"
    if not done:
        return f"{what} were {asked.act.past}"
    if len(outcomes) == 1:
        return f"job {outcomes[0].chosen.ref.job_id} is {past}"
    return f"{what} {'was' if done == 1 else 'were'} {past}"


def _why_not(failed: Sequence[ActResult], result: Result, why: str) -> str:
    count = sum(outcome.result == result for outcome in failed)
    return f"{count:,} {result}: {why}" if count else ""


def _under_way(count: int) -> str:
    """Say that running jobs were asked to end: theirs are the only successful outcomes with a message."""
    if count == 1:
        return "1 of them runs, and ends when its worker receives the request"
    return f"{count:,} of them run, and end when their workers receive the request" if count else ""


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _table(output: Output, outcomes: Sequence[ActResult]) -> None:
    cells = [
        (
            outcome.chosen.ref.job_id,
            shortened(outcome.chosen.task, 40),
            outcome.result,
            shortened(_about(outcome), 300),
        )
        for outcome in outcomes[:_SHOWN_MAX]
    ]
    if cells:
        output.table(("id!", "task", "result!", "about"), cells)
    if len(outcomes) > _SHOWN_MAX:
        output.note(f"{len(outcomes) - _SHOWN_MAX:,} more, all with --json")


def _about(outcome: ActResult) -> str:
    if outcome.message:
        return outcome.message
    if outcome.input_text is not None:
        return f"input {shortened(outcome.input_text.decode(errors='replace'), _INPUT_SHOWN_MAX)}"
    return outcome.chosen.about
