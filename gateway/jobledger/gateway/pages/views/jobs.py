"""The list of jobs: filters that are all in the address, pages by a cursor, rows that hold still."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import anyio.to_thread
import msgspec

from jobledger.admin.rows import View
from jobledger.gateway.pages.page import Looked, When, moment_of
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.times import time_text
from jobledger.projections import JobFilter, JobRow, SaidFilter, SearchLimits, Store

ROWS: Final = 40
_NEWER_MAX: Final = 100
_FACETS_MAX: Final = 30
_TEXTS_MAX: Final = 200
_LAST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
#: A page asks three questions. All three together take no longer than one answer of the API (`SearchLimits`).
_ROWS_WITHIN: Final = SearchLimits(seconds_max=0.03)
_COUNTS_WITHIN: Final = SearchLimits(seconds_max=0.02)
_NEWER_WITHIN: Final = SearchLimits(seconds_max=0.01)
#: What can only be the beginning of an id that we made.
_ID: Final = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}")
_ERROR: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Timeout)")
_FIELD: Final = re.compile(r"([\w./~-]{1,100})=(.{1,200})")

Text = Annotated[str, msgspec.Meta(max_length=_TEXTS_MAX)]


class Query(When, frozen=True, kw_only=True):
    """Which jobs."""

    state: tuple[JobState, ...] = ()
    queue: Text | None = None
    task: Text | None = None
    q: Text = ""  #: as somebody types it: an id's beginning, a type of error, `field=value`, or words
    error_type: Text | None = None
    fingerprint: Text | None = None
    batch: Text | None = None
    created_by: Text | None = None
    since: Text | None = None
    until: Text | None = None
    cursor: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    top: Text | None = (
        None  #: creation of the first row of a list that holds still: newer jobs are counted only
    )

    def asked(self) -> list[tuple[str, str]]:
        """Return the filters as an address has them, without place and moment."""
        single = ("queue", "task", "q", "error_type", "fingerprint", "batch", "created_by", "since", "until")
        found = [(name, str(getattr(self, name))) for name in single if getattr(self, name)]
        return [*(("state", each.value) for each in self.state), *found]

    def chosen(self, principal: Principal) -> JobFilter:
        """Return the filter of what somebody may see. Raises: ProjectionConfigError, ProblemError."""
        words = _words(self.q)
        if self.error_type is not None:
            words["error_type"] = self.error_type
        found = JobFilter(
            states=tuple(each.value for each in self.state),
            queue=self.queue,
            task=self.task,
            since=self.since,
            until=self.until,
            said=SaidFilter(created_by=self.created_by),
            fingerprint=self.fingerprint,
            batch=self.batch,
            visible_queues=principal.queues,
            visible_tasks=principal.tasks,
            **words,
        )
        if found.reads_payloads:
            principal.require("payloads")
        return found


def _words(text: str) -> dict[str, Any]:
    """Return what somebody means who types this."""
    text = text.strip()
    if not text:
        return {}
    if _ID.fullmatch(text):
        return {"id_prefix": text}
    if _ERROR.fullmatch(text):
        return {"error_type": text}
    field = _FIELD.fullmatch(text)
    return {"text": text} if field is None else {"input": ((field[1], field[2]),)}


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    query: Query
    asked: list[tuple[str, str]]
    rows: list[JobRow]
    next: str | None
    searched_back_to: str | None
    counts: dict[str, int]
    counted_back_to: str | None
    matching: int
    newer: int  #: jobs that fit and came after the first row of a list that holds still
    newer_more: bool
    #: Creation of the newest of those, "" where there are none. The link that shows them names it: the list's own address
    #: may get a rendering from before them, which `serving` shares for a moment.
    newest: str
    queues: list[tuple[str, int | None]]  #: None for whoever is bound to tasks
    tasks: list[str]
    hidden: bool
    top: str  #: creation of the first row


async def jobs(looked: Looked, *, query: Query) -> Jobs:
    """Return one page of the list, as it is or as of a past moment."""
    past = query.as_of()
    chosen = query.chosen(looked.principal)
    async with looked.gateway.projection.opened(past) as view:
        shell = await surround(looked, view, past)
        return await anyio.to_thread.run_sync(_listed, looked, view, shell, query, chosen)


def _listed(looked: Looked, view: View, shell: Shell, query: Query, chosen: JobFilter) -> Jobs:
    with view.store.one_moment():
        return _page(looked, view, shell, query, chosen)


def _page(looked: Looked, view: View, shell: Shell, query: Query, chosen: JobFilter) -> Jobs:
    store, shown = view.store, chosen
    newer: list[JobRow] = []
    if query.top is not None and query.cursor is None:
        top = min(moment_of("top", query.top), _LAST)
        after = time_text(top + timedelta(microseconds=1))
        if chosen.until is None or after < chosen.until:
            since = msgspec.structs.replace(chosen, since=after)
            newer = store.job_page(since, limit=_NEWER_MAX, limits=_NEWER_WITHIN).items
            shown = msgspec.structs.replace(chosen, until=after)
    found = store.job_page(shown, cursor=query.cursor, limit=ROWS, limits=_ROWS_WITHIN)
    counts = store.job_counts(chosen, limits=_COUNTS_WITHIN)
    states = [each.value for each in query.state] or list(counts.by_state)
    return Jobs(
        shell=shell,
        query=query,
        asked=query.asked(),
        rows=found.items,
        next=found.next,
        searched_back_to=found.searched_back_to,
        counts=counts.by_state,
        counted_back_to=counts.searched_back_to,
        matching=sum(counts.by_state[state] for state in states),
        newer=len(newer),
        newer_more=len(newer) >= _NEWER_MAX,
        newest=newer[0].created_at if newer else "",
        queues=_queues(looked, store),
        tasks=_tasks(looked, store),
        hidden=not looked.principal.may("payloads"),
        top=query.top or (found.items[0].created_at if found.items and query.cursor is None else ""),
    )


def _queues(looked: Looked, store: Store) -> list[tuple[str, int | None]]:
    found: dict[str, int] = {}
    for row in store.queues():
        if looked.principal.may("view", row.queue):
            found[row.queue] = found.get(row.queue, 0) + sum(row.counts.values())
    counted = looked.principal.is_of_all_tasks
    return [(queue, found[queue] if counted else None) for queue in sorted(found)[:_FACETS_MAX]]


def _tasks(looked: Looked, store: Store) -> list[str]:
    pairs = store.select("SELECT DISTINCT task, queue FROM totals ORDER BY task LIMIT ?", (4 * _FACETS_MAX,))
    names = dict.fromkeys(task for task, queue in pairs if looked.principal.may("view", queue, task))
    return list(names)[:_FACETS_MAX]
