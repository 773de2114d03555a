"""Places in a run's code: branches, and the keys of steps in them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from jobledger.ledger.model.errors import InvalidInputError

#: A key is part of every event of its step; deeper nesting than this would make each of them large.
_KEY_MAX: Final = 256
_NAMELESS: Final = "branch"
#: Beginning of the keys of undos; no branch has this name.
UNDO: Final = "undo/"


class Branch:
    """One line of steps, each beginning when the one before has ended: the run's function, or a branch of `gather`."""

    __slots__ = ("_branches", "_counts", "busy", "prefix")

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix  #: prefix of its keys: "", or `<branch>/`, or `<branch>/<branch>/`
        self.busy = ""  #: the name of the step under way
        self._counts: Counter[str] = Counter()
        self._branches: Counter[str] = Counter()

    def key(self, name: str) -> str:
        """Return the key of the next step of that name: `charge`, then `charge#2`.

        Raises: InvalidInputError for one that is too long.
        """
        return self._next("", name)

    def undo_key(self, name: str) -> str:
        """Return the key of the next undo of that name: `undo/refund`. Raises: as `key`."""
        return self._next(UNDO, name)

    def _next(self, first: str, name: str) -> str:
        key = f"{first}{self.prefix}{name}"
        self._counts[key] += 1
        count = self._counts[key]
        if count > 1:
            key = f"{key}#{count}"
        if len(key) > _KEY_MAX:
            raise InvalidInputError(
                f"the key of step {name!r} has {len(key)} characters and the limit is {_KEY_MAX}: "
                "nest fewer branches, or give them shorter names"
            )
        return key

    def branch(self, function: Callable[..., Any]) -> Branch:
        """Return the branch of a function, named after it: `rows/`, and `rows#2/` for the second one."""
        name = getattr(function, "__name__", "")
        name = name if name.isidentifier() and name != "undo" else _NAMELESS
        self._branches[name] += 1
        count = self._branches[name]
        return Branch(f"{self.prefix}{name}/" if count == 1 else f"{self.prefix}{name}#{count}/")
