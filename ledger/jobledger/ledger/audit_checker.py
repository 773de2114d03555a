"""The checker itself: takes the events of a ledger in stream order and tells what must not be there.

Pure: where the events come from is its caller's business. The rules are in `audit_rules`, what comes out in
`audit_report`.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.audit_locks import LockChains, lock_name
from jobledger.ledger.audit_report import Report, Violation
from jobledger.ledger.audit_rules import (
    CLOSED_STATES,
    ClosedJobs,
    Open,
    Rule,
    broken_rule,
    early,
    glance,
    lean,
)
from jobledger.ledger.codec import Message, Stored
from jobledger.ledger.errors import CorruptLedgerError, InvalidInputError, SequenceGapError
from jobledger.ledger.events import Started
from jobledger.ledger.job import FINAL_STATES, Job, JobState, evolve
from jobledger.ledger.subjects import Names, is_token

#: How far two machines' clocks may be apart before a dispatch counts as early.
TIMER_TOLERANCE_S: Final = 1.0
VIOLATIONS_MAX: Final = 100

JobName = tuple[str, str]  #: queue, job id


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """What a work consumer still holds."""

    consumer: str
    pending: int  #: dispatches not delivered yet
    ack_pending: int  #: delivered and not acknowledged


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller knows and the ledger must agree with at its end; what is left out is not checked."""

    enqueued: Iterable[JobName] | None = None  #: whose enqueue was acknowledged: all of them and no others
    unsure: Collection[JobName] = ()  #: enqueued without an answer: they may be there or not
    all_final: bool = False  #: nothing is under way any more
    timers_until: datetime | None = None  #: no job may still wait for a moment before this one
    leftovers: Iterable[Leftover] | None = None  #: as `leftovers` returned them: each is one too many


class Checker:
    """Checks events fed in stream order; keeps about 210 bytes of a job that is over and 760 of one that is not.

    A check from sequence 1 proves every rule. One that starts later cannot know what came before: of a chain
    whose first event it has not seen it checks the hash links between the events it sees, their subjects and
    the sequence, and nothing that needs the job's state.
    """

    def __init__(
        self,
        names: Names,
        *,
        from_sequence: int = 1,
        timer_tolerance_s: float = TIMER_TOLERANCE_S,
        violations_max: int = VIOLATIONS_MAX,
        before: Report | None = None,
    ) -> None:
        """Begin; `before` is an earlier report from the same `from_sequence`, which the ledger must continue.

        Raises: InvalidInputError.
        """
        if from_sequence < 1:
            raise InvalidInputError(f"from_sequence is {from_sequence}: sequences begin at 1")
        if before is not None and before.from_sequence != from_sequence:
            raise InvalidInputError(
                f"the earlier report begins at {before.from_sequence}, this check at {from_sequence}: "
                "give the same from_sequence"
            )
        self._began = time.perf_counter()
        self._names = names
        self._from_sequence = from_sequence
        self._tolerance = timedelta(seconds=timer_tolerance_s)
        self._violations_max = violations_max
        if before is not None and before.head_sequence < before.from_sequence:
            before = None  # there was nothing yet: whatever is there now continues it
        self._before = before
        self._before_ends = before.head_sequence if before is not None else 0
        self._violations: list[Violation] = []
        self._broken: Counter[str] = Counter()
        self._queues: dict[str, dict[str, Open | bytes]] = {}
        self._closed = ClosedJobs()
        self._locks = LockChains(names, from_start=from_sequence == 1)
        self._half: tuple[str, str, int] | None = None  # queue, job and sequence of a batch's first half
        self._total = hashlib.sha256()
        self._head_hash = b""
        self._events = 0
        self._attempts = 0
        self.next_sequence = from_sequence  #: the one that must come next

    def feed(self, message: Message) -> None:
        """Check the next event of the stream: `Stored` for one of a job, a plain message for one of a lock."""
        sequence = message.stream_sequence
        digest = hashlib.sha256(message.data).digest()
        if sequence != self.next_sequence:
            self._check_sequence(sequence)
        self.next_sequence = max(self.next_sequence, sequence + 1)
        self._events += 1
        self._head_hash = digest
        self._total.update(digest)
        if sequence == self._before_ends:
            self._compare_with_before()
        if self._half is not None:
            self._check_batch(message)
        if isinstance(message, Stored):
            self._feed_job(message, digest)
        else:
            self._feed_lock(message, digest)

    def _feed_job(self, stored: Stored, digest: bytes) -> None:
        event = stored.event
        if stored.subject != self._names.event(event):
            self._note(stored, "subject", f"it is stored as {stored.subject!r}, its own fields say otherwise")
        if event.at.tzinfo is None:
            self._note(stored, "readable", "its time `at` has no zone")
        record = self._queues.get(event.queue, _NO_JOBS).get(event.job)
        if record is None:
            self._begin(stored, digest)
        elif isinstance(record, bytes):
            reopened = self._closed.unpack(record, event.queue, event.job)
            self._queues[event.queue][event.job] = reopened
            self._follow(reopened, stored, digest)
        else:
            self._follow(record, stored, digest)

    def unreadable(self, error: CorruptLedgerError) -> None:
        """Note what a reader stumbled over; the next event is expected where reading goes on."""
        rule: Rule = "sequence" if isinstance(error, SequenceGapError) else "readable"
        self.note("", rule, str(error), stream_sequence=error.stream_sequence)
        self.next_sequence = max(self.next_sequence, error.next_sequence)
        self._half = None

    def note(self, job: str, rule: Rule, sentence: str, *, stream_sequence: int = 0) -> None:
        """Add a violation; beyond the limit it is only counted."""
        self._broken[rule] += 1
        if len(self._violations) < self._violations_max:
            self._violations.append(
                Violation(stream_sequence=stream_sequence, job=job, rule=rule, sentence=sentence)
            )

    def _note(self, stored: Stored, rule: Rule, sentence: str) -> None:
        event = stored.event
        self.note(f"{event.queue}/{event.job}", rule, sentence, stream_sequence=stored.stream_sequence)

    def _check_sequence(self, sequence: int) -> None:
        expected = self.next_sequence
        self._half = None
        if sequence < expected:
            sentence = f"stream sequence {sequence} comes after {expected - 1}"
            self.note("", "sequence", sentence, stream_sequence=sequence)
        else:
            missing = f"{expected} is" if sequence == expected + 1 else f"{expected} to {sequence - 1} are"
            sentence = f"stream sequence {missing} missing: the ledger goes on with {sequence}"
            self.note("", "sequence", sentence, stream_sequence=expected)

    def _compare_with_before(self) -> None:
        before, self._before = self._before, None
        if before is not None and self._total.hexdigest() != before.digest:
            sentence = (
                f"stream sequence {before.from_sequence} to {before.head_sequence} is not what it was "
                f"when the earlier report was made: digest {self._total.hexdigest()}, then {before.digest}"
            )
            self.note("", "history", sentence, stream_sequence=before.head_sequence)

    def _check_batch(self, message: Message) -> None:
        assert self._half is not None
        queue, job_id, sequence = self._half
        self._half = None
        if not isinstance(message, Stored) or (message.event.queue, message.event.job) != (queue, job_id):
            sentence = "the attempt ended and nothing says what becomes of the job: half a batch is stored"
            self.note(f"{queue}/{job_id}", "batch", sentence, stream_sequence=sequence)

    def _feed_lock(self, message: Message, digest: bytes) -> None:
        for rule, sentence in self._locks.feed(message, digest):
            self.note(lock_name(message.subject), rule, sentence, stream_sequence=message.stream_sequence)

    def _begin(self, stored: Stored, digest: bytes) -> None:
        """Take in the first event seen of a job."""
        event = stored.event
        jobs = self._queues.setdefault(event.queue, {})
        if not (is_token(event.queue) and is_token(event.job)):
            self._note(stored, "subject", "queue and job id cannot both be tokens of a subject")
        if event.prev and self._from_sequence > 1:  # its chain began before the range
            jobs[event.job] = Open(digest, None)
            self._attempts += isinstance(event, Started)
            return
        if event.prev:
            self._note(stored, "chain", f"it follows {event.prev!a}, and no event of its job is before it")
        record = jobs[event.job] = Open(digest, None)
        self._apply(None, record, stored)

    def _follow(self, record: Open, stored: Stored, digest: bytes) -> None:
        """Take in a later event of a job."""
        event = stored.event
        if event.prev != record.digest.hex():
            last = "" if record.job is None else f", stored at {record.job.last_sequence}"
            sentence = (
                f"it follows {event.prev!a}, the event before it{last} has the hash {record.digest.hex()}"
            )
            self._note(stored, "chain", sentence)
        record.digest = digest
        if record.job is None:
            self._attempts += isinstance(event, Started)
        else:
            self._apply(record.job, record, stored)

    def _apply(self, job: Job | None, record: Open, stored: Stored) -> None:
        event = stored.event
        broken = broken_rule(job, event, stored.stream_sequence)
        if broken is not None:
            self._note(stored, *broken)
        if job is not None and job.due_at is not None and event.at.tzinfo is not None:
            sentence = early(job, event, stored.stored_at, self._tolerance)
            if sentence is not None:
                self._note(stored, "timer", sentence)
        if type(event) is Started:
            self._attempts += 1
        after = evolve(job, lean(event), stored.stream_sequence)
        if after.state in CLOSED_STATES:
            self._queues[event.queue][event.job] = self._closed.pack(after, record.digest)
            return
        if after.state is JobState.RETRY_WAIT and after.due_at is None:
            self._half = (event.queue, event.job, stored.stream_sequence)
        record.job = after

    def finish(self, expected: Expected | None = None) -> Report:
        """Check what can only be told at the end, and return the report; once.

        Raises: InvalidInputError for expected jobs when the check began later than at 1.
        """
        expected = Expected() if expected is None else expected
        if self._before is not None:
            sentence = f"the ledger ends before {self._before_ends}, where the earlier report did"
            self.note("", "history", sentence, stream_sequence=self._before_ends)
        if expected.enqueued is not None:
            self._compare_enqueued(expected.enqueued, expected.unsure)
        for queue, job_id, job in self._open_jobs():
            self._check_at_end(f"{queue}/{job_id}", job, expected)
        for left in expected.leftovers or ():
            sentence = f"consumer {left.consumer} holds {left.pending:,} pending and {left.ack_pending:,} unacknowledged"
            self.note("", "consumer", sentence)
        return self._report()

    def _open_jobs(self) -> Iterator[tuple[str, str, Job]]:
        for queue, jobs in self._queues.items():
            for job_id, record in jobs.items():
                if not isinstance(record, bytes) and record.job is not None:
                    yield queue, job_id, record.job

    def _check_at_end(self, name: str, job: Job, expected: Expected) -> None:
        if expected.all_final and job.state not in FINAL_STATES:
            sentence = f"it is still {job.state.value}: it has no final state"
            self.note(name, "final", sentence, stream_sequence=job.last_sequence)
        until, due_at = expected.timers_until, job.due_at
        if until is not None and due_at is not None and due_at.tzinfo is not None and due_at < until:
            sentence = f"it was due at {due_at.isoformat()} and is still {job.state.value}"
            self.note(name, "timer", sentence, stream_sequence=job.last_sequence)

    def _compare_enqueued(self, enqueued: Iterable[JobName], unsure: Collection[JobName]) -> None:
        if self._from_sequence != 1:
            raise InvalidInputError("expected jobs can only be compared with a check from sequence 1")
        acknowledged = set(enqueued)
        for queue, job_id in acknowledged:
            if job_id not in self._queues.get(queue, _NO_JOBS):
                self.note(
                    f"{queue}/{job_id}",
                    "enqueue",
                    "its enqueue was acknowledged, and the ledger has no such job",
                )
        acknowledged.update(unsure)
        for queue, jobs in self._queues.items():
            for job_id, record in jobs.items():
                if (queue, job_id) not in acknowledged:
                    sentence = "the ledger has this job, and no enqueue of it was acknowledged"
                    self.note(f"{queue}/{job_id}", "enqueue", sentence, stream_sequence=glance(record)[1])

    def _report(self) -> Report:
        states = Counter(glance(record)[0] for jobs in self._queues.values() for record in jobs.values())
        partial = states.pop(None, 0)
        count = sum(self._broken.values())
        return Report(
            sound=not count,
            from_sequence=self._from_sequence,
            head_sequence=self.next_sequence - 1,
            head_hash=self._head_hash.hex(),
            digest=self._total.hexdigest(),
            events=self._events,
            jobs=states.total() + partial,
            partial_jobs=partial,
            states={state.value: states[state] for state in JobState if state in states},
            attempts=self._attempts,
            locks=len(self._locks),
            timers_pending=sum(job.due_at is not None for _, _, job in self._open_jobs()),
            violations=tuple(self._violations),
            violations_count=count,
            broken=dict(self._broken),
            elapsed_s=time.perf_counter() - self._began,
        )


_NO_JOBS: Final[dict[str, Open | bytes]] = {}
