"""Redacting an archive: the values of some jobs are taken out of its exports, and each event keeps the sha256 it had.

Of one export after the other: its files are written once more into a draft inside it, `redacted` is recorded in the ledger, and only
then the new files take the place of the old ones, the manifest last. What is written follows from the export and the jobs
alone, so a run that was cut off before the record begins again, and after it is finished by the next run, whatever that
is about. Source: ADR 070.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Sequence,
)
from pathlib import Path
from typing import Final, Literal, NamedTuple

import anyio.to_thread
import msgspec

from jobledger.audit.archive.chain import archive_chain
from jobledger.audit.archive.folder_lock import locked
from jobledger.audit.archive.mirror import shown
from jobledger.audit.archive.redacted_jobs import ChosenJobs, JobChoice
from jobledger.audit.errors import ArchiveRefusedError, ExportDamagedError
from jobledger.audit.export import ExportLog, JoinedLog, Manifest, manifest_sha256
from jobledger.audit.export.files import JsonLinesWriter, Redactions, Totals
from jobledger.audit.export.manifest import (
    FORMAT_REDACTED,
    MANIFEST,
    ExportedFile,
    ExportRedaction,
    manifest_bytes,
    read_manifest,
    sealed,
)
from jobledger.audit.export.payloads import drop_values, list_kept
from jobledger.audit.export.remote import remote_of
from jobledger.audit.trail_words import first_few
from jobledger.audit.verify.references import References
from jobledger.ledger.files import make_folder, rename_over, sync_path, write_whole
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.archive_record import forgotten_past, newest_archived
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    InvalidInputError,
    NotFoundError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import DeadLettered
from jobledger.ledger.model.log import Log, end_of_chain, events_among
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived, ReactorState, Redacted

#: What a run does; each export is written, recorded and put in place before the next one is begun.
RedactStep = Literal["look", "write", "record", "place"]
OnRedactProgress = Callable[[RedactStep, int, int], None]
#: Erases the server's copies of events of these sha256 (hex); returns how many there were.
EraseDead = Callable[[Collection[str]], Awaitable[int]]
_SHOWN_MAX: Final = 5
_DRAFT: Final = ".redaction"
_NO_PROGRESS: Final[OnRedactProgress] = lambda _step, _done, _total: None  # noqa: E731 - a default


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did, or would do."""

    jobs: int  #: whose values are out of the archive now, or were before
    living: int  #: that were left as they are, since the ledger still has events of theirs
    events: int  #: that lost their values by this run
    exports: tuple[str, ...]  #: names of the exports whose files were replaced
    finished: tuple[str, ...]  #: names of those that an earlier run had recorded: put in place first
    dead_copies: int = 0  #: of dead letters, that were erased from the server's stream of them


class _Written(NamedTuple):
    """An export without the values of the chosen jobs."""

    manifest: Manifest
    sha256: str  #: of that manifest
    events: int  #: that lost their values now


class _Copy:
    """Takes the events of an export in order, and writes them once more into a draft; None: counts what it would write."""

    def __init__(self, export: ExportLog, jobs: ChosenJobs, draft: Path | None) -> None:
        self._export = export
        self._jobs = jobs
        self._draft = draft
        self.dead: set[str] = set()  #: sha256 of each dead letter that was redacted, as it was stored
        self._references = References()
        self._totals, self._redactions = Totals(), Redactions()
        self._waiting = list(export.manifest.files)
        self._open: JsonLinesWriter | None = None
        self._files: list[ExportedFile] = []
        self._fresh = 0

    def add(self, batch: Sequence[Message]) -> None:
        """Take the next events. Raises: ScratchSpaceError, OSError."""
        after = [self._jobs.redacted(message) for message in batch]
        self._fresh += sum(a is not b for a, b in zip(after, batch, strict=True))
        self._references.add(after)
        for message in after:
            self._totals.add(message.sha256)
            self._redactions.add(message)
            if _is_redacted_death(message):
                self.dead.add(message.redacted)
            if self._draft is not None:
                self._add_line(self._draft, message)

    def _add_line(self, draft: Path, message: Message) -> None:
        if self._open is None:
            self._open = JsonLinesWriter(draft)
        self._open.add(message)
        if message.stream_sequence == self._waiting[0].last_sequence:
            self._files.append(self._open.close())
            self._waiting.pop(0)
            self._open = None

    def finish(self) -> _Written:
        """Write what is left of the draft; it is on the disk then. Raises: ExportDamagedError, OSError."""
        manifest, folder = self._export.manifest, self._export.folder
        if self._totals.figures != (manifest.count, manifest.digest, manifest.head_hash):
            raise ExportDamagedError(
                folder / MANIFEST, "its count, digest or head hash is not that of the events"
            )
        own = manifest_sha256(folder)
        if not self._fresh or self._draft is None:
            return _Written(manifest, own, self._fresh)
        events, lines = self._redactions.figures
        named = self._export.previous.manifest_sha256
        after = sealed(
            msgspec.structs.replace(
                manifest,
                format=FORMAT_REDACTED,
                files=tuple(self._files),
                payloads=list_kept(folder, manifest, self._draft, self._references),
                redacted=ExportRedaction(manifest_sha256=named, events=events, lines_sha256=lines),
            )
        )
        data = manifest_bytes(after)
        write_whole(self._draft / MANIFEST, data)
        sync_path(self._draft.parent)
        return _Written(after, hashlib.sha256(data).hexdigest(), self._fresh)

    def close(self) -> None:
        """Let go of what is open."""
        self._references.close()
        if self._open is not None:
            self._open.abandon()


class Redactor:
    """Takes values out of the archive in `folder`; of two at the same time one is refused, without harm."""

    def __init__(
        self,
        log: Log,
        folder: Path,
        stamp: Callable[[], Stamp],
        on_progress: OnRedactProgress = _NO_PROGRESS,
        *,
        erase_dead: EraseDead | None = None,
    ) -> None:
        """`erase_dead`: erases the server's copies of dead letters; None: there are none."""
        self._log = log
        self._erase_dead = erase_dead
        self._dead: set[str] = set()  # sha256 of each dead letter in the archive that is redacted
        self._folder = folder
        self._stamp = stamp
        self._on_progress = on_progress
        self._view: View[ReactorState] = View()  # of the chain of archive runs, as of when this run began

    async def plan(self, choice: JobChoice) -> Redaction:
        """Return what `run` would do; nothing is changed.

        Raises: as `run`; ArchiveRefusedError where an earlier run is to be finished first.
        """
        chain = await self._chain()
        if half := [export.folder.name async for export in self._recorded(chain)]:
            raise ArchiveRefusedError(
                f"redactions of {first_few(half, _SHOWN_MAX)} were recorded and are not in place yet: run this without a plan, "
                "which ends that first"
            )
        jobs = await self._look(chain, choice)
        found: list[tuple[str, int]] = []
        for export in self._touched(chain, jobs):
            written = await self._write(export, jobs, None)
            if written.events:
                found.append((export.folder.name, written.events))
        redacted, living = jobs.counts
        return Redaction(
            jobs=redacted,
            living=living,
            events=sum(count for _, count in found),
            exports=tuple(name for name, _ in found),
            finished=(),
        )

    async def run(self, choice: JobChoice, *, reason: str) -> Redaction:
        """Take the values of jobs out of the archive, after finishing what an earlier run left half done.

        Raises: InvalidInputError; RefusedError for a ledger of an earlier form; ArchiveRefusedError where another run is
            at work, or an export is not what was recorded of it; NotFoundError for a job that the archive does not
            have; as `open_archive`; LedgerFullError, UnreachableError, OSError. Whatever it is: run it again.
        """
        if not reason.strip():
            raise InvalidInputError("give a reason: it is kept in the ledger, for whoever asks later")
        self._stamp().require_form(Redacted.since_form, "redacting an archive")
        with locked(self._folder):
            self._view = REACTOR.view(*await end_of_chain(self._log, REACTOR.chain(self._log.names, ARCHIVE)))
            finished = await self._finish(await self._chain())
            chain = await self._chain()
            jobs = await self._look(chain, choice)
            done: list[str] = []
            events = 0
            for export in self._touched(chain, jobs):
                count = await self._redact(export, jobs, reason)
                if count:
                    done.append(export.folder.name)
                    events += count
        # Those of earlier runs as well: one of them may have been cut off before this.
        copies = await self._erase_dead(self._dead) if self._erase_dead is not None else 0
        redacted, living = jobs.counts
        return Redaction(
            jobs=redacted,
            living=living,
            events=events,
            exports=tuple(done),
            finished=tuple(finished),
            dead_copies=copies,
        )

    async def _chain(self) -> list[ExportLog]:
        """Return the exports of the archive, the oldest first.

        Raises: ArchiveRefusedError where nothing was archived, or not yet taken out of the ledger, or the archive lies behind a
            URI; as `archive_chain`.
        """
        if remote_of(self._folder) is not None:
            raise ArchiveRefusedError(
                f"{shown(self._folder)} has files that are written once: copy it into a folder, say so with `jobledger retention set "
                "--to DIR`, and redact it there"
            )
        newest = await newest_archived(self._log)
        if newest is None:
            raise ArchiveRefusedError("nothing was ever archived, so there is nothing to redact")
        await self._require_purged(newest)
        return await archive_chain(self._log, self._folder)

    async def _require_purged(self, newest: Archived) -> None:
        if (await self._log.head()).first_sequence <= newest.through_sequence:
            raise ArchiveRefusedError(
                f"the ledger still has events up to stream sequence {newest.through_sequence} that were moved into the "
                "archive: let the archive run end, or run `jobledger audit archive` again"
            )

    async def _look(self, chain: Sequence[ExportLog], choice: JobChoice) -> ChosenJobs:
        """Find the chosen jobs. Raises: NotFoundError, as `run`."""
        through = chain[-1].manifest.last_sequence
        starts = [export.manifest.first_sequence for export in chain]
        jobs = ChosenJobs(choice, self._log.names, starts, through)
        joined = JoinedLog(chain, self._log)
        last = (await joined.head()).last_sequence
        async with contextlib.aclosing(joined.read_messages(from_sequence=starts[0])) as batches:
            async for batch in batches:
                events = events_among(batch)
                jobs.add(events)
                self._dead.update(each.redacted for each in events if _is_redacted_death(each))
                self._on_progress("look", min(batch[-1].stream_sequence, last), last)
        if unknown := jobs.unknown():
            past = await forgotten_past(self._log)
            but = "" if past is None else f"; nobody has {past.words}"
            raise NotFoundError(
                f"neither the archive nor the ledger has {first_few(unknown, _SHOWN_MAX)}: nothing was redacted{but}"
            )
        return jobs

    def _touched(self, chain: Sequence[ExportLog], jobs: ChosenJobs) -> Iterator[ExportLog]:
        """Yield the exports in which there may be something to redact, each of which has to be as it was recorded."""
        touched = jobs.touched
        for export in chain:
            if export.manifest.first_sequence in touched:
                is_redacted = bool(export.manifest.redacted_figures[0])
                if is_redacted and export.manifest.first_sequence not in jobs.facts:
                    raise ArchiveRefusedError(
                        f"{export.folder} has redacted lines that no event of the ledger records: see what `jobledger audit "
                        "verify --archive` says"
                    )
                yield export

    async def _redact(self, export: ExportLog, jobs: ChosenJobs, reason: str) -> int:
        """Take the values of the chosen jobs out of an export; return how many events lost some."""
        draft = draft_of(export)
        await anyio.to_thread.run_sync(make_folder, draft)
        try:
            written = await self._write(export, jobs, draft)
            await self._record(export, jobs, written, reason)
        except (ArchiveRefusedError, CorruptLedgerError, OSError):
            # Nothing was recorded. After other errors it may have been, and then the next run needs the draft.
            await anyio.to_thread.run_sync(shutil.rmtree, draft)
            raise
        if written.events:
            await self._place(draft, export)
        else:
            await anyio.to_thread.run_sync(shutil.rmtree, draft)
        return written.events

    async def _write(self, export: ExportLog, jobs: ChosenJobs, draft: Path | None) -> _Written:
        manifest = export.manifest
        if manifest.file_format != "jsonl":
            raise ArchiveRefusedError(f"{export.folder} is in Parquet: only JSON Lines can be redacted")
        copy = _Copy(export, jobs, draft)
        try:
            async with contextlib.aclosing(export.read_messages()) as batches:
                async for batch in batches:
                    await anyio.to_thread.run_sync(copy.add, batch)
                    done = batch[-1].stream_sequence - manifest.first_sequence + 1
                    self._on_progress("write", done, manifest.count)
            self._dead |= copy.dead
            return await anyio.to_thread.run_sync(copy.finish)
        finally:
            copy.close()

    async def _record(self, export: ExportLog, jobs: ChosenJobs, written: _Written, reason: str) -> None:
        """Record in the ledger what an export is to become, unless that was done, or it stays as it is.

        Raises: ArchiveRefusedError where somebody else recorded something meanwhile, or the export is not as recorded.
        """
        fact, own = jobs.facts.get(export.manifest.first_sequence), manifest_sha256(export.folder)
        if fact is not None and fact.manifest_sha256 not in {own, written.sha256}:
            raise ArchiveRefusedError(
                f"{export.folder} is not as {fact.by} redacted it ({fact.reason}), as if a copy was brought back: run this "
                "for the same jobs as then first"
            )
        if written.events and (fact is None or fact.manifest_sha256 == own):
            await self._append(written, own, reason)

    async def _append(self, written: _Written, before: str, reason: str) -> None:
        self._on_progress("record", 0, 1)
        events, lines = written.manifest.redacted_figures
        stamp = self._stamp()
        event = Redacted(
            reactor=ARCHIVE,
            at=stamp.at,
            by=stamp.by,
            first_sequence=written.manifest.first_sequence,
            manifest_sha256=written.sha256,
            before_sha256=before,
            events=events,
            lines_sha256=lines,
            reason=reason,
        )
        (entry,) = REACTOR.link(self._log.names, [event], self._view)
        try:
            sequence = await self._log.append([entry])
        except WrongSequenceError as error:
            raise ArchiveRefusedError(
                "another archive run or redaction was recorded meanwhile: run this again"
            ) from error
        self._view = REACTOR.advance(entry, event, sequence, self._view.state)
        self._on_progress("record", 1, 1)

    async def _finish(self, chain: Sequence[ExportLog]) -> list[str]:
        """Put in place what an earlier run recorded; remove what one wrote and did not record. Return the exports' names."""
        finished: list[str] = []
        async for export in self._recorded(chain):
            await self._place(draft_of(export), export)
            finished.append(export.folder.name)
        for export in chain:
            with contextlib.suppress(FileNotFoundError):
                await anyio.to_thread.run_sync(shutil.rmtree, draft_of(export))
        return finished

    async def _recorded(self, chain: Sequence[ExportLog]) -> AsyncGenerator[ExportLog, None]:
        """Yield the exports whose redaction was recorded and that are not in place yet, the newest first.

        Of an export that is half in place only the manifest can be read; what was recorded of it came after it.
        """
        for at in reversed(range(len(chain))):
            export = chain[at]
            draft = draft_of(export)
            if (draft / MANIFEST).exists():
                fact = await self._newest_fact(export, chain[at + 1 :])
                if fact is not None and fact.manifest_sha256 == manifest_sha256(draft):
                    yield export

    async def _newest_fact(self, export: ExportLog, later: Sequence[ExportLog]) -> Redacted | None:
        found: Redacted | None = None
        log = JoinedLog([ExportLog(each.folder, self._log.names) for each in later], self._log)
        subject = REACTOR.of_type(log.names, "redacted", ARCHIVE)
        behind = export.manifest.last_sequence + 1
        async with contextlib.aclosing(log.read_messages(from_sequence=behind, subject=subject)) as batches:
            async for batch in batches:
                for message in events_among(batch):
                    event = REACTOR.decode(message)
                    if isinstance(event, Redacted) and event.first_sequence == export.manifest.first_sequence:
                        found = event
        return found

    async def _place(self, draft: Path, export: ExportLog) -> None:
        """Put a draft in the place of an export's files, from wherever an earlier run was cut off; the manifest last."""
        manifest, folder = read_manifest(draft), export.folder
        names = [*(entry.name for entry in manifest.files), MANIFEST]
        self._on_progress("place", 0, len(names))
        await anyio.to_thread.run_sync(drop_values, folder, export.manifest, draft, manifest)
        for number, name in enumerate(names, 1):
            await anyio.to_thread.run_sync(_move, draft / name, folder / name)
            self._on_progress("place", number, len(names))
        await anyio.to_thread.run_sync(shutil.rmtree, draft)


def _is_redacted_death(message: Message) -> bool:
    """Return whether a message is a dead letter without its values."""
    return (
        bool(message.redacted)
        and isinstance(message, StoredEvent)
        and isinstance(message.event, DeadLettered)
    )


def draft_of(export: ExportLog) -> Path:
    """Return the folder of an export's new files: inside the export, so that they need only be renamed."""
    return export.folder / _DRAFT


def _move(draft: Path, path: Path) -> None:
    """Give a file its name, unless that was done, after whatever was moved before it is on the disk."""
    sync_path(path.parent)
    with contextlib.suppress(FileNotFoundError):
        rename_over(draft, path)
    sync_path(path.parent)
