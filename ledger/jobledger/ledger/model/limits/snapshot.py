"""A `Granter` as it is written into a snapshot, and made from one again. Pure.

A snapshot has who holds slots and what the order follows from, and of the jobs that wait the oldest by name. The others
are found again in the ledger, by the events from `low` on: `again` makes a granter, `refill` is told those events up to
`through`, `done` ends that, and the events after `through` are folded as always.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.model.envelope import Whole
from jobledger.ledger.model.events import Cancelled, Carried, Held, JobEvent
from jobledger.ledger.model.limits.definition import Definition
from jobledger.ledger.model.limits.flow import Granted
from jobledger.ledger.model.limits.grants import Gone, Granter, rank_of
from jobledger.ledger.model.limits.holders import Holding, JobKey
from jobledger.ledger.model.limits.lines import LineKey, Share, Spill
from jobledger.ledger.model.limits.modes import Doomed
from jobledger.ledger.model.limits.rates import moment_of, nanoseconds

#: How many of the oldest jobs that wait a snapshot has by name: one that waits for months must not pin the ledger.
NAMED_MAX: Final = 1_000


class Turn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The turn of a fairness key."""

    priority: Whole  #: 0 is high
    fair: str
    v: float  #: its virtual time
    limits: tuple[str, ...]  #: of one of its jobs
    active_since: Whole = (
        0  #: stream sequence of the `held` with which it began to wait after the newest `granted`
    )


class Named(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job that waits."""

    job: JobKey
    held: Whole  #: stream sequence of its `held`
    line: LineKey  #: in which it waits
    limits: tuple[str, ...]  #: all that it names


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """All that grants follow from, after the event at `through`."""

    through: Whole  #: stream sequence of the last event that was folded
    low: Whole  #: from which on the ledger tells of the jobs that wait and are not in `named`
    at: datetime  #: of the newest `granted`
    total: Whole  #: how many jobs were ever granted
    floors: tuple[float, ...]  #: by priority, the virtual time at which somebody was served last
    turns: list[Turn] = []
    later: dict[str, tuple[int, ...]] = {}  #: see `guard.Guard.later`
    whole_at: dict[str, int] = {}  #: see `rates.Rates.whole_at`
    holders: list[tuple[JobKey, Holding]] = []
    unstarted: dict[str, list[JobKey]] = {}  #: by key that has a rate, who is not known to have started
    asked: list[JobKey] = []  #: holders that were asked to end
    doomed: list[tuple[JobKey, Doomed]] = []
    gone: list[tuple[JobKey, Gone]] = []
    first: tuple[JobKey, Whole] | None = (
        None  #: the first job of the line that has the right of way, and its `held`
    )
    limits: list[Definition] = []
    limits_sequence: Whole = 0  #: stream sequence of the newest event about a limit
    named: list[Named] = []  #: the oldest jobs that wait


def state_of(granter: Granter, *, named_max: int = NAMED_MAX) -> State:
    """Return a granter as it is written; not between `decide` and what becomes of its grants."""
    picker, modes, first = granter.picker, granter.modes, granter.guard.first
    named, low = _oldest(granter, named_max)
    return State(
        through=granter.through,
        low=low,
        at=moment_of(granter.at),
        total=granter.total,
        floors=tuple(granter.floors),
        turns=[
            Turn(
                each.priority,
                each.fair,
                each.v,
                each.limits,
                each.active_since if granter.is_fresh(each) else 0,
            )
            for each in granter.shares.values()
        ],
        later=granter.guard.later,
        whole_at=granter.rates.whole_at,
        holders=list(granter.holders.jobs.items()),
        unstarted={name: list(key.unstarted) for name, key in picker.keys.items() if key.unstarted},
        asked=list(modes.asked),
        doomed=list(modes.doomed.items()),
        gone=list(granter.gone.items()),
        first=None if first is None else ((first.heads[0].queue, first.heads[0].job), first.head),
        limits=list(granter.definitions.limits.values()),
        limits_sequence=granter.definitions.sequence,
        named=named,
    )


def _oldest(granter: Granter, named_max: int) -> tuple[list[Named], int]:
    named: list[Named] = []
    for entry, line in granter.lines.oldest():
        if len(named) == named_max:
            return named, entry.held
        named.append(Named((entry.queue, entry.job), entry.held, line, entry.limits))
    return named, granter.through + 1


def again(state: State, spill: Spill | None = None, **bounds: int) -> Granter:
    """Return a granter that is as the one that was written was, but for the jobs that are not named; `refill` follows."""
    granter = Granter(spill, **bounds)
    granter.through, granter.total, granter.at = state.through, state.total, nanoseconds(state.at)
    granter.picker.at = granter.at
    granter.floors = list(state.floors)
    granter.definitions.limits = {each.limit: each for each in state.limits}
    granter.definitions.sequence = state.limits_sequence
    granter.guard.later.update(state.later)
    granter.rates.whole_at.update(state.whole_at)
    for turn in state.turns:
        granter.add_share(Share(turn.priority, turn.fair, turn.v, turn.limits), since=turn.active_since)
    for job, holding in state.holders:
        granter.holders.put(job, holding)
    for name, jobs in state.unstarted.items():
        granter.picker.key(name).unstarted.update(dict.fromkeys(jobs))
    granter.modes.asked.update(dict.fromkeys(state.asked))
    granter.modes.doomed.update(state.doomed)
    granter.gone.update(state.gone)
    for each in state.named:
        granter.wait(each.job, (*each.line[:3], each.limits), each.held, is_new=False)
    return granter


def refill(granter: Granter, event: JobEvent | Granted, sequence: int) -> None:
    """Tell a granter made by `again` the next event from `low` up to `through`: who waits, and who does no longer."""
    if isinstance(event, Granted):
        for each in event.jobs:
            _forget(granter, (each.queue, each.job), each.held)
        return
    job = (event.queue, event.job)
    if isinstance(event, Held):
        _forget(granter, job, None)
        if event.limits:
            _wait(granter, job, (rank_of(event.priority), event.queue, event.fair, event.limits), sequence)
    elif isinstance(event, Cancelled):
        _forget(granter, job, None)
    elif isinstance(event, Carried):
        state = event.job_state
        order = state.order
        if state.state == "held" and order.limits and granter.lines.find(job) is None:
            line = (rank_of(order.priority), event.queue, order.fair, order.limits)
            _wait(granter, job, line, state.wait_sequence)


def _wait(granter: Granter, job: JobKey, line: LineKey, held: int) -> None:
    """Let a job wait, unless what was written knows better: of a grant that lies behind `through`, or of its end."""
    known = (granter.holders.jobs.get(job), granter.modes.doomed.get(job))
    if all(each is None or each.held != held for each in known):
        granter.wait(job, line, held, is_new=False)


def _forget(granter: Granter, job: JobKey, held: int | None) -> None:
    entry = granter.lines.find(job)
    if entry is not None and held in {None, entry.held}:
        granter.remove(entry)


def done(granter: Granter, state: State) -> None:
    """End the refill: all who waited at `through` are known."""
    if state.first is not None:
        entry = granter.lines.find(state.first[0])
        if entry is not None and entry.held == state.first[1]:
            granter.guard.first, granter.guard.first_head = entry.line, entry.held


def read(data: bytes) -> State:
    """Return a state that was written as JSON.

    Raises: msgspec.ValidationError, msgspec.DecodeError.
    """
    return _decode(data)


_decode: Final = msgspec.json.Decoder(State).decode
write: Final = msgspec.json.Encoder().encode
