"""Limits of what may hang."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio


def limited(function: Callable[..., Awaitable[Any]], limit_s: float) -> Callable[..., Awaitable[Any]]:
    """Return the same function, which raises TimeoutError when it takes longer."""

    @functools.wraps(function)
    async def run(*arguments: Any, **options: Any) -> Any:
        with anyio.fail_after(limit_s):
            return await function(*arguments, **options)

    return run
