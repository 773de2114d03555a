"""Lists that are read from the projection, now or at a past moment, and the address of the next page."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from jobledger.admin.rows import AnswerPosition, View
from jobledger.gateway.api.parameters import Look
from jobledger.gateway.http.api_request import ApiRequest

#: Problem codes of every list that can show the past.
READ = ("ARCHIVED", "PROJECTION_BEHIND", "BUSY")


@contextlib.asynccontextmanager
async def looking(asked: ApiRequest, query: Look) -> AsyncGenerator[tuple[View, AnswerPosition], None]:
    """Open the rows for the length of a block, as they are now or were at a past moment.

    Raises: ProblemError, ProjectionError, UnreachableError.
    """
    async with asked.gateway.projection.opened(query.as_of(), min_sequence=query.min_sequence) as view:
        yield view, view.position()


def next_page(asked: ApiRequest, cursor: str | None) -> dict[str, str]:
    """Return the header that names the next page; no header on the last page."""
    if cursor is None:
        return {}
    url = asked.request.url.include_query_params(after=cursor)
    return {"link": f'<{url.path}?{url.query}>; rel="next"'}
