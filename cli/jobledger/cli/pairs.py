"""Words of the form key=value on a command line."""

from __future__ import annotations

from collections.abc import Sequence

from jobledger.cli.errors import UsageError


def pairs(words: Sequence[str], option: str = "") -> dict[str, str]:
    """Return the pairs in key=value words, values as typed; `option` is the option that has the words.

    Raises: UsageError.
    """
    found: dict[str, str] = {}
    noun, given = ("pair", f"{option} ") if option else ("argument", "")
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name):
            raise UsageError(
                f"{given}{word[:60]!r} is not {'a' if option else 'an'} {noun} of the form key=value"
            )
        if name in found:
            raise UsageError(
                f"{given}{noun} {name!r} is given twice" if not option else f"{option} has {name!r} twice"
            )
        found[name] = value
    return found
