"""Grants decided again from the events that their authors had read: a diagnosis of the order of grants. Pure.

Two reactors that race read each other's grants later than their own, so each author has a `Recomputation`, which folds
the same events as that author, in the same order. A difference is no violation (a check of the ledger proves that
limits were kept): it means that by the rules of this version it was another job's turn.

The ledger does not record everything that an author knew: when it learnt that a job had started (a rate may wait for
that), and which jobs it was about to cancel for a mode. A grant that may differ for such a reason is counted apart.
That is so if the granted job, the job whose turn it was, or the line with the right of way has a key with a rate or a
mode, or if one of these jobs takes turns with jobs whose keys have a mode (each job that leaves a line moves all their
turns).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.events import Cancelled, Carried, Held
from jobledger.ledger.model.limits.definition import LimitRemoved, LimitSet, Terms
from jobledger.ledger.model.limits.flow import Granted
from jobledger.ledger.model.limits.grants import POLICY, Granter
from jobledger.ledger.model.limits.holders import FINAL, OF_AN_ATTEMPT, JobKey
from jobledger.ledger.model.limits.lines import Line, LineKey, Share
from jobledger.ledger.model.limits.names import split

#: The most differences that are listed with their jobs.
TOLD_MAX: Final = 100
#: Number of events that matter to limits by which a deciding reactor may be behind the ledger's end.
_UNREAD_MAX: Final = 200_000
_MOVED_PRUNE_AT: Final = 8_192
_TELLING: Final = FINAL | OF_AN_ATTEMPT | {Carried}


class Author(NamedTuple):
    """One turn of a worker at the reactor of the limits."""

    by: str  #: identity of the worker
    began: int  #: the ledger's last stream sequence when that turn began


class Difference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A `granted` whose jobs are not those whose turn it was, by these rules."""

    stream_sequence: int  #: stream sequence of the `granted`
    at: int  #: place of the first job that differs, from 0
    recorded: str  #: `<queue>/<job id>` of the job that was granted there
    recomputed: str  #: the same of the job whose turn it was; "" for none


class GrantComparison(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of deciding every grant again. Each `granted` is counted in one of the first four."""

    grants: int = 0  #: `granted` events that were decided again, with the same result or another
    unknown: int = (
        0  #: further ones for which the ledger records too little; see `unknown_starts` and `unknown_cancels`
    )
    archived: int = 0  #: further ones, not decided again: an archive run took events they rest on
    other_policy: int = 0  #: further ones, not decided again: they follow the rules of another version
    jobs: int = 0  #: jobs that `grants` name
    different: int = 0  #: those of `grants` with another result
    unknown_starts: int = 0  #: another result; a rate may have waited for jobs that had started
    unknown_cancels: int = 0  #: another result; a job may have been about to be cancelled for a mode
    differences: tuple[Difference, ...] = ()  #: the first of the `different` ones

    def __add__(self, other: GrantComparison) -> GrantComparison:
        """Return the sum of both."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        return GrantComparison(**{**counts, "differences": counts["differences"][:TOLD_MAX]})


class Recomputation:
    """The grants of one author, decided again from the events in stream order."""

    def __init__(self, author: Author, granter: Granter, *, after: int = 0) -> None:
        """Begin with the state that the author had folded, in which grants up to `after` are contained already."""
        self.found = GrantComparison()
        self._author = author
        self._after = after
        self._granter = granter
        self._unread: deque[tuple[int, Envelope]] = deque()
        self._moved: set[Share] = set()  # shares whose turns a limit's mode may have moved
        self._all_started()
        self._note_moved(granter.lines.lines.values())

    def feed(self, event: Envelope, sequence: int) -> None:
        """Fold the next event; events that say nothing about limits are passed over."""
        if isinstance(event, Granted) and sequence > self._after and self._author == (event.by, event.began):
            self._compare(event, sequence)
        elif type(event) in _TELLING or isinstance(event, LimitSet | LimitRemoved | Granted):
            self._unread.append((sequence, event))
            if len(self._unread) > _UNREAD_MAX:
                self._fold(*self._unread.popleft())

    def _fold(self, sequence: int, event: Envelope) -> None:
        if isinstance(event, LimitSet | LimitRemoved):
            self._granter.limit(event, sequence)
            self._note_moved(self._granter.lines.lines.values())
        elif isinstance(event, Granted):
            self._granter.granted(event, sequence)
            self._started(event)
        else:
            self._granter.job(event, sequence)  # type: ignore[arg-type]
            entry = self._granter.lines.find((event.queue, event.job)) if isinstance(event, Held) else None
            if entry is not None and entry.line is not None:
                self._note_moved((entry.line,))

    def _note_moved(self, lines: Iterable[Line]) -> None:
        """Note the shares that limits' modes may move; drop those that the granter has forgotten."""
        self._moved.update(line.share for line in lines if self._any_mode(line.keys))
        if len(self._moved) > _MOVED_PRUNE_AT:
            self._moved &= set(self._granter.shares.values())

    def _all_started(self) -> None:
        """Count all granted jobs as started: the ledger does not record when the author learnt of a start."""
        for job in {job for key in self._granter.picker.keys.values() for job in key.unstarted}:
            self._granter.started(job)

    def _started(self, event: Granted) -> None:
        for each in event.jobs:
            self._granter.started((each.queue, each.job))

    def _compare(self, event: Granted, sequence: int) -> None:
        while self._unread and self._unread[0][0] <= event.through:
            self._fold(*self._unread.popleft())
        if event.policy != POLICY:
            self.found += GrantComparison(other_policy=1)
            self._granter.granted(event, sequence)
        else:
            self._decide_again(event, sequence)
        self._started(event)

    def _decide_again(self, event: Granted, sequence: int) -> None:
        self._see(event.slots)
        self._cancel_early(event)
        granter = self._granter
        recorded = [(each.queue, each.job) for each in event.jobs]
        decided = [(each.queue, each.job) for each in granter.decide(event.at, len(recorded)).grants]
        if decided == recorded:
            granter.confirm(sequence)
            self.found += GrantComparison(grants=1, jobs=len(recorded))
        else:
            first = granter.guard.first
            granter.take_back()
            self.found += self._told(sequence, recorded, decided, {first, granter.guard.first})
            granter.granted(event, sequence)

    def _told(
        self, sequence: int, recorded: list[JobKey], decided: list[JobKey], first: set[Line | None]
    ) -> GrantComparison:
        """Classify a difference; `first`: the lines that had the right of way."""
        at = next(
            (n for n, (a, b) in enumerate(zip(recorded, decided, strict=False)) if a != b), len(decided)
        )
        keys = {key for line in first if line is not None for key in line.keys}
        keys.update(*map(self._limits, (recorded[at], *decided[at : at + 1])))
        if any(self._may_wait_for_starts(key, recorded[:at]) for key in keys):
            return GrantComparison(unknown=1, unknown_starts=1)
        if self._may_be_cancels((recorded[at], *decided[at : at + 1]), keys):
            return GrantComparison(unknown=1, unknown_cancels=1)
        turn = "/".join(decided[at]) if at < len(decided) else ""
        found = Difference(stream_sequence=sequence, at=at, recorded="/".join(recorded[at]), recomputed=turn)
        return GrantComparison(grants=1, jobs=len(recorded), different=1, differences=(found,))

    def _may_wait_for_starts(self, key: str, before: list[JobKey]) -> bool:
        """Return whether a key has a rate and at least its `burst` of holders, any of which may not have started."""
        terms = self._granter.definitions.of(key)
        if terms is None or terms.rate is None:
            return False
        used = self._granter.holders.used(key) + sum(key in self._limits(each) for each in before)
        return used >= terms.burst

    def _may_be_cancels(self, jobs: Iterable[JobKey], keys: set[str]) -> bool:
        """Return whether a job that was about to be cancelled for a mode may have changed the order of these jobs."""
        lines = [self._line_of(job) for job in jobs]
        if None in lines:  # its wait ended so long ago that its limits are not known
            return self._any_mode(self._granter.picker.keys)
        shares = (self._granter.shares.get((line[0], line[2])) for line in lines if line is not None)
        return self._any_mode(keys) or any(share in self._moved for share in shares)

    def _any_mode(self, keys: Iterable[str]) -> bool:
        terms = map(self._granter.definitions.of, keys)
        return any(each is not None and each.mode != "queue" for each in terms)

    def _line_of(self, job: JobKey) -> LineKey | None:
        """Return the line in which a job waits, or has just waited."""
        entry = self._granter.lines.find(job)
        if entry is not None and entry.line is not None:
            return entry.line.key
        left = self._granter.modes.doomed.get(job) or self._granter.gone.get(job)
        return None if left is None else left.line

    def _limits(self, job: JobKey) -> tuple[str, ...]:
        """Return the limits of a job that waits, or is about to be cancelled."""
        entry = self._granter.lines.find(job) or self._granter.modes.doomed.get(job)
        return () if entry is None else entry.limits

    def _see(self, slots: dict[str, int]) -> None:
        """Set the queues and workers that the author knew: the slots offered, and the queues passed over."""
        granter = self._granter
        for key in list(granter.definitions.offered):
            if key not in slots:
                granter.offer(key, None)
        for key, number in slots.items():
            if number:
                granter.offer(key, Terms(slots=number))
        closed = {split(key)[1] for key, number in slots.items() if not number}
        for queue in granter.picker.closed - closed:
            granter.open(queue)
        for queue in closed:
            granter.close(queue)

    def _cancel_early(self, event: Granted) -> None:
        """Fold early the cancellations that the author was about to append for a mode: they come before the grant."""
        named = {(each.queue, each.job) for each in event.jobs}
        for sequence, cancelled in list(self._unread):
            if (
                isinstance(cancelled, Cancelled)
                and (job := (cancelled.queue, cancelled.job)) not in named
                and self._any_mode(self._limits(job))
            ):
                self._unread.remove((sequence, cancelled))
                self._fold(sequence, cancelled)
                self._granter.through = event.through
