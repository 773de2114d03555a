"""The lines of a job's timeline: its attempts, or for a run its steps with the jobs below them; many are a crowd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from jobledger.admin.runs import recorded
from jobledger.gateway.pages.charts.timeline import Kind, Line, Span, Tick
from jobledger.gateway.pages.spans import Bar
from jobledger.gateway.pages.words import cut, moment, style_of, took
from jobledger.gateway.visibility import terms_for
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.runs.events import StepFailed
from jobledger.ledger.model.state_words import state_title
from jobledger.projections import Store
from jobledger.projections.filters import joined
from jobledger.projections.tables.steps import StepRow, read_steps

#: A step with more children than this is one line until a person opens it.
CROWD_MIN: Final = 12
#: Number of children of an open crowd that are shown one by one; those that did not complete come first.
_SHOWN: Final = 25
#: At most this many children are drawn in a crowd.
_CROWD_MAX: Final = 20_000
_LINES_MAX: Final = 400
_DEPTH_MAX: Final = 6
_HOLDS: Final = frozenset({"wait", "sleep"})
_GROUPS: Final = frozenset({"call", "map", "graph"})
_CHILD: Final = "queue, id, task, status, parent_item, created_at, started_at, completed_at, attempt_count, error_type, error, worker"
_OF_STEP: Final = "FROM jobs WHERE parent_id = ? AND parent_queue = ? AND parent_step = ?"
_CROWD: Final = f"SELECT status, started_at, completed_at {_OF_STEP} AND started_at IS NOT NULL AND {{}} LIMIT {_CROWD_MAX}"
_STATES: Final = f"SELECT status, count(*) {_OF_STEP} GROUP BY status"
_CHILDREN: Final = f"SELECT {_CHILD} {_OF_STEP} ORDER BY status = 'completed', parent_item LIMIT ?"
_RUNS: Final = "SELECT DISTINCT job_id FROM steps WHERE (job_id, queue) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))"

#: (kind of link, key of its line) -> an address.
Link = Callable[[str, str], str]


class TimelineChoice(NamedTuple):
    """The opened and chosen lines of a timeline, and the means to draw it."""

    store: Store | None  #: None: the rows do not have the job yet
    principal: Principal
    opened: frozenset[str]  #: keys of lines that a person toggled, open or closed
    chosen: str  #: the line whose details the drawer shows
    link: Link
    now: datetime


class _Child(NamedTuple):
    queue: str
    id: str
    task: str
    status: str
    item: int
    created_at: str
    started_at: str | None
    completed_at: str | None
    attempts: int
    error_type: str | None
    error: str | None
    worker: str | None


def attempt_lines(job: Job, bars: Sequence[Bar], now: datetime) -> list[Line]:
    """Return a line for each attempt, the first one first."""
    found: list[Line] = []
    for number in sorted({bar.lane for bar in bars}):
        known = job.attempt(number)
        own = [bar for bar in bars if bar.lane == number]
        ended = None if known is None else known.finished_at or now
        error = "" if known is None or known.error is None else f"{known.error.type}: {known.error.message}"
        found.append(
            Line(
                name=f"attempt {number}",
                kind="" if known is None else known.worker,
                state="" if known is None else known.state,
                took_s=None if known is None or ended is None else (ended - known.started_at).total_seconds(),
                more=cut(error, 120),
                spans=tuple(map(_span, own)),
            )
        )
    return found


def _span(bar: Bar) -> Span:
    # A turn that gave control back is drawn as running, not as waiting.
    style = "t-running" if bar.runs and bar.style == "t-waiting" else bar.style
    kind: Kind = "run" if bar.runs else "wait"
    return Span(begin=bar.begin, end=bar.end, kind=kind, style=style, words=bar.words, after=bar.after)


def run_lines(
    job: Job, seen: Sequence[StoredEvent], bars: Sequence[Bar], asked: TimelineChoice
) -> list[Line]:
    """Return the run itself, then its steps in their order, each with the jobs below it."""
    tries: dict[str, list[Tick]] = {}
    for stored in seen:
        if isinstance(event := stored.event, StepFailed):
            words = f"try {event.tries} failed: {event.error.type}: {cut(event.error.message, 120)}"
            tick = Tick(at=stored.stored_at, style="t-dead", words=words)
            tries.setdefault(event.step, []).append(tick)
    begin, end = min(bar.begin for bar in bars) if bars else job.created_at, job.finished_at or asked.now
    whole = Line(
        name="the run",
        kind=f"{job.attempts_count} turn{'' if job.attempts_count == 1 else 's'}",
        state=job.state.value,
        took_s=(end - begin).total_seconds(),
        spans=tuple(_span(bar) for bar in bars if bar.runs or bar.style != "t-dead"),
    )
    lines = [whole]
    # A key that ends with "/" only marks where undoing began.
    own = [_as_it_ended(row, job) for row in recorded(seen).steps if not row.key.endswith("/")]
    for line in _steps(own, (job.queue, job.id), asked, tries, depth=0):
        lines.append(line)
        if len(lines) >= _LINES_MAX:
            lines.append(Line(name=f"more than {_LINES_MAX} lines: close some", depth=0))
            break
    return lines


def _as_it_ended(row: StepRow, job: Job) -> StepRow:
    """Return a step as the end of its run left it: if it waited for its next try then, it has failed."""
    return msgspec.structs.replace(row, status="failed") if job.is_final and row.status == "retrying" else row


def _steps(
    rows: Sequence[StepRow],
    run: tuple[str, str],
    asked: TimelineChoice,
    tries: dict[str, list[Tick]],
    *,
    depth: int,
) -> Iterator[Line]:
    for row in rows:
        key = f"{run[0]}/{run[1]}#{row.key}" if depth else row.key
        begin = None if row.started_at is None else moment(row.started_at)
        end = asked.now if row.finished_at is None else moment(row.finished_at)
        took_s = None if begin is None else (end - begin).total_seconds()
        kind: Kind = "hold" if row.kind in _HOLDS else "wait" if row.kind in _GROUPS else "run"
        spans: tuple[Span, ...] = ()
        if begin is not None:
            words = f"{row.kind} {row.key}: {row.status}\n{took(took_s)}"
            spans = (Span(begin=begin, end=end, kind=kind, style=_style(row, kind), words=words),)
        line = Line(
            name=row.key.rpartition("/")[2],
            kind=row.kind,
            state="waiting" if kind == "hold" and row.status == "started" else row.status,
            took_s=took_s,
            more=_more(row),
            depth=depth,
            href=asked.link("step", key),
            is_here=asked.chosen == key,
            spans=spans,
            ticks=tuple(tries.get(row.key, ())),
        )
        if row.kind not in _GROUPS or asked.store is None:
            yield line
            continue
        yield from _group(row, key, line, run, asked, depth)


def _group(  # noqa: PLR0917 - parts of a line
    row: StepRow, key: str, line: Line, run: tuple[str, str], asked: TimelineChoice, depth: int
) -> Iterator[Line]:
    """Yield a step that began jobs, then these jobs: few one by one, many as a crowd that can be opened."""
    assert asked.store is not None, "it was looked at"
    select, place = asked.store.select, (run[1], run[0], row.key)
    states = dict(select(_STATES, place))
    count = sum(states.values())
    crowded = count > CROWD_MIN
    is_open = (key in asked.opened) == crowded and depth < _DEPTH_MAX
    crowd: tuple[Span, ...] = ()
    if crowded:
        where, values = joined(terms_for(asked.principal))
        crowd = tuple(
            Span(
                begin=moment(started),
                end=asked.now if ended is None else moment(ended),
                kind="run",
                style=_ended(status),
                words="",
            )
            for status, started, ended in select(_CROWD.format(where), (*place, *values))
        )
    said = ", ".join(
        f"{jobs:,} {state_title(state).lower()}"
        for state, jobs in sorted(states.items(), key=lambda each: -each[1])
    )
    toggle = asked.link("open", key) if count and depth < _DEPTH_MAX else ""
    line = msgspec.structs.replace(line, toggle=toggle, is_open=is_open, crowd=crowd, crowded=crowded)
    yield msgspec.structs.replace(line, more=said or line.more)
    if not is_open:
        return
    children = [_Child(*each) for each in select(_CHILDREN, (*place, _SHOWN if crowded else CROWD_MIN))]
    seen = [each for each in children if asked.principal.may("view", each.queue, each.task)]
    pairs = msgspec.json.encode([(each.id, each.queue) for each in seen]).decode()  # SQLite reads these
    runs = {job_id for (job_id,) in select(_RUNS, (pairs,))}
    for child in seen:
        yield from _child(child, asked, depth + 1, is_run=child.id in runs)
    if count > len(seen):
        yield Line(
            name=f"{count - len(seen):,} more", kind="jobs", depth=depth + 1, href=asked.link("list", run[1])
        )


def _child(child: _Child, asked: TimelineChoice, depth: int, *, is_run: bool) -> Iterator[Line]:
    key = f"{child.queue}/{child.id}"
    created, ended = moment(child.created_at), child.completed_at
    end = asked.now if ended is None else moment(ended)
    started = None if child.started_at is None else moment(child.started_at)
    until = end if started is None else started
    words = f"waited {took((until - created).total_seconds())}"
    spans = [Span(begin=created, end=until, kind="wait", style="t-queued", words=words)]
    took_s = None if started is None else (end - started).total_seconds()
    if started is not None:
        kind: Kind = "wait" if is_run else "run"
        words = f"{child.task}: {state_title(child.status)}\n{took(took_s)}"
        spans.append(Span(begin=started, end=end, kind=kind, style=_ended(child.status), words=words))
    is_open = is_run and key in asked.opened
    error = f"{child.error_type}: {child.error}" if child.error_type and child.status != "completed" else ""
    yield Line(
        name=child.task,
        kind=f"item {child.item}",
        state=child.status,
        took_s=took_s,
        more=cut(error, 120) or (f"{child.attempts} attempts" if child.attempts > 1 and not is_run else ""),
        depth=depth,
        href=asked.link("job", key),
        is_here=asked.chosen == key,
        spans=tuple(spans),
        toggle=asked.link("open", key) if is_run and depth < _DEPTH_MAX else "",
        is_open=is_open,
    )
    if is_open and asked.store is not None:
        rows = read_steps(asked.store.select, child.queue, child.id)
        yield from _steps(rows, (child.queue, child.id), asked, {}, depth=depth + 1)


def _style(row: StepRow, kind: Kind) -> str:
    if kind == "hold":
        return "t-waiting" if row.status != "failed" else "t-dead"
    if kind == "wait":
        return "t-queued"
    return style_of({"started": "running", "retrying": "failed"}.get(row.status, row.status))


def _ended(status: str) -> str:
    return style_of("failed" if status in ("dead_lettered", "discarded") else status)


def _more(row: StepRow) -> str:
    if row.error:
        return cut(f"{row.error_type}: {row.error}", 120)
    if row.until and row.finished_at is None:
        return f"until {moment(row.until):%Y-%m-%d %H:%M}"
    if row.copied_from:
        return f"copied from event #{row.copied_from:,}"
    return f"{row.tries} tries" if row.tries > 1 else ""
