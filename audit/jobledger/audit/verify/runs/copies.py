"""The rule `copied`: what a rerun copied is, byte for byte, what the run that it names did.

The hash of every end of a step, beginning of a group and completion of a child goes to the disk, with a second one over
what a copy must repeat, so that a copy can be compared with its source after any time.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import Final

import msgspec

from jobledger.audit.verify.records import Open, Record, unpack
from jobledger.audit.verify.store import RecordStore, scratch, translated
from jobledger.ledger.children import asked_there, child_ref
from jobledger.ledger.model.aggregate import Broken
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import (
    Completed,
    Joined,
    Member,
    RerunOf,
    StepCompleted,
    StepFailed,
    StepStarted,
    event_type,
)
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import CopiedEnds, Origin, bits_of, items_of
from jobledger.ledger.model.runs.reruns import copied_ends, has_copied
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef

_CACHE_BYTES: Final = 2 << 20
_AT_ONCE: Final = 4_096
_CREATE: Final = (
    "CREATE TEMP TABLE ends (sequence INTEGER PRIMARY KEY, hash BLOB NOT NULL, said BLOB NOT NULL)"
)
#: Fields in which a copy equals its source; all others are about the attempt that copied.
_SAME: Final = (
    "step",
    "kind",
    "target",
    "input_sha256",
    "tries",
    "result",
    "result_ref",
    "duration_ms",
    "error",
    "order",
    "items",
    "items_ref",
)
_encode: Final = msgspec.msgpack.Encoder().encode
_StepEnd = StepCompleted | StepFailed
_Copy = StepStarted | _StepEnd


class Copies:
    """The rule `copied`, fed with the events of runs in stream order. Call `close`."""

    def __init__(self, jobs: RecordStore[Record], *, from_sequence: int, is_selection: bool) -> None:
        """`jobs`: the checker's records. `is_selection`: events are left out, so that a source may not be there."""
        self._jobs = jobs
        self._from_sequence = from_sequence
        self._is_selection = is_selection
        self._disk: sqlite3.Connection | None = None
        self._rows: list[tuple[int, bytes, bytes]] = []
        self._sources: dict[str, str] = {}  #: the source of each rerun
        self.copies = 0  #: ends of steps and of children that were copied
        self.unproven = 0  #: copies whose source was not seen, or that lost their values, or whose source did

    def close(self) -> None:
        """Close the temporary database."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def job(self, before: Job | None, stored: StoredEvent, after: Job) -> Iterator[Broken]:
        """Take in an event of a run, which the records have, and yield what is wrong with it.

        Raises: ScratchSpaceError.
        """
        event = stored.event
        if not event.prev and after.order.rerun_of is not None:
            yield from self._begins(f"{event.queue}/{event.job}", after.order.rerun_of)
        if isinstance(event, Joined) and event.copied is not None:
            yield from self._check_children(event, event.copied, before, after)
        elif isinstance(event, Completed) and event.member is not None:
            self._keep(stored, _said_child(event.member, event.queue, event.job))
        if not isinstance(event, _Copy) or not _is_kept(event):
            return
        if before is not None and after.order.rerun_of is not None:
            yield from _in_place(before, event, after.order.rerun_of)
        if event.copied is not None:
            yield from self._check(stored, event, after)
        self._keep(stored, b"" if stored.redacted else _said(event, event.queue, event.job))

    def _keep(self, stored: StoredEvent, said: bytes) -> None:
        self._rows.append((stored.stream_sequence, stored.sha256, said))
        if len(self._rows) >= _AT_ONCE:
            self._put_aside()

    def _begins(self, name: str, source: RerunOf) -> Iterator[Broken]:
        """Compare what a rerun records of its source with the newest event of that run, if it names that."""
        self._sources[name] = f"{source.queue}/{source.job}"
        record = self._jobs.get(f"{source.queue}/{source.job}")
        if record is None:
            if self._from_sequence == 1 and not self._is_selection:
                yield (
                    "copied",
                    f"it says that it is a rerun of {source.queue}/{source.job}, which is not there",
                )
            return
        if isinstance(record, Open):
            newest, digest = record.age, record.digest
        else:
            job, digest = unpack(record, source.queue, source.job)
            newest = job.last_sequence
        if newest < source.sequence and not self._is_selection:
            yield "copied", f"it is a rerun of {source.job} as of {source.sequence}, which has no event there"
        elif newest == source.sequence and digest.hex() != source.hash:
            yield "copied", f"it names another hash of {source.job} at {source.sequence} than the event has"

    def _check_children(
        self, event: Joined, copied: CopiedEnds, before: Job | None, after: Job
    ) -> Iterator[Broken]:
        """Compare each child's end that a rerun copied with that child's completion, in a run that it descends from."""
        source, step = after.order.rerun_of, after.steps.get(event.step)
        what = f"`joined` of {event.step!r}"
        if source is None or step is None or before is None:
            yield "copied", f"{what} copies ends of children, and the run is no rerun"
            return
        if not self._descends(f"{event.queue}/{event.job}", f"{copied.queue}/{copied.job}"):
            yield "copied", f"{what} copies ends of children of {copied.job}, of which it is no rerun"
            return
        if copied_ends(after.steps) > source.children:
            yield (
                "copied",
                f"{what} copies more than the {source.children:,} ends of children that it says it copies",
            )
        run, asked = JobRef(queue=copied.queue, job_id=copied.job), _asked_there(step, copied)
        ends = zip(items_of(bits_of(event.completed)), copied.sequences, copied.sha256, strict=False)
        for item, sequence, sha256 in ends:
            self.copies += 1
            child = child_ref(run, asked, item)
            member = Member(queue=run.queue, job=run.job_id, step=event.step, item=item)
            said = _said_child(member, child.queue, child.job_id)
            if sequence > source.ends_to:
                yield (
                    "copied",
                    f"{what} copies item {item} from {sequence}, and its rerun ends at {source.ends_to}",
                )
            else:
                yield from self._compare(
                    f"{what}, item {item},",
                    sequence,
                    sha256,
                    said,
                    f"is no completion of child {child.job_id}",
                    nothing="no child has completed",
                )

    def _descends(self, name: str, origin: str) -> bool:
        """Return whether a run is a rerun of another one, or of a rerun of it; True if that was not seen."""
        seen: set[str] = set()
        while name in self._sources and name not in seen:
            seen.add(name)
            name = self._sources[name]
            if name == origin:
                return True
        return name not in self._sources and (self._from_sequence > 1 or self._is_selection)

    def _check(self, stored: StoredEvent, event: _Copy, after: Job) -> Iterator[Broken]:
        copied, source = event.copied, after.order.rerun_of
        assert copied is not None, "it is a copy"
        self.copies += not isinstance(event, StepStarted)  # ends are counted: those of its children follow
        what = f"`{event_type(event)}` of {event.step!r}"
        if source is None:
            yield "copied", f"{what} is a copy, and the run is no rerun"
            return
        if copied.sequence > source.sequence:
            yield (
                "copied",
                f"{what} is copied from {copied.sequence}, and it is a rerun as of {source.sequence}",
            )
            return
        said = b"" if stored.redacted else _said(event, source.queue, source.job)
        yield from self._compare(
            what, copied.sequence, copied.sha256, said, f"differs from what run {source.job} recorded"
        )

    def _compare(
        self,
        what: str,
        sequence: int,
        sha256: str,
        said: bytes,
        differs: str,
        *,
        nothing: str = "no step has ended",
    ) -> Iterator[Broken]:
        found = self._find(sequence)
        if found is None:
            if sequence < self._from_sequence or self._is_selection:
                self.unproven += 1
            else:
                yield "copied", f"{what} is copied from {sequence}, where {nothing}"
        elif found[0].hex() != sha256:
            yield "copied", f"{what} names another hash than the event at {sequence} has"
        elif not (found[1] and said):
            self.unproven += 1
        elif found[1] != said:
            yield "copied", f"{what} {differs} at {sequence}"

    def _find(self, sequence: int) -> tuple[bytes, bytes] | None:
        self._put_aside()
        if self._disk is None:
            return None
        with translated():
            row = self._disk.execute("SELECT hash, said FROM ends WHERE sequence = ?", (sequence,)).fetchone()
        return None if row is None else (row[0], row[1])

    def _put_aside(self) -> None:
        if not self._rows:
            return
        with translated():
            if self._disk is None:
                self._disk = scratch(_CACHE_BYTES)
                self._disk.execute(_CREATE)
            self._disk.execute("BEGIN")
            self._disk.executemany("INSERT OR REPLACE INTO ends VALUES (?, ?, ?)", self._rows)
            self._disk.execute("COMMIT")
        self._rows.clear()


def _is_kept(event: _Copy) -> bool:
    """Return whether an event of a step is one that a rerun may copy: its end, or the beginning of a group."""
    if isinstance(event, StepStarted):
        return event.order is not None or event.copied is not None
    return isinstance(event, StepCompleted) or event.retry_at is None


def _in_place(before: Job, event: _Copy, source: RerunOf) -> Iterator[Broken]:
    """Check that the first steps of a rerun, as many as it says it copies, are copies, and no others."""
    step = before.steps.get(event.step)
    if step is not None and (step.state != "started" or step.copied is not None):
        if step.state == "started" and (event.copied is not None or not has_copied(source, before.steps)):
            yield (
                "copied",
                f"it ended step {event.step!r}, a group with copied ends, before it had copied all of them",
            )
        return  # the rerun may try a failed step again
    number = len(before.steps) + 1 if step is None else step.number
    if event.copied is None and (number <= source.steps or not has_copied(source, before.steps)):
        yield "copied", f"it executed step {event.step!r} before it had copied {source.steps:,} steps"
    if event.copied is not None and number > source.steps:
        yield "copied", f"it copied step {event.step!r}, and says that it copies {source.steps:,} steps"


def _said(event: _Copy, queue: str, job: str) -> bytes:
    """Return a hash over the run of a step and the fields that a copy must repeat."""
    values = [_plain(getattr(event, name, None)) for name in _SAME]
    return hashlib.sha256(_encode((queue, job, event_type(event), *values))).digest()


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, msgspec.Raw) else value


def _said_child(member: Member, queue: str, job: str) -> bytes:
    """Return a hash over the names in a child's completion: the child, its run, step and item."""
    said = ("child", member.queue, member.job, member.step, member.item, queue, job)
    return hashlib.sha256(_encode(said)).digest()


def _asked_there(step: Step, copied: CopiedEnds) -> Step:
    origin = Origin(queue=copied.queue, job=copied.job, number=copied.number, asked=copied.asked)
    return asked_there(step, origin)
