"""Archive runs that are cut off, that meet each other, or that must not go on: nothing is lost by any of them."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.archiving import (
    BEFORE,
    CLAIM,
    NEW,
    OLD,
    CrashError,
    World,
    populate,
    unmoved,
)

from jobledger.audit.archive.plan import Unread
from jobledger.audit.errors import (
    ArchiveIncompleteError,
    ArchiveRefusedError,
    ExportDamagedError,
    ExportExistsError,
)
from jobledger.audit.export import ExportLog, import_export, read_manifest, write_export
from jobledger.audit.export.manifest import MANIFEST, manifest_bytes, sealed
from jobledger.ledger.model.codec import Message, Unreadable, encode
from jobledger.ledger.model.commands import Complete, Fence, Note
from jobledger.ledger.model.errors import InvalidInputError, JobNotFoundError, UnknownEventError
from jobledger.ledger.model.events import Carried, Started
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "archive")


async def test_a_run_that_dies_at_any_write_is_finished_by_the_next(tmp_path: Path) -> None:
    calm = World(tmp_path / "calm")
    before = await populate(calm)
    calm.log.crash(0)
    await calm.archive()
    writes = calm.log.writes
    assert writes > 14
    for at in (*range(1, writes + 1), *range(-writes, 0)):
        world = World(tmp_path / f"crash{at}")
        await populate(world)
        world.log.crash(at)
        with pytest.raises(CrashError):
            await world.archive()
        world.log.crash(0)
        await world.check()  # as it lies there
        done = await world.archive()
        assert done.first_sequence == (await calm.log.head()).first_sequence, at
        await world.check()
        for job_id, job in before.items():
            assert unmoved(await world.job(job_id)).state == job.state
            chain = await world.log.read_chain(world.log.names.chain(JobRef(queue="email", job_id=job_id)))
            carried = [each for each in chain if isinstance(each.event, Carried)]
            assert len(carried) <= 1, "a job that was carried is not carried again"
        assert (await world.archive()).events == 0


async def test_a_run_that_dies_while_it_writes_files_leaves_none_of_them(
    world: World, monkeypatch: Any
) -> None:
    await populate(world)

    def die(step: str, done: int, _total: int) -> None:
        if step == "export" and done:
            raise CrashError

    with pytest.raises(CrashError):
        await world.archiver(on_progress=die).run(BEFORE)
    assert not [each for each in world.folder.iterdir() if not each.name.startswith(".")]
    assert (await world.log.head()).first_sequence == 1
    await world.archive()
    await world.check()


async def test_an_unfinished_run_is_finished_before_a_later_one_begins(world: World) -> None:
    await populate(world)
    world.log.crash(1)
    with pytest.raises(CrashError):
        await world.archive()
    world.log.crash(0)
    assert (await world.archiver().plan(BEFORE)).unfinished > 1
    with pytest.raises(ArchiveRefusedError, match="unfinished run up to stream sequence"):
        await world.archive(OLD)
    world.clock.at = NEW + timedelta(days=1)
    done = await world.archive(NEW)
    assert (
        len(done.exports) == 1
    )  # the moment after the first export and before the second are the same event
    world.clock.at = NEW + timedelta(days=3)
    assert len((await world.archive(NEW + timedelta(hours=12))).exports) == 1
    await world.check()


@pytest.mark.parametrize("same_folder", [True, False])
async def test_of_two_runs_at_once_nothing_is_lost(world: World, tmp_path: Path, same_folder: bool) -> None:
    before = await populate(world)
    other = world.folder if same_folder else tmp_path / "other"
    outcomes = await asyncio.gather(
        world.archiver().run(BEFORE), world.archiver(other).run(BEFORE), return_exceptions=True
    )
    failed = [each for each in outcomes if isinstance(each, BaseException)]
    assert len(failed) <= 1
    assert all(
        isinstance(each, ArchiveRefusedError | ArchiveIncompleteError | ExportExistsError) for each in failed
    ), failed
    if not same_folder:
        assert failed
    if isinstance(outcomes[0], BaseException):
        world.folder = other
    await world.check()
    for job_id, job in before.items():
        assert (await world.job(job_id)).state == job.state


@pytest.mark.parametrize("midway", [False, True])
async def test_a_run_whose_events_another_took_away_says_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, midway: bool
) -> None:
    await populate(world)
    slower = tmp_path / "slower"

    async def overtaken(log: MemoryLog, *args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        if not midway:
            await world.archiver().run(BEFORE)
        else:
            read = log.read_messages

            async def purged(**asked: Any) -> AsyncGenerator[list[Message], None]:
                monkeypatch.undo()
                async for batch in read(**asked):
                    yield batch[:3]
                    break
                await world.archiver().run(BEFORE)
                asked["from_sequence"] = 4
                async for batch in read(**asked):
                    yield batch

            monkeypatch.setattr(log, "read_messages", purged)
        return await write_export(log, *args, **options)

    monkeypatch.setattr("jobledger.audit.archive.archiver.write_export", overtaken)
    with pytest.raises(ArchiveRefusedError, match="another archive run was faster: it took the events from"):
        await world.archiver(slower).run(BEFORE)
    await world.check()


async def test_nothing_goes_that_somebody_has_not_read_unless_forced(world: World) -> None:
    await populate(world)
    world.behind = [Unread(consumer="events_billing", settled_through=3, sequence=4)]
    head = await world.log.head()
    with pytest.raises(ArchiveRefusedError, match=r"events_billing \(from stream sequence 4 on\)"):
        await world.archive()
    assert await world.log.head() == head
    await world.archive(force=True)
    await world.check()


async def test_a_ledger_that_is_not_sound_is_not_purged_unless_forced(world: World) -> None:
    await world.enqueue("a", CLAIM, Complete(epoch=0))
    started = Started(job="b", queue="email", task="send", at=OLD, by="f", attempt=1, worker="f", lease_s=1)
    ref = JobRef(queue="email", job_id="b")
    await world.log.append(
        [Entry(world.log.names.event(started), encode(started), world.log.names.chain(ref), 0)]
    )
    world.clock.at = NEW
    with pytest.raises(ArchiveRefusedError, match="not sound: `started` is its first event"):
        await world.archive()
    assert (await world.log.head()).first_sequence == 1
    assert (await world.archive(force=True)).jobs_carried == 1


async def _append_what_is_no_event_of_ours(world: World, data: bytes, event_type: str) -> None:
    ref = JobRef(queue="email", job_id="b")
    subject, chain = f"{world.log.names.jobs_root}email.b.{event_type}", world.log.names.chain(ref)
    await world.log.append([Entry(subject, data, chain, 0)])


async def test_what_a_newer_version_wrote_is_not_purged_even_if_forced(world: World) -> None:
    await world.enqueue("a", CLAIM, Complete(epoch=0))
    data = b'{"type":"escalated","v":1,"at":"2026-01-01T00:00:00Z","by":"w","queue":"email","job":"b"}'
    await _append_what_is_no_event_of_ours(world, data, "escalated")
    world.clock.at = NEW
    for force in (False, True):
        with pytest.raises(UnknownEventError, match="stream sequence 4 was written by a newer jobledger"):
            await world.archive(force=force)
    assert (await world.log.head()).first_sequence == 1


async def test_what_is_no_event_is_archived_byte_for_byte_once_somebody_says_so(world: World) -> None:
    await world.enqueue("a", CLAIM, Complete(epoch=0))
    data = b'{"type":"started" \xff'
    await _append_what_is_no_event_of_ours(world, data, "started")
    world.clock.at = NEW
    with pytest.raises(
        ArchiveRefusedError, match="not sound: the message at stream sequence 4 is no job event"
    ):
        await world.archive()
    assert (await world.log.head()).first_sequence == 1
    await world.archive(force=True)
    (export,) = world.folder.iterdir()
    archived = [message async for batch in ExportLog(export).read_messages() for message in batch]
    assert (archived[3].stream_sequence, archived[3].data) == (4, data)
    assert isinstance(archived[3], Unreadable)
    again = MemoryLog()
    assert await import_export(export, again) == len(archived)
    assert [message async for batch in again.read_messages() for message in batch][3].data == data


async def test_damage_to_the_archive_is_found_and_nothing_is_taken_away(world: World) -> None:
    await populate(world)
    world.log.crash(1)
    with pytest.raises(CrashError):
        await world.archive()
    world.log.crash(0)
    (export,) = world.folder.iterdir()
    file = next(export.glob("events-*"))
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"by":"alice"', b'"by":"alicf"', 1))
    with pytest.raises(ExportDamagedError, match=r"events-.*jsonl"):
        await world.archive()
    assert (await world.log.head()).first_sequence == 1
    file.write_bytes(data)
    await world.archive()
    export.rename(world.folder.parent / "elsewhere")
    world.clock.at = NEW + timedelta(days=3)
    with pytest.raises(ArchiveIncompleteError, match="lacks the export of stream sequence 1 to"):
        await world.archive(NEW + timedelta(days=1))


async def test_a_receipt_at_the_moment_of_the_purge_is_put_right(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose job is long over says so between the last look and the purge."""
    await populate(world)
    stale = (await world.job("completed")).attempts[0].epoch
    purge = world.log.purge

    async def late(through: int) -> None:
        fence = Fence(epoch=stale, attempt=1, worker="w1", outcome="failed")
        await world.do("completed", fence)
        await purge(through)

    monkeypatch.setattr(world.log, "purge", late)
    await world.archive()
    monkeypatch.undo()
    job = await world.job("completed")
    assert (job.state, job.result, job.fenced_count) == (JobState.COMPLETED, msgspec.Raw(b"1"), 1)
    await world.check()
    with pytest.raises(JobNotFoundError):
        await world.do("cancelled", Fence(epoch=1, attempt=1, worker="w1", outcome="failed"))


async def test_a_note_on_a_job_that_goes_away_keeps_it_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person remarks something about a job that is over, after the last event that goes away, and during the purge."""
    await populate(world)
    purge = world.log.purge

    async def late(through: int) -> None:
        await world.do("completed", Note(text="during the purge"))
        await purge(through)

    monkeypatch.setattr(world.log, "purge", late)
    await world.archive()
    monkeypatch.undo()
    job = await world.job("completed")
    assert (job.state, job.result) == (JobState.COMPLETED, msgspec.Raw(b"1"))
    await world.do("completed", Note(text="later"))
    await world.check()


async def test_a_time_that_cannot_be_is_refused(world: World) -> None:
    with pytest.raises(InvalidInputError, match="is still to come"):
        await world.archive(NEW)
    with pytest.raises(InvalidInputError, match="no time zone"):
        await world.archive(datetime(2026, 1, 1))  # noqa: DTZ001
    assert (await world.archive(OLD)).events == 0  # an empty ledger
    assert not world.folder.exists()


async def test_a_ledger_purged_by_hand_is_not_archived_over(world: World) -> None:
    await populate(world)
    await world.log.purge(3)
    with pytest.raises(ArchiveRefusedError, match="somebody purged it by hand"):
        await world.archive()


@pytest.mark.parametrize("at", ["export", "carry", "record", "purge", "end"])
async def test_another_host_without_the_folder_goes_on_or_says_where_it_is(
    world: World, tmp_path: Path, at: str
) -> None:
    """Before the record nothing is bound to the folder; after it the archive is there, and the ledger says where."""
    await populate(world)

    def die(step: str, _done: int, _total: int) -> None:
        if step == at:
            raise CrashError

    with pytest.raises(CrashError):
        await world.archiver(on_progress=die).run(BEFORE)
    elsewhere = world.archiver(tmp_path / "elsewhere")
    if at in ("export", "carry", "record"):  # it dies on the way into each
        assert (await elsewhere.run(BEFORE)).events > 0
        world.folder = tmp_path / "elsewhere"
    elif at == "purge":
        place = re.escape(f"{socket.gethostname()}:{world.folder}")
        with pytest.raises(ArchiveIncompleteError, match=f"into {place} and was cut off: name that folder"):
            await elsewhere.run(BEFORE)
        assert not (tmp_path / "elsewhere").exists()
    world.clock.at = NEW + timedelta(days=2)
    if at in ("purge", "end"):
        with pytest.raises(
            ArchiveIncompleteError, match="cut off" if at == "purge" else "the newest run wrote to"
        ):
            await elsewhere.run(NEW + timedelta(days=1))
    await world.archive(NEW + timedelta(days=1))
    await world.check()


@pytest.mark.parametrize("included", [True, None])
async def test_an_unfinished_run_is_finished_whatever_it_was_told_of_large_values(
    world: World, included: bool | None
) -> None:
    """Also that of a version whose exports had none, and of a run without --without-payloads."""
    await populate(world)
    world.log.crash(1)
    with pytest.raises(CrashError):
        await world.archive()
    world.log.crash(0)
    (export,) = (each for each in world.folder.iterdir() if not each.name.startswith("."))
    manifest = read_manifest(export)
    if included is None:
        older = msgspec.structs.replace(manifest, format=1, payloads=msgspec.UNSET)
    else:
        assert not isinstance(manifest.payloads, msgspec.UnsetType)
        said = msgspec.structs.replace(manifest.payloads, included=True)
        older = msgspec.structs.replace(manifest, payloads=said)
    (export / MANIFEST).write_bytes(manifest_bytes(sealed(older)))
    assert (await world.archive()).exports == (export,)
    await world.check()
