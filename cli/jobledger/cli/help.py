"""Commands and groups whose `--help` shows no type where a word says what is meant."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from jobledger.cli.server_options import SERVER_OPTIONS, in_one_line
from jobledger.cli.values import read_quickly


class Command(TyperCommand):
    """A command; its own `--help` is a switch and takes no value, and tells the options of the server in one line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; the options of the server stand in that of all commands."""
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

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, as of a command."""
        return _without_type(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> Any:
        """Return the options; those of tab completion are typer's own, which would show a type beside them."""
        found = super().get_params(ctx)
        for option in found:
            read_quickly(option)
            if option.name in {"install_completion", "show_completion"}:
                _without_type(option)
        return found


def _is_of_server(option: Any) -> bool:
    """Return whether an option is a shared one, and none that a command declares under the same name."""
    shared = SERVER_OPTIONS.get(option.name)
    return shared is not None and shared.__metadata__[0].help == option.help


def _without_type(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
