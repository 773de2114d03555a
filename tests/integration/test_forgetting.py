"""The oldest exports of an archive that are forgotten: what is left is sound, and every reader says what is gone."""

from __future__ import annotations

import contextlib
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.support.archiving import BOOM, CLAIM, NEW, OLD, CrashError, World

from jobledger.admin.archived import missing, with_archive
from jobledger.audit.archive import forgetter as module
from jobledger.audit.archive.chain import open_archive, read_past, with_past
from jobledger.audit.archive.folder_lock import locked
from jobledger.audit.archive.forgetter import Forgetter, ForgottenExports
from jobledger.audit.archive.redacted_jobs import JobChoice
from jobledger.audit.archive.redactor import OnRedactProgress, Redactor
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.errors import ArchiveIncompleteError, ArchiveRefusedError, ExportDamagedError
from jobledger.audit.export import import_export, manifest_sha256, read_manifest
from jobledger.audit.export.manifest import (
    FORMAT_REDACTED,
    MANIFEST,
    ExportRedaction,
    manifest_bytes,
    sealed,
)
from jobledger.audit.verify import Report, verify
from jobledger.ledger.model.archive_record import forgotten_past
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.commands import CancelJob, Complete, Discard, Fail, Stamp
from jobledger.ledger.model.errors import NotFoundError, RefusedError
from jobledger.ledger.model.log import Log, end_of_chain
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.owner import (
    OWNER,
    BeginErasing,
    EndErasing,
    HoldOwner,
    OwnerCommand,
    UnholdOwner,
    decide,
)
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived, Forgotten, ForgottenPast, ReactorEvent

pytestmark = pytest.mark.anyio

DAY: Final = timedelta(days=1)
LATE: Final = NEW + timedelta(days=400)
SEALED: Final = msgspec.Raw(b'"sealed:c2VhbGVk"')
DONE: Final = (CLAIM, Complete(epoch=0, result=msgspec.Raw(b"1")))


async def run(world: World, days: int, *jobs: str, **options: Any) -> None:
    """Let jobs end `days` after the beginning, and move all events a day later."""
    world.clock.at = OLD + days * DAY
    commands = (CancelJob(),) if "key" in options else DONE
    for job_id in jobs:
        await world.enqueue(job_id, *commands, **options)
    world.clock.at = OLD + (days + 1) * DAY
    await world.archive(world.clock.at - timedelta(hours=1))


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A ledger with an archive of three exports, of jobs that ended 0, 10 and 20 days after the beginning."""
    world = World(tmp_path / "archive")
    await run(world, 0, "a1", "a2")
    await run(world, 10, "b1", "b2")
    await run(world, 20, "c1", "c2")
    await world.enqueue("new")
    return world


async def forget(world: World, days: float) -> ForgottenExports:
    """Forget what was stored up to `days` after the beginning."""
    return await Forgetter(world.log, world.folder, world.stamp).run(OLD + timedelta(days=days))


async def proven(world: World, **more: Any) -> Report:
    past = await read_past(world.log, [world.folder])
    return await verify(past.log, witnesses=[ArchiveWitness(past, world.log)], **more)


def exports(world: World) -> list[Path]:
    return sorted(each for each in world.folder.iterdir() if not each.name.startswith("."))


def kept(world: World) -> list[bool]:
    """Whether each export still has its files."""
    return [len(list(each.iterdir())) > 1 for each in exports(world)]


async def facts(world: World) -> list[Forgotten]:
    found: list[Forgotten] = []
    log = await open_archive(world.log, world.folder)
    async for batch in log.read_messages(subject=REACTOR.of_type(log.names, "forgotten", ARCHIVE)):
        found += [event for each in batch if isinstance(event := REACTOR.decode(each), Forgotten)]
    return found


async def append(world: World, event: ReactorEvent) -> None:
    """Append an event of the archive's chain, as somebody with the right could forge it."""
    view = REACTOR.view(*await end_of_chain(world.log, REACTOR.chain(world.log.names, ARCHIVE)))
    await world.log.append(REACTOR.link(world.log.names, [event], view))


async def test_what_is_left_is_sound_and_the_verdict_says_what_is_not_proven(world: World) -> None:
    before = await proven(world)
    assert before.sound
    first = read_manifest(exports(world)[0])
    done = await forget(world, 5)
    assert done == ForgottenExports(exports=(exports(world)[0].name,), events=first.count)
    assert kept(world) == [False, True, True]
    (fact,) = await facts(world)
    assert (fact.first_sequence, fact.last_sequence, fact.events) == (1, first.last_sequence, first.count)
    assert (fact.digest, fact.head_hash) == (first.digest, first.head_hash)
    assert fact.stored_until is not None
    assert OLD <= fact.stored_until < OLD + DAY
    report = await proven(world)
    assert report.sound, report.text()
    said = [each for each in report.text().splitlines() if "forgotten" in each]
    assert len(said) == 1
    assert said[0].startswith(f"not proven: events 1 to {first.last_sequence}, forgotten on 2026-01-2")
    assert said[0].endswith(" by alice")
    assert "name it with --archive" not in report.text()
    alone = await verify(world.log)
    assert alone.sound
    assert f"not proven: events 1 to {first.last_sequence}, forgotten on" in alone.text()
    assert "not proven: what was archived before" in alone.text()
    later = await proven(world, before=before)
    assert later.sound, "an earlier report that begins before is compared at its end"


async def test_exports_go_one_after_the_other_but_never_the_newest(world: World) -> None:
    assert await forget(world, 0) == ForgottenExports(), "its newest event is not old enough"
    done = await forget(world, 400)
    assert (len(done.exports), kept(world)) == (2, [False, False, True])
    assert [fact.last_sequence for fact in await facts(world)] == [
        read_manifest(each).last_sequence for each in exports(world)[:2]
    ]
    assert await forget(world, 400) == ForgottenExports()
    await run(world, 30, "d1")
    assert kept(world) == [False, False, True, True]
    newest = (await end_of_chain(world.log, REACTOR.of_type(world.log.names, "archived", ARCHIVE))).event
    assert newest is not None
    archived = REACTOR.decode(newest)
    assert isinstance(archived, Archived)
    assert archived.forgotten == (await facts(world))[-1].past == await forgotten_past(world.log)
    assert (await proven(world)).sound
    assert len((await forget(world, 400)).exports) == 1
    assert (await proven(world)).sound
    assert (await verify(world.log)).sound


async def test_nothing_is_forgotten_where_nothing_was_archived(tmp_path: Path) -> None:
    world = World(tmp_path / "archive")
    await world.enqueue("a", *DONE)
    assert await forget(world, 400) == ForgottenExports()


async def test_what_lives_is_read_as_before(world: World) -> None:
    """A job that is carried over all exports, a rebuilt history, and a new job with the id of one that is forgotten."""
    await forget(world, 400)
    await world.enqueue("a1", *DONE)
    log = await open_archive(world.log, world.folder)
    history = await log.read_chain(log.names.chains_of_id("a1"))
    assert len(history) == 3
    assert fold(await log.read_chain(log.names.chains_of_id("c1"))).job is not None
    assert await log.read_chain(log.names.chains_of_id("b1")) == []
    await run(world, 30, "d1")
    assert (await proven(world)).sound


@pytest.mark.parametrize(
    "commands",
    [(), (CLAIM,), (CLAIM, Fail(epoch=0, error=BOOM, give_up="rejected"))],
    ids=["queued", "running", "dead"],
)
async def test_an_export_with_events_of_a_living_job_stays(tmp_path: Path, commands: tuple[Any, ...]) -> None:
    world = World(tmp_path / "archive")
    await run(world, 0, "a1")
    await world.enqueue("lives", *commands)
    await run(world, 10, "b1")
    await run(world, 20, "c1")
    done = await forget(world, 400)
    assert (len(done.exports), kept(world)) == (1, [False, True, True])
    assert "job lives of queue email, which has events in it, has not ended" in done.held_back_by
    state = (await world.job("lives")).state
    if state == "queued":
        await world.do("lives", CLAIM)
    await world.do("lives", *((Discard(),) if state == "dead_lettered" else (Complete(epoch=0),)))
    await run(world, 30, "d1")
    done = await forget(world, 400)
    assert (len(done.exports), done.held_back_by) == (2, "")
    assert (await proven(world)).sound


async def test_a_living_job_with_the_id_of_a_forgotten_one_needs_nothing(world: World) -> None:
    world.clock.at = OLD + 40 * DAY
    await world.enqueue("a1")
    await run(world, 50, "d1")
    done = await forget(world, 15)
    assert (len(done.exports), done.held_back_by) == (2, "")
    assert (await proven(world)).sound


async def act(world: World, command: OwnerCommand) -> None:
    state = OWNER.view(*await end_of_chain(world.log, OWNER.chain(world.log.names, "person", "17")))
    event = decide("person:17", state.state, command, world.stamp())
    assert event is not None
    await world.log.append(OWNER.link(world.log.names, [event], state))


async def test_an_export_with_values_of_an_owner_that_must_stay_stays(tmp_path: Path) -> None:
    world = World(tmp_path / "archive")
    await run(world, 0, "a1")
    await run(world, 10, "b1", key="person:17/1", input=SEALED)
    await run(world, 20, "c1", key="person:170/1", input=SEALED)
    await run(world, 30, "d1")
    await act(world, HoldOwner())
    done = await forget(world, 400)
    assert (len(done.exports), kept(world)) == (1, [False, True, True, True])
    assert "the data of person:17 is held" in done.held_back_by
    await run(world, 40, "e1")  # the hold is said once more
    assert "the data of person:17 is held" in (await forget(world, 400)).held_back_by
    await act(world, UnholdOwner())
    await act(world, BeginErasing(number=1, has_key=True))
    assert "the erasure of person:17 is not done" in (await forget(world, 400)).held_back_by
    await act(world, EndErasing(number=1, jobs=0, cancelled=0, destroyed_at=world.clock.now(), masters=()))
    done = await forget(world, 400)
    assert (len(done.exports), done.held_back_by) == (3, "")
    assert (await proven(world)).sound


async def test_a_hold_that_comes_while_an_export_is_read_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "archive")
    await run(world, 0, "a1", key="person:17/1", input=SEALED)
    await run(world, 10, "b1")
    read = Forgetter._read

    async def held(self: Forgetter, *of: Any) -> Any:
        found = await read(self, *of)
        await act(world, HoldOwner())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Forgetter, "_read", held)
        assert "somebody held the data of an owner" in (await forget(world, 400)).held_back_by
    assert "the data of person:17 is held" in (await forget(world, 400)).held_back_by
    assert (await facts(world), kept(world)) == ([], [True, True])


async def test_a_hold_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "archive")
    await run(world, 0, "a1", key="person:17/1", input=SEALED)
    await act(world, HoldOwner(until=OLD + 5 * DAY))
    await run(world, 10, "b1")
    assert len((await forget(world, 400)).exports) == 1


async def test_an_export_whose_redaction_was_cut_off_stays(world: World) -> None:
    class CutOffError(Exception):
        pass

    def cut(step: str, done: int, _total: int) -> None:
        if (step, done) == ("place", 0):
            raise CutOffError

    def silent(_step: str, _done: int, _total: int) -> None: ...

    def redactor(on_progress: OnRedactProgress) -> Redactor:
        return Redactor(world.log, world.folder, world.stamp, on_progress)

    choice = JobChoice(named=frozenset({("email", "a1")}))
    with pytest.raises(CutOffError):
        await redactor(cut).run(choice, reason="4711")
    assert "a redaction of it was cut off" in (await forget(world, 400)).held_back_by
    await redactor(silent).run(choice, reason="4711")
    assert len((await forget(world, 400)).exports) == 2
    report = await proven(world)
    assert report.sound, report.text()


async def test_redacted_exports_are_forgotten_by_the_name_that_the_next_one_knows(world: World) -> None:
    choice = JobChoice(named=frozenset({("email", "a1"), ("email", "b1")}))
    await Redactor(world.log, world.folder, world.stamp).run(choice, reason="4711")
    assert len((await forget(world, 5)).exports) == 1
    report = await proven(world)
    assert report.sound, report.text()
    choice = JobChoice(named=frozenset({("email", "b2")}))
    await Redactor(world.log, world.folder, world.stamp).run(choice, reason="4712")
    assert (await proven(world)).sound
    with pytest.raises(NotFoundError, match=r"a2.*events 1 to \d+, forgotten on .* by alice"):
        await Redactor(world.log, world.folder, world.stamp).plan(
            JobChoice(named=frozenset({("email", "a2")}))
        )


async def test_events_of_a_job_that_began_in_a_forgotten_export_are_redacted(tmp_path: Path) -> None:
    world = World(tmp_path / "archive")
    await world.enqueue("spans", CLAIM, tenant="jane")
    world.clock.at = OLD + 10 * DAY
    await world.do("spans", Complete(epoch=0, result=msgspec.Raw(b'"Jane-Doe"')))
    world.clock.at = OLD + 11 * DAY
    await world.archive(OLD + DAY)  # carries the job behind the event with its result
    await run(world, 20, "b1")
    await run(world, 30, "c1")
    assert len((await forget(world, 5)).exports) == 1
    choice = JobChoice(where={"tenant": "jane"})
    done = await Redactor(world.log, world.folder, world.stamp).run(choice, reason="4711")
    assert (done.jobs, done.living) == (1, 0)
    files = [each for each in world.folder.rglob("*") if each.is_file()]
    assert not [each for each in files if b"Jane-Doe" in each.read_bytes()]
    assert (await proven(world)).sound


@pytest.mark.parametrize("write", [1, -1, 2, -2])
async def test_killed_at_each_write_and_run_again_there_is_one_fact_an_export(
    world: World, write: int
) -> None:
    world.log.crash(write)
    with pytest.raises(CrashError):
        await forget(world, 400)
    world.log.crash(0)
    report = await proven(world)
    assert report.sound, report.text()
    await forget(world, 400)
    assert len(await facts(world)) == 2
    assert kept(world) == [False, False, True]
    assert (await proven(world)).sound


@pytest.mark.parametrize("removals", [0, 1])
async def test_killed_while_files_are_removed_the_next_run_ends_it(
    world: World, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    """Nothing, or one file of several, was removed after the record."""
    export = exports(world)[0]
    (export / "payloads").mkdir()
    (export / "payloads" / "x").write_text("x")

    def die(path: Path) -> None:
        if removals:
            (path / "payloads" / "x").unlink()
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(module, "strip_export", die)
        with pytest.raises(CrashError):
            await forget(world, 5)
    assert kept(world) == [True, True, True]
    report = await proven(world)
    assert report.sound, report.text()
    assert f"forgotten, and files of it are there all the same: {export.name}" in report.text()
    await run(world, 30, "d1")
    assert await forget(world, 5) == ForgottenExports()
    assert kept(world) == [False, True, True, True]
    assert len(await facts(world)) == 1


async def test_of_two_keepers_one_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one began when nothing was forgotten yet; it works on a copy, so the folder's lock keeps nobody out."""
    copy = world.folder.with_name("copy")
    shutil.copytree(world.folder, copy)
    other = Forgetter(world.log, copy, world.stamp)
    read = Forgetter._read

    async def raced(self: Forgetter, *of: Any) -> Any:
        found = await read(self, *of)
        if self is other:
            monkeypatch.setattr(Forgetter, "_read", read)
            await forget(world, 5)
        return found

    monkeypatch.setattr(Forgetter, "_read", raced)
    with pytest.raises(
        ArchiveRefusedError, match="another run recorded something about the archive meanwhile"
    ):
        await other.run(OLD + 5 * DAY)
    assert len(await facts(world)) == 1
    assert (await proven(world)).sound
    assert await other.run(OLD + 5 * DAY) == ForgottenExports()
    assert len(list((copy / exports(world)[0].name).iterdir())) == 1, "the copy has lost its files as well"
    with locked(world.folder), pytest.raises(ArchiveRefusedError, match="another run is at work"):
        await forget(world, 400)


async def test_an_archive_run_that_meets_a_forgetting_says_so(world: World) -> None:
    """On another machine, whose lock keeps nobody out here."""
    world.clock.at = OLD + 40 * DAY
    await world.enqueue("d1", *DONE)
    copy = world.folder.with_name("copy")
    shutil.copytree(world.folder, copy)
    world.clock.at = OLD + 41 * DAY
    carry = world.log.append
    met: list[int] = []

    async def append_after(entries: Any) -> int:
        if entries[0].subject.endswith(".archived") and not met:
            met.append(1)
            await forget(world, 5)
        return await carry(entries)

    world.log.append = append_after  # type: ignore[method-assign]
    with pytest.raises(ArchiveRefusedError, match="an export was redacted or forgotten meanwhile"):
        await world.archiver(copy).run(OLD + 40.5 * DAY)
    await world.archiver(copy).run(OLD + 40.5 * DAY)
    shutil.copytree(copy, world.folder, dirs_exist_ok=True)
    assert (await proven(world)).sound


async def test_an_export_that_is_missing_without_the_fact_is_found(world: World) -> None:
    shutil.rmtree(exports(world)[0])
    with pytest.raises(ArchiveIncompleteError, match="lacks the export of stream sequence 1 to"):
        await proven(world)
    with pytest.raises(ArchiveIncompleteError):
        await forget(world, 400)


async def test_beyond_what_is_forgotten_a_missing_export_is_found(world: World) -> None:
    await forget(world, 5)
    shutil.rmtree(exports(world)[1])
    with pytest.raises(ArchiveIncompleteError, match="lacks the export of stream sequence"):
        await proven(world)


async def test_nobody_needs_the_manifest_of_a_forgotten_export(world: World) -> None:
    await forget(world, 5)
    shutil.rmtree(exports(world)[0])
    report = await proven(world)
    assert report.sound, report.text()
    await run(world, 30, "d1")
    assert (await proven(world)).sound


async def test_a_forgotten_export_that_somebody_puts_back_changes_nothing(world: World) -> None:
    """Nobody reads it, the verdict names it, and the next run removes it."""
    copy = world.folder.with_name("copy")
    shutil.copytree(world.folder, copy)
    await forget(world, 5)
    shutil.copytree(copy, world.folder, dirs_exist_ok=True)
    report = await proven(world)
    assert report.sound, report.text()
    assert f"files of it are there all the same: {exports(world)[0].name}" in report.text()
    assert "not proven: events 1 to" in report.text()
    await forget(world, 5)
    assert kept(world) == [False, True, True]


async def test_an_export_that_somebody_made_by_hand_stays_where_it_is(world: World) -> None:
    """It is no part of the archive, though it lies in its folder; a copy of what an archive run made is."""
    names = exports(world)
    shutil.copytree(names[0], world.folder / "by-hand")
    shutil.copytree(names[0], world.folder / f"{names[0].name}.bak")
    await forget(world, 5)
    assert [len(list(each.iterdir())) for each in exports(world)] == [1, 1, 2, 2, 2]
    report = await proven(world)
    assert report.sound, report.text()
    assert "files of it are there all the same: by-hand" in report.text()


async def test_a_damaged_export_is_not_forgotten(world: World) -> None:
    """Else whoever altered it had only to wait."""
    file = next(each for each in exports(world)[0].iterdir() if each.name != MANIFEST)
    file.write_bytes(file.read_bytes().replace(b"alice", b"malic"))
    with pytest.raises(ExportDamagedError):
        await forget(world, 400)
    assert not (await proven(world)).sound


async def test_a_manifest_that_calls_itself_redacted_does_not_hide_other_events(world: World) -> None:
    """It says itself by which sha256 it was named before, so the events decide."""
    export = exports(world)[0]
    manifest = read_manifest(export)
    named = ExportRedaction(manifest_sha256=manifest_sha256(export), events=1, lines_sha256="0" * 64)
    forged = msgspec.structs.replace(manifest, format=FORMAT_REDACTED, redacted=named, digest="0" * 64)
    (export / MANIFEST).write_bytes(manifest_bytes(sealed(forged)))
    with pytest.raises(ExportDamagedError, match="its count, digest or head hash is not that of the events"):
        await forget(world, 400)
    assert await facts(world) == []


async def test_an_export_stays_as_long_as_any_of_its_events_is_young(tmp_path: Path) -> None:
    """The server's clock was set back, so the last event is not the youngest."""
    world = World(tmp_path / "archive")
    world.clock.at = OLD + 3 * DAY
    await world.enqueue("young", *DONE)
    world.clock.at = OLD
    await world.enqueue("old", *DONE)
    world.clock.at = OLD + 4 * DAY
    await world.archive(world.clock.at)
    await run(world, 10, "b1")
    assert read_manifest(exports(world)[0]).count == 6
    assert await forget(world, 2) == ForgottenExports()
    assert len((await forget(world, 3.5)).exports) == 1


async def test_where_the_ledger_went_back_before_the_fact_what_is_gone_is_found_then_forgotten_again(
    world: World,
) -> None:
    """As after the restore of a back-up: the files are gone, and the ledger does not know why. The manifests are there."""
    for each in exports(world)[0].iterdir():
        if each.name != MANIFEST:
            each.unlink()
    assert not (await proven(world)).sound
    await run(world, 30, "d1")  # archive runs go on
    await world.enqueue("lives")
    await act(world, HoldOwner())
    assert "has lost its files, and nobody can tell" in (await forget(world, 400)).held_back_by
    await act(world, UnholdOwner())
    assert len((await forget(world, 0.9)).exports) == 0, "it was made later"
    assert len((await forget(world, 1.1)).exports) == 1
    report = await proven(world)
    assert report.sound, report.text()
    (fact,) = await facts(world)
    assert fact.stored_until is None
    assert f"the files of these were gone already: 1 to {fact.last_sequence}" in report.text()


@pytest.mark.parametrize(
    "field", ["digest", "head_hash", "manifest_sha256", "last_sequence", "first_sequence"]
)
async def test_a_fact_that_names_another_export_is_found(
    world: World, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Forgetter._fact

    def forged(self: Forgetter, *of: Any) -> Forgotten:
        fact = made(self, *of)
        changes: dict[str, Any] = {field: "0" * 64}
        if field == "last_sequence":
            changes = {"last_sequence": fact.last_sequence - 1, "events": fact.events - 1}
        elif field == "first_sequence":
            changes = {"first_sequence": 2}
        return msgspec.structs.replace(fact, **changes)

    monkeypatch.setattr(Forgetter, "_fact", forged)
    await forget(world, 5)
    with contextlib.suppress(ArchiveIncompleteError):
        assert not (await proven(world)).sound
    if field == "manifest_sha256":
        with pytest.raises(ArchiveIncompleteError, match="names another export before it than the one up to"):
            await open_archive(world.log, world.folder)


async def test_a_fact_about_the_newest_export_is_found(world: World) -> None:
    await forget(world, 400)
    newest = read_manifest(exports(world)[2])
    fact = (await facts(world))[-1]
    await append(
        world,
        msgspec.structs.replace(
            fact,
            prev="",
            first_sequence=newest.first_sequence,
            last_sequence=newest.last_sequence,
            events=newest.count,
        ),
    )
    report = await verify(world.log)
    assert "the newest export goes up to" in report.text()


async def test_an_archive_run_that_invents_what_is_forgotten_is_found(world: World) -> None:
    newest = (await end_of_chain(world.log, REACTOR.of_type(world.log.names, "archived", ARCHIVE))).event
    assert newest is not None
    archived = REACTOR.decode(newest)
    assert isinstance(archived, Archived)
    first = read_manifest(exports(world)[0])
    invented = ForgottenPast(
        first_sequence=1,
        through_sequence=first.last_sequence,
        manifest_sha256=read_manifest(exports(world)[1]).previous.manifest_sha256,  # type: ignore[union-attr]
        at=LATE,
        by="mallory",
    )
    await append(world, msgspec.structs.replace(archived, prev="", forgotten=invented))
    report = await proven(world)
    assert "no `forgotten` event does" in report.text()


async def test_an_archive_run_that_leaves_out_what_is_forgotten_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await forget(world, 5)

    async def nothing(_log: Log) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr("jobledger.audit.archive.archiver.forgotten_past", nothing)
        await run(world, 30, "d1")
    last = read_manifest(exports(world)[0]).last_sequence
    report = await verify(await with_past(world.log, exports(world)[1:]))
    assert f"`archived` says that 0 is the last forgotten event, and before it {last} was" in report.text()


async def test_readers_say_what_is_forgotten(world: World) -> None:
    done = await forget(world, 5)
    last = read_manifest(exports(world)[0]).last_sequence
    assert done.events == last
    way = "`jobledger jobs show a1 --archive DIR`"
    log = await with_archive(world.log, [world.folder])
    gap = await missing(log, [world.folder])
    assert gap is not None
    assert gap.sentence(way).startswith(f"events 1 to {last}, forgotten on ")
    assert gap.sentence(way).endswith(" by alice, are gone for good")
    gap = await missing(world.log)
    assert gap is not None
    assert f"{way} reads those as well, but for events 1 to {last}, forgotten on" in gap.sentence(way)


async def test_a_ledger_of_an_earlier_form_forgets_nothing(world: World) -> None:
    def stamp() -> Stamp:
        return Stamp(at=world.clock.now(), by="alice", form=1)

    with pytest.raises(RefusedError, match="forgetting exports needs form 2"):
        await Forgetter(world.log, world.folder, stamp).run(LATE)


async def test_what_comes_after_cannot_be_brought_back_alone(world: World) -> None:
    await forget(world, 5)
    with pytest.raises(
        RefusedError, match="what comes before, or, if that was forgotten, a back-up of the server"
    ):
        await import_export(exports(world)[1], MemoryLog(clock=world.clock))
