"""`jobledger dlq requeue` and `discard`: act on one dead letter or on many, with a plan first if asked."""

from __future__ import annotations

import functools
from collections.abc import Awaitable
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from jobledger.admin.bulk import discard_act, requeue_act
from jobledger.admin.dead_letters import find_dead_letters
from jobledger.cli import bulk, options
from jobledger.cli.command import CHOOSES, Cli, command
from jobledger.cli.dlq.choice import ActChoice, choose
from jobledger.cli.errors import UsageError
from jobledger.cli.groups import DLQ
from jobledger.cli.jobs.input_text import read_object
from jobledger.cli.pairs import pairs
from jobledger.cli.search import completions, ids_and_search, is_edit
from jobledger.cli.session import load_tasks, operator
from jobledger.ledger.dead_letters import RequeueOptions

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID|QUERY|KEY=VALUE",
        help="Ids or prefixes of ids, or a search; arguments to replace in the input.",
        autocompletion=completions,
    ),
]
_Input = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON", help="A whole new input as one object; - reads it from stdin."),
]
_Attempts = Annotated[
    int, typer.Option("--attempts", min=1, max=1_000, metavar="N", help="Number of new attempts.")
]
_Priority = Annotated[
    Literal["high", "normal", "low"] | None,
    typer.Option("--priority", metavar="LEVEL", help="high, normal or low. (default: as before)"),
]
_CHOSEN: Final = ("dead letters", "--fingerprint, --dead-reason")


@command(DLQ, "requeue", takes=CHOOSES)
def requeue(
    cli: Cli,
    *,
    words: _Words = None,
    input_text: _Input = None,
    app: options.App = None,
    attempts: _Attempts = 1,
    priority: _Priority = None,
    reason: bulk.Why = "",
    chosen: ActChoice,
    doing: bulk.ActOptions,
) -> Awaitable[int]:
    """Give dead letters new attempts, perhaps with another input; the old input stays in the ledger."""
    edited = [word for word in words or [] if is_edit(word)]
    ids, sought = ids_and_search(word for word in words or [] if word not in edited)
    choice = choose(cli.said, chosen, ids=ids, search=sought)
    bulk.check_chosen(choice, *_CHOSEN)
    edits = pairs(edited)
    if edits and input_text is not None:
        raise UsageError("give arguments to replace as key=value, or a whole new input as --input, not both")
    values = read_object(input_text, what="input") if input_text is not None else None
    is_new = bool(edits) or values is not None
    tasks = load_tasks(app) if is_new and options.split(app) else None
    how = RequeueOptions(input=values, attempts=attempts, priority=priority, reason=reason, tasks=tasks)
    more = "1 more attempt" if attempts == 1 else f"{attempts} more attempts"
    act = requeue_act(lambda each: _edited(how, edits, each.task), by=operator())
    return bulk.perform_all(
        cli,
        bulk.BulkAct(
            find=functools.partial(find_dead_letters, choice=choice, limit=doing.limit),
            by_id=len(choice.ids),
            act=act,
            noun="dead letter",
            detail=f" with {more}{f', priority {priority}' if priority else ''}{', and a new input' if is_new else ''}",
            doing=doing,
        ),
    )


@command(DLQ, "discard", takes=CHOOSES)
async def discard(
    cli: Cli,
    *,
    ids: bulk.Ids = None,
    reason: bulk.Why = "",
    chosen: ActChoice,
    doing: bulk.ActOptions,
) -> int:
    """Close dead letters for good; all of their events are kept."""
    named, sought = ids_and_search(ids)
    choice = choose(cli.said, chosen, ids=named, search=sought)
    bulk.check_chosen(choice, *_CHOSEN)
    act = discard_act(reason, by=operator())
    find = functools.partial(find_dead_letters, choice=choice, limit=doing.limit)
    asked = bulk.BulkAct(find=find, by_id=len(choice.ids), act=act, noun="dead letter", doing=doing)
    return await bulk.perform_all(cli, asked)


def _edited(how: RequeueOptions, edits: dict[str, str], task: str) -> RequeueOptions:
    """Read the values of key=value words by the task's types, or as JSON or text if the task's code is not here."""
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
