"""The list of jobs: a search in the address, pages by a cursor, rows that hold still; also suggestions for a search."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, NamedTuple, Self

import anyio.to_thread
import msgspec
from markupsafe import Markup

from jobledger.admin.rows import View
from jobledger.gateway.http.fields import fields_of
from jobledger.gateway.pages.charts.plot import share
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import Elsewhere, Viewer, When, moment_of
from jobledger.gateway.pages.search import Chip, Item, SearchChoice, ask, exact, suggest
from jobledger.gateway.pages.shell import PageFacts, Shell, opened
from jobledger.gateway.pages.traits import Trait, traits
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.times import time_text
from jobledger.projections import JobFilter, JobRow, SearchLimits, parse_search
from jobledger.projections.search import TEXT_MAX, pair

ROWS: Final = 50
_NEWER_MAX: Final = 100
_CHIPS_MAX: Final = 5
_MOSTLY: Final = 0.95
_COMPARED_MAX: Final = 250
_SHARED_WITHIN: Final = SearchLimits(seconds_max=0.25)
_LAST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
#: A page makes three queries, and a fourth if no job matches. The first three together take no longer than one answer
#: of the API (`SearchLimits`).
_ROWS_WITHIN: Final = SearchLimits(seconds_max=0.03)
_COUNTS_WITHIN: Final = SearchLimits(seconds_max=0.02)
_NEWER_WITHIN: Final = SearchLimits(seconds_max=0.01)
_LACKING_S_MAX: Final = 0.01  #: time limit of all its counts together

Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
#: Names of conditions in older addresses and on other pages: a field of `Query`, and the key of a search.
_NAMED: Final = {
    "queue": "queue",
    "task": "task",
    "error_type": "error",
    "batch": "batch",
    "created_by": "by",
    "since": "since",
    "until": "until",
}


class Column(NamedTuple):
    """One column of the list."""

    name: str
    title: str
    shown: bool = True  #: True if it is shown without a choice of columns
    right: bool = False


COLUMNS: Final = (
    Column("id", "id"),
    Column("task", "task"),
    Column("about", "input or error"),
    Column("tenant", "tenant"),
    Column("queue", "queue"),
    Column("tries", "tries", right=True),
    Column("took", "took", right=True),
    Column("age", "enqueued", right=True),
    Column("due", "due", shown=False, right=True),
    Column("priority", "priority", shown=False),
    Column("limits", "limits", shown=False),
    Column("worker", "worker", shown=False),
    Column("by", "asked by", shown=False),
    Column("run", "run", shown=False),
    Column("meta", "metadata", shown=False),
)
#: Searches that many people need.
VIEWS: Final = (
    ("Failing now", "state:failing since:1h"),
    ("Waits longest", "state:queued"),
    ("Held by a limit", "state:held"),
    ("Waits for a signal", "awaits:signal"),
    ("Running now", "state:running"),
    ("Died today", "state:dead since:24h"),
)


class Query(When, frozen=True, kw_only=True):
    """Which jobs."""

    q: Text = ""  #: the search; see `search`
    cols: tuple[Text, ...] = ()  #: columns to show; none: the usual ones
    order: Literal["newest", "oldest"] = "newest"
    share: bool = False  #: also show what the jobs have in common
    cursor: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    top: Text | None = (
        None  #: creation time of the first row, for a list that holds still: newer jobs are only counted
    )
    # See `_NAMED`.
    state: tuple[JobState, ...] = ()
    queue: Text | None = None
    task: Text | None = None
    error_type: Text | None = None
    fingerprint: tuple[Text, ...] = ()
    batch: Text | None = None
    created_by: Text | None = None
    since: Text | None = None
    until: Text | None = None

    @property
    def text(self) -> str:
        """The whole search as a person types it."""
        pairs = [("state", each.value) for each in self.state]
        pairs += [(key, value) for name, key in _NAMED.items() if (value := getattr(self, name))]
        pairs += [("cause", value) for value in self.fingerprint]
        return " ".join(filter(None, (self.q.strip(), *(pair(*each) for each in pairs))))

    def with_text(self, text: str) -> Self:
        """Return the same query with another search."""
        fields = {
            field.name: field.default
            for field in fields_of(Query)
            if field.name in {"state", "fingerprint", *_NAMED}
        }
        return msgspec.structs.replace(self, **fields, q=text)

    def asked(self) -> list[tuple[str, str]]:
        """Return the search as parameters of an address, without place and moment."""
        return [("q", self.text)] if self.text else []


class Jobs(PageFacts, frozen=True, kw_only=True):
    """The page."""

    query: Query
    asked: list[tuple[str, str]]
    chips: list[Chip]
    lacking: list[tuple[Chip, int]]  #: if no job matches: the number that would without each condition
    problems: tuple[str, ...]
    note: str
    columns: list[Column]
    every: tuple[Column, ...]
    views: tuple[tuple[str, str], ...]
    traits: list[tuple[Trait, Markup]] | None  #: None: it was not asked for
    compared: tuple[int, int]  #: numbers of jobs: of the list, and of the others
    rows: list[JobRow]
    next: str | None
    searched_back_to: str | None
    tabs: list[tuple[str, str, int, bool]]  #: state, search, number of jobs, whether it is chosen
    counted_back_to: str | None
    matching: int
    newer: int  #: matching jobs newer than the first row of a list that holds still
    newer_more: bool
    #: Creation time of the newest one of these, "" without one. The link to them contains it: the list's own address
    #: could get an older rendering, which `dashboard` shares for a moment.
    newest: str
    hidden: bool
    top: str  #: creation time of the first row


async def jobs(looked: Viewer, *, query: Query) -> Jobs | Elsewhere:
    """Return one page of the list, now or as of a past moment; for a whole id, a redirect to the job."""
    past = query.as_of()
    async with opened(looked, past) as (view, shell):
        found = exact(query.text, view.store, looked.principal)
        if found is not None:
            return Elsewhere(address(f"/jobs/{found[0]}/{found[1]}", query.named()))
        return await anyio.to_thread.run_sync(_listed, looked, view, shell, query)


def _listed(looked: Viewer, view: View, shell: Shell, query: Query) -> Jobs:
    with view.store.one_moment():
        return _page(looked, view, shell, query, ask(query.text, view.store, looked.principal, view.now))


def _page(looked: Viewer, view: View, shell: Shell, query: Query, asked: SearchChoice) -> Jobs:
    store, chosen = view.store, asked.chosen
    shown = chosen
    newer: list[JobRow] = []
    order = query.order
    if query.top is not None and query.cursor is None and order == "newest":
        top = min(moment_of("top", query.top), _LAST)
        after = time_text(top + timedelta(microseconds=1))
        if chosen.until is None or after < chosen.until:
            since = msgspec.structs.replace(chosen, since=after)
            newer = store.job_page(since, limit=_NEWER_MAX, limits=_NEWER_WITHIN).items
            shown = msgspec.structs.replace(chosen, until=after)
    found = store.job_page(shown, cursor=query.cursor, limit=ROWS, order=order, limits=_ROWS_WITHIN)
    counts = store.job_counts(chosen, limits=_COUNTS_WITHIN)
    states = list(chosen.states) or list(counts.by_state)
    shared, compared = _shared(looked, view, asked) if query.share else (None, (0, 0))
    return Jobs(
        traits=shared,
        compared=compared,
        shell=shell,
        query=query,
        asked=query.asked(),
        chips=asked.chips(),
        lacking=[] if found.items or query.cursor else _lacking(looked, view, asked),
        problems=asked.problems,
        note=asked.note,
        columns=[each for each in COLUMNS if (each.name in query.cols if query.cols else each.shown)],
        every=COLUMNS,
        views=VIEWS,
        rows=found.items,
        next=found.next,
        searched_back_to=found.searched_back_to,
        tabs=_tabs(asked, counts.by_state),
        counted_back_to=counts.searched_back_to,
        matching=sum(counts.by_state[state] for state in states),
        newer=len(newer),
        newer_more=len(newer) >= _NEWER_MAX,
        newest=newer[0].created_at if newer else "",
        hidden=not looked.principal.may("payloads"),
        top=query.top or (found.items[0].created_at if found.items and query.cursor is None else ""),
    )


def _shared(
    looked: Viewer, view: View, asked: SearchChoice
) -> tuple[list[tuple[Trait, Markup]], tuple[int, int]]:
    """Return the traits that set the newest matching jobs apart from other jobs of their time."""
    rows = view.store.job_page(asked.chosen, limit=_COMPARED_MAX, limits=_SHARED_WITHIN).items
    if not rows:
        return [], (0, 0)
    own = {(row.queue, row.id) for row in rows}
    task, most = Counter(row.task for row in rows).most_common(1)[0]
    whole = JobFilter(
        task=task
        if most >= _MOSTLY * len(rows)
        else None,  # compare with jobs of the same task, which are otherwise alike
        since=rows[-1].created_at,
        until=rows[0].created_at,
        visible_queues=looked.principal.queues,
        visible_tasks=looked.principal.tasks,
    )
    others = [
        row
        for row in view.store.job_page(whole, limit=_COMPARED_MAX, limits=_SHARED_WITHIN).items
        if (row.queue, row.id) not in own
    ]
    keys = frozenset(word.key for word in asked.words)
    found = traits(
        rows,
        others,
        keys | {"error"} if "state" in keys else keys,
        values=looked.principal.may("payloads"),
    )
    return [(each, _bars(each)) for each in found], (len(rows), len(others))


def _bars(trait: Trait) -> Markup:
    here = share(
        [("k0", "of these", 100 * trait.here)], label=f"{100 * trait.here:.0f} % of these", whole=100
    )
    return here + share(
        [("k7", "of the others", 100 * trait.there)],
        label=f"{100 * trait.there:.0f} % of the others",
        whole=100,
    )


def _lacking(looked: Viewer, view: View, asked: SearchChoice) -> list[tuple[Chip, int]]:
    """Return how many jobs would match without each condition, the highest number first."""
    chips = asked.chips()[:_CHIPS_MAX]
    if len(chips) < 2:  # noqa: PLR2004 - without the only one, all jobs match
        return []
    within = SearchLimits(seconds_max=_LACKING_S_MAX / len(chips))
    found = [(chip, _count(looked, view, chip.without, within)) for chip in chips]
    return sorted((each for each in found if each[1]), key=lambda each: -each[1])


def _count(looked: Viewer, view: View, text: str, within: SearchLimits) -> int:
    chosen = ask(text, view.store, looked.principal, view.now).chosen
    counts = view.store.job_counts(chosen, limits=within).by_state
    return sum(counts[state] for state in chosen.states or counts)


def _tabs(asked: SearchChoice, counts: dict[str, int]) -> list[tuple[str, str, int, bool]]:
    """Return the states that have jobs, each with the search for it alone."""
    rest = [word.text for word in asked.words if word.key != "state"]
    chosen = asked.chosen.states
    found = [("", " ".join(rest), sum(counts.values()), not chosen)]
    for state, jobs_there in counts.items():
        if jobs_there or state in chosen:
            found.append((state, " ".join([*rest, f"state:{state}"]), jobs_there, state in chosen))
    return found


# --- Suggestions for a search that is being typed.


class SuggestQuery(When, frozen=True, kw_only=True):
    """The text typed so far."""

    q: Text = ""


class Suggestions(PageFacts, frozen=True, kw_only=True):
    """The part of a page below the field."""

    asked: str  #: text of the field at the request; the field may have changed since
    items: list[Item]


async def suggested(looked: Viewer, *, query: SuggestQuery) -> Suggestions:
    """Return the suggestions."""
    async with opened(looked) as (view, shell):
        return Suggestions(
            shell=shell,
            asked=query.q,
            items=await anyio.to_thread.run_sync(suggest, query.q, view.store, looked.principal),
        )


def filter_of(query: Query, looked: Viewer, view: View) -> JobFilter:
    """Return the filter of a search for an act; a word that is not understood is an error here, not left out.

    Raises: AccessDeniedError, ProjectionConfigError.
    """
    _ = parse_search(query.text, view.now)
    return ask(query.text, view.store, looked.principal, view.now).chosen
