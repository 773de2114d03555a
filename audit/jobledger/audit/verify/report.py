"""What a check of the ledger found, as a value that can be printed, kept as JSON and compared with later."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal

import msgspec

from jobledger.audit.trail_words import count
from jobledger.audit.verify.times import Times
from jobledger.ledger.model.aggregate import Rule
from jobledger.ledger.model.reactor import ForgottenPast
from jobledger.ledger.model.times import shown_time

#: The rules about runs, as they are listed.
RUN_RULES: Final[tuple[Rule, ...]] = ("step", "child", "join", "wake", "signal", "orphan", "copied")
_SHOWN_MAX: Final = 20


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in the ledger that must not be."""

    stream_sequence: int  #: sequence of the event that breaks the rule; 0 when an event is missing
    job: str  #: `<queue>/<job id>`, or `lock <scope>/<id>`; "" when it is about none or nobody can tell
    rule: Rule
    sentence: str


Intact = tuple[tuple[int, int], ...]


class AcknowledgedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is no event, and who accepted it."""

    stream_sequence: int
    subject: str
    why: str  #: why it is no event
    by: str  #: who accepted it
    at: datetime  #: when it was accepted, by that one's clock
    reason: str

    def line(self) -> str:
        """Return it as a sentence for a person."""
        return (
            f"stream sequence {self.stream_sequence:,} ({self.subject}) is no event: accepted by {self.by} at "
            f"{shown_time(self.at)}, {self.reason!r}"
        )


class CrossCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of the ledger with something else."""

    what: str  #: "projection", "seals", "published seals", "earlier report", "archive", "large values"
    sentence: str
    agrees: bool | None  #: None when it was not compared at all
    through: int = (
        0  #: stream sequence up to which this shows that nothing was cut off; 0 when it shows nothing
    )
    #: first and last stream sequence of each range whose bytes this shows to be what they were
    intact: Intact = ()
    signed: bool | None = None  #: whether its signatures were checked; None when it has none


class LargeValues(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the large inputs and results that events refer to, each counted once."""

    count: int = 0
    stored: int = 0  #: values as they were when the event was stored
    gone: int = 0
    differs: int = 0  #: values with another sha256 than the event names
    unread: int = 0  #: values that were not read


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was kept elsewhere, with which the ledger was compared."""

    what: Literal["earlier report", "published seals"]
    file: str
    sha256: str  #: digest of the file's bytes, in hex


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """When a report was made, of what, and with what."""

    at: datetime
    jobledger: str  #: the version of the program
    url: str = ""  #: the server's URL, without a password; "" for an export
    export: str = ""  #: the folder or manifest of the export; "" for a ledger
    environment: str
    stream_created_at: str = ""  #: when the ledger's stream was made, as the server says; "" for an export
    keys: tuple[str, ...] = ()  #: ids of the public keys whose signatures counted
    evidence: tuple[Evidence, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check: the proof, or the violations."""

    sound: bool  #: no violation was found
    what: Literal["ledger", "export"] = "ledger"  #: what was checked
    from_sequence: int
    head_sequence: int  #: the last stream sequence checked; `from_sequence - 1` when there was none
    head_hash: str  #: hex sha256 of the event there; "" when there was none
    digest: str  #: hex sha256 over the hashes of all events in stream order: equal digests, equal ledgers
    events: int  #: messages of the range, also those that are no event
    jobs: int
    partial_jobs: int  #: among `jobs`: begun before `from_sequence`, so that only their links were checked
    states: dict[str, int]  #: jobs by state, without the partial ones
    attempts: int  #: `started` events
    attempts_lost: int = 0  #: ended without an outcome: taken over, or given up with their job
    types: dict[str, int] = {}  #: events of jobs by type
    causes: dict[str, int] = {}  #: `queued` events by cause
    locks: int  #: chains of locks
    seals: int = 0  #: `sealed` events
    grants: int = 0  #: jobs that were granted the slots of their limits, once for each time
    grants_void: int = 0  #: grants of jobs that did not wait any more; not among `grants`
    runs: int = 0  #: jobs with steps
    children: int = 0  #: jobs that say whose child they are
    children_unproven: int = 0  #: children whose run began before the range
    copies: int = 0  #: ends of steps that reruns copied
    copies_unproven: int = 0  #: copies whose source was not seen
    #: rules about limits and runs that hold; those about limits only if there were grants, those about runs only if
    #: there were runs
    proven: tuple[Rule, ...] = ()
    archived_through: int = (
        0  #: stream sequence up to which the newest `archived` event says that all was archived
    )
    forgotten: ForgottenPast | None = None  #: what the archive has no more, as the ledger says
    timers_pending: int  #: jobs that wait for a moment
    times: Times = Times()  #: how the server's times of storing fit the events
    sealed_late: int = 0  #: events that name a key of an owner which was recorded as destroyed before
    redacted: int = 0  #: events whose values were taken out of the archive
    large_values: LargeValues = LargeValues()
    acknowledged: tuple[
        AcknowledgedMessage, ...
    ] = ()  #: the first messages that are no events and were accepted
    acknowledged_count: int = 0  #: number of all that were accepted
    compared: tuple[CrossCheck, ...] = ()  #: other things compared with the ledger, and the results
    not_proven: tuple[str, ...] = ()  #: what this check does not prove, a sentence each
    violations: tuple[Violation, ...]  #: the first violations, in the order they were found
    violations_count: int  #: number of all violations
    broken: dict[str, int]  #: number of all violations by rule
    elapsed_s: float
    made: Origin | None = None  #: None: not known
    key: str = ""  #: id of the key that signed the file; "" without a signature
    signature: str = ""  #: hex; see `verify.file`

    def text(self) -> str:
        """Return the report for a person: a verdict, the figures, and the first violations."""
        lines = [self._verdict(), self._figures(), self._place()]
        lines.extend(_line(violation) for violation in self.violations[:_SHOWN_MAX])
        hidden = self.violations_count - min(len(self.violations), _SHOWN_MAX)
        if hidden:
            lines.append(f"  and {hidden:,} more")
        lines.extend(f"acknowledged: {each.line()}" for each in self.acknowledged[:_SHOWN_MAX])
        if self.acknowledged_count > _SHOWN_MAX:
            lines.append(f"acknowledged: {self.acknowledged_count - _SHOWN_MAX:,} more")
        lines.extend(f"notice: {notice}" for notice in self.times.notices())
        if self.sealed_late:
            late = "1 event names" if self.sealed_late == 1 else f"{self.sealed_late:,} events name"
            lines.append(
                f"notice: {late} a key that was destroyed before, so nobody can read what was sealed under it"
            )
        lines.extend(f"{each.what}: {each.sentence}" for each in self.compared)
        lines.extend(self._proven())
        lines.extend(f"not proven: {sentence}" for sentence in self.not_proven)
        return "\n".join(lines)

    def _proven(self) -> Iterator[str]:
        limits = [rule for rule in self.proven if rule not in RUN_RULES]
        if limits:
            void = f", {self.grants_void:,} more were void" if self.grants_void else ""
            yield f"proven of limits: {', '.join(limits)} ({count(self.grants, 'grant')}{void})"
        runs = [rule for rule in self.proven if rule in RUN_RULES]
        if runs:
            copies = f", {count(self.copies, 'copied step')}" if self.copies else ""
            children = count(self.children, "child", "children")
            yield f"proven of runs: {', '.join(runs)} ({count(self.runs, 'run')}, {children}{copies})"

    def _verdict(self) -> str:
        if self.sound:
            return f"the {self.what} is sound"
        counts = ", ".join(f"{rule} {number:,}" for rule, number in sorted(self.broken.items()))
        return f"the {self.what} is NOT sound: {count(self.violations_count, 'violation')} ({counts})"

    def _figures(self) -> str:
        states = ", ".join(f"{state} {number:,}" for state, number in sorted(self.states.items()))
        partial = f", {self.partial_jobs:,} of them begun before" if self.partial_jobs else ""
        jobs = f"{count(self.jobs, 'job')}{partial}" + (f" ({states})" if states else "")
        locks = f", {count(self.locks, 'lock')}" if self.locks else ""
        aside = self.acknowledged_count + self.broken.get("readable", 0)
        unreadable = f" ({aside:,} of them no event)" if aside else ""
        messages = count(self.events, "message" if aside else "event")
        attempts, timers = count(self.attempts, "attempt"), count(self.timers_pending, "timer")
        return f"{messages}{unreadable}, {jobs}, {attempts}, {timers} pending{locks}"

    def _place(self) -> str:
        return f"stream sequence {self.from_sequence:,} to {self.head_sequence:,} in {self.elapsed_s:.2f} s"


def _line(violation: Violation) -> str:
    where = f"at {violation.stream_sequence:,}" if violation.stream_sequence else "nowhere"
    about = f"{violation.job}: " if violation.job else ""
    return f"  {where} [{violation.rule}] {about}{violation.sentence}"
