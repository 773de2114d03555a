"""Where a command's answer goes: tables and sentences for a person, JSON objects for a program.

Answers go to stdout, everything else (progress, notes, logs, errors) to stderr.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from rich.console import Console
from rich.text import Text

from jobledger.cli import logs
from jobledger.cli.streams import let_go
from jobledger.cli.text import json_safe, plain
from jobledger.ledger.model.times import time_text

if TYPE_CHECKING:
    from rich.progress import Progress

_PROGRESS_AFTER_S: Final = 1.0
_LINE_EVERY_S: Final = 5.0  #: between progress lines where there is no terminal to draw a bar on
_WIDE: Final = 120  # columns that an event with its ids and details takes
_GAP: Final = "   "
_COMMAND: Final = re.compile(r"`[^`\n]*`")
_COLUMN_MIN: Final = 4  #: of a column that may be cut

Cell = str | Text | int | None


class _Console(Console):
    """Rich's console, except that a broken pipe raises BrokenPipeError and does not exit."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    """The output of one command: its answer on stdout, notes and progress on stderr."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        # Job data is put in as Text, so that square brackets in it are not read as rich's markup.
        self.console = _Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self.notes = _Console(file=sys.stderr, highlight=False, markup=False, emoji=False)

    @property
    def is_narrow(self) -> bool:
        """Whether lines go to a terminal that cuts off the end of a long one."""
        return self.console.is_terminal and self.console.width < _WIDE

    def object(self, value: Any, **more: Any) -> None:
        """Write a Struct or dict as one JSON object on a line of its own; datetimes become UTC with microseconds.

        `more`: fields after its own.
        """
        self.raw(msgspec.json.encode(_plain(value) | _plain(more)).decode())

    def raw(self, text: str) -> None:
        """Write a line of JSON text as it is, but for characters that steer terminals."""
        sys.stdout.write(json_safe(text) + "\n")
        sys.stdout.flush()

    def say(self, text: str | Text = "", *, style: str = "") -> None:
        """Tell a person something; silent with --json. Long lines wrap on a terminal, and nowhere else."""
        if self.as_json:
            return
        whole = text if isinstance(text, Text) else Text(plain(text))
        for line in whole.split(allow_blank=True):
            for part in self._folded(line, self.console.width):
                self.console.print(part, style=style, soft_wrap=True)
        sys.stdout.flush()

    def _folded(self, text: Text, width: int) -> list[Text]:
        """Break text that is too wide for the terminal; for a file or a program it stays one line."""
        return _wrapped(text, width) if self.console.is_terminal else [text]

    def line(self, text: Text) -> None:
        """Print one line of a list: cut to a terminal's width, whole where a program may read it."""
        text.rstrip()
        if self.console.is_terminal:
            self.console.print(text, no_wrap=True, overflow="ellipsis")
        else:
            self.console.print(text, soft_wrap=True)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a note beside the answer, on stderr, also with --json."""
        with contextlib.suppress(OSError, ValueError):
            logs.note(text, lambda text: self.notes.print(Text(plain(text)), soft_wrap=True))

    @contextlib.contextmanager
    def telling(self) -> Generator[None, None, None]:
        """Drop output of the block that stdout does not take: a running service must not end because of it."""
        try:
            yield
        except OSError as error:
            let_go(sys.stdout)
            self.note(f"stdout cannot be written ({error.strerror or error}): nothing more is said there")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "") -> None:
        """Print a table, on a terminal one that fits.

        A column whose name ends with `>` is right-aligned, one that ends with `!` is never cut, and one that ends with
        `~` is folded instead. The first one, which holds the name, is never cut either; where there is too little room
        for all, the line is cut at its end.
        """
        if title:
            self.say()
            self.say(title, style="bold")
        kinds = [column[-1:] for column in columns]
        heads = [Text(column.rstrip(">!~"), style="bold") for column in columns]
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [max(cell.cell_len for cell in column) for column in zip(heads, *cells, strict=True)]
        if self.console.is_terminal:
            least = [
                0 if kind in {">", "!"} else _longest_word(column) if kind == "~" else _COLUMN_MIN
                for kind, column in zip(kinds, zip(heads, *cells, strict=True), strict=True)
            ]
            if kinds[0] != "~":
                least[0] = 0
            widths = _fitted(widths, least, self.console.width - len(_GAP) * (len(columns) - 1))
        self._row(heads, kinds, widths)
        self._cut(Text("─" * (sum(widths) + len(_GAP) * (len(columns) - 1))), widths[0])
        for row in cells:
            self._row(row, kinds, widths)
        sys.stdout.flush()

    def _row(self, cells: Sequence[Text], kinds: Sequence[str], widths: Sequence[int]) -> None:
        columns = [
            _wrapped(cell, width) if kind == "~" else [cell]
            for cell, kind, width in zip(cells, kinds, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*columns, fillvalue=Text()):
            line = Text(_GAP).join(
                _set(part, width, is_right=kind == ">")
                for part, kind, width in zip(parts, kinds, widths, strict=True)
            )
            line.rstrip()
            self._cut(line, widths[0])

    def _cut(self, line: Text, name: int) -> None:
        """Print a line of a table; what a terminal has no room for is cut off at the end, but not within the name."""
        if self.console.is_terminal:
            line.truncate(max(self.console.width, name), overflow="ellipsis")
        self.console.print(line, soft_wrap=True)

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print names and values below each other, long values wrapped; a value None leaves its line out."""
        shown = [(name, _cell(value)) for name, value in pairs if value is not None]
        width = max(len(name) for name, _ in shown) + 2
        for name, value in shown:
            self.hanging(Text(f"{name:<{width}}", style="dim"), value)

    def hanging(self, head: Text, body: Text) -> None:
        """Print `head` and `body` as one line; on a terminal the body wraps, and each part begins below the first."""
        indent = Text(" " * len(head))
        for number, part in enumerate(self._folded(body, max(20, self.console.width - len(indent)))):
            line = (head if number == 0 else indent) + part
            line.rstrip()
            self.console.print(line, soft_wrap=True)
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
    """A progress bar that appears after a second; without a terminal, a line now and then."""

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
    """Return a progress bar in the common style; it disappears when it is done."""
    from rich import progress  # noqa: PLC0415 - few commands take long enough to show one

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=console, transient=True, expand=False)


def _wrapped(body: Text, width: int) -> list[Text]:
    """Break between words only: a path that is too long stays whole, and so does a command in backticks, to be copied.

    Further lines have the indent of the first.
    """
    # NUL, which is not a space to textwrap, replaces the spaces in commands; shown text never holds a NUL.
    glued = _COMMAND.sub(lambda found: found[0].replace(" ", "\0"), body.plain)
    begin = len(glued) - len(glued.lstrip(" "))
    indent = glued[: min(begin, width // 2)]
    lines = textwrap.wrap(
        glued[begin:],
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    found: list[Text] = []
    at = begin
    for line in lines:
        text = line[len(indent) :]
        at = glued.index(text, at)
        found.append(Text(indent) + body[at : at + len(text)])
        at += len(text)
    return found or [Text()]


def _longest_word(column: Iterable[Text]) -> int:
    return max((len(word) for cell in column for word in cell.plain.split()), default=1)


def _set(cell: Text, width: int, *, is_right: bool) -> Text:
    """Cut a cell to its column's width, and fill it up."""
    shown = cell.copy()
    shown.truncate(width, overflow="ellipsis")
    missing = width - shown.cell_len
    if is_right:
        shown.pad_left(missing)
    else:
        shown.pad_right(missing)
    return shown


def _fitted(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Narrow the widest column above its least width until all fit; a column with least width 0 keeps its width."""
    found = list(widths)
    while sum(found) > room:
        candidates = [at for at, width in enumerate(found) if 0 < least[at] < width]
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


def _plain(value: Any) -> Any:
    """Return nested values as plain ones: Structs as dicts of all their fields, times as in all our JSON."""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        fields = ((shown, getattr(value, name)) for name, shown in names)
        return {shown: _plain(field) for shown, field in fields if field is not msgspec.UNSET}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value
