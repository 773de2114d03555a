"""What hurts at this moment, as one list: what it is about, since when, and what to type.

`doctor`, `GET /v1/diagnoses`, the metric `jobledger_diagnoses` and the overview show this list. Facts are read once: from
the rows, from the leases, and from what the server knows of its streams and consumers; each part then judges them alone.
What is slow, or what only concerns the machine of the server, is a check of `doctor` (`health`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import anyio.to_thread
import msgspec

from jobledger.admin.amounts import duration, size
from jobledger.admin.hooks.webhooks import WebhookInfo, list_webhooks
from jobledger.admin.ledger_room import Room, room_of
from jobledger.admin.objects.fleet import LimitListed, limits_listed
from jobledger.admin.queues import paused_now
from jobledger.admin.replicas import Replica, StreamAway, StreamCopies, list_copies
from jobledger.admin.rows import View, lag_of
from jobledger.admin.runs import DeadChildren, dead_children
from jobledger.admin.verbs.watches import WatchInfo, watches_now
from jobledger.admin.waiting_circle import Stuck, stuck_runs
from jobledger.audit.trail_words import count
from jobledger.audit.why_held import to_define
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import InvalidError
from jobledger.ledger.model.limits.definition import terms_words
from jobledger.ledger.model.limits.names import RESERVED, joined
from jobledger.ledger.model.named_chain import newest
from jobledger.ledger.model.queue_pause import QUEUE, QueueState
from jobledger.ledger.model.reserved_ids import INSTEAD_OF, TAKEN
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.schedules.definition import LATE
from jobledger.ledger.model.subjects import (
    INNER_QUEUES,
    RECONCILER_CONSUMER_PREFIX,
    SUBSCRIPTION_CONSUMER_PREFIX,
    check_users_queue,
)
from jobledger.ledger.model.times import as_utc
from jobledger.ledger.nats.durables import first_undelivered, list_consumers
from jobledger.ledger.nats.fleet_clock import APART_S_MAX
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.streams import find_stream
from jobledger.ledger.throttle import ENQUEUE_UP_TO
from jobledger.projections import DeadLetterFilter, DeadLetterGroup, QueueRow, Store
from jobledger.projections.filters import of_fleet, visible
from jobledger.projections.statistics.held_jobs import HeldRow, read_held
from jobledger.projections.statistics.rates import Minute, minutes_of, rates
from jobledger.projections.tables.job_schema import LACKS_CHILD
from jobledger.projections.tables.schedules import ScheduleRow, late_schedules, read_schedules
from jobledger.projections.tables.slots import slots_taken

Kind = Literal[
    "queue_without_worker",
    "queue_paused",
    "queue_slow",
    "limit_undefined",
    "limit_closed",
    "limit_differs",
    "runs_wait_for_each_other",
    "run_waits_for_person",
    "schedule_late",
    "schedule_differs",
    "store_fills",
    "reactor_late",
    "dead_letters",
    "task_fails",
    "webhook_fails",
    "watch_fires",
    "clock_apart",
    "copies_missing",
    "id_taken",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: `fail`: jobs make no progress, or soon will not. `warn`: a person should see to it. `info`: good to know.
Level = Literal["info", "warn", "fail"]
_RANKS: Final[dict[Level, int]] = {"fail": 0, "warn": 1, "info": 2}
#: What a noun names. `jobs`: those that a search finds.
NounKind = Literal[
    "queue", "jobs", "job", "limit", "task", "cause", "schedule", "webhook", "watch", "ledger", "worker"
]
#: `type`: type the advice into a terminal. `look`: open what the noun names.
Verb = Literal["resume_queue", "set_limit", "look", "type"]

#: The most cases of one kind that are named; the others are only counted.
SHOWN_MAX: Final = 12
#: A reactor is late when an event has waited for it this long.
REACTOR_LATE: Final = timedelta(seconds=10)
#: A copy counts as behind when it lacks at least this many changes. Under load each copy lacks some for a moment.
_BEHIND: Final = 1_000
#: How long the server may take to list consumers. While one of its cluster is away it takes 4 s, which is all the time
#: that the exporter has; the diagnoses then go without late reactors.
_LATE_S: Final = 1.5
#: How long a stream's leader may take to report its copies: callers ask for this list every few seconds.
_COPIES_S: Final = 1.0
#: How many streams a sentence names; it only counts the others.
_STREAMS_NAMED: Final = 3
#: Beginnings of names of durable consumers that may be behind and are no reactors.
_NO_REACTORS: Final = ("work_", RECONCILER_CONSUMER_PREFIX, SUBSCRIPTION_CONSUMER_PREFIX)
#: How long a diagnosis names a job whose derived id was taken.
_MOVED_SHOWN: Final = timedelta(days=1)
#: A queue with workers is slow when its oldest waiting job is older than this.
_SLOW: Final = timedelta(seconds=60)
#: A task fails unusually often where all three hold.
_FAILS_SHARE: Final = 0.2  #: at least this share of its attempts failed lately
_FAILS_TIMES: Final = 3.0  #: and at least this many times the share that usually fails
_FAILS_MIN: Final = 20  #: and at least this many attempts ended lately
_LATELY: Final = timedelta(minutes=5)
_USUALLY: Final = timedelta(days=1)
_MOVED: Final = (
    f"SELECT id, queue, created_at, task, coalesce(json_extract(metadata, '$.{INSTEAD_OF}'), '') FROM jobs "  # noqa: S608
    f"WHERE id > '{TAKEN}' AND id < '{TAKEN}g' ORDER BY created_at DESC LIMIT 1000"
)
#: Runs that are dead letters because another job has the id of a child.
_CHILD_TAKEN: Final = (
    "SELECT job_id, queue, dead_at FROM dead_letters INDEXED BY dead_letters_by_error_type_dead_at "  # noqa: S608
    f"WHERE {LACKS_CHILD} ORDER BY dead_at DESC LIMIT 1000"
)


class Noun(msgspec.Struct, frozen=True):
    """A word of a diagnosis that names something one can open."""

    kind: NounKind
    name: str  #: for `jobs` a search, for a `job` queue/id, for a `cause` its fingerprint
    text: str = ""  #: its words in `object` or `found`; "": the name


class Act(msgspec.Struct, frozen=True):
    """The next thing to do."""

    verb: Verb
    label: str
    about: Noun


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that hurts."""

    kind: Kind
    level: Level
    object: str  #: what it is about, in words: `queue mail`
    found: str  #: what is wrong, in a sentence
    since: datetime | None  #: time since which it is so, if known
    advice: str  #: a command to type, or what to do
    queue: str = ""  #: its queue; "": no single queue, so a principal bound to queues does not see it
    count: int = 1  #: number of cases of its kind that it stands for
    nouns: tuple[Noun, ...] = ()  #: things in its object and its sentence that have a page
    act: Act | None = None  #: None: the advice alone


class Rate(NamedTuple):
    """How often attempts of a task failed lately, and how often they usually do."""

    task: str
    attempts: int
    share: float
    usual: float
    since: datetime | None = None  #: since when it fails unusually often, to the minute

    @property
    def bound(self) -> float:
        """The share of failed attempts from which on it fails unusually often."""
        return max(_FAILS_SHARE, _FAILS_TIMES * self.usual)

    @property
    def is_often(self) -> bool:
        """Whether it fails unusually often."""
        return self.attempts >= _FAILS_MIN and self.share >= self.bound


class Apart(NamedTuple):
    """A host whose clock is apart from the server's."""

    host: str
    seconds: float  #: how far it is ahead; below 0: behind
    since: datetime | None  #: when the first of its live processes saw that; None: none reports it


class Facts(NamedTuple):
    """What the parts of a diagnosis judge."""

    now: datetime
    workers: list[WorkerInfo]  #: living workers
    apart: list[Apart]
    paused: dict[str, QueueState]  #: queues that are paused now
    webhooks: list[WebhookInfo]
    firing: list[WatchInfo]  #: watches whose figure is beyond its bound
    room: Room | None  #: None: the ledger has no limit of size, or nobody asked
    copies: list[StreamCopies | StreamAway]  #: copies of each stream; none if there is a single server
    late: list[
        tuple[str, datetime, int]
    ]  #: reactors that are late, since when, and how many events wait for them
    rows: Rows


class Rows(NamedTuple):
    """The facts that the projection has."""

    queues: list[QueueRow]
    limits: list[LimitListed]
    held: list[HeldRow]
    held_by: Counter[str]  #: how many jobs are held, by each limit or key that they name
    schedules: list[ScheduleRow]
    late: list[str]  #: schedules whose tick is late
    dead: list[DeadLetterGroup]
    stuck: list[Stuck]
    for_person: list[DeadChildren]
    moved: list[tuple[str, ...]]  #: jobs whose derived id was taken: id, queue, since when, task and that id
    child_taken: list[
        tuple[str, ...]
    ]  #: runs that are dead letters because a child's id was taken: id, queue, since when
    rates: list[Rate]


async def diagnose(ledger: Ledger, view: View, queues: tuple[str, ...] = ()) -> list[Diagnosis]:
    """Return what hurts, the worst first; `view`: rows of the present.

    `queues`: patterns of the queues whose dead letters and rates count; none: all. Other diagnoses are of any queue:
    each has its `queue`, by which the caller leaves it out.

    Raises: ProjectionError, CorruptLedgerError, UnreachableError.
    """
    now = ledger.clock.now()
    copies = await list_copies(ledger, limit_s=_COPIES_S) if ledger.connection.is_clustered else []
    away = {each.stream for each in copies if isinstance(each, StreamAway)}
    if away & {ledger.names.ledger_stream, f"KV_{ledger.names.workers_bucket}"}:  # nothing else is known then
        return list(_copies(copies, now))
    return _judged(await _facts(ledger, view, queues, copies, now), _PARTS)


def diagnose_past(view: View, queues: tuple[str, ...] = ()) -> list[Diagnosis]:
    """Return what hurt at a past moment, by the rows of that moment alone, which do not record who worked then."""
    facts = Facts(
        now=view.now,
        workers=[],
        apart=[],
        paused=dict(sorted(paused_now(view.store, view.now).items())),
        webhooks=[],
        firing=[],
        room=None,
        copies=[],
        late=[],
        rows=_rows(view, [], queues),
    )
    return _judged(facts, [each for each in _PARTS if each[0] in _OF_ROWS])


def _judged(facts: Facts, parts: Iterable[Part]) -> list[Diagnosis]:
    """Return what some parts find: the worst first, and dead letters last within a level."""
    found: list[Diagnosis] = []
    for part, shows_all in parts:
        found += _capped(list(part(facts)), shows_all)
    return sorted(found, key=lambda each: (_RANKS[each.level], each.kind == "dead_letters"))


async def counted(ledger: Ledger, path: Path) -> dict[str, int]:
    """Return how many things hurt by kind, from the rows in a projection's file. Raises: as `diagnose`."""
    with Store.open(path) as store:
        position = store.position()
        lag = await lag_of(ledger, position.stream_sequence)
        found = await diagnose(ledger, View(store, ledger.clock.now(), position.begins_at, lag))
    return {str(kind): number for kind, number in by_kind(found).items()}


async def _facts(
    ledger: Ledger,
    view: View,
    queues: tuple[str, ...],
    copies: list[StreamCopies | StreamAway],
    now: datetime,
) -> Facts:
    live = [each for each in await ledger.leases.all() if not each.stopped]
    workers = [each for each in live if each.kind == "worker"]
    states = await newest(ledger.log, QUEUE)
    stream = await find_stream(ledger.inbox, ledger.names.ledger_stream)
    return Facts(
        now=now,
        workers=workers,
        apart=_apart(live),
        paused={queue: state for queue, state in sorted(states.items()) if state.is_paused(now)},
        webhooks=await list_webhooks(ledger),
        firing=[each for each in await watches_now(ledger) if each.firing],
        room=None if stream is None else await room_of(ledger, stream, now),
        copies=copies,
        late=await _late_within(ledger, now),
        rows=await anyio.to_thread.run_sync(_rows, view, workers, queues),
    )


def _rows(view: View, workers: list[WorkerInfo], queues: tuple[str, ...]) -> Rows:
    select = view.store.select
    with view.store.one_moment():
        held_by: Counter[str] = Counter()
        for limits, jobs in select("SELECT limits, count(*) FROM jobs WHERE status = 'held' GROUP BY limits"):
            held_by.update(dict.fromkeys(str(limits).split(), int(jobs)))
        return Rows(
            queues=view.store.queues(),
            limits=limits_listed(view.store, workers)[0],
            held=read_held(select, slots_taken(select)),
            held_by=held_by,
            schedules=[each for each in read_schedules(select) if each.status != "removed"],
            late=[name for name, _ in late_schedules(select, view.now - LATE)],
            dead=view.store.dead_letter_groups(SHOWN_MAX, chosen=DeadLetterFilter(visible_queues=queues)),
            stuck=stuck_runs(select),
            for_person=dead_children(view.store),
            moved=[tuple(map(str, row)) for row in select(_MOVED)],
            child_taken=[tuple(map(str, row)) for row in select(_CHILD_TAKEN)],
            rates=_rates(view, queues),
        )


def _rates(view: View, queues: tuple[str, ...]) -> list[Rate]:
    """Return how often the attempts of each task failed in the last minutes, and in the day before."""
    now, terms = view.now, [*of_fleet(), *visible(queues, ())]
    lately = rates(view.store.select, "task", now - _LATELY, now + timedelta(minutes=1), terms)
    day = rates(view.store.select, "task", now - _USUALLY, now - _LATELY, terms)
    usual = {each.name: 1 - each.success_rate for each in day if each.success_rate is not None}
    found = [
        Rate(each.name, each.completed + each.failed, 1 - each.success_rate, usual.get(each.name, 0.0))
        for each in lately
        if each.success_rate is not None
    ]
    often = {each.task: each for each in found if each.is_often}
    minutes = minutes_of(view.store.select, tuple(often), now - _USUALLY, now + timedelta(minutes=1), terms)
    since = {task: failing_since(minutes[task], each.bound) for task, each in often.items()}
    return [each._replace(since=since.get(each.task)) for each in found]


def failing_since(minutes: Sequence[Minute], bound: float) -> datetime | None:
    """Return the first minute of the period in which a task failed often; None if it did not.

    `minutes`: those in which attempts ended, the newest first. A minute counts as bad where at least the share `bound`
    failed. Bad minutes that are up to five minutes apart belong to one period.
    """
    since: datetime | None = None
    for each in minutes:
        if each.share >= bound:
            if since is not None and since - each.at > _LATELY:
                break
            since = each.at
    return since


def _apart(live: Iterable[WorkerInfo]) -> list[Apart]:
    """Return the hosts whose clocks are apart, as their processes say."""
    found: dict[str, Apart] = {}
    for each in live:
        if abs(each.clock_apart_s) > APART_S_MAX:
            before = found.get(each.host)
            seen = (None if before is None else before.since, each.clock_apart_since)
            since = min((moment for moment in seen if moment is not None), default=None)
            found[each.host] = Apart(each.host, each.clock_apart_s, since)
    return [found[host] for host in sorted(found)]


async def _late_within(ledger: Ledger, now: datetime) -> list[tuple[str, datetime, int]]:
    """Return the late reactors, or none if a cluster takes longer than `_LATE_S` to list its consumers."""
    limit_s = _LATE_S if ledger.connection.is_clustered else None
    try:
        async with asyncio.timeout(limit_s):
            return await _late_reactors(ledger, now)
    except TimeoutError:
        return []


async def _late_reactors(ledger: Ledger, now: datetime) -> list[tuple[str, datetime, int]]:
    """Return the reactors for which an event waits for long. Raises: UnreachableError."""
    found: list[tuple[str, datetime, int]] = []
    stream = ledger.names.ledger_stream
    for info in await list_consumers(ledger.inbox, stream):
        if info.name.startswith(_NO_REACTORS) or not info.is_durable:
            continue
        first = await first_undelivered(ledger.inbox, stream, info) if info.pending else 0
        message = await ledger.log.get(first) if first else None
        if message is not None and now - as_utc(message.stored_at) > REACTOR_LATE:
            found.append((info.name, as_utc(message.stored_at), info.pending))
    return found


# The parts: each yields its diagnoses, from the facts alone.


def _queues(facts: Facts) -> Iterator[Diagnosis]:
    served = {queue for worker in facts.workers for queue in worker.queues}
    if any(worker.reactors for worker in facts.workers):
        served.add(BUILT_IN_QUEUE)
    waiting: Counter[str] = Counter()
    oldest: dict[str, str] = {}
    for row in facts.rows.queues:
        waiting[row.queue] += row.counts["queued"] + row.counts["held"]
        if row.oldest_waiting is not None:
            oldest[row.queue] = min(row.oldest_waiting, oldest.get(row.queue, row.oldest_waiting))
    for queue, jobs in sorted(waiting.items()):
        if jobs and queue not in served and queue not in facts.paused:
            since = oldest.get(queue)
            yield Diagnosis(
                kind="queue_without_worker",
                level="fail",
                object=f"queue {queue}",
                found=f"{count(jobs, 'job')} {'waits' if jobs == 1 else 'wait'}, and no worker serves the queue",
                since=None if since is None else as_utc(datetime.fromisoformat(since)),
                advice=f"`{_server_of(queue)}` serves it",
                queue=queue,
                nouns=(
                    Noun("queue", queue),
                    Noun("jobs", f"queue:{queue} state:queued", count(jobs, "job")),
                ),
                act=Act("type", "Start a worker", Noun("queue", queue)),
            )
        elif jobs and queue in oldest and queue not in facts.paused and queue not in INNER_QUEUES:
            yield from _slow(facts, queue, as_utc(datetime.fromisoformat(oldest[queue])))


def _slow(facts: Facts, queue: str, oldest: datetime) -> Iterator[Diagnosis]:
    if facts.now - oldest > _SLOW:
        there = sum(queue in worker.queues for worker in facts.workers)
        waiting = sum(row.counts["queued"] for row in facts.rows.queues if row.queue == queue)
        yield Diagnosis(
            kind="queue_slow",
            level="warn",
            object=f"queue {queue}",
            found=f"{count(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}: "
            f"{count(there, 'worker')} cannot keep up",
            since=oldest,
            advice="`jobledger workers list` shows who works; more workers, or more jobs at once, are faster",
            queue=queue,
            nouns=(Noun("queue", queue), Noun("jobs", f"queue:{queue} state:queued", count(waiting, "job"))),
            act=Act("look", "Who works", Noun("worker", "")),
        )


def _server_of(queue: str) -> str:
    """Return the command that takes jobs of a queue."""
    try:
        check_users_queue(queue)
    except InvalidError:
        return "jobledger worker --app MODULE" if queue == BUILT_IN_QUEUE else "jobledger gateway"
    return f"jobledger worker --app MODULE --queue {queue}"


def _pauses(facts: Facts) -> Iterator[Diagnosis]:
    waiting: Counter[str] = Counter()
    for row in facts.rows.queues:
        waiting[row.queue] += row.counts["queued"]
    for queue, state in facts.paused.items():
        jobs, wait = count(waiting[queue], "job"), "waits" if waiting[queue] == 1 else "wait"
        yield Diagnosis(
            kind="queue_paused",
            level="warn",
            object=f"queue {queue}",
            found=state.words(tells_since=False) + (f"; {jobs} {wait}" if waiting[queue] else ""),
            since=state.since,
            advice=f"`jobledger queues resume {queue}` ends that",
            queue=queue,
            nouns=(
                Noun("queue", queue),
                *([Noun("jobs", f"queue:{queue} state:queued", jobs)] if waiting[queue] else ()),
            ),
            act=Act("resume_queue", "Resume", Noun("queue", queue)),
        )


def _limits(facts: Facts) -> Iterator[Diagnosis]:
    for each in facts.rows.held:
        if not each.defined and each.jobs:
            named = to_define(each.limit)
            yield Diagnosis(
                kind="limit_undefined",
                level="fail",
                object=f"limit {each.limit}",
                found=f"nobody defined it, and {count(each.jobs, 'job')} {'is' if each.jobs == 1 else 'are'} held by it",
                since=None if each.oldest is None else as_utc(datetime.fromisoformat(each.oldest)),
                advice=f"`jobledger limits set {named} --slots N` defines it",
                nouns=(
                    Noun("limit", each.limit),
                    Noun("jobs", f"limit:{each.limit} state:held", count(each.jobs, "job")),
                ),
                act=Act("set_limit", "Set it", Noun("limit", named)),
            )


def _closed(facts: Facts) -> Iterator[Diagnosis]:
    keys = {joined(row.name, row.key) for row in facts.rows.limits}
    for row in facts.rows.limits:
        if row.slots != 0:
            continue
        limit = joined(row.name, row.key)
        held = facts.rows.held_by[limit]
        if not row.key:
            named = (key for key in facts.rows.held_by if key.startswith(f"{limit}:") and key not in keys)
            held += sum(facts.rows.held_by[key] for key in named)
        who = "the code says so" if row.source == "code" else f"{row.set_by} set that"
        why = f": {row.reason}" if row.reason else ""
        advice = f"`jobledger limits set {limit} --slots N`"
        if row.source == "operator" and (row.key or row.in_code):  # else its jobs would stay held
            advice += f", or `jobledger limits remove {limit}`"
        yield Diagnosis(
            kind="limit_closed",
            level="warn",
            object=f"limit {limit}",
            found=f"it has 0 slots, so none of its jobs starts ({held:,} held); {who}{why}",
            since=as_utc(datetime.fromisoformat(row.set_at)),
            advice=f"{advice} lets them start",
            nouns=(Noun("limit", limit), Noun("jobs", f"limit:{limit} state:held", f"{held:,} held")),
            act=Act("set_limit", "Change", Noun("limit", limit)),
        )


def _differing_limits(facts: Facts) -> Iterator[Diagnosis]:
    for row in facts.rows.limits:
        if row.in_code and not (row.name in RESERVED and not row.key):
            limit, first = joined(row.name, row.key), row.in_code[0]
            more = f" and {len(row.in_code) - 1:,} more" if len(row.in_code) > 1 else ""
            who = f"{row.set_by} set it" if row.source == "operator" else f"the code of {row.set_by} has it"
            advice = "the next enqueue of that code changes it"
            if row.source == "operator":
                advice = f"`jobledger limits remove {limit}` gives it back to the code"
            yield Diagnosis(
                kind="limit_differs",
                level="warn",
                object=f"limit {limit}",
                found=f"the code of {first.worker}{more} has {terms_words(first.terms)}; {who} otherwise",
                since=as_utc(datetime.fromisoformat(row.set_at)),
                advice=advice,
                nouns=(Noun("limit", limit),),
                act=Act("look", "Look", Noun("limit", limit)),
            )


def _stuck(facts: Facts) -> Iterator[Diagnosis]:
    for each in facts.rows.stuck:
        yield Diagnosis(
            kind="runs_wait_for_each_other",
            level="fail",
            object=f"run {each.queue}/{each.job}",
            found=(
                f"it keeps a slot of {each.holds} and waits for {each.child}, which waits for {each.limit}: "
                "all who hold that wait in the same way, so none of them ever goes on"
            ),
            since=as_utc(datetime.fromisoformat(each.since)),
            advice=f"`jobledger limits set {each.limit} --slots N` with more slots, or `jobledger jobs cancel {each.job}`",
            queue=each.queue,
            nouns=(Noun("job", f"{each.queue}/{each.job}"), Noun("limit", each.limit)),
            act=Act("set_limit", "More slots", Noun("limit", each.limit)),
        )


def _for_person(facts: Facts) -> Iterator[Diagnosis]:
    for each in facts.rows.for_person:
        are = "child is a dead letter" if each.count == 1 else "children are dead letters"
        which = each.child if each.count == 1 else f"the first is {each.child}"
        error = f": {each.error[:100]}" if each.error else ""
        yield Diagnosis(
            kind="run_waits_for_person",
            level="warn",
            object=f"run {each.queue}/{each.run}",
            found=f"{each.count:,} {are} ({which}{error}); it goes on once a person requeued or discarded what is dead",
            since=as_utc(datetime.fromisoformat(each.since)),
            advice=(
                f"`jobledger dlq requeue {each.child} --queue {each.child_queue}`, once the cause is mended; "
                f"`jobledger jobs show {each.run} --why --queue {each.queue}` tells more"
            ),
            queue=each.queue,
            nouns=(
                Noun("job", f"{each.queue}/{each.run}"),
                Noun("jobs", f"run:{each.run} state:dead", f"{each.count:,} {are}"),
            ),
            act=Act("look", "Review", Noun("jobs", f"run:{each.run} state:dead")),
        )


def _late_schedules(facts: Facts) -> Iterator[Diagnosis]:
    rows = {row.name: row for row in facts.rows.schedules}
    for name in facts.rows.late:
        row = rows.get(name)
        if row is not None and row.next_run_at is not None:
            due = as_utc(datetime.fromisoformat(row.next_run_at))
            yield Diagnosis(
                kind="schedule_late",
                level="fail",
                object=f"schedule {name}",
                found=f"its tick is late by {duration((facts.now - due).total_seconds())}",
                since=due,
                advice="schedules tick while a worker runs: start one; `jobledger timers status` tells of timers",
                queue=row.queue,
                nouns=(Noun("schedule", name),),
            )


def _differing_schedules(facts: Facts) -> Iterator[Diagnosis]:
    for row in facts.rows.schedules:
        said = [(each.worker, (each.schedules or {}).get(row.name)) for each in facts.workers]
        others = [worker for worker, word in said if word is not None and word != row.code_version]
        if others:
            who = "the code of another version" if row.source == "code" else (row.declared_by or "a person")
            declared = row.declared_at or row.updated_at
            yield Diagnosis(
                kind="schedule_differs",
                level="warn",
                object=f"schedule {row.name}",
                found=f"the code of {others[0]} has it otherwise than {who} declared it",
                since=as_utc(datetime.fromisoformat(declared)),
                advice=f"`jobledger schedules reset {row.name}` lets the code's declaration count",
                queue=row.queue,
                nouns=(Noun("schedule", row.name),),
            )


def _store(facts: Facts) -> Iterator[Diagnosis]:
    room = facts.room
    if room is None or not room.is_short:
        return
    lasts = ""
    if room.lasts is not None:
        lasts = f"; as it grew lately, it is full in {duration(room.lasts.total_seconds())}"
    promised = (
        f", {size(room.committed)} with what waiting jobs still need" if room.committed > room.used else ""
    )
    is_throttled = room.committed > ENQUEUE_UP_TO * room.size
    what = "it takes no new jobs" if is_throttled else f"above {ENQUEUE_UP_TO:.0%} it takes no new jobs"
    yield Diagnosis(
        kind="store_fills",
        level="fail" if is_throttled else "warn",
        object="the ledger",
        found=f"{size(room.used)} of {size(room.size)} are used{promised}{lasts}: {what}",
        since=room.short_since,
        advice="`jobledger audit archive` moves old events away; `jobledger ledger resize SIZE` gives it room",
        nouns=(Noun("ledger", "", "the ledger"),),
        act=Act("type", "Archive", Noun("ledger", "")),
    )


def _reactors(facts: Facts) -> Iterator[Diagnosis]:
    held = sum(row.counts["held"] for row in facts.rows.queues)
    advice = "is a worker running that hosts reactors? Its log says why they stand still"
    if held and not any(worker.reactors for worker in facts.workers):
        oldest = min((each.oldest for each in facts.rows.held if each.oldest is not None), default=None)
        yield Diagnosis(
            kind="reactor_late",
            level="fail",
            object="reactor limits",
            found=f"{count(held, 'job')} {'is' if held == 1 else 'are'} held, and no worker hosts the reactors that admit them",
            since=None if oldest is None else as_utc(datetime.fromisoformat(oldest)),
            advice="`jobledger worker --app MODULE` hosts them",
        )
    nobody = "" if any(worker.reactors for worker in facts.workers) else "; no worker hosts the reactors"
    for name, since, pending in facts.late:
        yield Diagnosis(
            kind="reactor_late",
            level="fail",
            object=f"reactor {name}",
            found=f"{count(pending, 'event')} {'waits' if pending == 1 else 'wait'} for it, the first for {duration((facts.now - since).total_seconds())}{nobody}",
            since=since,
            advice="`jobledger worker --app MODULE` hosts them" if nobody else advice,
        )


def _copies(copies: Iterable[StreamCopies | StreamAway], now: datetime) -> Iterator[Diagnosis]:
    """Yield diagnoses of streams without a leader, of servers that lack copies, and of streams with too few copies."""
    lacks: dict[str, list[StreamCopies]] = {}
    since: dict[str, datetime] = {}
    leaderless: list[str] = []
    for each in copies:
        if isinstance(each, StreamAway) or not each.leader:
            leaderless.append(each.stream)
            continue
        for other in each.others:
            if _lacks(other):
                lacks.setdefault(other.server, []).append(each)
                if other.away:
                    begun = now - timedelta(seconds=other.silent_s)
                    since[other.server] = min(begun, since.get(other.server, begun))
        if len(each.others) < each.replicas - 1:
            lacks.setdefault("", []).append(each)
    if leaderless:
        yield _leaderless(leaderless)
    for server, streams in sorted(lacks.items()):
        yield _lacking(server, streams, since.get(server))


def _lacks(other: Replica) -> bool:
    return other.away or (not other.current and other.behind >= _BEHIND)


def _leaderless(streams: list[str]) -> Diagnosis:
    them = "it" if len(streams) == 1 else "them"
    return Diagnosis(
        kind="copies_missing",
        level="fail",
        object=f"stream{'' if len(streams) == 1 else 's'} {_named(streams)}",
        found=f"no server answers for {them}, so nothing is written to {them}: the servers are away, or elect a leader",
        since=None,
        advice="where that lasts longer than an election, 4 to 9 s, start its servers; `jobledger cluster show` names them",
        count=len(streams),
    )


def _named(streams: list[str]) -> str:
    more = len(streams) - _STREAMS_NAMED
    return ", ".join(streams[:_STREAMS_NAMED]) + (f" and {count(more, 'more stream')}" if more > 0 else "")


def _has_no_spare(stream: StreamCopies) -> bool:
    """Return whether fewer copies than a majority are left when one more is lost."""
    whole = 1 + sum(not _lacks(each) for each in stream.others)  # the leader's own is one
    return whole - 1 < stream.replicas // 2 + 1


def _lacking(server: str, streams: list[StreamCopies], since: datetime | None) -> Diagnosis:
    named = _named([each.stream for each in streams])
    risk = "; the loss of one more server stops them" if any(map(_has_no_spare, streams)) else ""
    if server:
        found = f"it is away, or behind, with copies of {named}{risk}"
        advice = "start it again, or look why it is slow; `jobledger cluster show` tells of each stream"
    else:
        wanted = max(each.replicas for each in streams)
        found = f"{named} {'has' if len(streams) == 1 else 'have'} fewer copies than {wanted}{risk}"
        advice = f"`jobledger cluster replicas {wanted}` makes them"
    return Diagnosis(
        kind="copies_missing",
        level="warn",
        object=f"server {server}" if server else "copies of streams",
        found=found,
        since=since,
        advice=advice,
        count=len(streams),
    )


def _dead_letters(facts: Facts) -> Iterator[Diagnosis]:
    for group in facts.rows.dead:
        jobs = count(group.count, "dead letter")
        error = f" {group.error[:100]}" if group.error else ""
        yield Diagnosis(
            kind="dead_letters",
            level="info"
            if group.reason == "rejected"
            else "warn",  # rejected by the task itself: for the record only
            object=f"task {group.task}",
            found=f"{jobs} of one cause: {group.error_type or group.reason}{error}",
            since=as_utc(datetime.fromisoformat(group.oldest)),
            advice=f"`jobledger dlq show {group.job_id}` tells more, "
            f"`jobledger dlq requeue --fingerprint {group.fingerprint}` tries them again",
            queue=group.queue,
            count=group.count,
            nouns=(Noun("task", group.task), Noun("cause", group.fingerprint, jobs)),
            act=Act("look", "Review", Noun("cause", group.fingerprint)),
        )


def _failing(facts: Facts) -> Iterator[Diagnosis]:
    """Yield tasks that fail unusually often, unless dead letters of the last minutes show that already."""
    told = {
        group.task
        for group in facts.rows.dead
        if facts.now - as_utc(datetime.fromisoformat(group.newest)) < _LATELY
    }
    for rate in facts.rows.rates:
        if rate.is_often and rate.task not in told:
            usual = f"usually {100 * rate.usual:.0f} % do" if rate.usual else "usually none does"
            failing = f"task:{rate.task} state:failing"
            yield Diagnosis(
                kind="task_fails",
                level="warn",
                object=f"task {rate.task}",
                found=f"{100 * rate.share:.0f} % of its {rate.attempts:,} attempts of the last 5 minutes failed; {usual}",
                since=rate.since,
                advice=f"`jobledger jobs list --task {rate.task} --state retry_wait` shows those that are tried again",
                nouns=(Noun("task", rate.task),),
                act=Act("look", "Show them", Noun("jobs", failing)),
            )


def _watches(facts: Facts) -> Iterator[Diagnosis]:
    for each in facts.firing:
        value = "" if each.value is None else f"; it was {each.value:,.10g}"
        yield Diagnosis(
            kind="watch_fires",
            level="warn",
            object=f"watch {each.watch}",
            found=f"it fires: {each.watches}{value}",
            since=each.changed_at,
            advice="`jobledger watches list` shows what each watches",
            nouns=(Noun("watch", each.watch),),
        )


def _webhooks(facts: Facts) -> Iterator[Diagnosis]:
    for each in facts.webhooks:
        if each.failing_since is not None:
            yield Diagnosis(
                kind="webhook_fails",
                level="warn",
                object=f"webhook {each.webhook}",
                found=f"nothing arrives at {each.to}"
                + (f"; it is paused: {each.reason}" if each.status == "paused" else ""),
                since=each.failing_since,
                advice=f"`jobledger webhooks show {each.webhook}` tells why",
                nouns=(Noun("webhook", each.webhook),),
                act=Act("look", "Look", Noun("webhook", each.webhook)),
            )


def _clocks(facts: Facts) -> Iterator[Diagnosis]:
    for each in facts.apart:
        side = "ahead of" if each.seconds > 0 else "behind"
        yield Diagnosis(
            kind="clock_apart",
            level="warn",
            object=f"host {each.host}",
            found=f"its clock is {duration(abs(each.seconds))} {side} the server's",
            since=each.since,
            advice="its processes go by the server's time; synchronise its clock, with NTP for instance",
        )


def _taken_ids(facts: Facts) -> Iterator[Diagnosis]:
    for job, queue, created_at, task, instead in facts.rows.moved:
        since = as_utc(datetime.fromisoformat(created_at))
        if facts.now - since < _MOVED_SHOWN:
            yield Diagnosis(
                kind="id_taken",
                level="warn",
                object=f"job {queue}/{job}",
                found=f"its id was to be {instead}, which another job has: somebody gave away an id of a form that is kept",
                since=since,
                advice=(
                    f"`jobledger jobs show {instead}` tells who made that job; this one is of task {task} and runs all the "
                    "same"
                ),
                queue=queue,
                nouns=(Noun("job", f"{queue}/{job}"),),
            )
    for run, queue, dead_at in facts.rows.child_taken:
        yield Diagnosis(
            kind="id_taken",
            level="warn",
            object=f"run {queue}/{run}",
            found="another job has the id of one of its children, so the run is a dead letter",
            since=as_utc(datetime.fromisoformat(dead_at)),
            advice=(
                f"`jobledger jobs show {run} --why --queue {queue}` names that job; begin the run under another id, and discard "
                "this one"
            ),
            queue=queue,
            nouns=(Noun("job", f"{queue}/{run}"),),
        )


#: A part, and the command that shows what is left out of a long list.
Part = tuple[Callable[[Facts], Iterable[Diagnosis]], str]
_PARTS: Final[tuple[Part, ...]] = (
    (_queues, "queues list"),
    (_pauses, "queues list"),
    (_limits, "limits list"),
    (_closed, "limits list"),
    (_differing_limits, "limits list"),
    (_stuck, "jobs list --state held"),
    (_for_person, "jobs list awaits:children"),
    (_late_schedules, "schedules list"),
    (_differing_schedules, "schedules list"),
    (_store, "doctor"),
    (_reactors, "doctor"),
    (lambda facts: _copies(facts.copies, facts.now), "cluster show"),
    (_dead_letters, "dlq list"),
    (_failing, "stats"),
    (_webhooks, "webhooks list"),
    (_watches, "watches list"),
    (_clocks, "workers list"),
    (_taken_ids, "jobs list"),
)


#: The parts that need only rows.
_OF_ROWS: Final = frozenset((_pauses, _limits, _closed, _stuck, _for_person, _dead_letters, _failing))


def _capped(found: list[Diagnosis], shows_all: str) -> list[Diagnosis]:
    """Return the first diagnoses of one part, and one more that counts the rest."""
    if len(found) <= SHOWN_MAX:
        return found
    first, left = found[0], len(found) - SHOWN_MAX
    rest = Diagnosis(
        kind=first.kind,
        level=first.level,
        object=f"{first.object.partition(' ')[0]}s",
        found=f"and {left:,} more",
        since=None,
        advice=f"`jobledger {shows_all}` shows all",
        count=left,
    )
    return [*found[:SHOWN_MAX], rest]


def words_of(each: Diagnosis, lasts: Callable[[datetime], str]) -> str:
    """Return what was found, and how long it has lasted; `lasts` puts its beginning into words."""
    is_told = each.since is None or "since" in each.found
    return each.found if is_told or each.since is None else f"{each.found} ({lasts(each.since)})"


def by_kind(found: Iterable[Diagnosis]) -> Mapping[Kind, int]:
    """Return how many things hurt of each kind, 0 for a kind without any."""
    counts: Counter[Kind] = Counter(dict.fromkeys(KINDS, 0))
    for each in found:
        counts[each.kind] += each.count
    return counts
