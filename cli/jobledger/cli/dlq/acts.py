"""`jobledger dlq requeue` and `discard`: act on one dead letter or on many, with a plan first if asked."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import anyio.to_thread
import msgspec
import typer

from jobledger.cli import options
from jobledger.cli.dlq import choice as dlq_choice
from jobledger.cli.dlq.choice import Choice, Chosen, check_acting, choose, find_chosen
from jobledger.cli.errors import FAILED, REFUSED, UsageError
from jobledger.cli.jobs.input_text import pairs, read_object
from jobledger.cli.output import Output
from jobledger.cli.session import Target, load_tasks, opened, operator, run
from jobledger.cli.text import shortened
from jobledger.ledger import Ledger
from jobledger.ledger.config import DEFAULT_URL
from jobledger.ledger.dead_letters import Requeuing, plan_discard, plan_requeue, requeue
from jobledger.ledger.model.commands import Discard
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    InvalidError,
    NotFoundError,
    PayloadMissingError,
)

_AT_ONCE: Final = 32
_SHOWN_MAX: Final = 50
_INPUT_SHOWN_MAX: Final = 120

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID|KEY=VALUE]...", help="Ids, or prefixes of them; arguments to replace in the input."
    ),
]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or prefixes of them.")]
_Input = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON", help="A whole new input as one object; - reads it from stdin."),
]
_Attempts = Annotated[
    int, typer.Option("--attempts", min=1, max=1_000, metavar="N", help="How many more it may have.")
]
_Priority = Annotated[
    Literal["high", "normal", "low"] | None, typer.Option("--priority", help="(default: as before)")
]
_Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")]
_All = Annotated[bool, typer.Option("--all", metavar="", help="Every dead letter there is.")]
_Plan = Annotated[
    bool, typer.Option("--plan", metavar="", help="Show what would happen; nothing is changed.")
]
_Yes = Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask before many are changed.")]
_LimitAll = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="At most this many, the oldest first.")
]

Result = Literal["planned", "done", "refused", "invalid"]


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One verb on dead letters: how it is tried and how it is done, each on one job."""

    verb: Literal["requeue", "discard"]
    past: str  #: "requeued"
    detail: str  #: what is the same for each
    plan: Callable[[Ledger, Chosen], Awaitable[bytes | None]]  #: returns the new input's text
    do: Callable[[Ledger, Chosen], Awaitable[bytes | None]]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one dead letter."""

    chosen: Chosen
    result: Result
    message: str = ""
    input_text: bytes | None = None


def add_to(app: typer.Typer) -> typer.Typer:
    """Add the acts to the commands of `dlq`."""
    app.command("requeue")(requeue_command)
    app.command("discard")(discard_command)
    return app


def requeue_command(
    *,
    words: _Words = None,
    input_text: _Input = None,
    app: options.App = None,
    attempts: _Attempts = 1,
    priority: _Priority = None,
    reason: _Why = "",
    queue: options.Queue = None,
    task: dlq_choice.Task = None,
    dead_reason: dlq_choice.Reason = None,
    fingerprint: dlq_choice.Fingerprint = None,
    since: dlq_choice.Since = None,
    older_than: dlq_choice.OlderThan = None,
    everything: _All = False,
    limit: _LimitAll = None,
    plan: _Plan = False,
    yes: _Yes = False,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Give dead letters new attempts, perhaps with another input; the one before stays in the ledger."""
    ids = [word for word in words or [] if "=" not in word]
    edits = pairs([word for word in words or [] if "=" in word])
    choice = choose(
        ids=ids,
        queue=queue,
        task=task,
        reason=dead_reason,
        fingerprint=fingerprint,
        since=since,
        older_than=older_than,
        everything=everything,
    )
    check_acting(choice)
    if edits and input_text is not None:
        raise UsageError("give arguments to replace as key=value, or a whole new input as --input, not both")
    values = read_object(input_text, what="input") if input_text is not None else None
    tasks = load_tasks(app) if (edits or values is not None) and options.split(app) else None
    how = Requeuing(input=values, attempts=attempts, priority=priority, reason=reason, tasks=tasks)
    act = _requeue_act(how, edits)
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    run(lambda: _act(output, target, projection, choice, act, limit=limit, plan=plan, yes=yes))


def discard_command(
    *,
    ids: _Ids = None,
    reason: _Why = "",
    queue: options.Queue = None,
    task: dlq_choice.Task = None,
    dead_reason: dlq_choice.Reason = None,
    fingerprint: dlq_choice.Fingerprint = None,
    since: dlq_choice.Since = None,
    older_than: dlq_choice.OlderThan = None,
    everything: _All = False,
    limit: _LimitAll = None,
    plan: _Plan = False,
    yes: _Yes = False,
    projection: options.ProjectionFile = None,
    url: options.Url = DEFAULT_URL,
    environment: options.Environment = "",
    as_json: options.Json = False,
) -> None:
    """Close dead letters for good; all of their events are kept."""
    choice = choose(
        ids=ids or [],
        queue=queue,
        task=task,
        reason=dead_reason,
        fingerprint=fingerprint,
        since=since,
        older_than=older_than,
        everything=everything,
    )
    check_acting(choice)
    output, target = Output(as_json=as_json), Target(url=url, environment=environment)
    act = _discard_act(reason)
    run(lambda: _act(output, target, projection, choice, act, limit=limit, plan=plan, yes=yes))


def _requeue_act(how: Requeuing, edits: dict[str, str]) -> Act:
    async def plan(ledger: Ledger, chosen: Chosen) -> bytes | None:
        return (await plan_requeue(ledger, chosen.ref, _edited(how, edits, chosen.task))).input_text

    async def do(ledger: Ledger, chosen: Chosen) -> bytes | None:
        edited = _edited(how, edits, chosen.task)
        return (await requeue(ledger, chosen.ref, edited, by=operator())).input_text

    more = "1 more attempt" if how.attempts == 1 else f"{how.attempts} more attempts"
    priority = f", priority {how.priority}" if how.priority else ""
    changed = ", and a new input" if edits or how.input is not None else ""
    return Act(verb="requeue", past="requeued", detail=f" with {more}{priority}{changed}", plan=plan, do=do)


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


def _discard_act(reason: str) -> Act:
    async def plan(ledger: Ledger, chosen: Chosen) -> None:
        await plan_discard(ledger, chosen.ref)

    async def do(ledger: Ledger, chosen: Chosen) -> None:
        await ledger.execute(chosen.ref, Discard(reason=reason), by=operator())

    return Act(verb="discard", past="discarded", detail="", plan=plan, do=do)


async def _act(
    output: Output,
    target: Target,
    projection: Path | None,
    choice: Choice,
    act: Act,
    *,
    limit: int | None,
    plan: bool,
    yes: bool,
) -> None:
    async with opened(target) as ledger:
        found = await find_chosen(ledger, output, projection, choice, limit)
        alone = len(choice.ids) == 1
        if not (plan or yes or choice.ids) and found:  # who named each of them has said so already
            await _ask(output, act, len(found))
        each = act.plan if plan else act.do
        if alone:
            outcomes = [await _one(ledger, each, found[0], plan=plan)]
        else:
            outcomes = await _many(output, ledger, each, found, act=act, plan=plan)
    _tell(output, act, outcomes, plan=plan)
    if not plan and any(outcome.result != "done" for outcome in outcomes):
        raise typer.Exit(FAILED)


async def _ask(output: Output, act: Act, count: int) -> None:
    """Ask a person; a program has to say --yes.

    Raises: UsageError without a terminal, typer.Exit when the answer is no.
    """
    question = f"{act.verb} {count:,} dead letter{'s' if count != 1 else ''}{act.detail}?"
    if output.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"{question.rstrip('?')}: look at them with --plan, then say --yes")
    if not await anyio.to_thread.run_sync(lambda: typer.confirm(question), abandon_on_cancel=True):
        output.note("nothing was changed")
        raise typer.Exit(REFUSED)


async def _one(
    ledger: Ledger, each: Callable[[Ledger, Chosen], Awaitable[bytes | None]], chosen: Chosen, *, plan: bool
) -> Outcome:
    text = await each(ledger, chosen)
    return Outcome(chosen=chosen, result="planned" if plan else "done", input_text=text)


async def _many(
    output: Output,
    ledger: Ledger,
    each: Callable[[Ledger, Chosen], Awaitable[bytes | None]],
    found: Sequence[Chosen],
    *,
    act: Act,
    plan: bool,
) -> list[Outcome]:
    """Try or do it for each, some at once; one that is refused keeps nobody from the others."""
    outcomes: dict[int, Outcome] = {}
    left = iter(enumerate(found))

    async def work() -> None:
        for number, chosen in left:
            try:
                outcomes[number] = await _one(ledger, each, chosen, plan=plan)
            except (IllegalTransitionError, NotFoundError) as error:
                outcomes[number] = Outcome(chosen=chosen, result="refused", message=str(error))
            except (InvalidError, PayloadMissingError) as error:
                outcomes[number] = Outcome(chosen=chosen, result="invalid", message=str(error))
            progress(len(outcomes), len(found))

    with output.progress(f"looking at what to {act.verb}" if plan else act.past) as progress:
        async with anyio.create_task_group() as group:
            for _ in range(min(_AT_ONCE, len(found))):
                group.start_soon(work)
    return [outcomes[number] for number in sorted(outcomes)]


def _tell(output: Output, act: Act, outcomes: Sequence[Outcome], *, plan: bool) -> None:
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
        output.say("no dead letters fit")
    elif plan:
        output.say(f"{what} would be {act.past}{act.detail}; nothing was changed")
    elif len(outcomes) == 1 and done:
        output.say(f"job {outcomes[0].chosen.ref.job_id} is {act.past}{act.detail}")
    else:
        output.say(f"{what} {'was' if done == 1 else 'were'} {act.past}{act.detail if done else ''}")
    for result, words in (
        ("refused", "refused: no dead letter any more"),
        ("invalid", "cannot be done as it is"),
    ):
        if counts[result]:
            output.say(f"{counts[result]:,} {words}")


def _table(output: Output, outcomes: Sequence[Outcome], *, plan: bool) -> None:
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


def _about(outcome: Outcome) -> str:
    if outcome.message:
        return outcome.message
    if outcome.input_text is not None:
        return f"input {shortened(outcome.input_text.decode(errors='replace'), _INPUT_SHOWN_MAX)}"
    return outcome.chosen.error


def _object(act: Act, outcome: Outcome) -> dict[str, Any]:
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
