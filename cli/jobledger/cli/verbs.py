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
from jobledger.cli.definitions import read_bytes, read_definition
from jobledger.cli.errors import UsageError
from jobledger.cli.output import Output
from jobledger.cli.pairs import pairs
from jobledger.cli.session import operator
from jobledger.cli.text import age, moment
from jobledger.ledger.model.errors import InvalidInputError


def add_verbs(module: ModuleType, groups: Mapping[str, typer.Typer]) -> None:
    """Register the commands of the verbs that a module declares. `groups`: by the first word of a command."""
    for declaration in declared_in(module):
        if not declaration.has_own_command:
            _add(declaration, groups[declaration.group])


def _add(declaration: Declaration, group: typer.Typer) -> None:
    fields = fields_of(declaration.verb)
    arguments = {each.name for each in fields if each.is_argument_of(declaration)}

    async def run(cli: Cli, **given: Any) -> None:
        values = {
            each.name: value
            for each in fields
            if (value := _value(each, given, is_argument=each.name in arguments)) is not msgspec.NODEFAULT
        }
        await perform(cli, _wish(declaration, values))

    parameters = [inspect.Parameter("cli", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Cli)]
    for each in fields:
        parameters += _parameters(each, is_argument=each.name in arguments)
    run.__doc__ = declaration.verb.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    takes = ROWS if declaration.reads_rows else LEDGER
    command(group, declaration.name, takes=(*takes, CREATES) if declaration.creates else takes)(run)


def _wish(declaration: Declaration, values: Mapping[str, Any]) -> Verb[Any]:
    """Return the verb with the typed values. Raises: UsageError, InvalidInputError."""
    try:
        return declaration.verb(**values)
    except TypeError as error:  # an option without a default was not given
        raise UsageError(_missing(declaration, values)) from error


async def perform(cli: Cli, wish: Verb[Any]) -> None:
    """Perform a verb, and print its answer. Raises: what the verb raises."""
    async with cli.ledger() as ledger:
        place = Place(ledger, cli.rows(ledger), operator_principal(operator()))
        found = await wish.perform(place)
        notes, now = await wish.notes(place), ledger.clock.now()
    for each in notes:
        cli.output.note(each)
    tell_answer(cli.output, wish, found, now)


def tell_answer(output: Output, wish: Verb[Any], found: Any, now: datetime) -> None:
    """Print a verb's answer: in words, or with --json as over HTTP. `now`: as in `tell`."""
    if output.as_json:
        for item in found.items if wish.declaration.is_list else (found,):
            # The same JSON as over HTTP, without fields that a Struct omits.
            output.object(msgspec.to_builtins(item, builtin_types=(datetime,)))
    for told in () if output.as_json else wish.say(found):
        tell(output, told, now)


def tell(output: Output, told: Told, now: datetime) -> None:
    """Print a part of a verb's answer for a person. `now`: the ledger's time, by which ages are counted."""
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
    missing = [
        " or ".join(each.flags)
        for each in fields
        if each.default is msgspec.NODEFAULT and each.name not in values
    ]
    return f"`jobledger {declaration.command}` needs {' and '.join(missing)}: see its --help"


def _parameters(field: Field, *, is_argument: bool) -> Iterator[inspect.Parameter]:
    told: dict[str, Any] = {"metavar": field.metavar, "help": field.help}
    if is_argument:
        yield _parameter(field.name, str, typer.Argument(**told), default=inspect.Parameter.empty)
    elif field.kind is bool:
        yield _parameter(field.name, bool, typer.Option(field.flag, **told), default=False)
    elif field.has_words:
        kind = list[str] if field.is_many or field.is_pairs else str
        yield _parameter(field.name, kind | None, typer.Option(field.flag, **told))
    if field.file:
        what = "Or a file with it" if field.has_words else field.help.removesuffix(".")
        file = typer.Option(field.file, metavar="FILE", help=f"{what}; - reads it from stdin.")
        yield _parameter(_file_name(field), str | None, file)


def _parameter(name: str, kind: Any, told: Any, *, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, told]
    )


def _file_name(field: Field) -> str:
    return f"{field.name}_file"


def _value(field: Field, typed: Mapping[str, Any], *, is_argument: bool) -> Any:
    """Return the typed value, `NODEFAULT` without one. Raises: UsageError, InvalidInputError, OSError."""
    given, file = typed.get(field.name), typed.get(_file_name(field))
    if field.kind is bool:
        return given
    words: Sequence[str] = [given] if isinstance(given, str) else given or []
    if words and file is not None:
        raise UsageError(f"give {' or '.join(field.flags)}, not both")
    if file is not None:
        return _read(field, file)
    if not words:
        return msgspec.NODEFAULT
    if field.is_pairs:
        return pairs(words, field.flag)
    try:
        return read_words(field, words, field.metavar if is_argument else field.flag, datetime.now(UTC))
    except InvalidInputError as error:
        raise UsageError(str(error)) from error


def _read(field: Field, file: str) -> Any:
    """Return the value in a file. Raises: InvalidInputError, UsageError, OSError."""
    if field.kind is bytes:
        return read_bytes(file)
    try:
        return msgspec.convert(read_definition(file), field.declared)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"what {field.file} {file} holds is not as it must be: {error}") from error
