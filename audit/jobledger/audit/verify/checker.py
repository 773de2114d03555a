"""The checker itself: takes the events of a ledger in stream order and finds violations.

Where the events come from is its caller's business. The rules are in `rules`, the records of jobs in `records`, the
result in `report`.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from jobledger.audit.verify.actors import ActorRule
from jobledger.audit.verify.chains import Chains
from jobledger.audit.verify.earlier import Comparison, Earlier
from jobledger.audit.verify.findings import Findings
from jobledger.audit.verify.grants import GrantRules
from jobledger.audit.verify.links import broken_link
from jobledger.audit.verify.options import DEFAULT_OPTIONS, CheckOptions, Expectation, JobName
from jobledger.audit.verify.owners import OwnerRule
from jobledger.audit.verify.records import JOB_RECORDS, Open, Record, grown, last_sequence, pack, unpack
from jobledger.audit.verify.report import CrossCheck, LargeValues, Report, Violation
from jobledger.audit.verify.rules import broken_at_end, broken_rule, early
from jobledger.audit.verify.runs.children import RunRules
from jobledger.audit.verify.set_aside import SetAside
from jobledger.audit.verify.store import RecordStore
from jobledger.audit.verify.tally import Tally
from jobledger.audit.verify.times import StoredTimes
from jobledger.audit.verify.unique import UniqueRule
from jobledger.ledger.model.aggregate import Broken, Rule
from jobledger.ledger.model.aggregates import AGGREGATES, JOB, chain_named
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.errors import CorruptLedgerError, InvalidInputError, SequenceGapError
from jobledger.ledger.model.events import Carried
from jobledger.ledger.model.job import CLOSED_STATES, Job, JobState, evolve
from jobledger.ledger.model.lifecycle import REMARKS, lean
from jobledger.ledger.model.limits.definition import LimitRemoved, LimitSet
from jobledger.ledger.model.limits.flow import Granted
from jobledger.ledger.model.lock import LOCK
from jobledger.ledger.model.owner import OWNER
from jobledger.ledger.model.reactor import (
    Archived,
    Forgotten,
    ForgottenPast,
    LimitInForce,
    Restored,
    SealRecorded,
)
from jobledger.ledger.model.subjects import Names, aggregate_of, is_token
from jobledger.ledger.model.unique import UNIQUE, Taken
from jobledger.ledger.model.unreadable import Acknowledged

_OTHERS_PART: Final = 8  # each aggregate except jobs gets an eighth of the memory


def _chains_of_others(names: Names, *, from_start: bool, memory_bytes_max: int | None) -> dict[str, Chains]:
    """Return the followers of the chains of each aggregate but jobs, by the aggregate's name."""
    part = _part_of(memory_bytes_max)
    return {
        aggregate.name: Chains(aggregate, names, from_start=from_start, memory_bytes_max=part)
        for aggregate in AGGREGATES.values()
        if aggregate is not JOB
    }


def _check_beginning_of(before: Report | None, from_sequence: int, *, prefix_archived: bool) -> None:
    """Raises: InvalidInputError if no check can begin there, or none that continues the earlier report."""
    if from_sequence < 1:
        raise InvalidInputError(f"from_sequence is {from_sequence}: sequences begin at 1")
    if before is not None and before.from_sequence != from_sequence and not prefix_archived:
        raise InvalidInputError(
            f"the earlier report begins at {before.from_sequence}, this check at {from_sequence}: "
            "give the same from_sequence"
        )


def _part_of(memory: int | None) -> int | None:
    return None if memory is None else max(1, memory // _OTHERS_PART)


def _broken_head(event: Restored, before: bytes) -> list[Broken]:
    """Return what is wrong with the hash of the last event that came back; `before`: b"" if it was not read."""
    if not before or before.hex() == event.head_hash:
        return []
    return [
        ("history", f"`restored` names another event at {event.through_sequence} than the one that is there")
    ]


class Checker:
    """Checks events fed in stream order; what it keeps of jobs is bounded, the rest goes to the disk meanwhile.

    A check from sequence 1 proves every rule. One that starts later does not know the events before. If it has not seen
    the first event of a chain, it checks there only the hash links between the events it sees, their subjects and the
    sequence, but nothing that needs the job's state. With `prefix_archived` what came before must have been archived:
    then `carried` events bring the state of what was under way.

    Call `finish` or `close`: there may be a temporary file.
    """

    def __init__(
        self,
        names: Names,
        *,
        from_sequence: int = 1,
        prefix_archived: bool = False,
        is_selection: bool = False,
        options: CheckOptions = DEFAULT_OPTIONS,
        before: Report | None = None,
        limits: tuple[LimitInForce, ...] | None = None,
    ) -> None:
        """Begin; `before`: an earlier report to continue, from the same sequence unless `prefix_archived`.

        `is_selection`: events are left out by intent, also grants: then the rules about limits say nothing. `limits`:
        those in force at the end of the prefix that was archived; None: unknown.

        Raises: InvalidInputError.
        """
        _check_beginning_of(before, from_sequence, prefix_archived=prefix_archived)
        self._began = time.perf_counter()
        self._names = names
        self._from_sequence = from_sequence
        self._is_selection = is_selection
        self._prefix_archived = prefix_archived and from_sequence > 1
        self._options = options
        self._tolerance = timedelta(seconds=options.timer_tolerance_s)
        self._found = Findings(options.violations_max)
        self._compared: list[CrossCheck] = []
        self._earlier = (  # None once it was compared
            None
            if before is None
            else Earlier(before, from_sequence, signatures_checked=options.signatures_checked)
        )
        self._earlier_ends = 0 if self._earlier is None else self._earlier.ends
        memory = options.memory_bytes_max
        self._jobs: RecordStore[Record] = RecordStore(JOB_RECORDS, memory)
        self._others = _chains_of_others(names, from_start=from_sequence == 1, memory_bytes_max=memory)
        self._grants = GrantRules(_part_of(memory), from_sequence, limits)
        self._runs = RunRules(
            self._jobs,
            from_sequence=from_sequence,
            is_selection=is_selection,
            memory_bytes_max=_part_of(memory),
        )
        self._unique = UniqueRule(self._others[UNIQUE.name], self._jobs, from_start=from_sequence == 1)
        self._actors = ActorRule()
        self._owners = OwnerRule(self._others[OWNER.name])
        self._archived: Archived | None = None  # the newest one
        self.forgotten: ForgottenPast | None = None  #: also set by who knows it from events that are not read
        self._seals = 0
        self._half: tuple[str, int] | None = None  # name and sequence of a batch's first half
        self._total = hashlib.sha256()
        self._head_hash = b""
        self._newest: datetime | None = None  # when the newest event was stored
        self._times = StoredTimes()
        self._tally = Tally()
        self.large_values = LargeValues()  #: set by the witness that counted or read them
        self.set_aside = SetAside()  #: the messages that are no events
        self.next_sequence = from_sequence  #: the stream sequence that must come next

    def feed(self, message: Message) -> None:
        """Check the next event of the stream: `StoredEvent` for one of a job, a plain message for another aggregate's.

        Raises: ScratchSpaceError.
        """
        sequence = message.stream_sequence
        digest = message.sha256
        if sequence != self.next_sequence:
            self._check_sequence(sequence)
        if sequence >= self.next_sequence:
            self.next_sequence = sequence + 1
        self._tally.events += 1
        before, self._head_hash = self._head_hash, digest
        self._newest = message.stored_at
        self._times.feed(message)
        self._tally.redacted += message.redacted != ""
        self._total.update(digest)
        if sequence == self._earlier_ends and self._earlier is not None:
            self._tell_of(self._earlier.compare(digest=self._total.hexdigest(), head_hash=digest.hex()))
        if isinstance(message, Unreadable):
            self._half = None
            self.set_aside.add(sequence, digest)
            self.note(chain_named(message.subject), "readable", message.why, stream_sequence=sequence)
        elif isinstance(message, StoredEvent):
            event = message.event
            name = f"{event.queue}/{event.job}"
            if self._half is not None:
                self._check_batch(name)
            self._feed_job(name, message, digest)
        else:
            if self._half is not None:
                self._check_batch("")
            self._feed_other(message, digest, before)

    def _feed_job(self, name: str, stored: StoredEvent, digest: bytes) -> None:
        event = stored.event
        self._tally.count(event)
        if stored.subject != self._names.event(event):
            self._note(stored, "subject", f"it is stored as {stored.subject!r}, its own fields say otherwise")
        if event.at.tzinfo is None:
            self._note(stored, "readable", "its time `at` has no zone")
        record = self._jobs.get(name)
        if record is None:
            self._begin(name, stored, digest)
        elif isinstance(record, bytes):
            job, last_digest = unpack(record, event.queue, event.job)
            reopened = Open(last_digest, job, job.last_sequence)
            self._jobs.put(name, reopened)
            self._tally.closed[job.state] -= 1
            if not event.prev and reopened.age <= self._archived_through:
                self._begin_again(name, stored, digest)
            else:
                self._follow(name, reopened, stored, digest)
        else:
            self._follow(name, record, stored, digest)
        for broken in self._actors.job(event):
            self._note(stored, *broken)
        if event.key:
            for broken in self._owners.job(event):
                self._note(stored, *broken)
        if self._knows_past:
            for broken in self._unique.job(event):
                self._note(stored, *broken)

    def _feed_other(self, message: Message, digest: bytes, head_before: bytes) -> None:
        chains = self._others[aggregate_of(message.subject)]
        before = self._unique.key(message.subject)
        event, found = chains.feed(message, digest, archived_through=self._archived_through)
        if isinstance(event, Archived):
            self._archived = event
            self.forgotten = event.forgotten or self.forgotten
            found += self._grants.archived(event)
        elif isinstance(event, Forgotten):
            self.forgotten = event.past
        elif isinstance(event, SealRecorded):
            self._seals += 1
        elif isinstance(event, Restored):
            found += _broken_head(event, head_before)
        elif isinstance(event, Acknowledged):
            self.set_aside.accept(event)
        elif isinstance(event, LimitSet | LimitRemoved):
            self._grants.limit(event, message)
        elif isinstance(event, Granted) and self._knows_past:
            self._feed_granted(event, message.stream_sequence)
        elif isinstance(event, Taken) and self._knows_past:
            found += self._unique.taken(before, event, message.stream_sequence)
        aggregate = AGGREGATES[aggregate_of(message.subject)]
        about = aggregate.label(aggregate.key_in(message.subject))
        for rule, sentence in found:
            self.note(about, rule, sentence, stream_sequence=message.stream_sequence)

    def _feed_granted(self, event: Granted, sequence: int) -> None:
        for about, (rule, sentence) in self._grants.granted(event, sequence, self._open_job):
            self.note(about, rule, sentence, stream_sequence=sequence)

    def _open_job(self, name: str) -> Job | None:
        """Return the state so far of an open job; None if it is not known."""
        record = self._jobs.get(name)
        return record.job if isinstance(record, Open) else None

    @property
    def _knows_past(self) -> bool:
        """Whether it is known who held slots before: not if a check begins in the middle, or reads a selection."""
        return (self._from_sequence == 1 or self._prefix_archived) and not self._is_selection

    @property
    def _archived_through(self) -> int:
        """The last stream sequence that an `archived` event records as archived; 0 before the first."""
        return 0 if self._archived is None else self._archived.through_sequence

    def unreadable(self, error: CorruptLedgerError) -> None:
        """Note a place that cannot be read; the next event is expected where the reader goes on."""
        rule: Rule = "sequence" if isinstance(error, SequenceGapError) else "readable"
        self.note("", rule, str(error), stream_sequence=error.stream_sequence)
        self.next_sequence = max(self.next_sequence, error.next_sequence)
        self._half = None

    def note(
        self, job: str, rule: Rule, sentence: str, *, stream_sequence: int = 0, in_front: bool = False
    ) -> None:
        """Add a violation; beyond the limit it is only counted. `in_front`: it explains those found already."""
        found = Violation(stream_sequence=stream_sequence, job=job, rule=rule, sentence=sentence)
        self._found.add(found, in_front=in_front)

    def compared(self, found: CrossCheck) -> None:
        """Record another comparison of the ledger in the report; its caller also notes what is wrong."""
        self._compared.append(found)

    def _note(self, stored: StoredEvent, rule: Rule, sentence: str) -> None:
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

    def _tell_of(self, told: Comparison) -> None:
        """Note the result of comparing the earlier report; it is compared once."""
        self._earlier = None
        self.compared(told.compared)
        if told.violation is not None:
            sequence, sentence = told.violation
            self.note("", "history", sentence, stream_sequence=sequence)

    def _check_batch(self, name: str) -> None:
        assert self._half is not None
        half, sequence = self._half
        self._half = None
        if name != half:
            sentence = "the attempt ended and nothing says what becomes of the job: half a batch is stored"
            self.note(half, "batch", sentence, stream_sequence=sequence)

    def _begin(self, name: str, stored: StoredEvent, digest: bytes) -> None:
        """Take in the first event seen of a job."""
        event = stored.event
        if not (is_token(event.queue) and is_token(event.job)):
            self._note(stored, "subject", "queue and job id cannot both be tokens of a subject")
        record = Open(digest, None, stored.stream_sequence)
        self._jobs.put(name, record)
        if event.prev and self._from_sequence > 1:  # its chain began before the range
            self._follow_unknown(name, record, stored)
            return
        self._check_link(stored, None, 0)
        self._apply(name, None, record, stored)

    def _check_link(self, stored: StoredEvent, before: bytes | None, age: int) -> None:
        problem = broken_link(stored.event.prev, before, age=age)
        if problem is not None:
            self._note(stored, "chain", problem)

    def _begin_again(self, name: str, stored: StoredEvent, digest: bytes) -> None:
        """Take in the first event of another job whose id was free: all events of the older one were archived."""
        record = Open(digest, None, stored.stream_sequence)
        self._jobs.put(name, record)
        self._apply(name, None, record, stored)

    def _follow(self, name: str, record: Open, stored: StoredEvent, digest: bytes) -> None:
        """Take in a later event of a job."""
        self._check_link(stored, record.digest, record.age)
        record.digest = digest
        record.age = stored.stream_sequence
        if record.job is None:
            self._follow_unknown(name, record, stored)
        else:
            self._apply(name, record.job, record, stored)

    def _follow_unknown(self, name: str, record: Open, stored: StoredEvent) -> None:
        """Take in an event of a job whose state is not known, since its chain began before the range."""
        event = stored.event
        if isinstance(event, Carried):
            if self._knows_past:
                for rule, sentence in self._grants.job(None, event):
                    self._note(stored, rule, sentence)
            self._take(name, None, evolve(None, lean(event), stored.stream_sequence), record, stored)
            return
        # Judged only after the `archived` event that covers the missing part; `archived` events of earlier runs may
        # come first.
        is_over = self._archived_through >= self._from_sequence - 1
        if self._prefix_archived and is_over and not isinstance(event, REMARKS):
            sentence = (
                f"its chain began before {self._from_sequence}, and no `carried` brought it over the archive"
            )
            self._note(stored, "archive", sentence)

    def _apply(self, name: str, job: Job | None, record: Open, stored: StoredEvent) -> None:
        event = stored.event
        broken = broken_rule(job, event, stored.stream_sequence)
        if broken is not None:
            self._note(stored, *broken)
        if job is not None and job.due_at is not None and event.at.tzinfo is not None:
            sentence = early(job, event, stored.stored_at, self._tolerance)
            if sentence is not None:
                self._note(stored, "timer", sentence)
        after = evolve(job, lean(event), stored.stream_sequence)
        if after.order.limits and self._knows_past:
            for rule, sentence in self._grants.job(job, event):
                self._note(stored, rule, sentence)
        if after.state is JobState.RETRY_WAIT and after.due_at is None:
            self._half = (name, stored.stream_sequence)
        self._take(name, job, after, record, stored)

    def _take(self, name: str, before: Job | None, after: Job, record: Open, stored: StoredEvent) -> None:
        """Keep a job's new state, and check the event against what is kept of its run, children and source."""
        if before is not None and before.claim_epoch:
            self._tally.count_lost(before, after)
        if after.state in CLOSED_STATES:
            self._tally.closed[after.state] += 1
            self._jobs.put(name, pack(after, record.digest))
        else:
            record.job = after
            self._jobs.grow(grown(before, after, stored.event))
        if after.steps or after.order.member is not None or after.order.rerun_of is not None:
            for rule, sentence in self._runs.job(before, stored, after):
                self._note(stored, rule, sentence)

    def finish(self, expected: Expectation | None = None) -> Report:
        """Check what only the end of the ledger shows, and return the report; call it once.

        Raises: InvalidInputError for expected jobs when the check began later than at 1; ScratchSpaceError.
        """
        expected = Expectation() if expected is None else expected
        try:
            self._check_beginning()
            self._found.violations = self.set_aside.forgive(self._found.violations, self._found.broken)
            if self._earlier is not None:
                self._tell_of(self._earlier.missed(self.next_sequence))
            if expected.enqueued is not None:
                self._compare_enqueued(expected.enqueued, expected.unsure)
            self._found.add_first(self._wrong_at_end(expected))
            for left in expected.leftovers or ():
                sentence = f"consumer {left.consumer} holds {left.pending:,} pending and {left.ack_pending:,} unacknowledged"
                self.note("", "consumer", sentence)
            return self._report()
        finally:
            self.close()

    def close(self) -> None:
        """Close the stores of records, with their parts on the disk; `finish` does it too."""
        self._jobs.close()
        self._grants.close()
        self._runs.close()
        for chains in self._others.values():
            chains.close()

    def _check_beginning(self) -> None:
        """Check that an `archived` event covers the part before a ledger that does not begin at 1."""
        if not self._prefix_archived:
            return
        archived, gone = self._archived, self._from_sequence - 1
        through = archived.through_sequence if archived is not None else 0
        if archived is None:
            sentence = f"the prefix is missing: the ledger begins at {gone + 1}, and no `archived` event says where 1 to {gone} are"
        elif through < gone:
            sentence = f"stream sequence {through + 1} to {gone} are missing: the ledger begins at {gone + 1} and was archived through {through}"
        else:
            return  # it covers as much as is gone, or more: its archive run may not have purged yet
        self.note("", "sequence", sentence, stream_sequence=through + 1, in_front=True)

    def _wrong_at_end(self, expected: Expectation) -> Iterator[Violation]:
        """Yield what is wrong with jobs that are not over; the time is the newest event's, or what the caller says."""
        times = [moment for moment in (self._newest, expected.now) if moment is not None]
        now, grace = max(times, default=None), timedelta(seconds=self._options.overdue_grace_s)
        for name, sequence, (rule, sentence) in self._grants.at_end(now):
            yield Violation(stream_sequence=sequence, job=name, rule=rule, sentence=sentence)
        for name, job in self._open_jobs():
            if job is None:
                continue
            for found in (broken_at_end(job, expected, now, grace), self._runs.at_end(name, job, now, grace)):
                for rule, sentence in found:
                    yield Violation(stream_sequence=job.last_sequence, job=name, rule=rule, sentence=sentence)

    def _open_jobs(self) -> Iterator[tuple[str, Job | None]]:
        """Yield each job that is not over; None for one whose chain began before the range."""
        for name, record in self._jobs.all(live_only=True):
            assert isinstance(record, Open)
            yield name, record.job

    def _compare_enqueued(self, enqueued: Iterable[JobName], unsure: Collection[JobName]) -> None:
        if self._from_sequence != 1:
            raise InvalidInputError("expected jobs can only be compared with a check from sequence 1")
        acknowledged = {f"{queue}/{job_id}" for queue, job_id in enqueued}
        for name in acknowledged:
            if self._jobs.get(name) is None:
                self.note(name, "enqueue", "its enqueue was acknowledged, and the ledger has no such job")
        acknowledged.update(f"{queue}/{job_id}" for queue, job_id in unsure)
        sentence = "the ledger has this job, and no enqueue of it was acknowledged"
        self._found.add_first(
            Violation(stream_sequence=last_sequence(record), job=name, rule="enqueue", sentence=sentence)
            for name, record in self._jobs.all()
            if name not in acknowledged
        )

    def _report(self) -> Report:
        states = Counter(self._tally.closed)
        timers_pending = 0
        for _, job in self._open_jobs():
            states[None if job is None else job.state] += 1
            timers_pending += job is not None and job.due_at is not None
        partial = states.pop(None, 0)
        count, runs = sum(self._found.broken.values()), self._runs
        archived = self._archived
        return Report(
            sound=not count,
            from_sequence=self._from_sequence,
            head_sequence=self.next_sequence - 1,
            head_hash=self._head_hash.hex(),
            digest=self._total.hexdigest(),
            events=self._tally.events,
            jobs=len(self._jobs),
            partial_jobs=partial,
            states={state.value: states[state] for state in JobState if states.get(state)},
            attempts=self._tally.attempts,
            attempts_lost=self._tally.lost,
            types=self._tally.by_type(),
            causes=self._tally.by_cause(),
            locks=len(self._others[LOCK.name]),
            seals=self._seals,
            grants=self._grants.grants,
            grants_void=self._grants.void,
            runs=runs.runs,
            children=runs.children,
            children_unproven=runs.children_unproven,
            copies=runs.copies.copies,
            copies_unproven=runs.copies.unproven,
            proven=(*self._grants.proven(self._found.broken), *runs.proven(self._found.broken)),
            archived_through=archived.through_sequence if archived is not None else 0,
            forgotten=self.forgotten,
            timers_pending=timers_pending,
            times=self._times.found,
            sealed_late=self._owners.late,
            redacted=self._tally.redacted,
            large_values=self.large_values,
            acknowledged=self.set_aside.listed(self._options.violations_max),
            acknowledged_count=len(self.set_aside.accepted),
            compared=tuple(self._compared),
            violations=tuple(self._found.violations),
            violations_count=count,
            broken=dict(self._found.broken),
            elapsed_s=time.perf_counter() - self._began,
        )
