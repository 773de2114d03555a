"""Standard streams that cannot be used: closed when the program starts, or full or broken while it runs.

This module imports nothing of ours, since it runs before everything else.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, Final, Literal, TextIO

#: The format of a log line on stderr.
LogFormat = Literal["text", "json"]

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def prepare() -> None:
    """Make the three standard streams usable, also those that are closed; call it once, before anything is opened.

    A closed stream is replaced by /dev/null. Otherwise the first file or socket would get its number: log lines would
    be written into that file, and an event loop that closes it would abort. Bytes that stderr cannot take are dropped,
    since a message must not end its program. An error of stdout names stdout.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        was_closed = _open_if_closed(number)
        if getattr(sys, name) is None:
            file = number if was_closed else os.devnull
            setattr(sys, name, open(file, mode, encoding="utf-8", closefd=not was_closed))  # noqa: SIM115
    sys.stdout = _around(sys.stdout, _NamedStream)
    sys.stderr = _around(sys.stderr, _DroppingFile)


def _around(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(kind(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream is sys.stderr or bool(stream.line_buffering),
        write_through=bool(os.environ.get("PYTHONUNBUFFERED")),
    )


def _open_if_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `number`
        os.set_inheritable(number, True)  # noqa: FBT003 - a child process expects it there
        return True
    return False


class _NamedStream(io.FileIO):
    """Stdout, whose errors name it, so that a message can say which file has no room."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "stdout") from error


class _DroppingFile(io.FileIO):
    """A file that accepts every write, and drops what its disk or pipe does not take."""

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return len(data) if written is None else written


def is_broken(stream: TextIO) -> bool:
    """Return whether a stream cannot write out what it holds."""
    try:
        stream.flush()
    except (OSError, ValueError):
        return True
    return False


def let_go(stream: TextIO) -> None:
    """Send the rest of a stream and all later output to /dev/null, so that the interpreter's end does not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
