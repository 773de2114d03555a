"""`Granter`: chooses the jobs to grant next, and the jobs that a limit's mode cancels. Pure.

It folds the ledger in stream order: definitions, `held`, ends of attempts and jobs, and `granted`. `decide` then
returns the events to append. The time is an argument; nothing here reads, writes or waits. The answer depends on the
events alone, however often `decide` returned nothing before: two reactors that read the same events agree, and so does
a later recomputation.

The order among jobs whose keys all have room: first the highest priority (every 16th grant: the lowest), then the
fairness key that got least for its weight, then the job that was held first. A line that has the right of way (`guard`)
comes before all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from jobledger.ledger.model.events import PRIORITIES, Cancelled, Carried, Held, JobEvent, Paused, Started
from jobledger.ledger.model.limits.definition import Definition, LimitEvent, Terms, evolve
from jobledger.ledger.model.limits.flow import JOBS_MAX, Granted
from jobledger.ledger.model.limits.guard import Guard
from jobledger.ledger.model.limits.holders import Holders, JobKey, JobSlots, carried_holding
from jobledger.ledger.model.limits.lines import (
    HEADS_MAX,
    IN_MEMORY_MAX,
    Gone,
    Line,
    LineKey,
    Lines,
    Share,
    Spill,
    WaitingJob,
    fairness_of,
)
from jobledger.ledger.model.limits.modes import Cancel, Modes
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.limits.picker import FREE, Definitions, Picker
from jobledger.ledger.model.limits.rates import Rates, moment_of, nanoseconds

#: The version of the rules by which `decide` chooses. `granted` names it; it is raised when they change.
POLICY: Final = 1
#: One in this many grants tries the lowest priority first, so that it is never shut out; workers do the same.
LOWEST_FIRST_EVERY: Final = 16
#: The most jobs remembered that ended their wait without a grant, for a `granted` whose author did not know that yet.
GONE_MAX: Final = 10_000
_SHARES_PRUNE_AT: Final = 4_096

_ENDS_WAIT: Final = (Cancelled, Held, Paused)
_DOWN: Final = (0, 1, 2)
_UP: Final = (2, 1, 0)
_RANK: Final = {priority: rank for rank, priority in enumerate(PRIORITIES)}


class Grant(msgspec.Struct, frozen=True, gc=False):
    """A job that is granted."""

    queue: str
    job: str
    held: int  #: stream sequence of the `held` that it answers


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of `decide` at one moment."""

    at: datetime  #: for `granted`: now, but never before that of the last `granted`
    grants: tuple[Grant, ...] = ()  #: in their order
    cancels: tuple[Cancel, ...] = ()  #: to append even if the `granted` is refused; each is returned once
    through: int = 0  #: for `granted`: stream sequence of the last event that was folded
    limits_sequence: int = (
        0  #: for `granted`: stream sequence of the newest event about a limit that it obeys
    )
    #: For `granted`: slots of the keys without a definition; 0 for `queue:<queue>` if the queue was passed over.
    slots: dict[str, int] = {}
    wake_at: datetime | None = (
        None  #: time at which a rate allows a waiting job to start; None: no job waits for a rate
    )
    #: Granted jobs without a known start, at keys whose rate allows no more while others wait: the caller checks
    #: whether they started, and calls `started` for those that did.
    unstarted: tuple[JobKey, ...] = ()


class _Before(msgspec.Struct, frozen=True, gc=False):
    """The state before a grant, to undo it."""

    entry: WaitingJob
    line: Line
    v: float
    floor: float
    first: tuple[Line | None, int]
    holding: JobSlots | None
    keys: list[tuple[str, tuple[int, ...] | None, int | None]]


class Granter:
    """The jobs that wait for limits and those that hold slots, folded from events in stream order.

    After a `decide` with grants, no event may be folded before `confirm` or `take_back`. The caller skips events whose
    stream sequence is not above `through`: they are folded already.
    """

    def __init__(
        self,
        spill: Spill | None = None,
        *,
        heads_max: int = HEADS_MAX,
        in_memory_max: int = IN_MEMORY_MAX,
    ) -> None:
        """Begin without definitions and waiting jobs. Without a spill every waiting job is kept in memory."""
        self.through = 0  #: stream sequence of the last event folded; a caller that skips events may raise it
        self.at = 0  #: time of the newest `granted`, in nanoseconds
        self.total = 0  #: number of jobs that were ever granted
        self.floors = [0.0, 0.0, 0.0]  #: by priority: virtual time of the last grant
        self.shares: dict[tuple[int, str], Share] = {}
        self.gone: dict[JobKey, Gone] = {}
        self.definitions = Definitions()
        self.holders = Holders()
        self.rates = Rates()
        self.guard = Guard()
        self.lines = Lines(spill, heads_max=heads_max, in_memory_max=in_memory_max)
        self.picker = Picker(self.definitions, self.holders, self.rates, self.guard)
        self.modes = Modes(self.picker, self.lines, self.holders, self.remove)
        self.fresh: dict[Share, None] = {}  #: those that began to wait after the newest `granted`'s `through`
        self._before: list[_Before] = []
        self._shares_prune_at = _SHARES_PRUNE_AT

    # --- Events of the ledger.

    def job(self, event: JobEvent, sequence: int) -> None:
        """Fold an event of a job; events that concern no limit change nothing."""
        self.through = sequence
        job = (event.queue, event.job)
        match event:
            case Held():
                if event.cause != "new":  # a new job has no earlier wait or slot
                    self._left(job, event, sequence)
                if event.limits:
                    line = (_RANK[event.priority], event.queue, event.fair, event.limits)
                    self.wait(job, line, sequence)
            case Started():
                self.started(job)
            case Carried():
                self._carried(event)
            case _:
                self._left(job, event, sequence)

    def _left(self, job: JobKey, event: JobEvent, sequence: int) -> None:
        freed = self.holders.feed(event)
        if freed:
            self.picker.freed(freed)
            if self.picker.any_rate:
                self._is_started(job, freed)
            self.modes.left(job)
        if isinstance(event, _ENDS_WAIT):
            entry = self.lines.find(job)
            if entry is not None:
                self._remember_gone(job, entry, sequence)
                self.remove(entry)
            self.modes.left(job)

    def _remember_gone(self, job: JobKey, entry: WaitingJob, sequence: int) -> None:
        assert entry.line is not None, "it waits"
        self.gone[job] = Gone(entry.held, entry.line.key, sequence)
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]

    def _carried(self, event: Carried) -> None:
        """Fold `carried`: a job whose earlier events are in an archive."""
        job, state = (event.queue, event.job), event.job_state
        limits, wait = state.order.limits, state.wait_sequence
        if not limits or job in self.holders.jobs or self.lines.find(job) is not None:
            return
        if state.state == "held":
            line = (_RANK[state.order.priority], event.queue, state.order.fair, limits)
            self.wait(job, line, wait, is_new=False)
            return
        self.holders.put(job, carried_holding(state, self.keeps))

    def wait(self, job: JobKey, order: LineKey, held: int, *, is_new: bool = True) -> None:
        """Put a job into its line, by its `held`; `order`: priority, queue, fairness key, all limits that it names.

        `is_new`: the job begins to wait now; otherwise it waited before, as after a restart.
        """
        priority, queue, fair, limits = order
        needs = (self.holders.needs(job, limits) if job in self.holders.jobs else limits) or (FREE,)
        key = (priority, queue, fairness_of(fair, limits), needs)
        line = self.lines.lines.get(key)
        if line is not None:
            head = line.head
            self.lines.add(line, held, job, limits)
            if line.head != head:
                self._came_before(line)
        else:
            share = self.share(priority, key[2], limits)
            line = self.lines.line(key, share)
            self.lines.add(line, held, job, limits)
            if not share.lines and is_new:
                share.v = max(share.v, self.floors[priority])
                share.active_since = held
                self.fresh[share] = None
                # Not the limits of the job that made the share: shares are pruned and made again at moments that no
                # event records.
                share.limits = limits
                share.weight = self._weight(share)
            share.lines += 1
            self.guard.add(line)
            self.modes.add(line)
            self.picker.stand(line)
        if self.modes.any:
            self.modes.waits(line)

    def _came_before(self, line: Line) -> None:
        """Place a line again after an earlier job became its first: within a spot, places only grow."""
        self.guard.came_before(line)
        self.picker.leave(line)
        self.picker.stand(line)

    def share(self, priority: int, fair: str, limits: tuple[str, ...]) -> Share:
        """Return the turn of a fairness key, which may be new; `limits`: the limits of one of its jobs."""
        share = self.shares.get((priority, fair))
        if share is None:
            self._prune_shares()
            share = self.shares[priority, fair] = Share(priority, fair, self.floors[priority], limits)
            share.weight = self._weight(share)
        return share

    def _prune_shares(self) -> None:
        """Forget shares that would begin at the present virtual time anyway, once there are many."""
        if len(self.shares) > self._shares_prune_at:
            self.shares = {
                name: share
                for name, share in self.shares.items()
                if share.lines or share.v > self.floors[share.priority]
            }
            self._shares_prune_at = max(_SHARES_PRUNE_AT, 2 * len(self.shares))

    def _weight(self, share: Share) -> float:
        """Return the weight of a fairness key: of a limit that equals it, or that has it as a key; else 1."""
        for limit in (share.fair, *share.limits):
            if limit == share.fair or split(limit)[1] == share.fair:
                terms = self.definitions.of(limit) if limit else None
                if terms is not None:
                    return terms.weight
        return 1.0

    def remove(self, entry: WaitingJob) -> None:
        """Take a job out of its line."""
        line = entry.line
        assert line is not None, "it waits"
        head = line.head
        self.lines.remove(entry)
        if line.head != head:
            self.guard.moved(line)
            if not line.head:
                line.share.lines -= 1
                self.picker.leave(line)
                self.modes.leave(line)

    def granted(self, event: Granted, sequence: int) -> None:
        """Fold a stored `granted` of any author; grants of jobs that no longer wait are void."""
        assert not self._before, "what was decided is confirmed or taken back first"
        self.through = sequence
        self.at = max(self.at, nanoseconds(event.at))
        self.picker.at = self.at
        newer = self.definitions.replaced_after(event.limits_sequence)
        if newer:  # its author had not read these events yet
            present = {limit: self.definitions.limits.get(limit) for limit in newer}
            self._see(newer)
            self._take_all(event, sequence)
            self._see(present)
        else:
            self._take_all(event, sequence)
        self._settle(event.through)

    def _see(self, limits: Mapping[str, Definition | None]) -> None:
        self.picker.see(limits)
        self.weigh()

    def _take_all(self, event: Granted, sequence: int) -> None:
        for each in event.jobs:
            job = (each.queue, each.job)
            entry = self._waits_again(job, each.held) or self.lines.find(job)
            gone = self.gone.get(job)
            if entry is not None and entry.held == each.held:
                self._take(entry, sequence)
            elif gone is not None and gone.held == each.held and gone.left > event.through:
                self._void(gone)

    def _waits_again(self, job: JobKey, held: int) -> WaitingJob | None:
        """Let a job wait again that was to be cancelled, because another reactor granted it."""
        doomed = self.modes.doomed.get(job)
        if doomed is None or doomed.held != held:
            return None
        del self.modes.doomed[job]
        priority, queue, fair, _ = doomed.line
        self.wait(job, (priority, queue, fair, doomed.limits), held, is_new=False)
        return self.lines.find(job)

    def _void(self, gone: Gone) -> None:
        """Charge a void grant of a job that had ended its wait: its author had not read that."""
        priority, _, fair, keys = gone.line
        self._charge(self.share(priority, fair, keys), keys, gone.held)

    def _settle(self, through: int) -> None:
        """Move shares that began to wait after a grant was decided to the virtual time after the grant."""
        for share in list(self.fresh):
            if share.active_since > through:
                share.v = max(share.v, self.floors[share.priority])
            else:
                del self.fresh[share]
        self.gone = {job: gone for job, gone in self.gone.items() if gone.left > through}

    def limit(self, event: LimitEvent, sequence: int) -> None:
        """Fold an event about a limit."""
        self.through = sequence
        self.definitions.set(evolve(None, event, sequence), sequence)
        self._redefined(name for name in self.picker.keys if split(name)[0] == event.limit)

    def _redefined(self, names: Iterable[str]) -> None:
        for name in names:
            terms = self.definitions.of(name)
            if terms is not None and terms.rate is not None:
                self.rates.redefine(name, terms, self.at)
        self.weigh()
        self.picker.redefined()
        self.modes.rebuild()

    def weigh(self) -> None:
        """Compute the weights of all fairness keys from the present definitions."""
        for share in self.shares.values():
            share.weight = self._weight(share)

    # --- Facts that are in no event.

    def offer(self, key: str, terms: Terms | None) -> None:
        """Set the terms of a key that has no definition, such as `queue:email`; None: remove them."""
        before = self.definitions.offered.get(key)
        if terms == before:
            return
        if terms is None:
            del self.definitions.offered[key]
        else:
            self.definitions.offered[key] = terms
        self._redefined((key,))

    def close(self, queue: str) -> None:
        """Pass over the jobs of a queue from now on: it is paused, or no worker serves it."""
        self.picker.close(queue)

    def open(self, queue: str) -> None:
        """Grant jobs of a queue again."""
        self.picker.open(queue)

    def started(self, job: JobKey) -> None:
        """Note that the attempt of a granted job has started."""
        holding = self.holders.jobs.get(job)
        if holding is not None:
            self._is_started(job, holding.limits)

    def _is_started(self, job: JobKey, limits: Iterable[str]) -> None:
        for name in limits:
            key = self.picker.keys.get(name)
            if key is not None and key.unstarted and key.unstarted.pop(job, job) is None:
                self.picker.at_bound.pop(name, None)
                self.picker.freed((name,))

    # --- Decisions.

    def decide(self, now: datetime, most: int = JOBS_MAX) -> Decision:
        """Return up to `most` grants, which count as given from now on, and other decisions.

        If there are any, append them as one `granted` and then call `confirm`, or `take_back` if it was refused.
        """
        assert not self._before, "what was decided is confirmed or taken back first"
        self.picker.begin(max(self.at, nanoseconds(now)))
        self.modes.supersede(most)
        grants: list[Grant] = []
        while len(grants) < most:
            line = self.picker.pick(self._turn())
            if line is None:
                break
            entry = line.heads[0]
            self._before.append(self._now_before(entry, line))
            self._take(entry, 0)
            grants.append(Grant(entry.queue, entry.job, entry.held))
        self.modes.after_grants(most)
        self._prune()
        wake_at = self.picker.wake_at
        return Decision(
            at=moment_of(self.picker.at),
            grants=tuple(grants),
            cancels=self.modes.said(),
            through=self.through,
            limits_sequence=self.definitions.sequence,
            slots=self._slots(),
            wake_at=moment_of(wake_at) if wake_at else None,
            unstarted=tuple(job for name in self.picker.at_bound for job in self.picker.key(name).unstarted),
        )

    def _turn(self) -> tuple[int, ...]:
        is_last = self.total % LOWEST_FIRST_EVERY == LOWEST_FIRST_EVERY - 1
        return _UP if is_last else _DOWN

    def _take(self, entry: WaitingJob, grant: int) -> None:
        line, job = entry.line, (entry.queue, entry.job)
        assert line is not None, "it waits"
        self.guard.passed(line, (line.share.v, entry.held), self._turn(), self.picker.is_stuck)
        self.remove(entry)
        self.holders.take(job, entry.limits, held=entry.held, grant=grant, keeps=self.keeps)
        self._charge(line.share, line.keys, entry.held)
        if self.picker.any_rate:
            for name in self.picker.rated(line.keys):
                self.picker.key(name).unstarted[job] = None
        if self.modes.any:
            self.modes.waits(line)

    def _charge(self, share: Share, keys: tuple[str, ...], held: int) -> None:
        floor = self.floors[share.priority]
        self.floors[share.priority] = max(floor, share.v)
        share.v += 1.0 / share.weight
        self.total += 1
        if self.picker.any_rate:
            for name, terms in self.picker.rated(keys).items():
                self.rates.take(name, terms, self.picker.at)
        self.guard.granted(keys, held)

    def keeps(self, limit: str) -> bool:
        """Return whether a job keeps its slot of a key until it has ended for good."""
        terms = self.picker.key(limit).terms
        return terms is not None and terms.keep == "job"

    def _slots(self) -> dict[str, int]:
        slots = {
            key: terms.slots for key, terms in self.definitions.offered.items() if terms.slots is not None
        }
        for queue in self.picker.parked:
            slots[f"queue:{queue}"] = 0
        return slots

    def confirm(self, sequence: int) -> None:
        """Note that the decision was stored as `granted` at a stream sequence; the caller skips that event later."""
        self.at = self.picker.at
        for before in self._before:
            self.holders.jobs[before.entry.queue, before.entry.job].grant = sequence
        self._before.clear()
        self._settle(self.through)

    def take_back(self) -> None:
        """Undo the grants of the last decision, whose `granted` was refused because another one came before."""
        for before in reversed(self._before):
            self._take_one_back(before)
        self._before.clear()
        first = self.guard.first
        if (
            first is not None and first.head != self.guard.first_head
        ):  # its first job will be cancelled for its mode
            self.guard.first = None
        self.picker.rebuild(self.lines.lines.values())

    def _take_one_back(self, before: _Before) -> None:
        entry, line, share = before.entry, before.line, before.line.share
        self.holders.put((entry.queue, entry.job), before.holding)
        if not line.head:
            share.lines += 1
            self.modes.add(line)
        self.lines.put_back(line, entry)
        share.v, self.floors[share.priority] = before.v, before.floor
        self.total -= 1
        self.guard.first, self.guard.first_head = before.first
        for name, later, whole_at in before.keys:
            self.picker.key(name).unstarted.pop((entry.queue, entry.job), None)
            _restore(self.guard.later, name, later)
            _restore(self.rates.whole_at, name, whole_at)

    def _now_before(self, entry: WaitingJob, line: Line) -> _Before:
        later, whole_at = self.guard.later, self.rates.whole_at
        return _Before(
            entry=entry,
            line=line,
            v=line.share.v,
            floor=self.floors[line.priority],
            first=(self.guard.first, self.guard.first_head),
            holding=self.holders.jobs.get((entry.queue, entry.job)),
            keys=[(name, later.get(name), whole_at.get(name)) for name in line.keys],
        )

    def _prune(self) -> None:
        self.guard.prune(self.lines.lines.values())
        self.picker.prune(self.lines.lines.values())


_V = TypeVar("_V")


def _restore(values: dict[str, _V], name: str, before: _V | None) -> None:
    if before is None:
        values.pop(name, None)
    else:
        values[name] = before
