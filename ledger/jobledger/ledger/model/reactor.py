"""The facts that reactors record about themselves: `ReactorEvent`, and how it is read, linked and addressed. Pure.

A reactor that appends facts of its own has a chain, `ledger.reactor.<name>.>`, linked by hashes as a job's is. Each
event holds all facts that the next one builds on, so the newest one is the reactor's state. Released fields never
change type, meaning or name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.envelope import Envelope, Moment, Signed, Whole
from jobledger.ledger.model.times import shown_time

SEALS: Final = "seals"  #: the reactor that signs ranges of the ledger
ARCHIVE: Final = "archive"  #: the reactor that moves old events into files
VERIFY: Final = "verify"  #: the chain in which checks of the ledger are recorded
FORM_CHAIN: Final = "form"  #: the chain in which the ends of upgrades are recorded
RESTORE: Final = "restore"  #: the chain in which restores of the ledger from a back-up are recorded


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a reactor."""

    reactor: str  #: name of the reactor's chain


class SealRecorded(_Fact, frozen=True, kw_only=True, tag="sealed", gc=False):
    """The signed root of a Merkle tree over a range of the ledger. A copy of it shows any later change in the range."""

    from_sequence: Whole  #: of the range; the first one after the range of the previous seal
    to_sequence: Whole  #: of the range, inclusive
    merkle_root: str  #: hex; over the sha256 of each event of the range as stored, in stream order
    head_hash: str  #: hex sha256 of the event at `to_sequence`
    previous_root: str = (
        ""  #: hex; the previous seal's `merkle_root`, so that one seal also proves all earlier ones
    )
    key: str  #: hex sha256 of the public key's 32 bytes
    signature: str  #: hex Ed25519 signature


class LimitInForce(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The newest event of a limit's definition among the archived ones, as it was stored."""

    limit: str  #: the limit's name
    sequence: Whole  #: stream sequence of the event
    event: msgspec.Raw  #: its bytes, which later readers decode themselves


class ForgottenPast(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The events that are neither in the ledger nor in its archive any more: all up to `through_sequence`."""

    first_sequence: Whole  #: the first event of the export that was forgotten last
    through_sequence: Whole  #: its last one
    manifest_sha256: str  #: hex; by this the export after it names it
    at: Moment  #: when it was forgotten
    by: str  #: who forgot it

    @property
    def words(self) -> str:
        """What was forgotten, for a person: `events 1 to 4,711, forgotten on 2036-01-02 03:04:05Z by keeper`."""
        return f"events 1 to {self.through_sequence:,}, forgotten on {shown_time(self.at)} by {self.by}"


class Archived(_Fact, frozen=True, kw_only=True, tag="archived", gc=False):
    """All events up to a sequence lie in an export, and may be gone from the stream."""

    through_sequence: Whole  #: the last one that was moved
    manifest_sha256: str  #: hex; of the export's manifest as written
    head_hash: str  #: hex sha256 of the event at `through_sequence`
    digest: str  #: digest of all events of the export, as in its manifest
    count: Whole  #: events in the export
    folder: str = ""  #: folder of the archive, as `<host>:<path>` at the machine of the run; only for people
    limits: tuple[LimitInForce, ...] | None = None  #: as defined at `through_sequence`; absent: not known
    forgotten: ForgottenPast | None = None  #: what was forgotten before this run; absent: nothing


class Redacted(_Fact, frozen=True, kw_only=True, tag="redacted", gc=False):
    """The values of some archived jobs are taken out of an export, which is written anew after this event.

    The newest one about an export says what it is now. Its events keep their sha256, so nothing else of the proof changes.
    """

    since_form = 2
    first_sequence: Whole  #: the first stream sequence of the export
    manifest_sha256: str  #: hex; of the export's manifest as it is written now
    before_sha256: str  #: hex; of its manifest before that
    events: Whole  #: how many events of the export have no values now
    lines_sha256: str  #: hex; over their lines in the export's files
    reason: str  #: why; for people alone


class Forgotten(_Fact, frozen=True, kw_only=True, tag="forgotten", gc=False):
    """The oldest export of the archive is removed after this event: nobody can prove its events any more.

    They are in neither the ledger nor the archive. The export's manifest stays, since the next one names it.
    """

    since_form = 2
    first_sequence: Whole  #: the first stream sequence of the export
    last_sequence: Whole  #: the last one
    events: Whole  #: how many there are in it
    manifest_sha256: str  #: hex; by this `archived` and the next export name it
    head_hash: str  #: hex sha256 of the event at `last_sequence`
    digest: str  #: digest of all events of the export, as in its manifest
    stored_until: Moment | None = (
        None  #: when the newest of the events was stored; absent: the files were gone before
    )

    @property
    def past(self) -> ForgottenPast:
        """What is forgotten from here on."""
        return ForgottenPast(
            first_sequence=self.first_sequence,
            through_sequence=self.last_sequence,
            manifest_sha256=self.manifest_sha256,
            at=self.at,
            by=self.by,
        )


class Verified(_Fact, frozen=True, kw_only=True, tag="verified", gc=False):
    """Somebody checked the ledger, and had the result recorded."""

    from_sequence: Whole  #: of the range that was checked
    to_sequence: Whole  #: of the range, inclusive; one less than `from_sequence` if the range is empty
    head_hash: str  #: hex sha256 of the event at `to_sequence`, "" without one
    digest: str  #: hex sha256 over the hashes of all events of the range, as in the report
    sound: bool  #: whether no violation was found
    violations: Whole  #: number of violations


class Restored(_Fact, frozen=True, kw_only=True, tag="restored", gc=False):
    """The ledger was restored from a back-up: events that were appended after `through_sequence` before this are gone.

    Stream sequences after it were used twice. The events that had them first exist only in copies made by others.
    """

    since_form = 2
    backup: str  #: the name of the back-up's folder
    backed_up_at: Moment  #: when the back-up was begun, by the ledger's clock
    through_sequence: Whole  #: stream sequence of the last restored event
    head_hash: str  #: hex sha256 of the event at `through_sequence`, "" when there was none
    lost_through: Whole | None = (
        None  #: the last stream sequence that had been used, according to the operator; none: not known
    )
    open_jobs: Whole  #: jobs that were not over at `through_sequence`: they go on


class FormRaised(_Fact, frozen=True, kw_only=True, tag="raised", gc=False):
    """An upgrade was finished: events of a higher form may be appended from here on.

    Earlier programs do not know this type, so they stop here and say that a newer jobledger wrote it.
    """

    since_form = 2
    form: Whole  #: the highest form that may be appended
    before: Whole  #: the highest form before
    behind: Whole = 0  #: number of running processes with a lower form, whose end was not awaited
    reason: str = ""  #: reason; only for people


class CountedSpread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of durations, in whole microseconds."""

    smallest_us: Whole  #: the smallest one
    largest_us: Whole  #: the largest one
    counts: dict[
        Whole, Whole
    ]  #: number of durations in each bucket, by its upper bound; a bucket is at most a tenth wide


class CountedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counts for the jobs of a task in a queue."""

    queue: str  #: the queue
    task: str  #: the task's name
    counts: tuple[Signed, ...]  #: one number per name in `columns`, in their order
    spreads: tuple[
        CountedSpread | None, ...
    ] = ()  #: one per name in `spread_columns`; null: nothing was counted


class CountedFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How often a type of error ended an attempt or a job."""

    queue: str  #: the queue
    task: str  #: the task's name
    error_type: str  #: the exception's class name
    counts: tuple[Signed, ...]  #: one number per name in `failure_columns`, in their order


class CountedJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When a carried job began, by the server's clock, which its `carried` event cannot tell."""

    queue: str  #: the queue
    job: str  #: the job's id
    first_us: Whole  #: its first event; microseconds since 1970
    since_us: Whole  #: the event that began its present state or attempt; microseconds since 1970


class Counted(_Fact, frozen=True, kw_only=True, tag="counted", gc=False):
    """A part of all counts up to a sequence, so that counters continue when their beginning is archived.

    All parts of one count come one after the other, right before the `archived` event of the same run.
    """

    archive_through: Whole  #: `through_sequence` of that `archived` event
    through_sequence: Whole  #: the newest event that is counted
    begins_at: Whole  #: the oldest event that is counted; above 1 where an earlier count is missing
    part: Whole  #: from 1
    parts: Whole  #: how many there are of this count
    columns: tuple[str, ...] = ()  #: names of the counts by task; durations in microseconds
    spread_columns: tuple[
        str, ...
    ] = ()  #: names of the durations that are counted by bucket; empty in releases without buckets
    totals: tuple[CountedTask, ...] = ()  #: in the order of their first events in the ledger
    failure_columns: tuple[str, ...] = ()  #: names of the counts by type of error
    failures: tuple[CountedFailure, ...] = ()  #: in the order of `totals`
    jobs: tuple[CountedJob, ...] = ()  #: carried jobs that are not finished


ReactorEvent = SealRecorded | Archived | Redacted | Forgotten | Counted | Verified | Restored | FormRaised

#: The reactor to whose chain each type of event belongs.
_REACTOR_OF: Final[dict[type[ReactorEvent], str]] = {
    SealRecorded: SEALS,
    Archived: ARCHIVE,
    Redacted: ARCHIVE,
    Forgotten: ARCHIVE,
    Counted: ARCHIVE,
    Verified: VERIFY,
    Restored: RESTORE,
    FormRaised: FORM_CHAIN,
}


class ReactorState(msgspec.Struct, frozen=True, gc=False):
    """The state of a reactor's chain."""

    archived_through: int = 0  #: `through_sequence` of its newest `archived`
    forgotten_through: int = 0  #: the last event that is forgotten; 0: none is, or that is not known


def evolve(before: ReactorState | None, event: ReactorEvent, _stream_sequence: int) -> ReactorState:
    """Return the state of a reactor's chain after `event`."""
    before = before or ReactorState()
    if isinstance(event, Archived):
        forgotten = before.forgotten_through if event.forgotten is None else event.forgotten.through_sequence
        return ReactorState(event.through_sequence, forgotten)
    if isinstance(event, Forgotten):
        return ReactorState(before.archived_through, event.last_sequence)
    return before


def _words(event: ReactorEvent) -> str:
    match event:
        case SealRecorded(from_sequence=first, to_sequence=last):
            return f"{first} to {last}"
        case Archived(through_sequence=through, count=count):
            return f"up to {through}, {count:,} events"
        case Redacted(first_sequence=first, events=count, reason=reason):
            return f"{count:,} events of the export from {first} on: {reason}"
        case Forgotten(first_sequence=first, last_sequence=last, stored_until=until):
            gone = ", whose files were gone before" if until is None else ""
            return f"the export of {first} to {last}{gone}"
        case Counted(through_sequence=through, part=part, parts=parts):
            return f"up to {through}, part {part} of {parts}"
        case Restored(backup=backup, through_sequence=through, lost_through=lost):
            gone = "" if lost is None else f"; {through + 1} to {lost} are gone"
            return f"from back-up {backup}, up to {through}{gone}"
        case FormRaised(form=form, before=before, behind=behind, reason=reason):
            late = f", though {behind} living processes read less" if behind else ""
            return f"from {before} to {form}{late}{f': {reason}' if reason else ''}"
        case Verified(from_sequence=first, to_sequence=last, sound=sound, violations=count):
            return f"{first} to {last}: {'sound' if sound else f'NOT sound, {count:,} violations'}"


def _check(before: ReactorState | None, event: ReactorEvent, stream_sequence: int) -> Iterator[Broken]:
    if event.reactor != _REACTOR_OF[type(event)]:
        yield "subject", f"`{REACTOR.type_of(event)}` is in the chain of reactor {event.reactor!a}"
    match event:
        case Archived(through_sequence=through):
            known = 0 if before is None else before.archived_through
            if not known < through < stream_sequence:
                yield "archive", f"`archived` through {through} follows one through {known}"
            yield from _check_said_again(before, event)
        case Redacted() | Counted():
            yield from _check_beside(event, stream_sequence)
        case Forgotten():
            yield from _check_forgotten(before, event)
        case Verified(from_sequence=first, to_sequence=last):
            if not 0 < first <= last + 1 <= stream_sequence:
                yield "transition", f"`verified` of {first} to {last} is stored at {stream_sequence}"
        case Restored():
            yield from _check_restored(event, stream_sequence)
        case FormRaised(form=form, before=earlier):
            if not earlier < form:
                yield "transition", f"`raised` to form {form} comes after form {earlier}"
        case SealRecorded():
            pass


def _check_beside(event: Redacted | Counted, stream_sequence: int) -> Iterator[Broken]:
    """Check what is recorded beside the archive runs themselves."""
    if isinstance(event, Redacted):
        first, count = event.first_sequence, event.events
        if not (0 < first < stream_sequence and 0 < count < stream_sequence):
            yield "archive", f"`redacted` of {count} events from {first} on is stored at {stream_sequence}"
        return
    archived, through = event.archive_through, event.through_sequence
    if not archived <= through < stream_sequence:
        what = f"`counted` through {through} of an archive through {archived}"
        yield "archive", f"{what} is stored at {stream_sequence}"
    if not 1 <= event.part <= event.parts:
        yield "archive", f"it is part {event.part} of {event.parts}"


def _check_said_again(before: ReactorState | None, event: Archived) -> Iterator[Broken]:
    """Check what an archive run says once more of what was forgotten before it."""
    known = 0 if before is None else before.forgotten_through
    said = 0 if event.forgotten is None else event.forgotten.through_sequence
    if not said < event.through_sequence or (known and said != known):
        yield "archive", f"`archived` says that {said} is the last forgotten event, and before it {known} was"


def _check_forgotten(before: ReactorState | None, event: Forgotten) -> Iterator[Broken]:
    """Check that an export is forgotten after all before it, and that it is not the newest one."""
    first, last = event.first_sequence, event.last_sequence
    known, through = (0, 0) if before is None else (before.forgotten_through, before.archived_through)
    if not 0 < first <= last or event.events != last - first + 1 or (known and first != known + 1):
        yield "archive", f"`forgotten` of {first} to {last}, {event.events} events, follows one up to {known}"
    if through and not last < through:
        yield "archive", f"`forgotten` of {first} to {last}: the newest export goes up to {through}"


def _check_restored(event: Restored, stream_sequence: int) -> Iterator[Broken]:
    through, lost = event.through_sequence, event.lost_through
    if through != stream_sequence - 1:
        yield "transition", f"`restored` through {through} is stored at {stream_sequence}"
    if lost is not None and lost < through:
        yield "transition", f"`restored` through {through} says that {lost} was the last event before"


def _keeps(event: ReactorEvent, stream_sequence: int) -> ArchiveBound | None:
    """Keep the events that the newest seal does not cover.

    An archive run appends an event of its own before it removes any. Nothing builds on results of checks, or on
    records of restores and upgrades; a check with the archive reads these.
    """
    if event.reactor in (ARCHIVE, VERIFY, RESTORE, FORM_CHAIN):
        return None
    if isinstance(event, SealRecorded):
        end = event.to_sequence
        return ArchiveBound(end + 1, f"the newest seal, which goes up to stream sequence {end}")
    return ArchiveBound(stream_sequence, f"reactor {event.reactor}, whose state is at {stream_sequence}")


REACTOR: Aggregate[ReactorEvent, ReactorState] = Aggregate(
    "reactor",
    ("reactor",),
    ReactorEvent,
    state=ReactorState,
    evolve=evolve,
    words=_words,
    check=_check,
    keeps=_keeps,
)
