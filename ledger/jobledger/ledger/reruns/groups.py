"""Groups that had not completed, as a rerun of what failed begins them again: their completed children are copied.

Used by the plan of a rerun and by the worker that copies; the newest end in the plan bounds what both find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.children import child_ref
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.events import Completed, Joined, StepStarted
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.runs.orders import CopiedEnds, Origin, Ranges, bits, bits_of, items_of, ranges_of
from jobledger.ledger.model.runs.reruns import begun_again
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef

#: How many ends one event counts: each takes 80 bytes or so, and an event may have a megabyte.
_ENDS_MAX: Final = 1_000


class ChildEnd(msgspec.Struct, frozen=True, gc=False):
    """The `completed` of a child."""

    sequence: int
    sha256: str  #: hex, of the event as stored


class CopiedGroup(msgspec.Struct, frozen=True):
    """A group as the rerun begins it."""

    step: Step  #: of the source
    begun: StoredEvent  #: its `step_started`
    ends: Mapping[
        Origin, Mapping[int, ChildEnd]
    ]  #: of the children that completed, by item; origins without items

    @property
    def children(self) -> int:
        """How many ends are copied."""
        return sum(map(len, self.ends.values()))

    @property
    def ends_to(self) -> int:
        """The highest stream sequence of an end."""
        return max(end.sequence for found in self.ends.values() for end in found.values())

    def facts(self) -> Iterator[tuple[Ranges, CopiedEnds]]:
        """Yield what the rerun counts, in portions that fit into an event each; the same in every attempt."""
        for origin, found in self.ends.items():
            items = sorted(found)
            for start in range(0, len(items), _ENDS_MAX):
                some = items[start : start + _ENDS_MAX]
                yield (
                    ranges_of(bits(some)),
                    CopiedEnds(
                        queue=origin.queue,
                        job=origin.job,
                        number=origin.number,
                        asked=origin.asked,
                        sequences=tuple(found[item].sequence for item in some),
                        sha256=tuple(found[item].sha256 for item in some),
                    ),
                )


async def find_groups(
    log: Log,
    ref: JobRef,
    source: Job,
    events: Sequence[StoredEvent],
    *,
    ends_to: int | None = None,
    at: datetime | None = None,
) -> list[CopiedGroup]:
    """Return the groups of a run that had not completed and some of whose children had, by the run's `events`.

    Ends after the stream sequence `ends_to`, or the moment `at`, do not count; None: all do.

    Raises: RefusedError where an end is in an archive, UnreachableError.
    """
    groups = {step.key: step for step in begun_again(source.steps)}
    if not groups:
        return []
    begun = {
        stored.event.step: stored
        for stored in events
        if isinstance(stored.event, StepStarted) and stored.event.step in groups
    }
    own: dict[str, dict[int, ChildEnd]] = {key: {} for key in groups}
    for chain in _chains(log, ref, groups):
        async with contextlib.aclosing(log.read(subject=chain)) as batches:
            async for batch in batches:
                for stored in batch:
                    if (ends_to is None or stored.stream_sequence <= ends_to) and (
                        at is None or stored.stored_at <= at
                    ):
                        _take(ref, groups, stored, own)
    found: list[CopiedGroup] = []
    for key, step in groups.items():
        ends = dict(_copied_before(key, events))
        if key in begun and own[key]:
            asked = begun[key].stream_sequence
            here = Origin(queue=ref.queue, job=ref.job_id, number=step.number, asked=asked)
            ends[here] = own[key]
        known = bits(item for each in ends.values() for item in each)
        _check_held(source, step, known)
        if known:
            if key not in begun:
                raise _archived(source, f"the beginning of step {key!r}")
            found.append(CopiedGroup(step, begun[key], ends))
    return found


def _chains(log: Log, ref: JobRef, groups: Mapping[str, Step]) -> Iterator[str]:
    """Yield filters of the completions of a run's children."""
    orders = [step.order for step in groups.values() if step.order is not None]
    queues = {order.queue for order in orders} | {node.queue for order in orders for node in order.nodes}
    for queue in sorted(queues):
        for leaf in ("", ".limited"):
            yield f"{log.names.jobs_root}{queue}.*.completed.child.{ref.job_id}{leaf}"


def _take(
    ref: JobRef, groups: Mapping[str, Step], stored: StoredEvent, own: Mapping[str, dict[int, ChildEnd]]
) -> None:
    event = stored.event
    member = event.member if isinstance(event, Completed) else None
    step = None if member is None else groups.get(member.step)
    if member is None or step is None:
        return
    # An item whose end was copied is no child of this run, whatever job may have such an id.
    child = child_ref(ref, step, member.item)
    if member.queue == ref.queue and (child.queue, child.job_id) == (event.queue, event.job):
        own[step.key][member.item] = ChildEnd(stored.stream_sequence, stored.hash)


def _copied_before(
    key: str, events: Sequence[StoredEvent]
) -> Iterator[tuple[Origin, Mapping[int, ChildEnd]]]:
    """Yield the ends that the source had copied itself."""
    found: dict[Origin, dict[int, ChildEnd]] = {}
    for stored in events:
        event = stored.event
        if not isinstance(event, Joined) or event.copied is None or event.step != key:
            continue
        copied = event.copied
        origin = Origin(queue=copied.queue, job=copied.job, number=copied.number, asked=copied.asked)
        ends = map(ChildEnd, copied.sequences, copied.sha256)
        found.setdefault(origin, {}).update(zip(items_of(bits_of(event.completed)), ends, strict=True))
    yield from found.items()


def _check_held(source: Job, step: Step, found: int) -> None:
    """Refuse if a child completed and its end is not in the ledger: the rerun would run it again. Raises: RefusedError."""
    gone = step.ended & ~step.failed & ~found
    if gone:
        what = f"item {items_of(gone)[0]:,}" if gone.bit_count() == 1 else f"{gone.bit_count():,} items"
        raise _archived(source, f"the completion of {what} of step {step.key!r}")


def _archived(source: Job, what: str) -> RefusedError:
    return RefusedError(
        f"{what} of run {source.id} is in an archive: a rerun copies only what the ledger holds; enqueue a new run"
    )
