"""Dead letters by cause: error, number over time, and tenants; several causes may be put into one plan."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Annotated, Final

import anyio.to_thread
import msgspec
from markupsafe import Markup

from jobledger.admin.rows import View
from jobledger.gateway.pages.charts.plot import spark
from jobledger.gateway.pages.frames import read_traceback
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import RANGES, PageFacts, Shell, opened
from jobledger.projections import DeadLetterFilter, DeadLetterGroup, DeadLetterRow, SaidFilter
from jobledger.projections.filters import joined

_GROUPS: Final = 100
_ROWS: Final = 50
_BARS: Final = 24
_NAMED: Final = 2
#: A cause is new if its first job died in this newest part of the range.
_NEW: Final = 1 / 6

Text = Annotated[str, msgspec.Meta(max_length=200)]


class Query(When, frozen=True, kw_only=True):
    """The filter of dead letters."""

    queue: Text | None = None
    task: Text | None = None
    reason: Text | None = None
    tenant: Text | None = None
    fingerprint: Text | None = None

    def asked(self) -> list[tuple[str, str]]:
        """Return the filters as parameters of an address."""
        names = ("queue", "task", "reason", "tenant", "fingerprint")
        return [(name, value) for name in names if (value := getattr(self, name))]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one cause."""

    group: DeadLetterGroup
    trend: Markup
    lately: int  #: number that died in the range
    tenants: list[tuple[str, int]]  #: tenants of the jobs, the most frequent first
    tenants_more: int
    is_new: bool  #: True if the cause did not occur before the newest part of the range
    frame: str  #: the last call in user code


class DeadLetters(PageFacts, frozen=True, kw_only=True):
    """The page."""

    query: Query
    asked: list[tuple[str, str]]
    total: int
    causes: list[Cause]
    rows: list[DeadLetterRow]  #: the newest dead letters; only if one cause was chosen
    rows_max: int


async def dead_letters(looked: Viewer, *, query: Query) -> DeadLetters:
    """Return the causes, those with most dead letters first."""
    past = query.as_of()
    chosen = DeadLetterFilter(
        queue=query.queue,
        task=query.task,
        reason=query.reason,
        fingerprint=query.fingerprint,
        said=SaidFilter(tenant=query.tenant),
        visible_queues=looked.principal.queues,
        visible_tasks=looked.principal.tasks,
    )
    async with opened(looked, past) as (view, shell):
        return await anyio.to_thread.run_sync(_page, view, shell, query, chosen)


def _page(view: View, shell: Shell, query: Query, chosen: DeadLetterFilter) -> DeadLetters:
    with view.store.one_moment():
        groups = view.store.dead_letter_groups(_GROUPS, chosen=chosen)
        return DeadLetters(
            shell=shell,
            query=query,
            asked=query.asked(),
            total=view.store.dead_letter_count(chosen),
            causes=_causes(view, shell, groups, chosen),
            rows=view.store.dead_letters(_ROWS, chosen=chosen) if query.fingerprint else [],
            rows_max=_ROWS,
        )


def _causes(view: View, shell: Shell, groups: list[DeadLetterGroup], chosen: DeadLetterFilter) -> list[Cause]:
    where, values = joined(chosen.terms())
    whole_s = RANGES[shell.range][0]
    since = view.now - timedelta(seconds=whole_s)
    trends: dict[str, list[float]] = defaultdict(lambda: [0.0] * _BARS)
    sql = f"SELECT fingerprint, dead_at FROM dead_letters WHERE dead_at >= ? AND {where}"  # noqa: S608 - our own columns
    for name, dead_at in view.store.select(sql, (f"{since:%Y-%m-%dT%H:%M:%S}", *values)):
        place = int((datetime.fromisoformat(dead_at) - since).total_seconds() * _BARS / whole_s)
        trends[name][min(_BARS - 1, max(0, place))] += 1
    whose: dict[str, list[tuple[str, int]]] = defaultdict(list)
    sql = f"SELECT fingerprint, tenant, count(*) FROM dead_letters WHERE {where} AND tenant <> '' GROUP BY 1, 2 ORDER BY 3 DESC"  # noqa: S608
    for name, tenant, jobs in view.store.select(sql, tuple(values)):
        whose[name].append((tenant, jobs))
    new_since = max(since, view.now - timedelta(seconds=whole_s * _NEW))
    return [
        Cause(
            group=group,
            trend=spark(trends[group.fingerprint], style="t-dead", bars=True),
            lately=int(sum(trends[group.fingerprint])),
            tenants=whose[group.fingerprint][:_NAMED],
            tenants_more=max(0, len(whose[group.fingerprint]) - _NAMED),
            is_new=datetime.fromisoformat(group.oldest) > new_since,
            frame=_frame(view, group),
        )
        for group in groups
    ]


def _frame(view: View, group: DeadLetterGroup) -> str:
    """Return the last frame of user code in the traceback of the group's newest dead letter."""
    sql = "SELECT traceback FROM dead_letters WHERE job_id = ? AND queue = ?"
    for raised in read_traceback(view.store.select(sql, (group.job_id, group.queue))[0][0] or "")[:1]:
        own = [frame for group in raised.groups if group.own for frame in group.frames]
        if own:
            return f"{own[-1].file}:{own[-1].line} in {own[-1].function}"
    return ""
