"""The application whose jobs are run by two releases beside each other; a result names the release that ran it."""

from __future__ import annotations

import asyncio
import os

from jobledger.ledger import Backoff, Context, Retry, task

RELEASE = os.environ.get("RELEASE_NAME", "")
_HELD_S = 600.0


@task(queue="plain")
async def plain(n: int) -> str:
    """Do it."""
    return RELEASE


@task(queue="plain", max_attempts=4, backoff=Backoff(kind="fixed", base_s=0.5))
async def again(context: Context, n: int) -> str:
    """Fail twice."""
    if context.attempt <= 2:
        raise ValueError(n)
    return RELEASE


@task(queue="plain")
async def at_once(context: Context, n: int) -> str | Retry:
    """Ask for another attempt without a wait."""
    return Retry(delay_s=0.0) if context.attempt == 1 else RELEASE


@task(queue="plain", max_attempts=2, backoff=Backoff(kind="fixed", base_s=0.2))
async def dead(n: int) -> str:
    """Fail until it is a dead letter."""
    raise ValueError(n)


@task(queue="plain")
async def held(context: Context, n: int) -> str:
    """Run until the worker is killed, and then at once."""
    if context.attempt == 1:
        await asyncio.sleep(_HELD_S)
    return RELEASE
