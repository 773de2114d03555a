"""Limits of what may hang.

They guard against what would wait for ever, and say nothing about speed: a machine that is twenty times as slow as
usual, or busy with other things, is to pass the same tests. What a test proves of time it measures against something
that the same machine does in the same test (see `timing.Slack`), or by what was done, counted and in which order.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

#: How long a test waits for what must come. Nothing passes because of it; what hangs fails after it.
LIMIT_S: Final = 30.0


async def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait until something holds."""
    with anyio.fail_after(limit_s):
        while not holds():
            await anyio.sleep(0.005)


def limited(function: Callable[..., Awaitable[Any]], limit_s: float) -> Callable[..., Awaitable[Any]]:
    """Return the same function, which raises TimeoutError when it takes longer."""

    @functools.wraps(function)
    async def run(*arguments: Any, **options: Any) -> Any:
        with anyio.fail_after(limit_s):
            return await function(*arguments, **options)

    return run
