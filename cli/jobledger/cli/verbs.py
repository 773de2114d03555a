"""Verbs as commands: options, help and answers follow from the declarations of `jobledger.admin.verbs`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Annotated, Any

import msgspec
import typer

from jobledger.admin.verbs.kit import (
    Declaration,
    Facts,
    Field,
    Heading,
    Note,
    Place,
    Table,
    Told,
    Verb,
    declared_in,
    fields_of,
    operator_principal,
    read_words,
)
from jobledger.cli.command import CREATES, LEDGER, ROWS, Cli, command
from jobledger.cli.errors import UsageError
from jobledger.cli.output import Output
from jobledger.cli.session import operator
from jobledger.cli.text import age, moment
from jobledger.ledger.model.errors import InvalidInputError


def add_verbs(module: ModuleType, groups: Mapping[str, typer.Typer]) -> None:
    """Register the commands of the verbs that a module declares. `groups`: by the first word of a command."""
    for declaration in declared_in(module):
        if not declaration.takes_many:
            _add(declaration, groups[declaration.group])


def _add(declaration: Declaration, group: typer.Typer) -> None:
    fields = fields_of(declaration.verb)
    arguments = {each.name for each in fields if each.is_argument_of(declaration)}

    async def run(cli: Cli, **given: Any) -> None:
        values = {
            each.name: value
            for each in fields
            if (value := _value(each, given[each.name], is_argument=each.name in arguments))
            is not msgspec.NODEFAULT
        }
        await perform(cli, _wish(declaration, values))

    parameters = [inspect.Parameter("cli", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Cli)]
    parameters += (_parameter(each, is_argument=each.name in arguments) for each in fields)
    run.__doc__ = declaration.verb.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    takes = ROWS if declaration.reads_rows else LEDGER
    command(group, declaration.name, takes=(*takes, CREATES) if declaration.creates else takes)(run)


def _wish(declaration: Declaration, values: Mapping[str, Any]) -> Verb[Any]:
    """Return what was typed as a verb. Raises: UsageError, InvalidInputError."""
    try:
        return declaration.verb(**values)
    except TypeError as error:  # an option that has no default was not given
        raise UsageError(_missing(declaration, values)) from error


async def perform(cli: Cli, wish: Verb[Any]) -> None:
    """Do what a verb says, and tell what it answers. Raises: what it says itself."""
    async with cli.ledger() as ledger:
        place = Place(ledger, cli.rows(ledger), operator_principal(operator()))
        found = await wish.perform(place)
        notes, now = await wish.notes(place), ledger.clock.now()
    for each in notes:
        cli.output.note(each)
    if cli.output.as_json:
        for item in found.items if wish.declaration.is_list else (found,):
            # As HTTP has it, without what a Struct leaves out of its JSON.
            cli.output.object(msgspec.to_builtins(item, builtin_types=(datetime,)))
    for told in () if cli.output.as_json else wish.say(found):
        tell(cli.output, told, now)


def tell(output: Output, told: Told, now: datetime) -> None:
    """Lay out what a verb tells a person at a terminal. `now`: the ledger's time, by which ages are counted."""
    match told:
        case Table():
            rows = [
                [age(cell, max(now, cell)) if isinstance(cell, datetime) else cell for cell in row]
                for row in told.rows
            ]
            output.table(told.columns, rows, title=told.title)
        case Facts():
            output.facts(
                [
                    (name, moment(fact, now) if isinstance(fact, datetime) else fact)
                    for name, fact in told.facts
                ]
            )
        case Note():
            output.note(told)
        case _:
            output.say(told, style="bold" if isinstance(told, Heading) else "")


def _missing(declaration: Declaration, values: Mapping[str, Any]) -> str:
    fields = fields_of(declaration.verb)
    missing = [each.flag for each in fields if each.default is msgspec.NODEFAULT and each.name not in values]
    return f"`jobledger {declaration.command}` needs {' and '.join(missing)}: see its --help"


def _parameter(field: Field, *, is_argument: bool) -> inspect.Parameter:
    told: dict[str, Any] = {"metavar": field.metavar, "help": field.help}
    default: Any = None
    annotation: Any
    if is_argument:
        annotation, default = Annotated[str, typer.Argument(**told)], inspect.Parameter.empty
    elif field.kind is bool:
        annotation, default = Annotated[bool, typer.Option(field.flag, **told)], False
    elif field.is_many:
        annotation = Annotated[list[str] | None, typer.Option(field.flag, **told)]
    else:
        annotation = Annotated[str | None, typer.Option(field.flag, **told)]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _value(field: Field, given: Any, *, is_argument: bool) -> Any:
    """Return what was typed, `NODEFAULT` where nothing was. Raises: UsageError."""
    if field.kind is bool:
        return given
    words: Sequence[str] = [given] if isinstance(given, str) else given or []
    if not words:
        return msgspec.NODEFAULT
    try:
        return read_words(field, words, field.metavar if is_argument else field.flag, datetime.now(UTC))
    except InvalidInputError as error:
        raise UsageError(str(error)) from error


def option_names(declaration: Declaration) -> Iterator[str]:
    """Yield the options and arguments of a verb's command, for whoever describes or compares it."""
    for each in fields_of(declaration.verb):
        yield each.metavar if each.is_argument_of(declaration) else each.flag
