"""`jobledger limits list` and `show`: the list of limits, and one limit with its history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, TypeVar

import typer

from jobledger.admin.events.changes import Change
from jobledger.admin.held import LimitNow, limit_now
from jobledger.admin.limits import ShownLimit, show_limit
from jobledger.admin.objects.fleet import (
    LimitListed,
    limit_shown,
    limits_listed,
    taken_words,
)
from jobledger.admin.verbs.kit import Heading, told_changes
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.groups import LIMITS
from jobledger.cli.output import Output
from jobledger.cli.past import asked, rows_begin, viewed_of
from jobledger.cli.text import Cell, age, moment, shortened
from jobledger.ledger.limits.in_code import CodeLimit
from jobledger.ledger.model.limits.definition import Author, terms_words, who_words
from jobledger.ledger.model.limits.names import joined, split

# The history of a thing that people set, such as a key or a route: a line for each change.


def tell_changes(output: Output, history: Sequence[Change]) -> None:
    """Print the changes, which are given newest first."""
    for line in told_changes(history):
        output.say(line, style="bold" if isinstance(line, Heading) else "")


T = TypeVar("T")
Name = Annotated[
    str, typer.Argument(metavar="LIMIT", help="The limit's name, or NAME:KEY for one key of it.")
]


@command(LIMITS, "list", takes=ROWS)
async def list_limits(cli: Cli, *, at: options.At = None, sequence: options.Sequence = None) -> None:
    """List limits that are defined or that jobs wait for, now or in the past; a key that differs has its own line."""
    output, past = cli.output, asked(at, sequence)
    async with cli.ledger() as ledger, viewed_of(cli, ledger, past) as view:
        rows, missing = limits_listed(view.store, [] if past else await ledger.leases.all())
    if output.as_json:
        for each in (*rows, *missing):
            output.object(each, **rows_begin(view))
    elif not (rows or missing):
        output.say("no limit is set; set one with `jobledger limits set NAME --slots N`")
    else:
        cells: list[tuple[Cell, ...]] = [_cells(row, view.now) for row in rows]
        cells += [(shortened(each.name, 60), _not_set(each.held), "", each.taken, "", "") for each in missing]
        header: tuple[str, ...] = ("limit", "holds", "for", "taken>", "set by", "since!")
        if not any(row.queues or row.tasks for row in rows):  # rarely set, and a line has little room
            header, cells = _without_who(header), [_without_who(each) for each in cells]
        output.table(header, cells)
        for row in rows:
            _tell_code(output, joined(row.name, row.key), row.in_code)


def _tell_code(output: Output, limit: str, in_code: Sequence[CodeLimit]) -> None:
    """Say which running code has other numbers for a limit."""
    if in_code:
        more = f" (and {len(in_code) - 1:,} more)" if len(in_code) > 1 else ""
        output.say(f"the code of {in_code[0].worker}{more} has {limit} as {terms_words(in_code[0].terms)}")


def _without_who(cells: tuple[T, ...]) -> tuple[T, ...]:
    return (*cells[:2], *cells[3:])


def _not_set(jobs: int) -> str:
    return f"nobody set it: {jobs:,} job{' waits' if jobs == 1 else 's wait'}"


def _cells(row: LimitListed, now: datetime) -> tuple[Cell, ...]:
    since = datetime.fromisoformat(row.set_at)
    return (
        shortened(joined(row.name, row.key), 60),
        terms_words(row, with_who=False),
        shortened(who_words(row), 60),
        taken_words(row),
        "code" if row.source == "code" else shortened(row.set_by, 30),
        age(since, max(now, since)),
    )


@command(LIMITS, "show")
async def show(cli: Cli, *, limit: Name) -> None:
    """Show a limit, or one key of it: its terms, who set them, which jobs hold it and which wait for it."""
    async with cli.ledger() as ledger:
        found = await show_limit(ledger, limit)
        held = await limit_now(ledger, limit)
        now = ledger.clock.now()
    output, definition = cli.output, found.definition
    if output.as_json:
        output.object(limit_shown(found, held))
        return
    _tell_definition(output, found, now)
    _tell_code(output, found.limit, found.in_code)
    if definition.overrides and found.limit == definition.limit:
        output.table(
            ("key", "differs", "set by"),
            [
                (shortened(key, 60), terms_words(each), _set_by(definition.author(key)))
                for key, each in sorted(definition.overrides.items())
            ],
            title="keys that differ",
        )
    _tell_held(output, held)
    tell_changes(output, found.history)


def _tell_definition(output: Output, found: ShownLimit, now: datetime) -> None:
    author = found.definition.author(split(found.limit)[1])
    output.say(f"limit {found.limit}", style="bold")
    nothing = "nothing: jobs that name it stay held"
    output.facts(
        [
            ("holds", nothing if found.terms is None else terms_words(found.terms, with_who=False)),
            ("for jobs of", None if found.terms is None else who_words(found.terms) or None),
            ("set by", _set_by(author)),
            ("since", moment(author.at, now)),
            ("reason", author.reason or None),
        ]
    )


def _set_by(author: Author) -> str:
    return author.by if author.source == "operator" else f"the code ({author.by})"


def _tell_held(output: Output, held: LimitNow) -> None:
    state = held.state
    if held.keys:
        rows = [(shortened(each.limit, 60), each.used, each.waiting) for each in held.keys]
        output.table(("key", "slots taken>", "waiting>"), rows, title="keys in use")
    if state.used:
        holders = [(shortened(holder, 80),) for holder in state.holders]
        output.table(("job",), holders, title=f"slots taken ({state.used:,})")
    if state.waiting:
        lines = [(f"{each.queue}/{each.job}", ", ".join(each.limits)) for each in held.waits]
        output.table((f"waiting ({state.waiting:,}), the oldest first", "limits"), lines, title="line")
