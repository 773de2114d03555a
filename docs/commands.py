"""The reference of the command line: for each command what its `--help` prints, and below it what people wrote.

An option that many commands have in the same words is told once, and each of them only names it. What people wrote stands
between the end of a printed part and the beginning of the next one, and is about the last command before it.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from jobledger.cli.main import program
from jobledger.cli.server_options import SERVER_OPTIONS

BEGIN: Final = "<!-- commands: written by docs/generate.py -->\n"
END: Final = "<!-- end -->\n"
_WIDTH: Final = 110
_PROCESSES: Final = tuple(f"jobledger {name}" for name in ("up", "worker", "reactors", "gateway"))
_ALL: Final = " ".join(f"`{name.removeprefix('jobledger ')}`" for name in _PROCESSES)
#: The page lists an option among the settings of processes if this many of their commands have it.
_OF_PROCESSES_MIN: Final = 2
#: The page describes an option only once if this many commands have it.
_SHARED_MIN: Final = 3
_OF_EACH: Final = ("--json", "--help")
#: A sentence, a default in words, and what typer adds.
_HELP: Final = re.compile(r"(.*?)(?: \(default: ([^()]*)\))?(?: \[([^\[\]]*)\])?")


class Option(NamedTuple):
    """An option or an argument, as `--help` tells of it."""

    flag: str  #: of an argument empty
    name: str  #: with the word for its value: `--limit N`
    told: str  #: its sentence
    default: str  #: in words; may be empty
    variable: str  #: may be empty
    is_required: bool

    @property
    def facts(self) -> str:
        """What follows the sentence, in parentheses; may be empty."""
        facts = [f"default: {self.default}"] if self.default else []
        facts += [f"`{self.variable}`"] if self.variable else []
        facts += ["required"] if self.is_required and self.flag else []
        return f" ({'; '.join(facts)})" if facts else ""

    @property
    def item(self) -> str:
        """The option as an item of a list."""
        return _item(f"`{self.name}`: {self.told}{self.facts}")


class Command(NamedTuple):
    """A command, as `--help` tells of it."""

    name: str  #: all its words, as `jobledger jobs list`
    told: str
    options: list[Option]  #: without those that every command has


class Reference:
    """Each command, and the options that many of them share."""

    def __init__(self) -> None:
        """Read the declarations of all commands, which takes a second."""
        root = program()
        self.commands = list(_commands(root, ("jobledger",)))
        self._root = list(_options(root, root.make_context("jobledger", [], resilient_parsing=True)))
        #: The names of the commands that have an option, in the same words.
        self.owners: dict[Option, list[str]] = defaultdict(list)
        for command in self.commands:
            for each in command.options:
                self.owners[each].append(command.name)
        self.settings = [option for option, owners in self.owners.items() if _is_setting(owners)]
        self.shared = sorted(self._shared(), key=lambda each: each.flag)

    def _shared(self) -> Iterator[Option]:
        """Yield the options that are told once; of those of one flag, the one that most commands have."""
        seen = set[str]()
        for option, owners in sorted(self.owners.items(), key=lambda each: -len(each[1])):
            if not option.flag or option.flag in seen or option in self.settings:
                continue
            seen.add(option.flag)
            if len(owners) >= _SHARED_MIN:
                yield option

    def server_items(self) -> Iterator[str]:
        """Yield the list of the options that say which server is meant, as `jobledger --help` has it."""
        return (each.item for each in self._root if _is_of_server(each))

    def shared_items(self) -> Iterator[str]:
        """Yield the list of options that many commands share."""
        return (each.item for each in self.shared)

    def settings_table(self) -> Iterator[str]:
        """Yield the table of the settings of processes, with those that have each."""
        yield "| Option | Variable | Of | Default | Meaning |\n|---|---|---|---|---|\n"
        for each in self.settings:
            owners = " ".join(f"`{name.removeprefix('jobledger ')}`" for name in self.owners[each])
            variable = f"`{each.variable}`" if each.variable else ""
            cells = (f"`{each.name}`", variable, owners.replace(_ALL, "all four"), each.default, each.told)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    def page(self, text: str) -> str:
        """Return the page with the printed parts as the declarations are now."""
        head, marker, _ = text.partition(BEGIN)
        assert marker, f"the page has no line {BEGIN!r}"
        written = _written(text)
        unknown = written.keys() - {each.name for each in self.commands}
        assert not unknown, f"people wrote about commands that do not exist: {sorted(unknown)}"
        page = f"{head}{BEGIN}"
        for each in self.commands:
            page += self._section(each)
            if each.name in written:
                page = f"{page.rstrip()}\n{END}\n{written[each.name]}\n{BEGIN}"
        return page.removesuffix(f"\n{BEGIN}") if page.endswith(BEGIN) else page + END

    def _section(self, command: Command) -> str:
        """Return the heading, the help and the options of a command."""
        settings = [each for each in command.options if each in self.settings]
        shared = [each for each in command.options if self._is_shared(each)]
        lines = [each.item for each in command.options if each not in (*settings, *shared)]
        if shared:
            lines.append(_item(f"[Shared](#shared-options): {_flags(shared)}"))
        if settings:
            names = "" if command.name in _PROCESSES else f": {_flags(settings)}"
            lines.append(_item(f"[Settings of processes](#settings-of-processes){names}"))
        return f"## {command.name}\n\n{_filled(command.told)}\n\n{''.join(lines)}" + "\n" * bool(lines)

    def _is_shared(self, option: Option) -> bool:
        """Return whether the list of shared options says all that this one says."""
        told = option.told.removesuffix(".")
        return any(
            each._replace(told="") == option._replace(told="") and each.told.startswith(told)
            for each in self.shared
        )


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[Command]:
    members: dict[str, Any] = getattr(command, "commands", {})
    for name, member in members.items():
        yield from _commands(member, (*path, name))
    if not members:
        context = command.make_context(path[-1], [], resilient_parsing=True)
        options = [
            each
            for each in _options(command, context)
            if each.flag not in _OF_EACH and not _is_of_server(each)
        ]
        yield Command(" ".join(path), " ".join(command.help.split()), options)


def _options(command: Any, context: Any) -> Iterator[Option]:
    for each in command.get_params(context):
        row = each.get_help_record(context)
        if row is None:
            continue
        is_argument = not row[0].startswith("-")
        (piece,) = each.get_usage_pieces(context) if is_argument else (row[0],)
        yield Option(
            "" if is_argument else each.opts[-1],
            piece.replace("{", "").replace("}", ""),
            *_told(" ".join(row[1].split()).replace("; - ", "; `-` ")),  # a dash could begin a list
            is_required=each.required,
        )


def _is_setting(owners: Collection[str]) -> bool:
    """Return whether most of the commands that have an option are processes that run long."""
    processes = [each for each in owners if each in _PROCESSES]
    return len(processes) >= _OF_PROCESSES_MIN and 2 * len(processes) > len(owners)


def _told(text: str) -> tuple[str, str, str]:
    """Return the sentence of an option, its default and its variable; ranges are left to what refuses a value."""
    found = _HELP.fullmatch(text)
    assert found is not None, "any text fits, since each of its parts may be missing"
    told, default, extra = found.groups(default="")
    facts = dict(each.split(": ", 1) for each in extra.split("; ") if ": " in each)
    return told, default or facts.get("default", ""), facts.get("env var", "")


def _is_of_server(option: Option) -> bool:
    """Return whether an option is that of all commands, not one that a command declares under the same name."""
    shared = SERVER_OPTIONS.get(option.flag.removeprefix("--").replace("-", "_"))
    return shared is not None and shared.__metadata__[0].help.startswith(option.told)


def _written(text: str) -> dict[str, str]:
    """Return what people wrote, by the command that it is about."""
    found: dict[str, str] = {}
    for section in re.split(r"^## (?=jobledger )", text, flags=re.MULTILINE)[1:]:
        name, _, body = section.partition("\n")
        by_hand = body.partition(END)[2].replace(BEGIN, "").strip("\n")
        if by_hand:
            found[name] = f"{by_hand}\n"
    return found


def _flags(options: Iterable[Option]) -> str:
    return " ".join(f"`{each.flag}`" for each in options)


def _item(text: str) -> str:
    return _filled(text, "- ", "  ") + "\n"


def _filled(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
