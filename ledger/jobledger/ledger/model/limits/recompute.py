"""Grants decided again over what their authors knew: a diagnosis of the order in which jobs were chosen. Pure.

A difference is no violation: a check of the ledger proves that limits were kept. It says that by the rules of this version
it was another job's turn. Something that the ledger does not tell can be the cause: which jobs the author did not know to
have started, where a rate waits for that, or a definition that was set while two reactors raced.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.events import Cancelled, Carried, JobEvent
from jobledger.ledger.model.limits.definition import LimitRemoved, LimitSet, Terms
from jobledger.ledger.model.limits.flow import Granted
from jobledger.ledger.model.limits.grants import POLICY, Granter
from jobledger.ledger.model.limits.holders import FINAL, OF_AN_ATTEMPT, JobKey
from jobledger.ledger.model.limits.lines import Spill
from jobledger.ledger.model.limits.names import split

#: How many differences are told with the jobs they are about.
TOLD_MAX: Final = 100
#: How far behind the ledger's end a reactor may be when it decides, in events that matter to limits.
_UNREAD_MAX: Final = 200_000
_TELLING: Final = FINAL | OF_AN_ATTEMPT | {Carried}


class Difference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A `granted` whose jobs are not those whose turn it was, by these rules."""

    stream_sequence: int  #: of the `granted`
    at: int  #: place of the first job that differs, from 0
    recorded: str  #: `<queue>/<job id>` of the job that was granted there
    recomputed: str  #: of the job whose turn it was; "" for nobody's


class Recomputed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What came of deciding every grant again."""

    grants: int = 0  #: `granted` events that were decided again
    jobs: int = 0  #: jobs that they name
    different: int = 0  #: `granted` events that came out otherwise
    other_policy: int = (
        0  #: more `granted` events, by the rules of another version, which were not decided again
    )
    differences: tuple[Difference, ...] = ()  #: the first of them


class Recomputation:
    """Decides again, told all events of a ledger in stream order."""

    def __init__(self, spill: Spill | None = None) -> None:
        """Begin with an empty ledger."""
        self.found = Recomputed()
        self._granter = Granter(spill)
        self._unread: deque[tuple[int, Envelope]] = deque()

    def feed(self, event: Envelope, sequence: int) -> None:
        """Take in the next event; those that say nothing about limits are passed over."""
        if isinstance(event, Granted):
            self._compare(event, sequence)
        elif type(event) in _TELLING or isinstance(event, LimitSet | LimitRemoved):
            self._unread.append((sequence, event))
            if len(self._unread) > _UNREAD_MAX:
                self._fold(*self._unread.popleft())

    def _fold(self, sequence: int, event: Envelope) -> None:
        if isinstance(event, LimitSet | LimitRemoved):
            self._granter.limit(event, sequence)
        else:
            self._granter.job(event, sequence)  # type: ignore[arg-type]

    def _compare(self, event: Granted, sequence: int) -> None:
        while self._unread and self._unread[0][0] <= event.through:
            self._fold(*self._unread.popleft())
        if event.policy != POLICY:
            self.found = _more(self.found, other_policy=1)
            self._granter.granted(event, sequence)
            return
        self._see(event.slots)
        self._cancel_early(event)
        granter = self._granter
        recorded = [(each.queue, each.job) for each in event.jobs]
        decided = [(each.queue, each.job) for each in granter.decide(event.at, len(recorded)).grants]
        if decided == recorded:
            granter.confirm(sequence)
            self.found = _more(self.found, grants=1, jobs=len(recorded))
        else:
            granter.take_back()
            granter.granted(event, sequence)
            self._tell(sequence, recorded, decided)
        for job in recorded:
            granter.started(job)

    def _tell(self, sequence: int, recorded: list[tuple[str, str]], decided: list[tuple[str, str]]) -> None:
        at = next(
            (n for n, (a, b) in enumerate(zip(recorded, decided, strict=False)) if a != b), len(decided)
        )
        turn = "/".join(decided[at]) if at < len(decided) else ""
        found = Difference(stream_sequence=sequence, at=at, recorded="/".join(recorded[at]), recomputed=turn)
        self.found = _more(self.found, grants=1, jobs=len(recorded), different=1)
        if len(self.found.differences) < TOLD_MAX:
            differences = (*self.found.differences, found)
            self.found = msgspec.structs.replace(self.found, differences=differences)

    def _see(self, slots: dict[str, int]) -> None:
        """Take what its author knew of queues and workers: what was offered, and which queues were passed over."""
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
        """Let go of whom the author was about to cancel because of a limit's mode: that was stored before the grant."""
        named = {(each.queue, each.job) for each in event.jobs}
        for sequence, cancelled in list(self._unread):
            if (
                isinstance(cancelled, Cancelled)
                and self._has_mode(_job(cancelled))
                and _job(cancelled) not in named
            ):
                self._unread.remove((sequence, cancelled))
                self._fold(sequence, cancelled)
                self._granter.through = event.through

    def _has_mode(self, job: JobKey) -> bool:
        entry = self._granter.lines.find(job)
        terms = () if entry is None else map(self._granter.definitions.of, entry.limits)
        return any(each is not None and each.mode != "queue" for each in terms)


def _job(event: JobEvent) -> JobKey:
    return event.queue, event.job


def _more(found: Recomputed, **by: int) -> Recomputed:
    return msgspec.structs.replace(
        found, **{name: getattr(found, name) + count for name, count in by.items()}
    )
