"""Where a command's answer goes: tables and sentences for a person, JSON objects for a program.

Answers go to stdout, everything else (progress, notes, logs, errors) to stderr.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from jobledger.cli.text import json_safe, plain
from jobledger.ledger.times import time_text

_PROGRESS_AFTER_S: Final = 1.0
_LINE_EVERY_S: Final = 5.0  #: between progress lines where there is no terminal to draw a bar on
_WIDE: Final = 120  # columns that an event with its ids and details takes
_COLUMN_GAP: Final = 3  # as SIMPLE_HEAD draws it
_COLUMN_MIN: Final = 4  #: of a column that may be cut

Cell = str | Text | int | None


def _plain_value(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


class Output:
    """One command's way to speak."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        # Job data is put in as Text, so that square brackets in it are not read as rich's markup.
        self.console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self.notes = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)

    @property
    def is_narrow(self) -> bool:
        """Whether lines go to a terminal that cuts off the end of a long one."""
        return self.console.is_terminal and self.console.width < _WIDE

    def object(self, value: Any) -> None:
        """Write one JSON object on a line of its own; datetimes become UTC with microseconds."""
        text = msgspec.json.encode(_utc(value), enc_hook=_plain_value).decode()
        self.raw(text)

    def raw(self, text: str) -> None:
        """Write a line of JSON text as it is, but for characters that steer terminals."""
        sys.stdout.write(json_safe(text) + "\n")
        sys.stdout.flush()

    def say(self, text: str | Text = "", *, style: str = "") -> None:
        """Tell a person something; silent with --json. Long lines wrap, also where there is no terminal."""
        if not self.as_json:
            self.console.print(text if isinstance(text, Text) else Text(plain(text)), style=style)
            sys.stdout.flush()

    def line(self, text: Text) -> None:
        """Print one line of a list: cut to a terminal's width, whole where a program may read it."""
        text.rstrip()
        if self.console.is_terminal:
            self.console.print(text, no_wrap=True, overflow="ellipsis")
        else:
            self.console.print(text, soft_wrap=True)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Tell a person something about the way to the answer, on stderr, also with --json."""
        self.notes.print(Text(plain(text)), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "") -> None:
        """Print a table; a column whose name ends with `>` is set right, one that ends with `!` is never cut."""
        if title:
            self.say()
            self.say(title, style="bold")
        names = [column.rstrip(">!") for column in columns]
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [
            max(cell.cell_len for cell in column) for column in zip(map(Text, names), *cells, strict=True)
        ]
        flexible = [not column.endswith((">", "!")) for column in columns]
        widths = _fitted(widths, flexible, self.console.width - _COLUMN_GAP * (len(columns) - 1))
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
        for name, column, width in zip(names, columns, widths, strict=True):
            justify: JustifyMethod = "right" if column.endswith(">") else "left"
            table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
        for row in cells:
            table.add_row(*row)
        self.console.print(table)

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print names and values below each other, long values wrapped; a value None leaves its line out."""
        shown = [(name, _cell(value)) for name, value in pairs if value is not None]
        width = max(len(name) for name, _ in shown) + 2
        for name, value in shown:
            self.hanging(Text(f"{name:<{width}}", style="dim"), value)

    def hanging(self, head: Text, body: Text) -> None:
        """Print `head` and `body` as one line, wrapped below where the body begins; no trailing spaces."""
        indent = " " * len(head)
        lines = _wrapped(body, max(20, self.console.width - len(indent)))
        for number, part in enumerate(lines):
            self.console.print((head if number == 0 else Text(indent)) + part, soft_wrap=True)
        sys.stdout.flush()

    @contextlib.contextmanager
    def progress(self, what: str) -> Generator[Callable[[int, int], None], None, None]:
        """Give a callback for (done, total) that shows nothing in the first second, then a bar, all on stderr."""
        shown = _SlowProgress(self.notes, what)
        try:
            yield shown.update
        finally:
            shown.stop()


class _SlowProgress:
    """A progress bar for those who have waited a second already; a line now and then without a terminal."""

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = what
        self._next_s = time.monotonic() + _PROGRESS_AFTER_S
        self._bar: Progress | None = None

    def update(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        elif time.monotonic() >= self._next_s and done < total:
            self._next_s = time.monotonic() + _LINE_EVERY_S
            if self._console.is_terminal:
                self._bar = bar(self._console)
                self._bar.start()
                self._bar.add_task(self._what, total=total, completed=done)
            else:
                self._console.print(f"{self._what}: {done:,} of {total:,}")

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def bar(console: Console) -> Progress:
    """Return the one look of progress bars; it goes away when it is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, expand=False)


def _wrapped(body: Text, width: int) -> list[Text]:
    """Break between words only: a path or command that is too long stays whole, so that it can be copied."""
    lines = textwrap.wrap(
        body.plain,
        width,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    found: list[Text] = []
    at = 0
    for line in lines:
        at = body.plain.index(line, at)
        found.append(body[at : at + len(line)])
        at += len(line)
    return found or [Text()]


def _fitted(widths: Sequence[int], flexible: Sequence[bool], room: int) -> list[int]:
    """Take what is too much from the widest flexible column, again and again: rich would take from every one."""
    found = list(widths)
    while sum(found) > room:
        candidates = [at for at, width in enumerate(found) if flexible[at] and width > _COLUMN_MIN]
        if not candidates:
            break
        found[max(candidates, key=found.__getitem__)] -= 1
    return found


def _cell(value: Cell) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text("" if value is None else plain(value))


def _utc(value: Any) -> Any:
    """Write the times in nested plain values as all our JSON does."""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, dict):
        return {name: _utc(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_utc(item) for item in cast("Sequence[Any]", value)]
    return value
