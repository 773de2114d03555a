"""Limits by key, and tenants: holders, waiting jobs, and the figures of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import anyio.to_thread
import msgspec
from markupsafe import Markup

from jobledger.admin.objects.fleet import LimitListed, LimitMissing, limits_listed
from jobledger.admin.rows import View
from jobledger.gateway.pages.charts.plot import share
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import RANGES, PageFacts, Shell, opened
from jobledger.gateway.pages.words import style_of
from jobledger.gateway.visibility import limits_for, terms_for
from jobledger.ledger.model.job import OPEN_STATES
from jobledger.ledger.model.limits.definition import terms_words
from jobledger.ledger.model.limits.names import joined, split
from jobledger.ledger.model.state_words import state_title
from jobledger.ledger.model.subjects import is_own_queue
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.projections.filters import joined as joined_terms
from jobledger.projections.statistics.held_jobs import SETS
from jobledger.projections.statistics.tally import QUEUE_COUNTS
from jobledger.projections.tables.slots import slots_taken

_KEYS_SHOWN: Final = 12
_TENANTS_SHOWN: Final = 200
_NOW: Final = "SELECT tenant, status, count(*) FROM jobs WHERE tenant <> '' AND status IN ({}) AND {} GROUP BY tenant, status"
_KEPT: Final = f"SELECT tenant, {', '.join(QUEUE_COUNTS)} FROM tenants"  # noqa: S608 - names of columns
_EXACT_S: Final = 3600  #: longer ranges are counted by the hour
_HOURS: Final = (
    "SELECT tenant, sum(completed), sum(dead_lettered) FROM tenant_hours WHERE hour >= ? GROUP BY tenant"
)
#: `+tenant`: else SQLite reads all jobs that have a tenant, by its index, instead of those that ended in the range.
_LATELY: Final = "SELECT tenant, status, count(*) FROM jobs WHERE completed_at >= ? AND +tenant <> '' AND {} GROUP BY tenant, status"


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a limit."""

    limit: str  #: `name:key`, or the name alone
    key: str
    slots: int | None
    taken: int | None  #: None, like `held`, for a viewer who may not see all jobs
    held: int | None
    differs: bool  #: it has terms of its own
    set_by: str = ""  #: the actor who set these
    reason: str = ""  #: the reason given for them
    bar: Markup = Markup()


class LimitLine(msgspec.Struct, frozen=True, kw_only=True):
    """One limit with its keys."""

    limit: str
    row: LimitListed
    words: str
    in_code: list[tuple[str, str]]  #: workers whose code has other numbers, with these numbers
    keys: list[KeyLine]
    keys_more: int
    taken: int | None  #: None, like `held`, for a viewer who may not see all jobs
    held: int | None


class TenantLine(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant."""

    name: str
    counts: dict[str, int]  #: jobs that have not ended, by state
    dead: int
    completed: int  #: jobs completed in the range
    failed: int  #: jobs that died in the range
    states: Markup
    limits: list[KeyLine]  #: limits that its jobs hold or wait for


class Limits(PageFacts, frozen=True, kw_only=True):
    """The page."""

    limits: list[LimitLine]
    internal: list[LimitLine]  #: limits of the ledger's own jobs
    missing: list[LimitMissing]


class Tenants(PageFacts, frozen=True, kw_only=True):
    """The page."""

    tenants: list[TenantLine]
    open: tuple[str, ...]


async def limits(looked: Viewer, *, query: When) -> Limits:
    """Return the defined limits with their keys, and limits that jobs name and nobody defined."""
    past = query.as_of()
    async with opened(looked, past) as (view, shell):
        workers = [] if past else await looked.gateway.ledger.leases.all()
        found, missing = await anyio.to_thread.run_sync(_limits, looked, view, workers)
        users, own = (
            [each for each in found if is_own_queue(each.limit) is which] for which in (False, True)
        )
        return Limits(shell=shell, limits=users, internal=own, missing=missing)


def _limits(
    looked: Viewer, view: View, workers: Sequence[WorkerInfo] = ()
) -> tuple[list[LimitLine], list[LimitMissing]]:
    everything = looked.principal.is_everywhere
    with view.store.one_moment():
        rows, missing = limits_for(looked.principal, limits_listed(view.store, workers))
        taken = slots_taken(view.store.select) if everything else {}
        held: Counter[str] = Counter()
        for names, jobs, _ in view.store.select(SETS) if everything else ():
            held.update(dict.fromkeys(str(names).split(), int(jobs)))
    lines: list[LimitLine] = []
    common = {row.name for row in rows if not row.key}
    for row in rows:
        if row.key and row.name in common:
            continue
        limit = joined(row.name, row.key)
        overrides = {each.key: each for each in rows if each.name == row.name and each.key and not row.key}
        of_name = (key for key in (*taken, *held) if split(key)[0] == row.name)
        named = {limit} if row.key else {*of_name, *(joined(row.name, key) for key in overrides)}
        found = [_key(each, row, overrides, taken, held) for each in named or {row.name}]
        # All keys of a limit are drawn at one scale, so that their bars can be compared.
        whole = max(max(each.slots or 0, each.taken or 0) + (each.held or 0) for each in found)
        keys = [msgspec.structs.replace(each, bar=_bar(each, whole)) for each in found]
        keys.sort(key=lambda each: (-(each.held or 0), -(each.taken or 0), each.key))
        if not everything:
            keys = [msgspec.structs.replace(each, taken=None, held=None) for each in keys]
        lines.append(
            LimitLine(
                limit=limit,
                row=row,
                words=terms_words(row),
                in_code=[(each.worker, terms_words(each.terms)) for each in row.in_code[:1]],
                keys=keys[:_KEYS_SHOWN],
                keys_more=max(0, len(keys) - _KEYS_SHOWN),
                taken=sum(each.taken or 0 for each in keys) if everything else None,
                held=sum(each.held or 0 for each in keys) if everything else None,
            )
        )
    return sorted(lines, key=lambda each: (-(each.held or 0), each.limit)), missing


def _key(
    limit: str,
    common: LimitListed,
    overrides: dict[str, LimitListed],
    taken: Mapping[str, int],
    held: Mapping[str, int],
) -> KeyLine:
    key = split(limit)[1]
    row = overrides.get(key, common)
    return KeyLine(
        limit=limit,
        key=key,
        slots=row.slots,
        taken=taken.get(limit, 0),
        held=held.get(limit, 0),
        differs=key in overrides,
        set_by=row.set_by if key in overrides else "",
        reason=row.reason if key in overrides else "",
    )


def _bar(key: KeyLine, whole: int) -> Markup:
    taken, held = key.taken or 0, key.held or 0
    free = max(0, (key.slots or 0) - taken)
    parts = [("t-running", "hold a slot", taken), ("free", "free", free), ("t-held", "wait", held)]
    return share(parts, label=f"{key.limit}: {taken} of {key.slots}, {held} wait", whole=whole)


async def tenants(looked: Viewer, *, query: When) -> Tenants:
    """Return every tenant with open jobs, dead letters, or jobs that ended in the range."""
    past = query.as_of()
    async with opened(looked, past) as (view, shell):
        found = await anyio.to_thread.run_sync(_tenants, looked, view, shell)
        return Tenants(shell=shell, tenants=found, open=OPEN_STATES)


def _tenants(looked: Viewer, view: View, shell: Shell) -> list[TenantLine]:
    where, values = joined_terms(terms_for(looked.principal))
    since = view.now - timedelta(seconds=RANGES[shell.range][0])
    states = (*OPEN_STATES, "dead_lettered")
    with view.store.one_moment():
        if looked.principal.is_everywhere:  # the counts kept for a tenant are of all queues and tasks
            now = [
                (row[0], state, jobs)
                for row in view.store.select(_KEPT)
                for state, jobs in zip(QUEUE_COUNTS, row[1:], strict=True)
                if state in states and jobs
            ]
        else:
            now = view.store.select(_NOW.format(", ".join("?" * len(states)), where), (*states, *values))
        if looked.principal.is_everywhere and RANGES[shell.range][0] > _EXACT_S:  # counts by the hour
            since_hour = int(since.timestamp() // 3600)
            sums = view.store.select(_HOURS, (since_hour,))
            lately = [
                (row[0], state, n)
                for row in sums
                for state, n in zip(("completed", "dead_lettered"), row[1:], strict=True)
            ]
        else:
            lately = view.store.select(_LATELY.format(where), (f"{since:%Y-%m-%dT%H:%M:%S}", *values))
    keys: dict[str, list[KeyLine]] = defaultdict(list)
    for line in _limits(looked, view)[0]:
        for key in line.keys:
            if key.key and (key.taken or key.held or key.differs):
                keys[key.key].append(key)
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    ended: dict[str, dict[str, int]] = defaultdict(dict)
    for found, rows in ((counts, now), (ended, lately)):
        for tenant, status, jobs in rows:
            found[tenant][status] = jobs
    most = max((sum(each.values()) - each.get("dead_lettered", 0) for each in counts.values()), default=1)
    lines = [_tenant(name, counts[name], ended[name], keys[name], most) for name in {*counts, *ended}]
    return sorted(lines, key=lambda each: (-sum(each.counts.values()), -each.completed, each.name))[
        :_TENANTS_SHOWN
    ]


def _tenant(
    name: str, counts: dict[str, int], ended: dict[str, int], keys: list[KeyLine], most: int
) -> TenantLine:
    opened: dict[str, int] = {state: counts.get(state, 0) for state in OPEN_STATES}
    parts = [(style_of(state), state_title(state), float(jobs)) for state, jobs in opened.items()]
    return TenantLine(
        name=name,
        counts=opened,
        dead=counts.get("dead_lettered", 0),
        completed=ended.get("completed", 0),
        failed=ended.get("dead_lettered", 0),
        states=share(parts, label=f"States of the jobs of {name}", whole=most),
        limits=keys,
    )
