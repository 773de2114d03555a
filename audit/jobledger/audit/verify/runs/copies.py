"""The rule `copied`: the steps that a rerun copied are, byte for byte, those of the run that it names.

The hash of every end of a step goes to the disk, with a second one over what a copy must repeat, so that a copy can be
held to its source however long ago that was.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import Final

import msgspec

from jobledger.audit.verify.records import Open, Record, unpack
from jobledger.audit.verify.store import RecordStore, scratch, translated
from jobledger.ledger.model.aggregate import Broken
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import RerunOf, StepCompleted, StepFailed, event_type
from jobledger.ledger.model.job import Job

_CACHE_BYTES: Final = 2 << 20
_AT_ONCE: Final = 4_096
_CREATE: Final = (
    "CREATE TEMP TABLE ends (sequence INTEGER PRIMARY KEY, hash BLOB NOT NULL, said BLOB NOT NULL)"
)
#: What a copy says as its source did; the rest of it is about the attempt that copied.
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
)
_encode: Final = msgspec.msgpack.Encoder().encode
_StepEnd = StepCompleted | StepFailed


class Copies:
    """The rule `copied`, told the events of runs in stream order. Call `close`."""

    def __init__(self, jobs: RecordStore[Record], *, from_sequence: int, is_selection: bool) -> None:
        """`jobs`: the checker's records. `is_selection`: events are left out, so that a source may not be there."""
        self._jobs = jobs
        self._from_sequence = from_sequence
        self._is_selection = is_selection
        self._disk: sqlite3.Connection | None = None
        self._rows: list[tuple[int, bytes, bytes]] = []
        self.copies = 0  #: ends of steps that were copied
        self.unproven = 0  #: of them, those whose source was not seen

    def close(self) -> None:
        """Let go of what was put aside."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def job(self, before: Job | None, stored: StoredEvent, after: Job) -> Iterator[Broken]:
        """Take in an event of a run, which the records have, and yield what is wrong with it.

        Raises: ScratchSpaceError.
        """
        event = stored.event
        if not event.prev and after.order.rerun_of is not None:
            yield from self._begins(after.order.rerun_of)
        if not isinstance(event, _StepEnd) or (isinstance(event, StepFailed) and event.retry_at is not None):
            return
        if before is not None and after.order.rerun_of is not None:
            yield from _in_place(before, event, after.order.rerun_of)
        if event.copied is not None:
            yield from self._check(event, after)
        own = _said(event, event.queue, event.job)
        self._rows.append((stored.stream_sequence, hashlib.sha256(stored.data).digest(), own))
        if len(self._rows) >= _AT_ONCE:
            self._put_aside()

    def _begins(self, source: RerunOf) -> Iterator[Broken]:
        """Hold what a rerun says of its source to the newest event of that, where that is the one it names."""
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

    def _check(self, event: _StepEnd, after: Job) -> Iterator[Broken]:
        copied, source = event.copied, after.order.rerun_of
        assert copied is not None, "it is a copy"
        self.copies += 1
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
        found = self._find(copied.sequence)
        if found is None:
            if copied.sequence < self._from_sequence or self._is_selection:
                self.unproven += 1
            else:
                yield "copied", f"{what} is copied from {copied.sequence}, where no step has ended"
        elif found[0].hex() != copied.sha256:
            yield "copied", f"{what} names another hash than the event at {copied.sequence} has"
        elif found[1] != _said(event, source.queue, source.job):
            yield "copied", f"{what} differs from what run {source.job} recorded at {copied.sequence}"

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


def _in_place(before: Job, event: _StepEnd, source: RerunOf) -> Iterator[Broken]:
    """Hold the first end of a step of a rerun to the number of steps that it says it copies: they are its first ones."""
    step = before.steps.get(event.step)
    if step is not None and step.state != "started":
        return  # the rerun may try a failed step again
    number = len(before.steps) + 1 if step is None else step.number
    if event.copied is None and number <= source.steps:
        yield "copied", f"it executed step {event.step!r} before it had copied {source.steps:,} steps"
    if event.copied is not None and number > source.steps:
        yield "copied", f"it copied step {event.step!r}, and says that it copies {source.steps:,} steps"


def _said(event: _StepEnd, queue: str, job: str) -> bytes:
    """Return a hash over what a copy must repeat, and of which run's step it is."""
    values = [_plain(getattr(event, name, None)) for name in _SAME]
    return hashlib.sha256(_encode((queue, job, event_type(event), *values))).digest()


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, msgspec.Raw) else value
