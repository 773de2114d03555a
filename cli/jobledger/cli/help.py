"""Commands and groups, and the form of their `--help`: a section for each panel, plain text, no Python types.

Typer's own sections need rich with a reader of Markdown, which takes two thirds of the time of `jobledger --help`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from jobledger.cli.errors import USAGE
from jobledger.cli.server_options import SERVER_OPTIONS, in_one_line

# Values of options: simple values are read here, without typer's slow reader.
# Typer's reader imports pydantic and builds an adapter for each option, given or not, which takes longer than typer
# itself.

_TYPERS: Final = object()  #: returned for a value that typer is to read
_DIGITS_MAX: Final = 18  #: a longer number is left to typer


class _Reader:
    """A reader of one option's or argument's value, which typer calls."""

    def __init__(self, parameter: Any) -> None:
        self._typers = parameter.get_runtime_param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value for the command. Raises: as typer's reader, for a value that cannot be read."""
        found = _read(value, param)
        return self._typers().coerce(value, param=param, ctx=ctx) if found is _TYPERS else found


def read_quickly(parameter: Any) -> None:
    """Let typer read this parameter's values by our reader first."""
    if "get_runtime_param" not in vars(parameter):
        reader = _Reader(parameter)
        parameter.get_runtime_param = lambda: reader


def _read(value: Any, parameter: Any) -> Any:
    """Return the same value as typer's reader, or `_TYPERS` to leave it to that reader."""
    descriptor = parameter.type_descriptor
    if value is None:
        return () if parameter.multiple or parameter.nargs == -1 else None
    if descriptor.is_path:
        return _path(value, descriptor)
    if descriptor.parameter_info.parser is not None or descriptor.is_file:
        return _TYPERS
    kind = descriptor.annotation
    if get_origin(kind) is list:
        if not isinstance(value, list | tuple):
            return _TYPERS
        (kind_of_each,) = get_args(kind)
        each = [_read_one(item, kind_of_each, parameter) for item in cast("list[Any]", value)]
        return _TYPERS if _TYPERS in each else each
    return _read_one(value, kind, parameter)


def _read_one(value: Any, kind: Any, parameter: Any) -> Any:
    is_given = (kind is str and isinstance(value, str) and _is_text(value)) or (
        get_origin(kind) is Literal and value in get_args(kind)
    )
    if is_given:
        return value
    return _whole_number(value, parameter) if kind is int else _TYPERS


def _path(value: Any, descriptor: Any) -> Any:
    """Return a path that does not exist or can be read; leave all other checks of an option to typer."""
    told = descriptor.parameter_info
    asks = told.exists or told.writable or told.resolve_path or told.allow_dash or told.path_type is not None
    is_any = descriptor.annotation is Path and told.file_okay and told.dir_okay and not asks
    if not is_any or not isinstance(value, str) or not _is_text(value):
        return _TYPERS
    return Path(value) if os.access(value, os.R_OK) or not os.access(value, os.F_OK) else _TYPERS


def _whole_number(value: Any, parameter: Any) -> Any:
    is_typed = isinstance(value, str) and len(value) <= _DIGITS_MAX and value.isascii() and value.isdigit()
    if not is_typed and type(value) is not int:
        return _TYPERS
    number, told = int(value), parameter.type_descriptor.parameter_info
    fits = (told.min is None or number >= told.min) and (told.max is None or number <= told.max)
    return number if fits else _TYPERS


def _is_text(value: str) -> bool:
    """Return whether the value is valid UTF-8: typer refuses any other."""
    return value.isascii() or value == value.encode(errors="replace").decode()


COLUMNS_MAX: Final = 100  #: a longer line of text is hard to read


class Command(TyperCommand):
    """A command; its `--help` is a switch without a value, and mentions the options of the server in one line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; options of the server take one line, since `jobledger --help` lists them."""
        params: list[Any] = list(self.params)
        found = [each for each in params if _is_of_server(each) and not each.hidden]
        epilog = self.epilog
        for each in found:
            each.hidden = True
        self.epilog = in_one_line({each.name for each in found}) if found else epilog
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = epilog
            for each in found:
                each.hidden = False

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, in a section for each panel."""
        _write_sections(formatter, _options(self, ctx))

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help` without the `<bool>` that typer shows beside it."""
        return _without_type(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> Any:
        """Return options and arguments; an argument shows its name alone, without the type of a Python program."""
        found = super().get_params(ctx)
        for each in found:
            read_quickly(each)
            if isinstance(each, TyperArgument):
                each.display_type_rich = lambda ctx: None  # type: ignore[method-assign] # noqa: ARG005
        return found


class Group(TyperGroup):
    """Commands that share their first word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words after the name; without any, show the help and exit as after a mistake."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, which most readers look for, and then the options, in a section for each panel."""
        members: list[Any] = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        _write_sections(
            formatter,
            (
                (each.rich_help_panel or "Commands", (each.name, _first_paragraph(each)))
                for each in members
                if not each.hidden
            ),
        )
        _write_sections(formatter, _options(self, ctx))

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, as in a command."""
        return _without_type(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> Any:
        """Return the options; those of tab completion lose the type that typer shows beside them."""
        found = super().get_params(ctx)
        for option in found:
            read_quickly(option)
            if option.name in {"install_completion", "show_completion"}:
                _without_type(option)
        return found


def _options(command: Any, ctx: Any) -> Iterable[tuple[str, tuple[str, str]]]:
    """Return the panel of each argument and option with its row."""
    for each in command.get_params(ctx):
        row = each.get_help_record(ctx)
        if row is not None:
            yield each.rich_help_panel or ("Arguments" if isinstance(each, TyperArgument) else "Options"), row


def _write_sections(formatter: Any, rows: Iterable[tuple[str, tuple[str, str]]]) -> None:
    """Write each panel with its rows; nothing is cut."""
    panels: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for panel, row in rows:
        panels[panel].append(row)
    for panel, of_panel in panels.items():
        with formatter.section(panel if "NO_COLOR" in os.environ else typer.style(panel, bold=True)):
            formatter.write_dl(of_panel)


def _first_paragraph(command: Any) -> str:
    text = cleandoc(command.short_help or command.help or "").partition("\n\n")[0]
    return " ".join(text.split())


def _is_of_server(option: Any) -> bool:
    """Return whether an option is the shared one, and not a command's own of the same name."""
    shared = SERVER_OPTIONS.get(option.name)
    return shared is not None and shared.__metadata__[0].help == option.help


def _without_type(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
