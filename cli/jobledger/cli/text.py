"""Text that is safe and easy to read on a terminal: data of jobs can neither steer the terminal nor be invisible."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from jobledger.admin import amounts

if TYPE_CHECKING:
    from rich.text import Text

Cell: TypeAlias = "str | Text | int | None"  #: one value in a table or a list of facts
# Everything that moves the cursor, colours, rings or reorders: C0 and C1 controls, bidirectional marks and
# overrides, line separators, zero-width characters, interlinear and tag characters, halves of surrogate pairs.
_UNSAFE: Final = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_UNSAFE_IN_LINE: Final = re.compile(f"[{_UNSAFE}]")
_UNSAFE_IN_JSON: Final = re.compile(f"[{_UNSAFE.removeprefix(chr(0) + '-' + chr(0x1F))}]")

moment, age = amounts.moment, amounts.age  #: functions for this module, which verbs use, too
#: The styles of the levels of checks and diagnoses.
LEVEL_STYLES: Final = {"ok": "green", "info": "blue", "warn": "yellow", "fail": "bold red"}
_STYLES: Final = {
    "completed": "green",
    "running": "cyan",
    "started": "cyan",
    "failed": "red",
    "lost": "red",
    "dead_lettered": "bold red",
    "fenced": "magenta",
    "cancelled": "yellow",
    "discarded": "yellow",
    "retry_wait": "yellow",
}


def plain(text: str) -> str:
    r"""Return one line in which every character that could steer a terminal is replaced by text such as `\x1b`."""
    return _UNSAFE_IN_LINE.sub(_escaped, text)


def plain_lines(text: str) -> list[str]:
    """Return the lines of a text, such as a traceback, each made `plain`; tabs become spaces."""
    return [plain(line.expandtabs()) for line in re.split(r"\r\n|\n", text)]


def json_safe(text: str) -> str:
    r"""Return JSON text with the same value in which such characters are written as `\u202e`."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSAFE_IN_JSON.sub(_json_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[match[0]]
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


def _json_escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def shortened(text: str, length_max: int) -> str:
    """Return `text` made `plain` and cut to `length_max` characters, with an ellipsis if it was cut."""
    safe = plain(text)
    return safe if len(safe) <= length_max else safe[: length_max - 1] + "…"


def colored(word: str) -> Text:
    """Return a state or event type in its colour, without the underscores that only programs need."""
    from rich.text import Text  # noqa: PLC0415 - `jobledger --version` shows none

    return Text(plain(word).replace("_", " "), style=_STYLES.get(word, ""))


def clock_time(at: datetime) -> str:
    """Return the time of day, UTC, to the millisecond: for successive lines."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds")[11:23]


def day(at: datetime) -> str:
    """Return the date, UTC, to print before `clock_time` or once above lines of the same day."""
    return f"{at.astimezone(UTC):%Y-%m-%d}"
