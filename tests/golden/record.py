"""The recorded files beside this module, and how each is compared with what the code says now."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.golden.shapes import is_list, is_map

FOLDER: Final = Path(__file__).parent
#: Set to `write` by `make golden`: the files are then written and not compared.
VARIABLE: Final = "JOBLEDGER_GOLDEN"
_LINES_MAX: Final = 60  #: of a difference
_WIDTH: Final = 110  #: of a line of JSON


def compare(now: Mapping[str, str]) -> None:
    """Fail with the difference where recorded files, by their names, are not what the code says now."""
    if os.environ.get(VARIABLE) == "write":
        for name, text in now.items():
            path = FOLDER / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return
    before = {name: _recorded(FOLDER / name) for name in now}
    if before != now:
        pytest.fail(difference(before, now), pytrace=False)


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return a unified difference that a person can read as a whole, and how to accept it."""
    changed = [name for name in now if now[name] != before[name]]
    lines = [line for name in changed for line in _lines_of(name, before[name], now[name])]
    left = len(lines) - _LINES_MAX
    shown = [*lines[:_LINES_MAX], f"... and {left:,} more lines"] if left > 0 else lines
    names = ", ".join(changed)
    accept = (
        f"If {names} in tests/golden shall change like this, run `make golden` and commit what it writes."
    )
    return "\n".join([*shown, accept])


def _recorded(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _lines_of(name: str, before: str, now: str) -> Iterable[str]:
    return difflib.unified_diff(
        before.splitlines(), now.splitlines(), f"{name} as recorded", f"{name} as it is now", lineterm=""
    )


def as_text(value: Any) -> str:
    """Return JSON with the keys in order, in which each value that fits stands in one line."""
    return _text(value, "") + "\n"


def _text(value: Any, margin: str) -> str:
    short = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(margin) + len(short) <= _WIDTH or not value:
        return short
    inner = margin + " "
    if is_list(value):
        parts, (before, after) = [_text(each, inner) for each in value], "[]"
    elif is_map(value):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {_text(value[key], inner)}" for key in sorted(value)
        ]
        before, after = "{}"
    else:
        return short
    return f"{before}\n{inner}" + f",\n{inner}".join(parts) + f"\n{margin}{after}"
