"""Lists of jobs: every filter, page after page, held against a plain SELECT; and how many jobs are in each state."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.histories import SteppedClock, act
from tests.support.orders import enqueue_of
from tests.support.projections import finish
from tests.support.tables import each_row

from jobledger.ledger.model.chain import EMPTY_CHAIN, link
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.runs.orders import Member
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections import (
    ActFilter,
    CursorMismatchError,
    JobFilter,
    JobRow,
    ProjectionConfigError,
    ProjectorConfig,
    SaidFilter,
    SearchLimits,
    Store,
    cursor_at,
    parse_search,
)
from jobledger.projections.queries.cursors import make_cursor
from jobledger.projections.queries.jobs import count_jobs, find_jobs
from jobledger.projections.queries.lanes import Order
from jobledger.projections.search import KEYS, pair

pytestmark = pytest.mark.anyio

WIDE = SearchLimits(seconds_max=600.0)
TIGHT = SearchLimits(rows_max=7, entries_max=7, seconds_max=600.0)
HASTY = SearchLimits(rows_max=1, seconds_max=0.0)
FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "a state": {"states": ("completed",)},
    "states": {"states": ("completed", "queued", "dead_lettered")},
    "queue": {"queue": "queue-1"},
    "queue and states": {"queue": "queue-1", "states": ("queued", "retry_wait")},
    "task": {"task": "app.task_1"},
    "task and state": {"task": "app.task_0", "states": ("completed",)},
    "task and queue": {"task": "app.task_1", "queue": "queue-2"},
    "prefix": {"id_prefix": "job-0001"},
    "prefix of nothing": {"id_prefix": "none"},
    "suffix": {"id_suffix": "1"},
    "prefix and suffix": {"id_prefix": "job-0000", "id_suffix": "3"},
    "children of a run": {"run": "job-00000", "members": False},
    "children of nothing": {"run": "none"},
    "awaited": {"awaiting": "signal"},
    "causes": {"fingerprints": ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a")},
    "words": {"words": "no such"},
    "both": {"words": "no such", "text": "job-0"},
    "words that begin ids": {"words": "job-0001"},
    "words that begin ids of others": {"words": "job-00011", "visible_queues": ("children",)},
    "field": {"input": (("number", "12"),)},
    "pointer": {"input": (("/number", "12"),), "queue": "queue-0"},
    "error": {"error_type": "ValueError"},
    "error in states": {"error_type": "ValueError", "states": ("dead_lettered", "retry_wait")},
    "text": {"text": "NO SUCH"},
    "text of nothing": {"text": "nobody wrote this"},
    "text with signs": {"text": "_%\\"},
    "text in a queue": {"text": "no such", "queue": "queue-1"},
    "tenant": {"said": SaidFilter(tenant="t1")},
    "tenant and state": {"said": SaidFilter(tenant="t1"), "states": ("held", "completed")},
    "metadata": {"said": SaidFilter(metadata=(("n", "11"),))},
    "metadata that no path names": {"said": SaidFilter(metadata=(('"n', "11"),))},
    "limit": {"said": SaidFilter(limited_by="smtp")},
    "who asked": {"said": SaidFilter(created_by="test"), "states": ("completed", "held")},
    "who did not ask": {"said": SaidFilter(created_by="nobody")},
    "no children": {"members": False},
    "no children of a queue": {"members": False, "queue": "children"},
    "visible": {"visible_queues": ("queue-[!0]", "nowhere"), "visible_tasks": ("app.*_1",)},
    "visible queues": {"visible_queues": ("queue-?",)},
    "everything visible": {"visible_queues": ("*",), "visible_tasks": ("*",)},
    "nowhere": {"queue": "nowhere"},
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


#: What happens to the jobs one after the other, beside their beginning.
LIVES = (("claim", "complete"), ("claim", "fail"), ("claim", "give_up"), ("claim",), ("cancel",), ())


async def history() -> MemoryLog:
    """Jobs in every state, some of them held for their limits, and children of a run, all of one microsecond."""
    log, clock = MemoryLog(clock=SteppedClock()), SteppedClock()
    for number in range(42):
        begin = "enqueue_held" if number % 5 == 1 else "enqueue_later" if number % 11 == 0 else "enqueue"
        steps = (begin, *(("admit",) if number % 10 == 1 else ()), *LIVES[number % len(LIVES)])
        for step in steps:
            await act(log, number, "claim" if step == "enqueue" else step, clock)
    at = clock.now()
    for item in range(12):
        member = Member(queue="queue-0", job="job-00000", step="all", item=item) if item % 2 else None
        ref = JobRef(queue="children", job_id=f"job-00000-{item}")
        command = enqueue_of(ref, task="child", member=member)
        linked = link(EMPTY_CHAIN, decide(None, command, Stamp(at=at, by="test")), log.names)
        await log.append(linked.entries)
    return log


@pytest.fixture(scope="module")
async def store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Store]:
    path = tmp_path_factory.mktemp("lists") / "p"
    await finish(await history(), path, ProjectorConfig())
    with Store.open(path) as store:
        yield store


def fitting(store: Store, chosen: JobFilter) -> list[tuple[str, str]]:
    where, values = chosen.where()
    found = store.select(f"SELECT queue, id FROM jobs WHERE {where} ORDER BY created_at, rowid", values)
    return [(row[0], row[1]) for row in found]


def names(rows: Sequence[JobRow]) -> list[tuple[str, str]]:
    return [(row.queue, row.id) for row in rows]


def paged(
    store: Store, chosen: JobFilter, order: Order, limit: int, limits: SearchLimits
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    cursor: str | None = None
    for _ in range(1_000):
        page = store.job_page(chosen, cursor=cursor, limit=limit, order=order, limits=limits)
        assert len(page.items) <= limit
        assert page.searched_back_to is None or (len(page.items) < limit and page.next is not None)
        found += names(page.items)
        if page.next is None:
            return found
        cursor = page.next
    raise AssertionError("the pages do not end")


@each_row("name", FILTERS)
async def test_pages_are_the_list_however_little_is_looked_at(store: Store, name: str) -> None:
    chosen = JobFilter(**FILTERS[name])
    expected = fitting(store, chosen)
    for limit, limits in ((1_000, WIDE), (5, WIDE), (3, TIGHT), (4, HASTY)):
        assert paged(store, chosen, "oldest", limit, limits) == expected
        assert paged(store, chosen, "newest", limit, limits) == expected[::-1]


@each_row("name", FILTERS)
async def test_counts_are_those_of_the_list_as_far_as_they_go(store: Store, name: str) -> None:
    chosen = msgspec.structs.replace(JobFilter(**FILTERS[name]), states=())
    where, values = chosen.where()
    for limits in (WIDE, TIGHT, HASTY):
        found = store.job_counts(JobFilter(**FILTERS[name]), limits=limits)
        back_to = found.searched_back_to or ""
        sql = "SELECT status, count(*) FROM jobs WHERE {} AND created_at {} ? GROUP BY status"
        least, most = (
            dict(store.select(sql.format(where, sign), (*values, back_to))) for sign in (">", ">=")
        )
        for state, count in found.by_state.items():  # it may end between two jobs of one microsecond
            assert least.get(state, 0) <= count <= most.get(state, 0)
        assert len(found.by_state) == len(store.counts_by_state())
        assert limits is not WIDE or not back_to


async def test_history_has_something_of_everything(store: Store) -> None:
    """Else the two tests above prove less than they seem to."""
    empty = {name for name in FILTERS if not fitting(store, JobFilter(**FILTERS[name]))}
    assert empty == {
        "prefix of nothing",
        "text of nothing",
        "text with signs",
        "nowhere",
        "who did not ask",
        "metadata that no path names",
        "children of nothing",
        "awaited",
        "words that begin ids of others",
    }
    counted = [store.job_counts(JobFilter(**given), limits=TIGHT) for given in FILTERS.values()]
    assert any(found.searched_back_to for found in counted)


async def test_pages_hold_still_while_jobs_come_and_change(tmp_path: Path) -> None:
    log, clock = MemoryLog(), SteppedClock()
    for number in range(20):
        await act(log, number, "claim", clock)
    await finish(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        first = store.job_page(JobFilter(), limit=5)
        for number in range(20, 30):
            await act(log, number, "claim", clock)
        for number in range(20):
            await act(log, number, "claim", clock)
        await finish(log, tmp_path / "p")
        second = store.job_page(JobFilter(), limit=5, cursor=first.next)
        assert [row.id for row in first.items] == [f"job-{number:05}" for number in range(19, 14, -1)]
        assert [row.id for row in second.items] == [f"job-{number:05}" for number in range(14, 9, -1)]
        newer = store.job_page(
            JobFilter(), order="oldest", cursor=cursor_at(first.items[0], JobFilter(), "oldest"), limit=100
        )
        assert [row.id for row in newer.items] == [f"job-{number:05}" for number in range(20, 30)]


async def test_cursor_goes_on_in_another_file_and_where_its_job_is_gone(store: Store, tmp_path: Path) -> None:
    chosen = JobFilter(queue="children")
    every = store.jobs(100, chosen=chosen)
    cursor = cursor_at(every[4], chosen)
    assert store.job_page(chosen, cursor=cursor).items == every[5:]
    gone = cursor_at(msgspec.structs.replace(every[4], id="archived"), chosen)
    assert store.job_page(chosen, cursor=gone).items == every  # of that microsecond none is left out


async def test_no_cursor_names_a_job_that_the_asker_must_not_see(store: Store) -> None:
    chosen = JobFilter(visible_queues=("queue-1",), text="no such")
    cursor: str | None = None
    for _ in range(100):
        page = store.job_page(chosen, cursor=cursor, limit=2, limits=TIGHT)
        cursor = page.next
        if cursor is None:
            break
        said = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        assert "queue-0" not in said
        assert "queue-2" not in said
        assert "children" not in said
    else:
        raise AssertionError("the pages do not end")


async def test_cursor_of_another_question_is_refused(store: Store) -> None:
    cursor = store.job_page(JobFilter(queue="queue-0"), limit=2).next
    assert cursor is not None
    others: list[tuple[JobFilter, Order, str]] = [
        (JobFilter(queue="queue-1"), "newest", cursor),
        (JobFilter(queue="queue-0", text="x"), "newest", cursor),
        (JobFilter(queue="queue-0"), "oldest", cursor),
    ]
    for chosen, order, given in others:
        with pytest.raises(CursorMismatchError, match="other filters or another order"):
            store.job_page(chosen, cursor=given, order=order)
    for given in ("", "x", "ä", "bm9uZQ", cursor[:-4], "A" * 2_000, "WzEsMl0"):
        with pytest.raises(CursorMismatchError, match="is no cursor"):
            store.job_page(JobFilter(queue="queue-0"), cursor=given)
    beyond = make_cursor(("acts", ActFilter()), 1 << 63)
    with pytest.raises(CursorMismatchError, match="is no cursor"):
        store.act_page(ActFilter(), cursor=beyond)


@each_row(
    "given, sentence",
    [
        ({"text": ""}, "1 to 200 characters"),
        ({"text": "x" * 201}, "1 to 200 characters"),
        ({"input": (("", "1"),)}, "1 to 1000 characters"),
        ({"input": (('a"b', "1"),)}, "has a quote, backslash"),
        ({"input": (("a\0b", "1"),)}, "or NUL in it"),
        ({"text": "\ud800"}, "half of a character"),
        ({"said": SaidFilter(metadata=(("k", "\udcff"),))}, "half of a character"),
        ({"input": (("/1/2/3/4", "1"),)}, "too deep"),
        ({"input": (("/a" * 17, "1"),)}, "too deep"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ProjectionConfigError, match=sentence):
        JobFilter(**given)


NOW = datetime(2026, 1, 31, tzinfo=UTC)
#: Keys of a search that an index answers whole, and those for which jobs are looked at one by one, the newest first.
BY_INDEX = {"state", "task", "queue", "tenant", "since", "until", "by", "correlation"}
FEW_BY_INDEX = {
    "id",
    "run",
    "awaits",
    "cause",
    "trace",
}  #: up to `NAMED_MAX` jobs, whose other conditions are looked at
LOOKED_AT = {"error", "limit", "batch", "owner", "text", "meta.n", "input.number", "", "…"}
TEXTS = {
    **{name: pair(name, key.example) for name, key in KEYS.items()},
    "id": "id:job-0001",
    "meta.n": "meta.n=11",
    "input.number": "number=12",
    "": "boom",
    "…": "…7",
}


@each_row("key", TEXTS)
async def test_no_key_reads_more_than_an_index_or_the_limits_allow(store: Store, key: str) -> None:
    chosen = parse_search(TEXTS[key], NOW)
    asked: list[tuple[str, Sequence[object]]] = []

    def select(sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        asked.append((sql, values))
        return store.select(sql, values)

    limits = SearchLimits(rows_max=20, seconds_max=600.0)
    found = find_jobs(select, chosen, limit=50, limits=limits)
    counted = count_jobs(select, chosen, limits=limits)
    for sql, values in asked:
        plan = [str(row[3]) for row in store.select(f"EXPLAIN QUERY PLAN {sql}", values)]
        whole = [each for each in plan if each.startswith("SCAN jobs")]
        # A scan goes along an index in the order of the list, and ends at a number of entries.
        assert not whole or (all("USING" in each for each in whole) and "LIMIT ?" in sql), (sql, plan)
    is_cut = found.searched_back_to is not None or counted.searched_back_to is not None
    assert is_cut == (key in LOOKED_AT)


def test_every_key_is_tried() -> None:
    assert {*TEXTS} == BY_INDEX | FEW_BY_INDEX | LOOKED_AT >= {*KEYS}


@pytest.mark.parametrize("row_us", [1.0, 2.5, 4.5, 5.0, 9.0])
def test_a_search_takes_no_larger_step_than_it_has_time_for(
    monkeypatch: pytest.MonkeyPatch, row_us: float
) -> None:
    """Steps grow while they are short; the last one must not be one of twice the time that is left."""
    now, count, looked = [0.0], 0, 0

    def select(sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        nonlocal count, looked
        if "OFFSET ?" in sql:  # where the next step ends
            count = int(str(values[-1])) + 1
            return [(f"2025-01-31T08:00:00.{10**6 - looked - count:06d}Z", 1)]
        if sql.startswith("SELECT created_at, rowid"):  # the step itself
            looked += count
            now[0] += count * row_us / 1e6
        return [(1,)] if sql.startswith("SELECT count(*) FROM jobs WHERE created_at") else []

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    found = find_jobs(select, JobFilter(text="no such"), limit=50, limits=SearchLimits(seconds_max=0.03))
    assert found.searched_back_to is not None
    assert 0.015 < now[0] <= 0.03
