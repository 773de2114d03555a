"""Moving the ledger's oldest events into files: export, carry live jobs, record, purge; resumed, it skips steps done.

Whatever happens in between, every event is in the ledger or in an export that the ledger names. `plan` finds out what
would be moved, `chain` reads the folder. Source: ADR 011.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from jobledger.audit.archive.chain import archive_chain, export_name, exports_in, open_archive, place_of
from jobledger.audit.archive.deps import ArchiveDeps, Step
from jobledger.audit.archive.mirror import drop_past, lies_there, own_name, remove_export, send_export, shown
from jobledger.audit.archive.plan import ArchivePlan, Prefix, bound, newest_of, read_prefix, restate
from jobledger.audit.counts import append_counts, counted_parts
from jobledger.audit.errors import ArchiveIncompleteError, ArchiveRefusedError
from jobledger.audit.export import ExportLog, Manifest, Previous, write_export
from jobledger.audit.export.payloads import check_payloads
from jobledger.audit.trail_words import first_few
from jobledger.audit.verify import CheckOptions, verify
from jobledger.audit.verify.definitions import Definitions, fitting
from jobledger.ledger.files import make_folder, open_folder, sync_path
from jobledger.ledger.model.archive_record import forgotten_past, newest_archived, newest_record
from jobledger.ledger.model.chain import JobView, commit, fold, load, transact
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Carry
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    InvalidInputError,
    JobNotFoundError,
    PayloadTooLargeError,
    ScheduleNotFoundError,
    SequenceGapError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import Carried
from jobledger.ledger.model.job import PENDING_STATES, Job
from jobledger.ledger.model.lifecycle import REMARKS
from jobledger.ledger.model.log import Head, Log, end_of_chain
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived, LimitInForce
from jobledger.ledger.model.schedules.events import Removed
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.unique import UNIQUE, KeyRef, Taken, said_again
from jobledger.ledger.timers import wait_timer
from jobledger.ledger.unique.holders import find_holder

# Unique keys across an archive run: those that a job still holds are said again, the others go away.


async def carry_keys(log: Log, keys: Mapping[KeyRef, Taken], through: int, clock: Clock) -> None:
    """Append `taken` again for each key that is held, where its newest event goes away with those up to `through`.

    Does nothing where that was done before. The jobs that live on were carried already.

    Raises: CorruptLedgerError, LedgerFullError, UnreachableError.
    """
    for ref, taken in keys.items():
        holder = await find_holder(log, ref)
        again = said_again(taken, holder.chain.job, clock.now())
        if again is not None and 0 < holder.key.last_sequence <= through:
            with contextlib.suppress(WrongSequenceError):  # another job took it meanwhile
                await log.append(UNIQUE.link(log.names, [again], holder.key))


logger = logging.getLogger("jobledger.archive")

#: Chains that are carried at a time.
_AT_ONCE: Final = 64
#: An eighth of what the jobs take has to be free besides: other events follow them, and some jobs are larger.
_SPARE: Final = 8
#: A job that is overdue at the end of the range does not keep the range from being archived.
_AS_HISTORY: Final = CheckOptions(overdue_grace_s=10 * 366 * 24 * 3600.0)


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    first_sequence: int  #: of the ledger now
    exports: tuple[Path, ...]  #: made or finished by this run
    events: int  #: in them
    jobs_archived: int
    jobs_carried: int
    held_back_by: str


class Archiver:
    """Moves a ledger's prefix into `folder`; of two at the same time one is refused, without harm."""

    def __init__(self, log: Log, folder: Path, deps: ArchiveDeps) -> None:
        self._log = log
        self._folder = folder
        self._deps = deps
        self._done: list[Path] = []
        self._events = self._jobs_archived = self._jobs_carried = 0
        self._lock: int | None = None  # descriptor of the folder, while a run is at work

    async def plan(self, before: datetime) -> ArchivePlan:
        """Return what `run` would do; nothing is changed.

        Raises: ArchiveRefusedError, InvalidInputError, CorruptLedgerError, UnreachableError.
        """
        bounded, held_back_by = await self._bound(before)
        first = (await self._log.head()).first_sequence
        found = await read_prefix(self._log, first, bounded, self._progress("check"))
        members = await found.members.needed(self._log)
        newest = await newest_archived(self._log)
        recorded = 0 if newest is None or newest.through_sequence < first else newest.through_sequence
        waiting = self._waiting(first)
        return ArchivePlan(
            first_sequence=first,
            through_sequence=max(first - 1, bounded),
            stored_until=found.newest_at,
            events=found.events,
            bytes=found.bytes,
            jobs_archived=found.jobs_over - members.ended_here,
            jobs_carried=len(found.jobs) + len(members.refs),
            work_items=found.work_items,
            held_back_by=held_back_by,
            unread=tuple(await self._deps.unread(bounded)) if found.events else (),
            unfinished=recorded or (0 if waiting is None else waiting.manifest.last_sequence),
        )

    async def run(self, before: datetime, *, through: int | None = None, force: bool = False) -> Done:
        """Move what was stored before a time of the server, after finishing what an earlier run left half done.

        `through`: and no more than up to this stream sequence. Then the export of an unfinished run that went further, and
        that the ledger does not name, is removed instead of finished. `force`: even if a subscriber would miss events or the
        ledger is not sound; never if runs would miss events.

        Raises: ArchiveRefusedError, ArchiveIncompleteError, ExportExistsError, InvalidInputError, CorruptLedgerError,
            UnreachableError, LedgerFullError, OSError. Whatever it is, nothing is lost: run it again.
        """
        self._share()
        try:
            await self._finish_recorded()
            bounded, held_back_by = await self._bound(before)
            if through is not None:
                bounded = min(bounded, through)
            while True:
                first = (await self._log.head()).first_sequence
                waiting = self._waiting(first)
                if waiting is not None and through is not None and waiting.manifest.last_sequence > bounded:
                    await self._discard(waiting)
                    waiting = None
                last = bounded if waiting is None else waiting.manifest.last_sequence
                if last > bounded:
                    raise ArchiveRefusedError(
                        f"{self._folder} holds the export of an unfinished run up to stream sequence {last}, and this "
                        f"run may go up to {bounded}: finish that one with a later time, or delete its export "
                        f"{export_name(first, last)}"
                    )
                if last < first:
                    break
                await self._check_subscribers(last, force=force)
                await self._move(first, last, force=force)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
        return Done(
            first_sequence=first,
            exports=tuple(self._done),
            events=self._events,
            jobs_archived=self._jobs_archived,
            jobs_carried=self._jobs_carried,
            held_back_by=held_back_by,
        )

    def _progress(self, step: Step) -> Callable[[int, int], None]:
        return lambda done, total: self._deps.on_progress(step, done, total)

    async def _bound(self, before: datetime) -> tuple[int, str]:
        if before.utcoffset() is None:
            raise InvalidInputError(
                "before has no time zone: give an aware datetime, such as datetime.now(UTC)"
            )
        if before > self._deps.clock.now():
            raise InvalidInputError(f"{before.isoformat()} is still to come: give a time that is past")
        return await bound(self._log, before, self._deps.leases)

    def _share(self) -> None:
        """Tell others, until this run has ended, that one is at work in the folder, as soon as it is there.

        Raises: ArchiveRefusedError while another one removes an export there; OSError.
        """
        if self._lock is not None or not self._folder.is_dir():
            return
        self._lock = open_folder(self._folder)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArchiveRefusedError(
                f"another archive run is at work in {self._folder}: run this again"
            ) from error
        except OSError as error:  # a file system without locks: then nothing unfinished is removed there
            logger.debug("%s cannot be locked: %s", self._folder, error)

    async def _discard(self, export: ExportLog) -> None:
        """Remove the export of a run that never recorded it, while no other run can be about to do so.

        Raises: ArchiveRefusedError where another run is at work in the folder, or has just recorded it.
        """
        assert self._lock is not None, "the folder is there, since the export is"
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ArchiveRefusedError(
                f"{export.folder} is of an unfinished run, and cannot be removed while another run may be at work in the folder"
            ) from error
        newest = await newest_archived(self._log)
        if newest is not None and newest.through_sequence >= export.manifest.first_sequence:
            raise ArchiveRefusedError(
                f"another archive run has just recorded {export.folder}: run this again"
            )
        await anyio.to_thread.run_sync(remove_export, export.folder)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _waiting(self, first: int) -> ExportLog | None:
        """Return the export that an earlier run of this machine made of the ledger's oldest events and did not record.

        One that another machine sent to a bucket has another name. That machine may be about to record it, and no lock here
        would tell: it is left alone.
        """
        if not self._folder.exists():
            return None
        found = [
            export
            for export in exports_in(self._folder, self._log.names).values()
            if export.manifest.first_sequence == first
            and export.manifest.count
            and export.folder == self._place(first, export.manifest.last_sequence)
        ]
        return max(found, key=lambda export: export.manifest.last_sequence, default=None)

    async def _check_subscribers(self, through: int, *, force: bool) -> None:
        behind = await self._deps.unread(through)
        for each in behind:
            if each.is_ours:
                raise ArchiveRefusedError(
                    f"nobody has looked whether a run has children that ended at stream sequence {each.sequence} or after it, "
                    "or that end with it: start a worker, which does so in a moment, and run this again"
                )
        if behind and not force:
            named = [f"{each.consumer} (from stream sequence {each.sequence} on)" for each in behind]
            raise ArchiveRefusedError(
                f"subscribers have not dealt with events that would go away: {first_few(named, 5)}; "
                "let them catch up, delete them, or archive all the same with --force"
            )

    async def _move(self, first: int, through: int, *, force: bool) -> None:
        """Do every step for one range; a step that an earlier run did is not done again."""
        self._progress("export")(0, through - first + 1)
        manifest = await self._export(first, through)
        export = ExportLog(self._place(first, through), self._log.names)
        self._progress("check")(0, manifest.count)
        found = await self._check(export, force=force)
        await anyio.to_thread.run_sync(send_export, export.folder, self._progress("send"))
        members = await found.members.needed(self._log)
        living = [*found.jobs, *members.refs]
        self._progress("carry")(0, len(living))
        await self._carry(living, through)
        late = await self._carry_fenced(through)
        await restate(self._log, through, self._deps.clock.now())
        await self._carry_schedules(through)
        await carry_keys(self._log, found.keys, through, self._deps.clock)
        await self._count(export, force=force)
        self._progress("record")(0, 1)
        await self._record(export, found.limits)
        await self._purge(through)
        await anyio.to_thread.run_sync(drop_past, self._folder, through)
        self._jobs_archived += found.jobs_over - members.ended_here - late

    def _place(self, first: int, through: int) -> Path:
        return self._folder / own_name(self._folder, export_name(first, through))

    async def _export(self, first: int, through: int) -> Manifest:
        """Write the export, unless it is written already; it is on the disk when this returns."""
        previous = await self._previous(first)
        await anyio.to_thread.run_sync(functools.partial(make_folder, self._folder, on_the_disk=True))
        self._share()
        try:
            manifest = await self._write(first, through, previous)
        except (InvalidInputError, SequenceGapError) as error:
            if (await self._log.head()).first_sequence > first:
                raise ArchiveRefusedError(
                    f"another archive run was faster: it took the events from stream sequence {first} on away while this "
                    "one wrote its export; nothing was taken away by this run"
                ) from error
            raise
        # Also the one that is found: whoever renamed it into place may have been killed before this.
        await anyio.to_thread.run_sync(sync_path, self._folder)
        return manifest

    async def _write(self, first: int, through: int, previous: Previous | None) -> Manifest:
        return await write_export(
            self._log,
            self._place(first, through),
            first=first,
            last=through,
            previous=previous,
            payloads=self._deps.payloads,
            resumed=True,  # with or without large values, as an earlier run wrote it
            clock=self._deps.clock,
            on_progress=self._progress("export"),
            on_payload=self._progress("copy"),
        )

    async def _previous(self, first: int) -> Previous | None:
        """Return how to name the export before this one; it must lie in the same folder."""
        newest = await newest_archived(self._log)
        if newest is None:
            if first > 1:
                raise ArchiveRefusedError(
                    f"the ledger begins at stream sequence {first}, and nothing in it says where the events before "
                    "are: somebody purged it by hand"
                )
            return None
        chain = await archive_chain(self._log, self._folder, may_lack=True)
        await self._require_there(chain[-1])
        if chain[-1].manifest.last_sequence != first - 1:
            raise ArchiveRefusedError(
                f"the ledger begins at stream sequence {first}, and its archive goes up to "
                f"{chain[-1].manifest.last_sequence}: what is between is missing"
            )
        return chain[-1].previous

    async def _require_there(self, export: ExportLog) -> None:
        """Refuse to go on behind an export that its bucket has lost, though its manifest is on this machine.

        Raises: ArchiveAbsentError, ArchiveIncompleteError.
        """
        if not await anyio.to_thread.run_sync(lies_there, export.folder):
            manifest = export.manifest
            raise ArchiveIncompleteError(
                f"{shown(self._folder)} lacks the export of stream sequence {manifest.first_sequence} to "
                f"{manifest.last_sequence}, which was there: bring {shown(export.folder)} back"
            )

    async def _check(self, export: ExportLog, *, force: bool) -> Prefix:
        """Prove the export without the server; only then its events may be purged."""
        manifest = export.manifest
        first, last = manifest.first_sequence, manifest.last_sequence
        await anyio.to_thread.run_sync(check_payloads, export.folder, manifest)
        found = Prefix()
        report = await verify(
            export,
            from_sequence=first,
            to_sequence=last,
            options=_AS_HISTORY,
            is_part=True,
            acknowledging=self._log,
            witnesses=[found],
            on_progress=self._progress("check"),
        )
        if not report.sound and not force:
            violation = report.violations[0]
            raise ArchiveRefusedError(
                f"what would go away is not sound: {violation.sentence} (stream sequence {violation.stream_sequence}, "
                f"{report.violations_count:,} in all); look at it with `jobledger audit verify`, or archive it as "
                "it is with --force"
            )
        if found.events != manifest.count:
            raise ArchiveRefusedError(
                f"{manifest.count - found.events:,} events of {export.folder} cannot be read, so nobody can tell "
                "which jobs live: see what `jobledger audit verify` says of it"
            )
        head = await self._log.get(last)
        proved = (report.digest, report.head_hash, report.events)
        if proved != (manifest.digest, manifest.head_hash, manifest.count) or (
            head is None or head.hash != manifest.head_hash
        ):
            raise ArchiveRefusedError(
                f"{export.folder} does not hold what the ledger holds: delete it, run again"
            )
        return found

    async def _carry(self, refs: Sequence[JobRef], through: int) -> None:
        before = await self._log.head()
        for start in range(0, len(refs), _AT_ONCE):
            part = refs[start : start + _AT_ONCE]
            # Wait for all of them before the first error is raised, so that none goes on in the background.
            ends = await asyncio.gather(
                *(self._carry_one(ref, through) for ref in part), return_exceptions=True
            )
            for end in ends:
                if isinstance(end, BaseException):
                    raise end
            self._progress("carry")(start + len(part), len(refs))
            if not start:
                await self._require_room(before, len(part), len(refs) - len(part), through)

    async def _require_room(self, before: Head, carried: int, left: int, through: int) -> None:
        """Refuse before the ledger is full, where carrying the other jobs takes as much each as the first ones did.

        Raises: ArchiveRefusedError.
        """
        now = await self._log.head()
        need = (now.stored_bytes - before.stored_bytes) * left // carried
        need += need // _SPARE
        if now.bytes_max is not None and need > now.bytes_max - now.stored_bytes:
            raise ArchiveRefusedError(
                f"{left:,} more unfinished jobs are to be carried on, which takes about {need >> 10:,} KiB, and the ledger "
                f"has room for {(now.bytes_max - now.stored_bytes) >> 10:,} KiB: give it room with `jobledger ledger "
                f"resize SIZE` and run this again, or delete the export in {self._folder} that ends at stream sequence {through}, "
                "and choose an earlier time"
            )

    async def _carry_schedules(self, through: int) -> None:
        """Carry the schedules whose newest event would go away; those that were removed go with it."""
        async for message in newest_of(self._log, SCHEDULE):
            if message.stream_sequence > through or isinstance(SCHEDULE.decode(message), Removed):
                continue
            with contextlib.suppress(ScheduleNotFoundError):  # removed a moment ago
                await self._deps.carry_schedule(SCHEDULE.key_in(message.subject)[0], through)

    async def _carry_one(self, ref: JobRef, through: int) -> None:
        """Carry one job unless that was done; a worker that runs it meanwhile is not disturbed."""
        try:
            job = await self._carried(ref, through)
        except (IllegalTransitionError, JobNotFoundError):
            # Carried before, or never made: another job claimed to be this child of a run.
            job = (await load(self._log, ref)).job
        if job is not None and job.due_at is not None and job.state in PENDING_STATES:
            # The event that asked for its timer goes away, and perhaps no worker has heard of it.
            await self._deps.set_timer(wait_timer(job))

    async def _carried(self, ref: JobRef, through: int) -> Job | None:
        """Append `carried` and return the job; raises IllegalTransitionError where that is done already."""
        stamp = self._deps.stamp
        try:
            try:
                after = await transact(self._log, ref, Carry(through=through), stamp)
            except PayloadTooLargeError:
                after = await transact(self._log, ref, Carry(through=through, tracebacks=False), stamp)
        except PayloadTooLargeError as error:
            raise ArchiveRefusedError(
                f"job {ref.job_id} of {ref.queue} is too large to be carried over ({error}): "
                "wait until it is over, or discard it"
            ) from error
        self._jobs_carried += 1
        return after.job

    async def _carry_fenced(self, through: int) -> int:
        """Carry closed jobs that have a late worker's receipt or a note after the prefix; return how many."""
        carried = self._jobs_carried
        for ref in await self._fenced_since(through):
            chain = await self._log.read_chain(self._log.names.chain(ref))
            if chain and chain[0].stream_sequence <= through:
                with contextlib.suppress(IllegalTransitionError):
                    await self._carried(ref, through)
        return self._jobs_carried - carried

    async def _fenced_since(self, through: int) -> Collection[JobRef]:
        found: set[JobRef] = set()
        head = await self._log.head()
        if head.last_sequence <= through:
            return found
        begin = max(through + 1, head.first_sequence)
        for cls in REMARKS:
            subject = self._log.names.all_of_type(str(cls.__struct_config__.tag))
            async with contextlib.aclosing(self._log.read(from_sequence=begin, subject=subject)) as batches:
                async for batch in batches:
                    found |= {JobRef(queue=each.event.queue, job_id=each.event.job) for each in batch}
        return found

    async def _count(self, export: ExportLog, *, force: bool) -> None:
        """Append the counters so far, once all live jobs are carried: a rebuilt projection continues from them."""
        if self._deps.count is None:
            return
        try:
            counts = await self._deps.count(self._progress("count"))
        except ArchiveRefusedError:
            if force:
                return
            raise
        parts = counted_parts(counts, export.manifest.last_sequence, self._deps.stamp())
        try:
            await append_counts(self._log, parts)
        except WrongSequenceError as error:
            sentence = "another archive run is at work; nothing was taken away by this one: run it again"
            raise ArchiveRefusedError(sentence) from error

    async def _record(self, export: ExportLog, limits: Definitions) -> None:
        """Record in the ledger where its oldest events are now, on condition that no other run just did."""
        manifest = export.manifest
        last = await end_of_chain(self._log, REACTOR.chain(self._log.names, ARCHIVE))
        newest, recorded_at = await newest_record(self._log)
        stamp = self._deps.stamp()
        own = export.previous.manifest_sha256
        previous = None if manifest.previous is None else manifest.previous.manifest_sha256
        recorded = None if newest is None else newest.manifest_sha256
        if recorded == own:
            return  # by another process that found the same export
        if recorded != previous:
            raise self._overtaken(export)
        event = Archived(
            reactor=ARCHIVE,
            at=stamp.at,
            by=stamp.by,
            through_sequence=manifest.last_sequence,
            manifest_sha256=own,
            head_hash=manifest.head_hash,
            digest=manifest.digest,
            count=manifest.count,
            folder=place_of(self._folder),
            limits=_in_force(limits, newest, recorded_at, manifest.last_sequence),
            forgotten=await forgotten_past(self._log),
        )
        try:
            await self._log.append(REACTOR.link(self._log.names, [event], REACTOR.view(*last)))
        except WrongSequenceError as error:
            newest = await newest_archived(self._log)
            found = None if newest is None else newest.manifest_sha256
            if found == previous:
                raise ArchiveRefusedError(
                    "an export was redacted or forgotten meanwhile; nothing was taken away by this run: run it again"
                ) from error
            if found != own:
                raise self._overtaken(export) from error
        self._done.append(export.folder)
        self._events += manifest.count

    def _overtaken(self, export: ExportLog) -> ArchiveRefusedError:
        return ArchiveRefusedError(
            f"another archive run was faster: {shown(export.folder)} is no part of the archive, delete it; "
            "nothing was taken away by this run"
        )

    async def _finish_recorded(self) -> None:
        """Purge what an earlier run recorded as archived and did not purge."""
        newest = await newest_archived(self._log)
        if newest is None:
            return
        through = newest.through_sequence
        if (await self._log.head()).first_sequence <= through:
            if not self._folder.exists():
                raise ArchiveIncompleteError(
                    f"an earlier run moved events up to stream sequence {through} into {newest.folder or 'another folder'} "
                    f"and was cut off: name that folder, on a machine that has it, and not {self._folder}"
                )
            chain = await archive_chain(self._log, self._folder)
            found = await self._check(chain[-1], force=True)
            await anyio.to_thread.run_sync(send_export, chain[-1].folder)
            late = await self._carry_fenced(through)
            self._done.append(chain[-1].folder)
            self._events += newest.count
            members = await found.members.needed(self._log)
            self._jobs_archived += found.jobs_over - members.ended_here - late
        await self._purge(through)

    async def _purge(self, through: int) -> None:
        self._progress("purge")(0, 1)
        await self._log.purge(through)
        await self._mend(through)
        self._progress("end")(1, 1)

    async def _mend(self, through: int) -> None:
        """Carry closed jobs whose late worker appended a receipt at the very moment of the purge."""
        for ref in await self._fenced_since(through):
            held = await self._log.read_chain(self._log.names.chain(ref))
            if held and held[0].event.prev and not any(isinstance(each.event, Carried) for each in held):
                await self._carry_receipt(ref, held, through)

    async def _carry_receipt(self, ref: JobRef, held: Sequence[StoredEvent], through: int) -> None:
        joined = await open_archive(self._log, self._folder)
        whole = fold(await joined.read_chain(self._log.names.chain(ref)))
        chain = JobView(whole.job, held[-1].stream_sequence, held[-1].data)
        with contextlib.suppress(
            WrongSequenceError, IllegalTransitionError
        ):  # another receipt: the next run sees to it
            await commit(self._log, chain, decide(chain.job, Carry(through=through), self._deps.stamp()))


def _in_force(
    limits: Definitions, newest: Archived | None, recorded_at: int, through: int
) -> tuple[LimitInForce, ...] | None:
    """Return the limits in force at the end of an export: by its events, and by `newest`, the run before.

    None where an earlier release made that run, which recorded none, and restated the limits after this export.
    """
    before = () if newest is None else newest.limits
    if before is None and recorded_at > through:
        return None
    limits.precede(before or ())
    return fitting(limits.at(through))
