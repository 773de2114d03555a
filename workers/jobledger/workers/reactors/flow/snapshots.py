"""Snapshots of the state of the reactor of the limits: made from a `Granter`, and restored into one. No I/O."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Final

import msgspec

from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.limits.flow import MAIN, Granted, GrantedJob
from jobledger.ledger.model.limits.grants import Granter
from jobledger.ledger.model.limits.holders import JobKey, JobSlots
from jobledger.ledger.model.limits.lines import Gone
from jobledger.ledger.model.limits.modes import DoomedJob

#: Most jobs that a snapshot names, so that a reader may begin after them.
_NAMED_MAX: Final = 1_000
#: Up to this distance from the oldest waiting job a reader reads the events again, which is cheaper than names.
_FAR: Final = 20_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class HolderState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job that holds slots; the fields beside its name are `holders.Holding`'s."""

    queue: str
    job: str
    limits: tuple[str, ...]
    kept: tuple[str, ...] = ()
    grant: int = 0
    held: int = 0


class ShareState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The turn of one fairness key; the fields are `lines.Share`'s."""

    priority: int
    fair: str
    v: float
    limits: tuple[str, ...] = ()
    since: int = (
        0  #: stream sequence of the `held` with which it began to wait after the newest `granted`; 0: before
    )


class WaitingState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that has waited for so long that a reader should not begin with its `held`."""

    queue: str
    job: str
    held: int


class FlowState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The state in a `snapshotted`: everything that decides on grants and that later events do not contain."""

    holders: tuple[HolderState, ...] = ()
    shares: tuple[ShareState, ...] = ()
    floors: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rates: dict[str, int] = {}
    later: dict[str, tuple[int, ...]] = {}
    total: int = 0
    at: int = 0
    waiting: tuple[WaitingState, ...] = ()
    unstarted: dict[
        str, tuple[JobKey, ...]
    ] = {}  #: by key with a rate: granted jobs not known to have started
    asked: tuple[JobKey, ...] = ()  #: holders that were asked to end, for their limit's mode
    doomed: tuple[tuple[JobKey, DoomedJob], ...] = ()  #: jobs that will be cancelled for their limit's mode
    gone: tuple[tuple[JobKey, Gone], ...] = ()  #: jobs that left after the newest `granted`'s `through`
    first: tuple[JobKey, int] | None = (
        None  #: the job with the right of way, and stream sequence of its `held`
    )
    #: States of earlier snapshots that are still stored, and the snapshots' stream sequences.
    earlier: tuple[tuple[int, PayloadRef], ...] = ()
    #: Author, and the preceding event of the chain of grants. They make every state unique, so that one can be removed
    #: without another.
    by: str = ""
    after: int = 0


_decoder: Final = msgspec.json.Decoder(FlowState)


def decode(data: bytes) -> FlowState:
    """Return the state in a snapshot, or in its referenced text; an empty one if there is none.

    Raises: msgspec.MsgspecError.
    """
    return _decoder.decode(data) if data else FlowState()


def state_of(granter: Granter, waiting: tuple[WaitingState, ...] = ()) -> FlowState:
    """Return the state of a granter without waiting jobs, which readers find from `low` on."""
    holders = (
        HolderState(
            queue=queue, job=job, limits=each.limits, kept=each.kept, grant=each.grant, held=each.held
        )
        for (queue, job), each in granter.holders.jobs.items()
    )
    shares = (
        ShareState(
            priority=each.priority,
            fair=each.fair,
            v=each.v,
            limits=each.limits,
            since=each.active_since if each in granter.fresh else 0,
        )
        for each in granter.shares.values()
        if each.lines or each.v > granter.floors[each.priority]
    )
    high, normal, low = granter.floors
    keys, first = granter.picker.keys.items(), granter.guard.first
    return FlowState(
        holders=tuple(holders),
        shares=tuple(shares),
        floors=(high, normal, low),
        rates={key: moment for key, moment in granter.rates.whole_at.items() if moment > granter.at},
        later=dict(granter.guard.later),
        total=granter.total,
        at=granter.at,
        waiting=waiting,
        unstarted={name: tuple(key.unstarted) for name, key in keys if key.unstarted},
        asked=tuple(granter.modes.asked),
        doomed=tuple(granter.modes.doomed.items()),
        gone=tuple(granter.gone.items()),
        first=None if first is None else ((first.heads[0].queue, first.heads[0].job), first.head),
    )


def waiting_of(granter: Granter) -> tuple[tuple[WaitingState, ...], int]:
    """Return the jobs that a snapshot names, and the stream sequence from which on the other waiting jobs are found.

    Names are for the few jobs that have waited for very long: without them a reader would begin with the oldest one.
    """
    oldest = [entry for entry, _ in itertools.islice(granter.lines.oldest(), _NAMED_MAX + 1)]
    if not oldest:
        return (), granter.through + 1
    low = oldest[_NAMED_MAX].held if len(oldest) > _NAMED_MAX else granter.through + 1
    if low - oldest[0].held < _FAR:
        return (), oldest[0].held
    named = (WaitingState(queue=each.queue, job=each.job, held=each.held) for each in oldest[:_NAMED_MAX])
    return tuple(named), low


def prepare(granter: Granter, state: FlowState) -> None:
    """Restore the slots that jobs keep until they end, before events before a snapshot are folded again."""
    for each in state.holders:
        if each.kept:
            granter.holders.put((each.queue, each.job), JobSlots(each.kept, each.kept, each.grant, each.held))


def restore(granter: Granter, state: FlowState, through: int) -> None:
    """Restore a granter from a snapshot, after it folded the events of waiting jobs up to `through`.

    Only the waiting jobs come from those events: the holders of slots and the turns come from the snapshot.
    """
    _let_go(granter, state, through)
    for job in list(granter.holders.jobs):
        granter.holders.put(job, None)
    for each in state.holders:
        holding = JobSlots(each.limits, each.kept, each.grant, each.held)
        granter.holders.put((each.queue, each.job), holding)
    granter.rates.whole_at = dict(state.rates)
    granter.guard.later = dict(state.later)
    granter.gone = dict(state.gone)
    granter.total, granter.at, granter.through = state.total, state.at, through
    granter.picker.at = granter.at
    _restore_turns(granter, state)
    _restore_marks(granter, state)
    granter.picker.rebuild(granter.lines.lines.values())


def _restore_turns(granter: Granter, state: FlowState) -> None:
    granter.floors[:] = state.floors
    granter.fresh.clear()
    for share in granter.shares.values():
        share.v = state.floors[share.priority]
    for told in state.shares:
        share = granter.share(told.priority, told.fair, told.limits)
        share.v, share.limits, share.active_since = told.v, told.limits, told.since
        if told.since:
            granter.fresh[share] = None
    granter.weigh()


def _restore_marks(granter: Granter, state: FlowState) -> None:
    """Restore the holders that have not started, the jobs that have to end, and the job with the right of way."""
    for key in granter.picker.keys.values():
        key.unstarted.clear()
    for name, jobs in state.unstarted.items():
        granter.picker.key(name).unstarted.update(dict.fromkeys(jobs))
    granter.modes.asked = dict.fromkeys(state.asked)
    granter.modes.doomed = dict(state.doomed)
    first = None if state.first is None else granter.lines.find(state.first[0])
    granter.guard.first = None if first is None else first.line
    granter.guard.first_head = 0 if first is None else first.held


def _let_go(granter: Granter, state: FlowState, through: int) -> None:
    """Remove granted jobs and jobs to be cancelled from their lines, since the folded events do not show this."""
    for job, doomed in state.doomed:
        entry = granter.lines.find(job)
        if entry is not None and entry.held == doomed.held:
            granter.remove(entry)
    waiting = (
        (each, granter.lines.find((each.queue, each.job))) for each in state.holders if each.held <= through
    )
    jobs = tuple(
        GrantedJob(queue=each.queue, job=each.job, held=each.held)
        for each, entry in waiting
        if entry is not None and entry.held == each.held
    )
    if jobs:
        granter.granted(Granted(shard=MAIN, at=_EPOCH, by="", through=through, jobs=jobs), through)
