"""`jobledger dlq requeue` and `discard`: act on one dead letter or on many, with a plan first if asked."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Final, Literal

import anyio.to_thread
import msgspec
import typer

from jobledger.admin.bulk import Act, ActResult, discard_act, perform, perform_one, requeue_act
from jobledger.admin.dead_letters import Choice, find_chosen
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.dlq import choice
from jobledger.cli.dlq.choice import check_acting, choose
from jobledger.cli.errors import DONE, FAILED, REFUSED, UsageError
from jobledger.cli.groups import DLQ
from jobledger.cli.jobs.input_text import pairs, read_object
from jobledger.cli.output import Output
from jobledger.cli.session import load_tasks, operator
from jobledger.cli.text import shortened
from jobledger.ledger.dead_letters import Requeuing

_SHOWN_MAX: Final = 50
_INPUT_SHOWN_MAX: Final = 120

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID|KEY=VALUE]...", help="Ids or prefixes of ids; arguments to replace in the input."
    ),
]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids or prefixes of ids.")]
_Input = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON", help="A whole new input as one object; - reads it from stdin."),
]
_Attempts = Annotated[
    int, typer.Option("--attempts", min=1, max=1_000, metavar="N", help="Number of new attempts.")
]
_Priority = Annotated[
    Literal["high", "normal", "low"] | None, typer.Option("--priority", help="(default: as before)")
]
_Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")]
_All = Annotated[bool, typer.Option("--all", metavar="", help="All dead letters.")]
_Plan = Annotated[
    bool, typer.Option("--plan", metavar="", help="Show what would happen, and change nothing.")
]
_Yes = Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask before changing many.")]
_LimitAll = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="At most this many, the oldest first.")
]


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to which dead letters, and how carefully."""

    choice: Choice
    act: Act
    detail: str = ""  #: what is the same for each, in words
    limit: int | None
    plan: bool
    yes: bool


@command(DLQ, "requeue", takes=ROWS)
def requeue(
    cli: Cli,
    *,
    words: _Words = None,
    input_text: _Input = None,
    app: options.App = None,
    attempts: _Attempts = 1,
    priority: _Priority = None,
    reason: _Why = "",
    queue: options.Queue = None,
    task: choice.Task = None,
    dead_reason: choice.Reason = None,
    fingerprint: choice.Fingerprint = None,
    since: choice.Since = None,
    older_than: choice.OlderThan = None,
    everything: _All = False,
    limit: _LimitAll = None,
    plan: _Plan = False,
    yes: _Yes = False,
) -> Awaitable[int]:
    """Give dead letters new attempts, perhaps with another input; the old input stays in the ledger."""
    chosen = choose(
        ids=[word for word in words or [] if "=" not in word],
        queue=queue,
        task=task,
        reason=dead_reason,
        fingerprint=fingerprint,
        since=since,
        older_than=older_than,
        everything=everything,
    )
    check_acting(chosen)
    edits = pairs([word for word in words or [] if "=" in word])
    if edits and input_text is not None:
        raise UsageError("give arguments to replace as key=value, or a whole new input as --input, not both")
    values = read_object(input_text, what="input") if input_text is not None else None
    is_new = bool(edits) or values is not None
    tasks = load_tasks(app) if is_new and options.split(app) else None
    how = Requeuing(input=values, attempts=attempts, priority=priority, reason=reason, tasks=tasks)
    more = "1 more attempt" if attempts == 1 else f"{attempts} more attempts"
    act = requeue_act(lambda each: _edited(how, edits, each.task), by=operator())
    return _perform(
        cli,
        _Asked(
            choice=chosen,
            act=act,
            detail=f" with {more}{f', priority {priority}' if priority else ''}{', and a new input' if is_new else ''}",
            limit=limit,
            plan=plan,
            yes=yes,
        ),
    )


@command(DLQ, "discard", takes=ROWS)
async def discard(
    cli: Cli,
    *,
    ids: _Ids = None,
    reason: _Why = "",
    queue: options.Queue = None,
    task: choice.Task = None,
    dead_reason: choice.Reason = None,
    fingerprint: choice.Fingerprint = None,
    since: choice.Since = None,
    older_than: choice.OlderThan = None,
    everything: _All = False,
    limit: _LimitAll = None,
    plan: _Plan = False,
    yes: _Yes = False,
) -> int:
    """Close dead letters for good; all of their events are kept."""
    chosen = choose(
        ids=ids or [],
        queue=queue,
        task=task,
        reason=dead_reason,
        fingerprint=fingerprint,
        since=since,
        older_than=older_than,
        everything=everything,
    )
    act = discard_act(reason, by=operator())
    return await _perform(cli, _Asked(choice=check_acting(chosen), act=act, limit=limit, plan=plan, yes=yes))


def _edited(how: Requeuing, edits: dict[str, str], task: str) -> Requeuing:
    """Read the values of key=value words by the task's types, or as JSON or text where it is not known."""
    if not edits:
        return how
    if how.tasks is not None:
        return msgspec.structs.replace(how, edit=how.tasks.get(task).signature.parse_words(edits))
    return msgspec.structs.replace(how, edit={name: _json_or_text(word) for name, word in edits.items()})


def _json_or_text(word: str) -> Any:
    try:
        return msgspec.json.decode(word.encode("utf-8", "surrogateescape"))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return word


async def _perform(cli: Cli, asked: _Asked) -> int:
    act, plan = asked.act, asked.plan
    async with cli.ledger() as ledger:
        rows = cli.rows(ledger)
        found = await find_chosen(rows, asked.choice, asked.limit)
        # Ids were named one by one; a condition may choose more than was meant.
        if found and not (plan or asked.yes or asked.choice.ids):
            await _ask(cli.output, asked, len(found))
        if len(asked.choice.ids) == 1:
            outcomes = [await perform_one(ledger, act, found[0], plan=plan)]
        else:
            outcomes = await perform(rows, act, found, plan=plan)
    _tell(cli.output, asked, outcomes)
    return DONE if plan or all(outcome.result == "done" for outcome in outcomes) else FAILED


async def _ask(output: Output, asked: _Asked, count: int) -> None:
    """Ask a person; a program has to say --yes.

    Raises: UsageError without a terminal, typer.Exit when the answer is no.
    """
    question = f"{asked.act.verb} {count:,} dead letter{'s' if count != 1 else ''}{asked.detail}?"
    if output.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            f"{question.rstrip('?')}: look at them with --plan, then repeat the command with --yes"
        )
    if not await anyio.to_thread.run_sync(lambda: typer.confirm(question), abandon_on_cancel=True):
        output.note("nothing was changed")
        raise typer.Exit(REFUSED)


def _tell(output: Output, asked: _Asked, outcomes: Sequence[ActResult]) -> None:
    act, detail, plan = asked.act, asked.detail, asked.plan
    if output.as_json:
        for outcome in outcomes:
            output.object(_object(act, outcome))
        return
    counts: Counter[str] = Counter(outcome.result for outcome in outcomes)
    done = counts["planned"] + counts["done"]
    if plan or counts["refused"] or counts["invalid"]:
        _table(output, outcomes, plan=plan)
    what = "1 dead letter" if done == 1 else f"{done:,} dead letters"
    if not outcomes:
        output.say("no dead letters match")
    elif plan:
        output.say(f"{what} would be {act.past}{detail}; nothing was changed")
    elif len(outcomes) == 1 and done:
        output.say(f"job {outcomes[0].chosen.ref.job_id} is {act.past}{detail}")
    else:
        output.say(f"{what} {'was' if done == 1 else 'were'} {act.past}{detail if done else ''}")
    for result, words in (
        ("refused", "refused: not dead letters any more"),
        ("invalid", "invalid: the request does not fit them"),
    ):
        if counts[result]:
            output.say(f"{counts[result]:,} {words}")


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
    return outcome.chosen.error


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
