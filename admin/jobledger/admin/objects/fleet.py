"""What a ledger's queues, limits, unique keys, tables and subscriptions look like, as objects. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from jobledger.admin.events.changes import Change
from jobledger.admin.held import LimitNow
from jobledger.admin.limits import ShownLimit
from jobledger.ledger.limits.in_code import CodeLimit, differing, limits_in_code
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.limits.definition import Author, Override, Terms
from jobledger.ledger.model.limits.names import joined, split
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.model.rights.marks import PAYLOADS
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.subscriptions.consumers import SubscriptionInfo
from jobledger.ledger.unique.queries import KeyHolder
from jobledger.projections import QueueRow, Store
from jobledger.projections.statistics.held_jobs import read_held
from jobledger.projections.tables.limits import LimitRow, limit_rows
from jobledger.projections.tables.slots import slots_taken


class PauseShown(msgspec.Struct, frozen=True, kw_only=True):
    """Who paused a queue."""

    by: str
    since: datetime | None
    until: datetime | None  #: None: until somebody resumes it
    reason: str
    interrupt: bool  #: whether attempts that ran were given back


class QueueShown(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, and what its jobs are doing."""

    queue: str
    priority: str | msgspec.UnsetType = msgspec.UNSET  #: left out where its priorities are added up
    #: Jobs by state, every one. None for a key that is bound to tasks, as are the two times below.
    counts: dict[str, int] | None
    oldest_waiting: str | None  #: since when the job that waits longest for a worker has been `queued`
    oldest_running: str | None  #: when the attempt that has been running longest was started
    pause: PauseShown | None  #: None: it is not paused


class QueuePause(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a queue is paused."""

    queue: str
    pause: PauseShown | None  #: None: it is not


class LimitListed(LimitRow, frozen=True, kw_only=True):
    """A limit, or one key of it for which something differs."""

    #: How many jobs hold a slot: of this key, or of all keys without a row of their own. None for a key of the gateway
    #: that is bound to queues or tasks, as are the two below.
    taken: int | None
    keys: int | None  #: how many keys these are; `slots` counts for each of them alone
    most: int | None  #: how many jobs hold a slot of the busiest of these keys
    #: The running workers whose code has other numbers, and what it has; of the present alone.
    in_code: tuple[CodeLimit, ...] = ()
    defined: bool = True


class LimitMissing(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that jobs name and nobody defined."""

    name: str
    key: str = ""
    held: int  #: jobs that wait for it
    taken: int  #: jobs that hold a slot of it
    defined: bool = False


class LimitShown(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, or one key of it, whole."""

    limit: str  #: `name` or `name:key`
    terms: Terms | None  #: the terms in force; None: it was removed
    overrides: dict[str, Override]  #: differing terms, by key
    source: str  #: who defined it: `code` or `operator`
    by: str
    reason: str
    authors: dict[str, Author]  #: who set each override, by key
    in_code: list[CodeLimit]  #: the running workers whose code has other numbers, and what it has
    sequence: int  #: that of the limit's newest event
    held: LimitNow  #: who holds it, and who waits for it
    history: list[Change]  #: the newest first


class KeyShown(msgspec.Struct, frozen=True, kw_only=True):
    """A unique key, and the job that took it last."""

    task: str
    key: str  #: 40 hexadecimal digits
    arguments: Annotated[dict[str, Any] | None, PAYLOADS]  #: its arguments; None: not known, or hidden
    tenant: str
    queue: str
    job: str
    status: str | None  #: state of the job; None: it is not in the ledger
    held: bool  #: whether the job still holds the key
    until: str | None  #: what ends the hold; None: `expires_at` does
    expires_at: datetime | None
    number: int
    taken_at: datetime


class SubscriptionShown(SubscriptionInfo, frozen=True, kw_only=True):
    """One durable subscription at this moment."""

    behind: int = msgspec.field(name="lag")  #: how many events are still to be acknowledged


def pause_shown(state: QueueState | None) -> PauseShown | None:
    """Return who paused a queue; None of one that is not paused."""
    if state is None:
        return None
    return PauseShown(
        by=state.by,
        since=state.since,
        until=state.until,
        reason=state.reason,
        interrupt=state.interrupt,
    )


def queue_shown(row: QueueRow, paused: Mapping[str, QueueState]) -> QueueShown:
    """Return a queue, or one of its priorities if the row names one."""
    return QueueShown(
        queue=row.queue,
        priority=row.priority or msgspec.UNSET,
        counts=row.counts,
        oldest_waiting=row.oldest_waiting,
        oldest_running=row.oldest_running,
        pause=pause_shown(paused.get(row.queue)),
    )


def queue_pause(queue: str, state: QueueState) -> QueuePause:
    """Return whether a queue is paused."""
    return QueuePause(queue=queue, pause=pause_shown(state if state.paused else None))


def limits_listed(
    store: Store, workers: Iterable[WorkerInfo] = ()
) -> tuple[list[LimitListed], list[LimitMissing]]:
    """Return the limits that are defined, and those that jobs name and nobody defined, each by name.

    `workers`: those whose code is compared; none for a past moment.
    """
    with store.one_moment():
        rows, taken = limit_rows(store.select), slots_taken(store.select)
        held = read_held(store.select, taken)
    in_code = limits_in_code(workers)
    listed = [_listed(row, _taken(row, rows, taken), in_code) for row in rows]
    missing = [
        LimitMissing(name=each.limit, held=each.jobs, taken=each.holders) for each in held if not each.defined
    ]
    return listed, missing


def _listed(
    row: LimitRow, taken: Mapping[str, int], in_code: Mapping[str, Sequence[CodeLimit]]
) -> LimitListed:
    limit, counts = joined(row.name, row.key), taken.values()
    said = msgspec.structs.asdict(row)
    return LimitListed(
        **said,
        taken=sum(counts),
        keys=len(counts),
        most=max(counts, default=0),
        in_code=tuple(differing(limit, row.terms, in_code)),
    )


def taken_words(row: LimitListed, number: Callable[[int], str] = "{:,}".format) -> str:
    """Return how many slots are taken, for a person: `2 of 3`, or `6 by 3 keys` if each key has its own."""
    if row.taken is None:
        return ""
    if (row.keys or 0) > 1:
        return f"{number(row.taken)} by {number(row.keys or 0)} keys"
    return number(row.taken) if row.slots is None else f"{number(row.taken)} of {number(row.slots)}"


def _taken(row: LimitRow, rows: Iterable[LimitRow], taken: Mapping[str, int]) -> dict[str, int]:
    """Return how many slots are taken by key: in the row of a key by that key, else by all keys without a row."""
    if row.key:
        limit = joined(row.name, row.key)
        return {limit: taken[limit]} if limit in taken else {}
    apart = {joined(each.name, each.key) for each in rows if each.key}
    return {key: count for key, count in taken.items() if split(key)[0] == row.name and key not in apart}


def limit_shown(found: ShownLimit, held: LimitNow) -> LimitShown:
    """Return a limit with all its facts."""
    definition = found.definition
    author = definition.author(split(found.limit)[1])
    return LimitShown(
        limit=found.limit,
        terms=found.terms,
        overrides=dict(definition.overrides),
        source=author.source,
        by=author.by,
        reason=author.reason,
        authors=dict(definition.authors),
        in_code=list(found.in_code),
        sequence=definition.sequence,
        held=held,
        history=list(found.history),
    )


def key_shown(found: KeyHolder) -> KeyShown:
    """Return a unique key."""
    taken = found.taken
    return KeyShown(
        task=taken.task,
        key=taken.key,
        arguments=None if taken.arguments is NO_VALUE else msgspec.json.decode(taken.arguments),
        tenant=taken.tenant,
        queue=taken.queue,
        job=taken.job,
        status=None if found.job is None else found.job.state.value,
        held=found.is_held,
        until=taken.until if taken.expires_at is None else None,
        expires_at=taken.expires_at,
        number=taken.number,
        taken_at=taken.at,
    )


def subscription_shown(info: SubscriptionInfo) -> SubscriptionShown:
    """Return a durable subscription."""
    return SubscriptionShown(**msgspec.structs.asdict(info), behind=info.lag)
