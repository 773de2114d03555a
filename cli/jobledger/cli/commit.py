"""The commit that this program was built from: written into the package by the build, else read from the checkout.

It imports next to nothing and runs no program, since `jobledger --version` asks for it; the build calls `commit_of`, too.
Changes that nobody committed do not show.
"""

from __future__ import annotations

import os
from typing import Final

#: In the package, where it was built from a checkout; see `hatch_build.py`.
FILE: Final = "COMMIT"
_DIGITS: Final = frozenset("0123456789abcdef")
_DIGITS_MIN: Final = 40
_SHOWN: Final = 12
_BYTES_MAX: Final = 16 << 20
#: Where this package lies in a checkout; an installed one may lie in the checkout of something else.
_PLACE: Final = f"{os.sep}cli{os.sep}jobledger{os.sep}cli"


def commit_words() -> str:
    """Return what follows the version in `jobledger --version`: ` (commit 0123456789ab)`, "" where it is not known."""
    known = commit()
    return f" (commit {known})" if known else ""


def commit() -> str:
    """Return the first digits of the commit, "" where it is not known."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib loads slowly
    known = _checked(_read(here, FILE))
    if not known and here.endswith(_PLACE):
        known = commit_of(here.removesuffix(_PLACE))
    return known[:_SHOWN]


def commit_of(root: str) -> str:
    """Return the commit that is checked out in a folder, "" where it is no checkout or cannot be read."""
    folder = os.path.join(root, ".git")  # noqa: PTH118
    if os.path.isfile(folder):  # noqa: PTH113 - of a further worktree
        folder = os.path.join(root, _read(folder).removeprefix("gitdir: "))  # noqa: PTH118
    head = _read(folder, "HEAD")
    if not head.startswith("ref: "):
        return _checked(head)
    name = head.removeprefix("ref: ")
    shared = os.path.join(folder, _read(folder, "commondir"))  # noqa: PTH118
    return _checked(_read(shared, name)) or _packed(_read(shared, "packed-refs"), name)


def _packed(lines: str, name: str) -> str:
    found = (line.partition(" ") for line in lines.splitlines())
    return next((_checked(digits) for digits, _, each in found if each == name), "")


def _checked(text: str) -> str:
    return text if len(text) >= _DIGITS_MIN and _DIGITS.issuperset(text) else ""


def _read(*parts: str) -> str:
    path = os.path.join(*parts)  # noqa: PTH118
    try:
        if not os.path.isfile(path):  # noqa: PTH113 - a pipe of this name would never end
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read(_BYTES_MAX).strip()
    except (OSError, ValueError):
        return ""
