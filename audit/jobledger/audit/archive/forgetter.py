"""Forgetting an archive's oldest exports: `forgotten` is recorded in the ledger, and only then their files are removed.

An export is forgotten once all of its events are old enough, after every one of them was read and compared with the manifest
for the last time. The newest export stays, and so does one that a living job, a hold of an owner, or an erasure or redaction
that is not done may still need, with all exports after it. A run that was cut off after the record has left files behind: the
next one removes them. The manifest stays: the next export names it. Source: ADR 074.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import msgspec

from jobledger.audit.archive.chain import archive_chain, export_name
from jobledger.audit.archive.folder_lock import locked
from jobledger.audit.archive.mirror import is_bare, shown, strip_export
from jobledger.audit.archive.plan import newest_of
from jobledger.audit.archive.redactor import draft_of
from jobledger.audit.errors import ArchiveRefusedError, ExportDamagedError
from jobledger.audit.export import ExportLog
from jobledger.audit.export.files import Totals
from jobledger.audit.export.manifest import MANIFEST
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.archive_record import forgotten_past, newest_archived
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import WrongSequenceError
from jobledger.ledger.model.events import Carried
from jobledger.ledger.model.job import CLOSED_STATES
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.owner import OWNER, evolve
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Forgotten, ForgottenPast, ReactorState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.times import as_utc

if TYPE_CHECKING:
    from pathlib import Path

#: A job that was made so long after the newest event of an export has no event in it, whatever the clock of its enqueuer said.
_SKEW: Final = timedelta(days=1)


class ForgottenExports(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    exports: tuple[str, ...] = ()  #: names of the exports that were forgotten
    events: int = 0  #: in them
    held_back_by: str = (
        ""  #: why the next one is kept though it is old enough; "": it is not, or there is none
    )


class _Needs(msgspec.Struct, frozen=True):
    """Who may still need an old export."""

    jobs: Mapping[JobRef, datetime]  #: living jobs with events in the archive, and when each was made
    owners: Mapping[str, str]  #: names of owners, and why their data must stay


class _Contents:
    """Takes the events of an export in order: whether they are those of its manifest, and who needs them."""

    def __init__(self, export: ExportLog, needs: _Needs) -> None:
        self._export = export
        self._jobs = needs.jobs
        self._owners = {owner: f'"{owner}/'.encode() for owner in needs.owners}
        self._totals = Totals()
        self._seen: dict[JobRef, int] = {}  # of the living jobs, the first event here
        self.stored_until: datetime | None = None
        self.owners: set[str] = set()  #: of those that need it, who have values in it

    def add(self, batch: Sequence[Message]) -> None:
        """Take the next events."""
        for message in batch:
            self._totals.add(message.sha256)
            stored_at = as_utc(message.stored_at)
            self.stored_until = max(stored_at, self.stored_until or stored_at)
            if self._jobs and isinstance(message, StoredEvent):
                ref = JobRef(queue=message.event.queue, job_id=message.event.job)
                if ref in self._jobs:
                    self._seen.setdefault(ref, message.stream_sequence)
            self.owners.update(owner for owner, word in self._owners.items() if word in message.data)

    def check(self) -> None:
        """Raises: ExportDamagedError where these are not the events of the manifest."""
        manifest = self._export.manifest
        if self._totals.figures != (manifest.count, manifest.digest, manifest.head_hash):
            raise ExportDamagedError(
                self._export.folder / MANIFEST, "its count, digest or head hash is not that of the events"
            )

    @property
    def living(self) -> JobRef | None:
        """A living job that has events in it. A job with the id of an older one was made after that one's events."""
        until = self.stored_until
        return next(
            (ref for ref in self._seen if until is not None and self._jobs[ref] <= until + _SKEW), None
        )


class Forgetter:
    """Removes the oldest exports of the archive in `folder`; of two at the same time one is refused, without harm."""

    def __init__(self, log: Log, folder: Path, stamp: Callable[[], Stamp]) -> None:
        self._log = log
        self._folder = folder
        self._stamp = stamp
        self._view: View[ReactorState] = View()  # of the chain of archive runs, as of when this run began

    async def run(self, before: datetime) -> ForgottenExports:
        """Forget the exports whose events were all stored before a time of the server, the oldest first.

        Raises: RefusedError for a ledger of an earlier form; ArchiveRefusedError where another run is at work or was
            faster; as `archive_chain`; ArchiveAbsentError, LedgerFullError, OSError. Whatever it is: run it again.
        """
        newest = await newest_archived(self._log)
        if newest is None or (await self._log.head()).first_sequence <= newest.through_sequence:
            return ForgottenExports()  # or events of an archive run are still to be taken out of the ledger
        self._stamp().require_form(Forgotten.since_form, "forgetting exports")
        with locked(self._folder):
            self._view = REACTOR.view(*await end_of_chain(self._log, REACTOR.chain(self._log.names, ARCHIVE)))
            past = await forgotten_past(self._log)
            if past is not None:
                await self._strip(past)
            return await self._forget_all(before)

    async def _forget_all(self, before: datetime) -> ForgottenExports:
        needs: _Needs | None = None
        done: list[str] = []
        events = 0
        for export in (await archive_chain(self._log, self._folder))[:-1]:
            is_gone = await anyio.to_thread.run_sync(is_bare, export.folder)
            if await self._newest_at(export, is_gone=is_gone) >= before:
                break
            needs = needs or await self._needs(before)
            fact, why = self._fact(export, None), _why_unknown(export, needs)
            if not is_gone:
                found = await self._read(export, needs)
                if found.stored_until is None or found.stored_until >= before:
                    break
                fact, why = self._fact(export, found.stored_until), _why_needed(export, found, needs)
            if not why and not (await self._owners()).keys() <= needs.owners.keys():
                why = f"{shown(export.folder)} was being read when somebody held the data of an owner, or began to erase it"
            if why:
                return ForgottenExports(exports=tuple(done), events=events, held_back_by=why)
            await self._record(fact)
            await self._strip(fact.past)
            done.append(export.folder.name)
            events += export.manifest.count
        return ForgottenExports(exports=tuple(done), events=events)

    async def _strip(self, past: ForgottenPast) -> None:
        """Remove the files of the export that was forgotten last, and of what other archive runs made of its range."""
        for place in await anyio.to_thread.run_sync(self._places, past):
            await anyio.to_thread.run_sync(strip_export, place)

    def _places(self, past: ForgottenPast) -> list[Path]:
        """Return the exports of these runs. Only manifests of such a name are read: an old archive has thousands of others."""
        found: list[Path] = []
        for place in sorted(self._folder.iterdir()):
            name = place.name.partition(".")[0]
            last = name.rpartition("-")[2]
            is_of_range = last.isdecimal() and past.first_sequence <= int(last) <= past.through_sequence
            if is_of_range and (place / MANIFEST).exists():
                manifest = ExportLog(place, self._log.names).manifest
                if manifest.complete and name == export_name(manifest.first_sequence, manifest.last_sequence):
                    found.append(place)
        return found

    async def _newest_at(self, export: ExportLog, *, is_gone: bool) -> datetime:
        """Return when the last event of an export was stored; where its files are gone, when it was made."""
        last = None if is_gone else await export.get(export.manifest.last_sequence)
        return as_utc(export.manifest.created_at if last is None else last.stored_at)

    async def _needs(self, before: datetime) -> _Needs:
        """Return who may need exports whose events were stored before a moment."""
        old: set[JobRef] = set()
        carried = self._log.names.all_of_type("carried")
        async with contextlib.aclosing(self._log.read(subject=carried)) as batches:
            async for batch in batches:
                old.update(
                    JobRef(queue=stored.event.queue, job_id=stored.event.job)
                    for stored in batch
                    if isinstance(stored.event, Carried)
                    and stored.event.job_state.created_at <= before + _SKEW
                )
        jobs: dict[JobRef, datetime] = {}
        for ref in old:
            job = (await load(self._log, ref)).job
            if job is not None and job.state not in CLOSED_STATES:
                jobs[ref] = as_utc(job.created_at)
        return _Needs(jobs, await self._owners())

    async def _owners(self) -> dict[str, str]:
        found: dict[str, str] = {}
        now = self._stamp().at
        async for message in newest_of(self._log, OWNER):
            state = evolve(None, OWNER.decode(message), message.stream_sequence)
            owner = ":".join(OWNER.key_in(message.subject))
            if state.erasing is not None:
                found[owner] = f"the erasure of {owner} is not done"
            elif state.held(now) is not None:
                found[owner] = f"the data of {owner} is held"
        return found

    async def _read(self, export: ExportLog, needs: _Needs) -> _Contents:
        """Read every event of an export. Raises: ExportDamagedError, ArchiveAbsentError."""
        found = _Contents(export, needs)
        async with contextlib.aclosing(export.read_messages()) as batches:
            async for batch in batches:
                found.add(batch)
        found.check()
        return found

    def _fact(self, export: ExportLog, stored_until: datetime | None) -> Forgotten:
        manifest, stamp = export.manifest, self._stamp()
        return Forgotten(
            reactor=ARCHIVE,
            at=stamp.at,
            by=stamp.by,
            first_sequence=manifest.first_sequence,
            last_sequence=manifest.last_sequence,
            events=manifest.count,
            manifest_sha256=export.previous.manifest_sha256,
            head_hash=manifest.head_hash,
            digest=manifest.digest,
            stored_until=stored_until,
        )

    async def _record(self, fact: Forgotten) -> None:
        """Record that an export is forgotten. Raises: ArchiveRefusedError where somebody else recorded something."""
        (entry,) = REACTOR.link(self._log.names, [fact], self._view)
        try:
            sequence = await self._log.append([entry])
        except WrongSequenceError as error:
            raise ArchiveRefusedError(
                "another run recorded something about the archive meanwhile: run this again"
            ) from error
        self._view = REACTOR.advance(entry, fact, sequence, self._view.state)


def _why_unknown(export: ExportLog, needs: _Needs) -> str:
    """Return why an export whose files are gone is kept on record as missing, "" where nobody can have needed it."""
    if not needs.jobs and not needs.owners:
        return ""
    return (
        f"{shown(export.folder)} has lost its files, and nobody can tell whether a job that has not ended, or an owner "
        "whose data must stay, has events in it: bring them back"
    )


def _why_needed(export: ExportLog, found: _Contents, needs: _Needs) -> str:
    """Return why an export is kept, "" where nobody needs it."""
    manifest = export.manifest
    what = f"{shown(export.folder)} is not forgotten, though its events are old enough"
    if draft_of(export).exists():
        return f"{what}: a redaction of it was cut off; run `jobledger audit redact` again, which ends that"
    if found.living is not None:
        return f"{what}: job {found.living.job_id} of queue {found.living.queue}, which has events in it, has not ended"
    owner = min(found.owners, default=None)
    if owner is not None:
        return f"{what}: {needs.owners[owner]}, and {manifest.first_sequence} to {manifest.last_sequence} hold values of it"
    return ""
