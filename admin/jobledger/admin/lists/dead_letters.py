"""Dead letters by filter, one by one and by cause, page by page."""

from __future__ import annotations

import anyio.to_thread
import msgspec

from jobledger.admin.rows import AnswerPosition, View
from jobledger.projections import DeadLetterFilter, DeadLetterGroup, DeadLetterRow, Order


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters, by the time they became one."""

    items: list[DeadLetterRow]
    next: str | None  #: pass it as `cursor` to get the next page; None: this is the last one
    total: int  #: number of all that fit
    position: AnswerPosition


class DeadLetterGroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters by cause, the most frequent first: each with its newest one as the example."""

    items: list[DeadLetterGroup]
    next: str | None  #: pass it as `cursor` to get the next page; None: this is the last one
    total: int  #: number of dead letters that fit, of all causes
    position: AnswerPosition


async def list_dead_letters(
    view: View,
    chosen: DeadLetterFilter,
    *,
    cursor: str | None = None,
    limit: int = 50,
    order: Order = "newest",
) -> DeadLetterPage:
    """Return at most `limit` dead letters that fit; `cursor`: the `next` of the page before.

    Reads in a thread. Raises: CursorMismatchError for the cursor of another filter or order; ProjectionError.
    """

    def read() -> DeadLetterPage:
        with view.store.one_moment():
            found = view.store.dead_letter_page(chosen, cursor=cursor, limit=limit, order=order)
            total = view.store.dead_letter_count(chosen)
            return DeadLetterPage(items=found.items, next=found.next, total=total, position=view.position())

    return await anyio.to_thread.run_sync(read)


async def group_dead_letters(
    view: View, chosen: DeadLetterFilter, *, cursor: str | None = None, limit: int = 50
) -> DeadLetterGroupPage:
    """Return at most `limit` groups of dead letters with one fingerprint; `cursor`: the `next` of the page before.

    Reads in a thread. Raises: CursorMismatchError for the cursor of another filter; ProjectionError.
    """

    def read() -> DeadLetterGroupPage:
        with view.store.one_moment():
            found = view.store.dead_letter_group_page(chosen, cursor=cursor, limit=limit)
            total = view.store.dead_letter_count(chosen)
            return DeadLetterGroupPage(
                items=found.items, next=found.next, total=total, position=view.position()
            )

    return await anyio.to_thread.run_sync(read)
