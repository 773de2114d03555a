"""Calls of `print` by the code of attempts, passed to listeners: `print` is replaced while there is a listener.

Each call still prints. Other writes to `sys.stdout` are not passed on.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any, Final

from jobledger.ledger.logs import job_filter

#: The logger that lines of prints name.
LOGGER: Final = "print"

Listener = Callable[[str], None]
_listeners: list[Listener] = []
_print: Final = builtins.print


def listen(listener: Listener) -> None:
    """Tell a listener, until `leave`, what is printed within attempts; from any thread, and it must not raise."""
    _listeners.append(listener)
    builtins.print = _telling_print


def leave(listener: Listener) -> None:
    """Tell a listener no more; one that did not listen is no error."""
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners and builtins.print is _telling_print:
        builtins.print = _print


def tell(text: str) -> None:
    """Tell the listeners what was printed within the current attempt."""
    for listener in tuple(_listeners):
        listener(text)


def _telling_print(*values: Any, **how: Any) -> None:
    """Print as `print` does, and tell what it was: once for each call."""
    if job_filter.current.get() is None or how.get("file") not in (None, sys.stdout, sys.stderr):
        _print(*values, **how)
        return
    texts = list(map(str, values))  # once: who made the values sees no difference
    _print(*texts, **how)
    separator = how.get("sep")
    text = (" " if separator is None else separator).join(texts).rstrip("\n")
    if text:
        tell(text)
