"""The output of commands: tables and sentences for a person, JSON objects for a program.

Answers go to stdout, everything else (progress, notes, logs, errors) to stderr.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from jobledger.cli import logs
from jobledger.cli.streams import let_go
from jobledger.cli.text import Cell, json_safe, plain
from jobledger.ledger.model.times import time_text

# rich is slow to load, and an answer in JSON does not need it.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

    from jobledger.cli.canvas import Canvas

S = TypeVar("S", bound=str)

_PROGRESS_AFTER_S: Final = 1.0
_LINE_EVERY_S: Final = 5.0  #: pause between progress lines if no terminal shows a bar
_WIDE: Final = 120  # width that an event with its ids and details takes


class Output:
    """The output of one command: its answer on stdout, notes and progress on stderr."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    @functools.cached_property
    def canvas(self) -> Canvas:
        """The canvas on stdout for a person."""
        from jobledger.cli.canvas import Canvas  # noqa: PLC0415

        return Canvas()

    @functools.cached_property
    def notes(self) -> Console:
        """The console for notes and progress."""
        from jobledger.cli.canvas import console_on  # noqa: PLC0415

        return console_on(sys.stderr)

    @property
    def console(self) -> Console:
        """The console on stdout."""
        return self.canvas.console

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
        """Write a line of JSON text as it is, except characters that steer terminals."""
        sys.stdout.write(json_safe(text) + "\n")
        sys.stdout.flush()

    def say(self, text: str | Text = "", *, style: str = "") -> None:
        """Print a sentence for a person, nothing with --json. Long lines wrap on a terminal only."""
        if not self.as_json:
            self.canvas.say(text, style=style)

    def line(self, text: Text) -> None:
        """Print one line of a list: cut to a terminal's width; whole in a file or for a program."""
        self.canvas.line(text)

    def note(self, text: str) -> None:
        """Print a note beside the answer, on stderr, also with --json."""
        with contextlib.suppress(OSError, ValueError):
            logs.note(text, lambda text: self.notes.print(plain(text), soft_wrap=True))

    @contextlib.contextmanager
    def telling(self) -> Generator[None, None, None]:
        """Drop output of the block after an error of stdout, which must not end a running service."""
        try:
            yield
        except OSError as error:
            let_go(sys.stdout)
            self.note(f"stdout cannot be written ({error.strerror or error}): nothing more is said there")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "") -> None:
        """Print a table, on a terminal one that fits; see `Canvas.table`."""
        if title:
            self.say()
            self.say(title, style="bold")
        self.canvas.table(columns, rows)

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print names and values below each other, long values wrapped; a value None leaves its line out."""
        self.canvas.facts(pairs)

    def hanging(self, head: Text, body: Text) -> None:
        """Print `head` and `body` as one line; on a terminal the body wraps, and each part begins below the first."""
        self.canvas.hanging(head, body)

    @contextlib.contextmanager
    def progress(self, what: str) -> Generator[Callable[[int, int], None], None, None]:
        """Yield a callback for (done, total) that shows nothing in the first second, then a bar on stderr."""
        shown = _SlowProgress(self, what)
        try:
            yield shown.update
        finally:
            shown.stop()

    @contextlib.contextmanager
    def steps(self, words: Mapping[S, str]) -> Generator[Callable[[S, int, int], None], None, None]:
        """Yield a callback for (step, done, total) that shows a bar for each step with words, one after the other."""
        with contextlib.ExitStack() as stack:
            bars = {step: stack.enter_context(self.progress(what)) for step, what in words.items()}

            def show(step: S, done: int, total: int) -> None:
                if step in bars:
                    bars[step](done, total)

            yield show


class _SlowProgress:
    """A progress bar that appears after a second; without a terminal, a line now and then."""

    def __init__(self, output: Output, what: str) -> None:
        self._output = output
        self._what = what
        self._next_s = time.monotonic() + _PROGRESS_AFTER_S
        self._bar: Progress | None = None

    def update(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        elif time.monotonic() >= self._next_s and done < total:
            self._next_s = time.monotonic() + _LINE_EVERY_S
            if self._output.notes.is_terminal:
                self._bar = bar(self._output.notes)
                self._bar.start()
                self._bar.add_task(self._what, total=total, completed=done)
            else:
                self._output.notes.print(f"{self._what}: {done:,} of {total:,}")

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
