"""Lines and tables as a person sees them, drawn with rich.

Only `Output` uses this module, and loads it when something is drawn: an answer in JSON does not need rich, which takes
a tenth of a command's start.
"""

from __future__ import annotations

import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from jobledger.cli.text import Cell, plain

_GAP: Final = "   "
_COMMAND: Final = re.compile(r"`[^`\n]*`")
_COLUMN_MIN: Final = 4  #: of a column that may be cut
_NAME_MAX: Final = 36  #: characters of a UUID; where room is short, a longer name has a line of its own


class _Console(Console):
    """Rich's console, except that a broken pipe raises BrokenPipeError and does not exit."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console_on(stream: TextIO) -> Console:
    """Return a console that writes text as it is, since square brackets in job data are no markup of rich."""
    return _Console(file=stream, highlight=False, markup=False, emoji=False)


class Canvas:
    """The drawing on stdout."""

    def __init__(self) -> None:
        self.console = console_on(sys.stdout)

    def say(self, text: str | Text = "", *, style: str = "") -> None:
        """Write text; long lines wrap on a terminal only."""
        whole = text if isinstance(text, Text) else Text(plain(text))
        for line in whole.split(allow_blank=True):
            for part in self._folded(line, self.console.width):
                self.console.print(part, style=style, soft_wrap=True)
        sys.stdout.flush()

    def _folded(self, text: Text, width: int) -> list[Text]:
        """Break text that is too wide for the terminal; for a file or a program it stays one line."""
        return _wrapped(text, width) if self.console.is_terminal else [text]

    def line(self, text: Text) -> None:
        """Print one line of a list: cut to a terminal's width; whole in a file or for a program."""
        text.rstrip()
        if self.console.is_terminal:
            self.console.print(text, no_wrap=True, overflow="ellipsis")
        else:
            self.console.print(text, soft_wrap=True)
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Print a table, on a terminal one that fits.

        A column whose name ends with `>` is right-aligned, one that ends with `!` is never cut, and one that ends with
        `~` is folded instead. Where there is too little room for all, columns without any value are left out, and of the
        first column, which holds the name and is never cut, a long name stands on a line of its own. If that is not
        enough, lines are cut at their ends.
        """
        cells = [[_cell(value) for value in row] for row in rows]
        heads = [Text(column.rstrip(">!~"), style="bold") for column in columns]
        kinds = [column[-1:] for column in columns]
        widths = _widths(heads, cells)
        if self.console.is_terminal and _whole_width(widths) > self.console.width:
            filled = [at for at in range(len(heads)) if not at or any(row[at] for row in cells)]
            heads, kinds = [heads[at] for at in filled], [kinds[at] for at in filled]
            cells = [[row[at] for at in filled] for row in cells]
            widths = _fitted_widths(heads, cells, kinds, self.console.width)
        self._row(heads, kinds, widths)
        self._cut(Text("─" * _whole_width(widths)))
        for row in cells:
            if len(row) > 1 and kinds[0] != "~" and row[0].cell_len > widths[0]:
                self.console.print(row[0], soft_wrap=True)
                row[0] = Text()
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
            self._cut(line)

    def _cut(self, line: Text) -> None:
        """Print a line of a table; what a terminal has no room for is cut off at the end."""
        if self.console.is_terminal:
            line.truncate(self.console.width, overflow="ellipsis")
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


def _wrapped(body: Text, width: int) -> list[Text]:
    """Break between words only: a path or a command in backticks stays whole, so that it can be copied.

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


def _widths(heads: Sequence[Text], rows: Iterable[Sequence[Text]]) -> list[int]:
    return [max(cell.cell_len for cell in column) for column in zip(heads, *rows, strict=True)]


def _whole_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fitted_widths(
    heads: Sequence[Text], rows: Sequence[Sequence[Text]], kinds: Sequence[str], width: int
) -> list[int]:
    """Return the widths of columns in a terminal of `width`; a name that is wider than the first gets its own line."""
    widths = _widths(heads, rows)
    if len(heads) > 1:
        names = (row[0].cell_len for row in rows)
        widths[0] = max([heads[0].cell_len, *(each for each in names if each <= _NAME_MAX)])
    least = [
        0 if kind in {">", "!"} else _longest_word(column) if kind == "~" else _COLUMN_MIN
        for kind, column in zip(kinds, zip(heads, *rows, strict=True), strict=True)
    ]
    if kinds[0] != "~":
        least[0] = 0
    found = _fitted(widths, least, width - len(_GAP) * (len(widths) - 1))
    over = _whole_width(found) - width
    if over > 0 and found[0] - over >= heads[0].cell_len:
        found[0] -= over
    return found


def _fitted(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Narrow the widest column, down to its least width, until all fit; least width 0 means never narrowed."""
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
