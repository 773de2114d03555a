"""Grants as facts: the jobs that were given their slots, and snapshots of the state behind it. `FlowEvent`. Pure.

One chain, `ledger.flow.<shard>.>`, for all limits that a job may name together. Only `granted` takes a slot, and each
`granted` is conditional on the one before, so its author knows of every slot taken. An event of the job's own gives the
slot back. A chain begins with a snapshot. Released fields never change type, meaning or name. Source: ADR 019.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.envelope import NO_VALUE, Envelope, Whole
from jobledger.ledger.model.events import PayloadRef

#: The shard of every limit.
MAIN: Final = "main"
#: The most jobs that one `granted` may name.
JOBS_MAX: Final = 500


class GrantedJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that was given its slots."""

    queue: str  #: the job's queue
    job: str  #: job id
    held: Whole  #: stream sequence of the `held` that it answers; void if the job has ended that wait already


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about grants."""

    shard: str  #: the set of limits it is about; `main`: all limits
    through: Whole  #: last stream sequence that was taken into account
    limits_sequence: Whole = 0  #: stream sequence of the newest event about a limit that it obeys
    began: Whole = 0  #: the ledger's last stream sequence when its author read the newest snapshot and began


class Granted(_Fact, frozen=True, kw_only=True, tag="granted", gc=False):
    """Jobs that waited were given a slot of each of their limits. Each is `queued` next, or has ended its wait.

    Its time is never before that of the previous event in the chain, since rates are counted by it.
    """

    jobs: tuple[GrantedJob, ...]  #: in the order of the grants, 1 to 500
    slots: dict[str, Whole] = msgspec.field(
        default={}
    )  #: slots of keys without a definition, such as `queue:email`
    policy: Whole = 1  #: version of the rules that chose the jobs


class Snapshotted(_Fact, frozen=True, kw_only=True, tag="snapshotted", gc=False):
    """The holders of slots, and all else that decides on grants; a reader may begin here, not at the beginning."""

    low: Whole  #: oldest stream sequence about a waiting job, except jobs that the state names
    granted: Whole = 0  #: stream sequence of the newest `granted` before it; 0: none
    state: msgspec.Raw = NO_VALUE  #: JSON object; absent if `state_ref` refers to it
    state_ref: PayloadRef | None = None  #: place of a large state


FlowEvent = Granted | Snapshotted


class Flow(msgspec.Struct, frozen=True, gc=False):
    """The facts that the next event of the chain builds on."""

    at: datetime  #: time of its newest event; the next event is not before it
    through: int  #: `through` of its newest event; it never decreases
    limits_sequence: int  #: `limits_sequence` of its newest event; it never decreases
    granted: int  #: stream sequence of the newest `granted`; 0: none


def evolve(before: Flow | None, event: FlowEvent, stream_sequence: int) -> Flow:
    """Return the state after `event`."""
    granted = stream_sequence if isinstance(event, Granted) else event.granted
    limits_sequence = max(event.limits_sequence, 0 if before is None else before.limits_sequence)
    return Flow(event.at, event.through, limits_sequence, granted)


def _words(event: FlowEvent) -> str:
    if isinstance(event, Snapshotted):
        return f"up to {event.through}, from {event.low} on"
    count = len(event.jobs)
    return f"{count} {'job' if count == 1 else 'jobs'}, up to {event.through}"


def _check(before: Flow | None, event: FlowEvent, stream_sequence: int) -> Iterator[Broken]:
    if event.through >= stream_sequence:
        yield "transition", f"it takes stream sequence {event.through} into account, which comes after it"
    if isinstance(event, Granted) and not 1 <= len(event.jobs) <= JOBS_MAX:
        yield "transition", f"`granted` names {len(event.jobs):,} jobs: 1 to {JOBS_MAX} are allowed"
    if before is None:
        if not isinstance(event, Snapshotted):
            yield "transition", "a chain of grants begins with a snapshot"
        return
    if event.through < before.through:
        yield (
            "transition",
            f"it was worked out up to {event.through}, the event before it up to {before.through}",
        )
    if event.limits_sequence < before.limits_sequence:
        older = f"{event.limits_sequence}, the event before it {before.limits_sequence}"
        yield "transition", f"it obeys the definitions of {older}"
    if event.at < before.at:
        yield "transition", "its time is before that of the event before it"
    if isinstance(event, Snapshotted) and event.granted != before.granted:
        yield "transition", f"it follows the grant at {event.granted}, but {before.granted} is the newest"


def _keeps(event: FlowEvent, stream_sequence: int) -> ArchiveBound | None:
    """Return the bound of an archive run: the newest snapshot stays, with all that it does not cover."""
    if not isinstance(event, Snapshotted):
        return None
    end = min(event.through, stream_sequence - 1)
    return ArchiveBound(end + 1, f"the newest snapshot of the limits, which goes up to stream sequence {end}")


FLOW: Aggregate[FlowEvent, Flow] = Aggregate(
    "flow",
    ("shard",),
    FlowEvent,
    state=Flow,
    evolve=evolve,
    words=_words,
    check=_check,
    keeps=_keeps,
    keeps_of=("snapshotted",),
)
