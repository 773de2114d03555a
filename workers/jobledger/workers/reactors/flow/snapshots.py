"""Snapshots of what the reactor of the limits knows: made from a `Granter`, and brought back into one. No I/O."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Final

import msgspec

from jobledger.ledger.model.limits.flow import MAIN, Granted, GrantedJob
from jobledger.ledger.model.limits.grants import Granter
from jobledger.ledger.model.limits.holders import Holding, JobKey
from jobledger.ledger.model.limits.lines import Share

#: Jobs that a snapshot names, so that a reader may begin behind them.
_NAMED_MAX: Final = 1_000
#: What is this near to the oldest job that waits is read again: that is cheaper than names.
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


class WaitingState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that waits for so long that a reader should not begin with its `held`."""

    queue: str
    job: str
    held: int


class FlowState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a `snapshotted` says, beside its fields: all that grants follow from and that the next events do not tell."""

    holders: tuple[HolderState, ...] = ()
    shares: tuple[ShareState, ...] = ()
    floors: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rates: dict[str, int] = {}
    later: dict[str, tuple[int, ...]] = {}
    total: int = 0
    at: int = 0
    waiting: tuple[WaitingState, ...] = ()


_decoder: Final = msgspec.json.Decoder(FlowState)


def decode(data: bytes) -> FlowState:
    """Return the state that a snapshot carries, or refers to; an empty one where it says nothing.

    Raises: msgspec.MsgspecError.
    """
    return _decoder.decode(data) if data else FlowState()


def state_of(granter: Granter, waiting: tuple[WaitingState, ...] = ()) -> FlowState:
    """Return what a granter knows, but for the jobs that wait: readers find those from `low` on."""
    holders = (
        HolderState(
            queue=queue, job=job, limits=each.limits, kept=each.kept, grant=each.grant, held=each.held
        )
        for (queue, job), each in granter.holders.jobs.items()
    )
    shares = (
        ShareState(priority=each.priority, fair=each.fair, v=each.v, limits=each.limits)
        for each in granter.shares.values()
        if each.lines or each.v > granter.floors[each.priority]
    )
    high, normal, low = granter.floors
    return FlowState(
        holders=tuple(holders),
        shares=tuple(shares),
        floors=(high, normal, low),
        rates={key: moment for key, moment in granter.rates.whole_at.items() if moment > granter.at},
        later=dict(granter.guard.later),
        total=granter.total,
        at=granter.at,
        waiting=waiting,
    )


def waiting_of(granter: Granter) -> tuple[tuple[WaitingState, ...], int]:
    """Return the jobs that a snapshot names, and the stream sequence from which on the others that wait are found.

    Names are for the few that have waited for very long: without them a reader would begin with the oldest.
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
    """Say which slots are held until their jobs have ended, before what came before a snapshot is folded once more."""
    for each in state.holders:
        if each.kept:
            granter.holders.put((each.queue, each.job), Holding(each.kept, each.kept, each.grant, each.held))


def restore(granter: Granter, state: FlowState, through: int) -> None:
    """Make a granter what it was at a snapshot, after it folded what tells of jobs that wait, up to `through`.

    Only who waits comes from that: who holds slots, and whose turn it is, the snapshot says.
    """
    _let_go(granter, state, through)
    for job in list(granter.holders.jobs):
        granter.holders.put(job, None)
    for each in state.holders:
        holding = Holding(each.limits, each.kept, each.grant, each.held)
        granter.holders.put((each.queue, each.job), holding)
        _mark_unstarted(granter, (each.queue, each.job), each.limits)
    granter.floors[:] = state.floors
    for share in granter.shares.values():
        share.v = state.floors[share.priority]
    for told in state.shares:
        share = granter.shares.setdefault(
            (told.priority, told.fair), Share(told.priority, told.fair, told.v, told.limits)
        )
        share.v = told.v
    granter.rates.whole_at = dict(state.rates)
    granter.guard.later = dict(state.later)
    granter.total, granter.at, granter.through = state.total, state.at, through
    granter.picker.rebuild(granter.lines.lines.values())


def _mark_unstarted(granter: Granter, job: JobKey, limits: tuple[str, ...]) -> None:
    """Let rates wait for a job that nobody knows to have started, until somebody looks."""
    for name in limits:
        key = granter.picker.key(name)
        if key.terms is not None and key.terms.rate is not None:
            key.unstarted[job] = None


def _let_go(granter: Granter, state: FlowState, through: int) -> None:
    """Take out of their lines jobs that were granted before what was folded, and told of again by an archive run."""
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
