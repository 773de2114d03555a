"""Server-sent events: the bytes of a stream. Their ids are stream sequences, so that any gateway can continue a stream.

The form is that of the HTML standard, section 9.2 (server-sent events).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Final

import msgspec

from jobledger.admin.events.choice import name_of
from jobledger.gateway.events.feed import Feed, FeedEvent, Portion
from jobledger.gateway.problems import ProblemError, problem_of
from jobledger.gateway.shares import opened
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.rights.marks import Hidden

MEDIA: Final = "text/event-stream"
#: A proxy must forward each part at once, and nobody may cache it.
HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
RETRY_MS: Final = 1_000  #: pause before a reader that was cut off connects again

Shown = Callable[[FeedEvent], bool]


async def sse(
    feed: Feed,
    portions: AsyncGenerator[Portion, None],
    shown: Shown,
    *,
    hidden: Hidden,
    request_id: str,
    is_last: Shown = lambda _kept: False,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream: first the time to reconnect, then each event shown, with its sequence as id.

    An error that ends the stream early is sent as an event `problem`, with the fields of other problems.
    `is_last` is called for each event shown; the stream ends if it is true for the last one of a portion.

    Raises: before the first part, an error that refuses the stream.
    """

    def text(portion: Portion) -> tuple[str, bool]:
        wanted = [each for each in portion[0] if shown(each)]
        written = "".join(_event(each, hidden) for each in wanted)
        # An id without an event moves a reader on, and keeps the connection alive.
        return written or f"id: {portion[1]}\n\n", [False, *map(is_last, wanted)][-1]

    feed.require_open()
    with opened("streams"):
        async with contextlib.aclosing(portions):
            written, ends = text(await anext(portions))
            yield f"retry: {RETRY_MS}\n\n{written}".encode()
            try:
                while not ends and (portion := await anext(portions, None)) is not None:
                    written, ends = text(portion)
                    yield written.encode()
            except (LedgerError, ProblemError) as error:
                problem, _ = problem_of(error, request_id)
                yield f"event: problem\ndata: {msgspec.json.encode(problem).decode()}\n\n".encode()


async def primed(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Take the first part before the answer begins, so that an error becomes the answer itself."""
    first = await anext(parts)

    async def all_of_them() -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(parts):
            yield first
            async for part in parts:
                yield part

    return all_of_them()


def _event(kept: FeedEvent, hidden: Hidden) -> str:
    return f"id: {kept.sequence}\nevent: {name_of(kept.message)}\ndata: {kept.text(hidden)}\n\n"
