"""A simulation of other limits: recorded arrivals and services, and the same `Granter`. Pure.

A recording has each wait of each job: when it was held, how long it kept its slots, when it came back. The simulation
lets the same jobs come at the same moments and run for the same time, and decides the grants anew. It cannot know that
more jobs at once may be slower, or how long a job that never ran would take (it assumes the median).
"""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.events import Cancelled, Completed, Held, JobEvent, Snoozed, Started
from jobledger.ledger.model.limits.definition import (
    Definition,
    LimitEvent,
    LimitRemoved,
    LimitSet,
    Terms,
    evolve,
)
from jobledger.ledger.model.limits.flow import Granted
from jobledger.ledger.model.limits.grants import Granter
from jobledger.ledger.model.limits.holders import FINAL, OF_AN_ATTEMPT, JobKey
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.limits.rates import Rates, nanoseconds

#: The most waits of one recording, about 400 MB.
WAITS_MAX: Final = 500_000
_NO_TIME: Final = timedelta()
_BY: Final = "simulation"


class Wait(msgspec.Struct, kw_only=True, gc=False):
    """One wait of a job, and the time for which it then held its slots."""

    event: Held
    held_at: datetime  #: time of its `held`; all times here are by the server's clock
    granted_at: datetime | None = None
    started_at: datetime | None = None  #: beginning of its attempt
    left_at: datetime | None = None  #: when it gave its slots back, or ended its wait without a grant
    is_final: bool = False  #: whether the job had ended then
    back_after: timedelta | None = (
        None  #: time from the end of the previous wait until it came back; None: the first wait
    )


class TooManyWaitsError(Exception):
    """A recording has more waits than fit in memory."""


class WaitRecord:
    """The waits of a span of time, the definitions at its beginning, and their changes; fed in stream order."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        """Record waiting jobs and holders between two moments of the server's clock."""
        self.begin, self.end = begin, end
        self.limits: dict[str, Definition] = {}  #: definitions at the beginning
        self.changes: list[
            tuple[datetime, LimitEvent]
        ] = []  #: events of definitions in the span, and when they were stored
        self.slots: dict[str, int] = {}  #: slots of keys without a definition, as in the newest grant
        self.waits: list[Wait] = []
        self.rates = Rates()  #: use of the rates before the beginning
        self._open: dict[JobKey, Wait] = {}
        self._left: dict[JobKey, datetime] = {}  # ends of waits of jobs that may come back

    def feed(self, event: Envelope, sequence: int, stored_at: datetime) -> None:
        """Record the next event. Raises: TooManyWaitsError."""
        if isinstance(event, LimitSet | LimitRemoved):
            if stored_at <= self.begin:
                self.limits[event.limit] = evolve(None, event, sequence)
            else:
                self.changes.append((stored_at, event))
        elif isinstance(event, Granted):
            self.slots.update(event.slots)
            for each in event.jobs:
                wait = self._open.get((each.queue, each.job))
                if wait is not None and wait.granted_at is None:
                    wait.granted_at = stored_at
                    if stored_at < self.begin:
                        self._use_rates(wait.event.limits, nanoseconds(event.at))
        elif isinstance(event, Started):
            wait = self._open.get((event.queue, event.job))
            if wait is not None and wait.started_at is None:
                wait.started_at = stored_at
        elif type(event) in FINAL or type(event) in OF_AN_ATTEMPT:
            self._leave_or_wait(event, stored_at)  # type: ignore[arg-type]

    def _use_rates(self, limits: tuple[str, ...], at: int) -> None:
        for limit in limits:
            name, key = split(limit)
            definition = self.limits.get(name)
            terms = None if definition is None else definition.of(key)
            if terms is not None and terms.rate is not None:
                self.rates.take(limit, terms, at)

    def _leave_or_wait(self, event: JobEvent, stored_at: datetime) -> None:
        job, is_final = (event.queue, event.job), type(event) in FINAL
        wait = self._open.pop(job, None)
        if wait is not None:
            wait.left_at, wait.is_final = stored_at, is_final
            if stored_at >= self.begin:
                self._keep(wait)
            if not is_final:
                self._left[job] = stored_at
        if is_final:
            self._left.pop(job, None)
        elif isinstance(event, Held) and event.limits:
            left = self._left.pop(job, None)
            back_after = None if left is None or left < self.begin else stored_at - left
            self._open[job] = Wait(event=event, held_at=stored_at, back_after=back_after)

    def _keep(self, wait: Wait) -> None:
        if len(self.waits) >= WAITS_MAX:
            raise TooManyWaitsError
        self.waits.append(wait)

    @property
    def first_known(self) -> dict[str, Definition]:
        """The first definition of each limit: that at the beginning, else the first one in the span."""
        in_span = {event.limit: evolve(None, event, 0) for _, event in reversed(self.changes)}
        return {**in_span, **self.limits}

    def done(self) -> None:
        """End the recording; jobs that still wait or hold slots are recorded so. Raises: TooManyWaitsError."""
        for wait in self._open.values():
            self._keep(wait)
        self._open.clear()
        self.waits.sort(key=lambda wait: wait.held_at)


class KeyWaits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The waits of jobs that name one key of a limit."""

    key: str  #: `name` or `name:key`
    jobs: int  #: number of waits that began before the end
    granted: int  #: waits that were granted in the span
    p50_s: float  #: median wait; a job that was not granted waited until the end
    p99_s: float
    longest_s: float

    @property
    def starves(self) -> bool:
        """Whether jobs waited and none was granted."""
        return not self.granted


class _WaitCount:
    """Counts of waits by key."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.granted: dict[str, int] = defaultdict(int)

    def add(self, wait: Wait, waited: timedelta, *, granted: bool) -> None:
        for key in wait.event.limits:
            self.seconds[key].append(max(0.0, waited.total_seconds()))
            self.granted[key] += granted

    def by_key(self) -> dict[str, KeyWaits]:
        return {key: self._of(key, sorted(seconds)) for key, seconds in self.seconds.items()}

    def _of(self, key: str, seconds: list[float]) -> KeyWaits:
        count = len(seconds)
        return KeyWaits(
            key=key,
            jobs=count,
            granted=self.granted[key],
            p50_s=seconds[(count - 1) // 2],
            p99_s=seconds[(count - 1) * 99 // 100],
            longest_s=seconds[-1],
        )


def recorded(recording: WaitRecord) -> dict[str, KeyWaits]:
    """Return the recorded waits, by key."""
    found = _WaitCount()
    for wait in recording.waits:
        until = wait.granted_at or wait.left_at or recording.end
        begin = max(wait.held_at, recording.begin)
        if until >= recording.begin:
            is_granted = wait.granted_at is not None and wait.granted_at <= recording.end
            found.add(wait, min(until, recording.end) - begin, granted=is_granted)
    return found.by_key()


def simulated(recording: WaitRecord, limits: Mapping[str, Definition]) -> dict[str, KeyWaits]:
    """Return the waits of the same jobs with other limits, by key.

    `limits`: definitions for the whole span. Other limits are as recorded, with their recorded changes.
    """
    return _Run(recording, limits).run()


class _Run:
    def __init__(self, recording: WaitRecord, limits: Mapping[str, Definition]) -> None:
        self._recording = recording
        self._granter = Granter()
        self._sequence = 0  # of the events that the granter folds
        self._planned = 0
        self._found = _WaitCount()
        self._events: list[tuple[datetime, int, str, Wait]] = []
        self._changes = deque(each for each in recording.changes if each[1].limit not in limits)
        self._since: dict[JobKey, tuple[datetime, Wait]] = {}  # waiting jobs, and since when
        self._holds: dict[JobKey, Wait] = {}
        self._next: dict[JobKey, list[Wait]] = {}  # waits of a job after its first one
        self._median = _median_service(recording)
        self._define({**recording.limits, **limits})
        for wait in recording.waits:
            job = (wait.event.queue, wait.event.job)
            if wait.back_after is not None and job in self._next:
                self._next[job].append(wait)
            else:
                self._next.setdefault(job, [])
                self._begin(wait)

    def _define(self, limits: dict[str, Definition]) -> None:
        definitions = self._granter.definitions
        definitions.limits.update(limits)
        for key, slots in self._recording.slots.items():
            if slots and definitions.of(key) is None:
                self._granter.offer(key, Terms(slots=slots))
        rates, self._granter.at = self._granter.rates, nanoseconds(self._recording.begin)
        rates.whole_at = dict(self._recording.rates.whole_at)
        for key in rates.whole_at:
            terms = definitions.of(key)
            if terms is not None and terms.rate is not None:
                rates.redefine(key, terms, self._granter.at)

    def _begin(self, wait: Wait) -> None:
        """Begin a wait: at its moment, or at the beginning for jobs that wait or hold slots then."""
        begin = self._recording.begin
        was_granted = wait.granted_at is not None and wait.granted_at < begin
        self._at(
            begin if was_granted else max(begin, wait.held_at), "holds" if was_granted else "arrives", wait
        )

    def _at(self, moment: datetime, what: str, wait: Wait) -> None:
        self._planned += 1
        heapq.heappush(self._events, (moment, self._planned, what, wait))

    def _tell(self, event: JobEvent) -> None:
        self._sequence += 1
        self._granter.job(event, self._sequence)

    def run(self) -> dict[str, KeyWaits]:
        end = self._recording.end
        wake: datetime | None = None
        while True:
            moments = [wake] if wake is not None else []
            moments += [self._changes[0][0]] if self._changes else []
            moments += [self._events[0][0]] if self._events else []
            if not moments or min(moments) > end:
                break
            now = min(moments)
            while self._changes and self._changes[0][0] <= now:
                self._sequence += 1
                self._granter.limit(self._changes.popleft()[1], self._sequence)
            while self._events and self._events[0][0] <= now:
                _, _, what, wait = heapq.heappop(self._events)
                self._happen(now, what, wait)
            wake = self._decide(now)
        for since, wait in self._since.values():
            self._found.add(wait, end - since, granted=False)
        return self._found.by_key()

    def _decide(self, now: datetime) -> datetime | None:
        while True:
            decision = self._granter.decide(now)
            for cancel in decision.cancels:
                self._drop((cancel.queue, cancel.job), now)
            if not decision.grants:
                return decision.wake_at
            self._sequence += 1
            self._granter.confirm(self._sequence)
            for each in decision.grants:
                self._grant((each.queue, each.job), now)

    def _grant(self, job: JobKey, now: datetime) -> None:
        since, wait = self._since.pop(job)
        self._holds[job] = wait
        starts = (
            None if wait.started_at is None or wait.granted_at is None else wait.started_at - wait.granted_at
        )
        self._at(now + (starts or _NO_TIME), "starts", wait)
        self._found.add(wait, now - since, granted=True)
        self._at(now + self._service(wait), "leaves", wait)

    def _service(self, wait: Wait) -> timedelta:
        if wait.granted_at is None or wait.left_at is None:
            return self._median
        return wait.left_at - wait.granted_at

    def _happen(self, now: datetime, what: str, wait: Wait) -> None:
        job = (wait.event.queue, wait.event.job)
        match what:
            case "arrives":
                self._arrive(job, wait, now)
                if wait.granted_at is None and wait.left_at is not None and wait.left_at > now:
                    self._at(wait.left_at, "gives up", wait)
            case "holds":
                self._arrive(job, wait, now)
                self._force(job, wait, now)
            case "starts" if self._holds.get(job) is wait:
                self._granter.started(job)
            case "leaves" if self._holds.get(job) is wait:
                del self._holds[job]
                self._tell(_end(wait, now))
                self._come_back(job, now)
            case "gives up" if job in self._since and self._since[job][1] is wait:
                self._drop(job, now)
            case _:
                pass  # its limit's mode cancelled it meanwhile

    def _arrive(self, job: JobKey, wait: Wait, now: datetime) -> None:
        self._since[job] = (now, wait)
        self._tell(wait.event)

    def _force(self, job: JobKey, wait: Wait, now: datetime) -> None:
        """Give a job the slots that it held when the recording began."""
        entry = self._granter.lines.find(job)
        del self._since[job]
        if entry is not None:
            self._granter.remove(entry)
            self._granter.holders.take(job, entry.limits, held=entry.held, grant=0, keeps=self._granter.keeps)
        self._holds[job] = wait
        left = wait.left_at or now + self._median
        self._at(max(now, left), "leaves", wait)

    def _come_back(self, job: JobKey, now: datetime) -> None:
        later = self._next.get(job)
        if later:
            wait = later.pop(0)
            self._at(now + (wait.back_after or _NO_TIME), "arrives", wait)

    def _drop(self, job: JobKey, now: datetime) -> None:
        """Cancel a waiting job, or a holder whose slot another job takes."""
        found = self._since.pop(job, None)
        self._holds.pop(job, None)
        self._tell(Cancelled(at=now, by=_BY, queue=job[0], job=job[1], task=""))
        if found is not None:
            self._found.add(found[1], now - found[0], granted=False)


def _end(wait: Wait, now: datetime) -> JobEvent:
    queue, job = wait.event.queue, wait.event.job
    if wait.is_final or wait.left_at is None:
        return Completed(at=now, by=_BY, queue=queue, job=job, task="", attempt=1)
    return Snoozed(at=now, by=_BY, queue=queue, job=job, task="", attempt=1, until=now)


def _median_service(recording: WaitRecord) -> timedelta:
    taken = [
        wait.left_at - wait.granted_at
        for wait in recording.waits
        if wait.granted_at is not None and wait.left_at is not None
    ]
    return statistics.median_low(taken) if taken else _NO_TIME
