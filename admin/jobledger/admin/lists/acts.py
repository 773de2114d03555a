"""What people did to jobs, page by page, as the projection has it; `admin.operators` checks chains and archives, too."""

from __future__ import annotations

import anyio.to_thread
import msgspec

from jobledger.admin.rows import AnswerPosition, View
from jobledger.projections import ActFilter, ActRow


class ActPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of what people did, the newest first."""

    items: list[ActRow]
    next: str | None  #: pass it as `cursor` to get the next page; None: this is the last one
    total: int  #: number of all that fit
    position: AnswerPosition


async def list_acts(view: View, chosen: ActFilter, *, cursor: str | None = None, limit: int = 50) -> ActPage:
    """Return at most `limit` acts that fit, the newest first; `cursor`: the `next` of the page before.

    Reads in a thread. Raises: CursorMismatchError for the cursor of another filter; ProjectionError.
    """

    def read() -> ActPage:
        with view.store.one_moment():
            found = view.store.act_page(chosen, cursor=cursor, limit=limit)
            total = view.store.act_count(chosen)
            return ActPage(items=found.items, next=found.next, total=total, position=view.position())

    return await anyio.to_thread.run_sync(read)
