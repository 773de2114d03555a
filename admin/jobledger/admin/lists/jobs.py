"""Jobs by filter: a page of them with the place where the next one begins, and how many are in each state."""

from __future__ import annotations

from typing import Final

import anyio.to_thread
import msgspec

from jobledger.admin.rows import AnswerPosition, View
from jobledger.projections import JobFilter, JobRow, Order, SearchLimits

SEARCH_LIMITS: Final = SearchLimits()


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of jobs."""

    items: list[JobRow]
    next: str | None  #: pass it as `cursor` to get the next page; None: this is the last one
    position: AnswerPosition
    #: Not None: the search ended at jobs of this time, before the page was full; `next` goes on from there. ISO-8601, UTC.
    searched_back_to: str | None


class CountedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs fit, by state."""

    by_state: dict[str, int]  #: every state; 0 if no job is in it
    position: AnswerPosition
    #: Not None: the counting ended at jobs of this time, older ones are not in it. ISO-8601, UTC.
    searched_back_to: str | None


async def list_jobs(
    view: View,
    chosen: JobFilter,
    *,
    cursor: str | None = None,
    limit: int = 50,
    order: Order = "newest",
    limits: SearchLimits = SEARCH_LIMITS,
) -> JobPage:
    """Return at most `limit` jobs that fit, by creation; `cursor`: the `next` of the page before.

    Pages follow each other without gap or repeat while jobs come and change. Reads in a thread. A caller that may not
    see inputs must not use a filter that `reads_payloads`.

    Raises: CursorMismatchError for the cursor of another filter or order; ProjectionError.
    """

    def read() -> JobPage:
        with view.store.one_moment():
            found = view.store.job_page(chosen, cursor=cursor, limit=limit, order=order, limits=limits)
            return JobPage(
                items=found.items,
                next=found.next,
                position=view.position(),
                searched_back_to=found.searched_back_to,
            )

    return await anyio.to_thread.run_sync(read)


async def count_jobs(view: View, chosen: JobFilter, *, limits: SearchLimits = SEARCH_LIMITS) -> CountedJobs:
    """Return how many jobs fit, by state; states that the filter names are ignored, so that every state is counted.

    Raises: ProjectionError.
    """

    def read() -> CountedJobs:
        with view.store.one_moment():
            found = view.store.job_counts(chosen, limits=limits)
            return CountedJobs(
                by_state=found.by_state,
                position=view.position(),
                searched_back_to=found.searched_back_to,
            )

    return await anyio.to_thread.run_sync(read)
