"""Values that are taken out of an archive: what is left proves as much as before, and nothing else is touched."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.support.archiving import CLAIM, NEW, OLD, CrashError, World

from jobledger.audit.archive.chain import open_archive, read_past
from jobledger.audit.archive.folder_lock import locked
from jobledger.audit.archive.redacted_jobs import JobChoice
from jobledger.audit.archive.redactor import OnRedactProgress, Redaction, Redactor
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.errors import ArchiveRefusedError, NotAnExportError
from jobledger.audit.export import (
    ExportLog,
    import_export,
    manifest_sha256,
    read_manifest,
    verify_export,
    write_export,
)
from jobledger.audit.export.manifest import MANIFEST, ExportedFile, manifest_bytes, sealed
from jobledger.audit.verify import Report, verify
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Complete, Discard, Fail, Note, ReportProgress
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError, RefusedError
from jobledger.ledger.model.events import DeadLettered, ErrorInfo, Failed
from jobledger.ledger.model.log import Entry, end_of_chain
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Redacted
from jobledger.ledger.model.redaction import REDACTED, REDACTED_VALUE

pytestmark = pytest.mark.anyio

WORD: Final = "Jane-Doe"
JANE: Final = JobChoice(where={"tenant": "jane"})
WHY: Final = "request 4711"
ERROR: Final = ErrorInfo(
    kind="exception", type="ValueError", message=f"no {WORD}", traceback=f'File "a.py", line 3, in f\n{WORD}'
)
SAID: Final = msgspec.Raw(b'{"name":"%s"}' % WORD.encode())


async def jane(world: World, job_id: str, *, tenant: str = "jane") -> None:
    """Enqueue a job with the word in all that a job may hold, and let it end."""
    options = {"tenant": tenant, "metadata": {"name": WORD}, "input": SAID, "max_attempts": 3}
    await world.enqueue(job_id, CLAIM, ReportProgress(epoch=0, done=1.0, total=2.0, note=WORD), **options)
    await world.do(job_id, Note(text=WORD), Fail(epoch=0, error=ERROR, give_up="rejected"))
    await world.do(job_id, Discard(reason=f"for {WORD}"))


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A ledger with an archive of two exports; jobs of two tenants are in each, one is in both, and two live."""
    world = World(tmp_path / "archive")
    await jane(world, "jane1")
    await jane(world, "joe1", tenant="joe")
    await world.enqueue("spans", CLAIM, tenant="jane", input=SAID)
    await world.enqueue("lives", CLAIM, tenant="jane", input=SAID)
    world.clock.at = NEW
    await world.archive(OLD + timedelta(days=1))
    await world.do("spans", Note(text=WORD), Complete(epoch=0, result=SAID))
    await jane(world, "jane2")
    world.clock.at = NEW + timedelta(days=2)
    await world.archive(NEW + timedelta(days=1))
    await world.enqueue("new", tenant="jane", input=SAID)
    return world


def silent(_step: str, _done: int, _total: int) -> None: ...


def redactor(world: World, on_progress: OnRedactProgress = silent) -> Redactor:
    return Redactor(world.log, world.folder, world.stamp, on_progress)


async def redact(world: World, choice: JobChoice = JANE) -> Redaction:
    return await redactor(world).run(choice, reason=WHY)


async def proven(world: World, *, before: Report | None = None) -> Report:
    past = await read_past(world.log, [world.folder])
    return await verify(past.log, before=before, witnesses=[ArchiveWitness(past, world.log)])


def exports(world: World) -> list[Path]:
    return sorted(each for each in world.folder.iterdir() if not each.name.startswith("."))


def words(world: World) -> int:
    return sum(each.read_bytes().count(WORD.encode()) for each in world.folder.rglob("*") if each.is_file())


async def facts(world: World) -> list[Redacted]:
    found: list[Redacted] = []
    log = await open_archive(world.log, world.folder)
    async for batch in log.read_messages(subject=REACTOR.of_type(log.names, "redacted", ARCHIVE)):
        found += [event for each in batch if isinstance(event := REACTOR.decode(each), Redacted)]
    return found


async def history(world: World, job_id: str) -> list[StoredEvent]:
    log = await open_archive(world.log, world.folder)
    return list(await log.read_chain(log.names.chains_of_id(job_id)))


async def test_what_is_left_proves_as_much_as_before(world: World) -> None:
    before, count = await proven(world), words(world)
    ends = {each: fold(await history(world, each)).job for each in ("jane1", "jane2", "spans")}
    plan = await redactor(world).plan(JANE)
    assert (words(world), await facts(world)) == (count, [])
    done = await redact(world)
    assert done == plan
    assert (done.jobs, done.living, len(done.exports), done.finished) == (3, 2, 2, ())
    report = await proven(world, before=before)
    assert report.sound, report.text()
    assert [each.agrees for each in report.compared if each.what == "earlier report"] == [True]
    assert report.redacted == done.events == sum(fact.events for fact in await facts(world))
    assert f"not proven: what {done.events} redacted events said" in report.text()
    for job_id, was in ends.items():
        job = fold(await history(world, job_id)).job
        assert job is not None
        assert was is not None
        assert (job.state, job.attempts_count, job.created_at, job.finished_at, job.task) == (
            was.state,
            was.attempts_count,
            was.created_at,
            was.finished_at,
            was.task,
        )
        assert job.order.input == REDACTED_VALUE
    assert (await redactor(world).plan(JANE)).events == 0
    again = await redact(world)
    assert (again.events, again.exports, len(await facts(world))) == (0, (), 2)


async def test_only_the_values_of_the_jobs_that_are_meant_go(world: World) -> None:
    others = {each: await history(world, each) for each in ("joe1", "lives", "new")}
    await redact(world)
    assert {each: await history(world, each) for each in others} == others
    for job_id in ("jane1", "jane2", "spans"):
        assert WORD.encode() not in b"".join(each.data for each in await history(world, job_id))
    failed = next(
        each.event for each in await history(world, "jane1") if isinstance(each.event, Failed | DeadLettered)
    )
    assert failed.error == ErrorInfo(kind="exception", type="ValueError", message=REDACTED)
    for each in exports(world):
        report = await verify_export(each)
        assert report.sound, report.text()


async def test_jobs_are_meant_by_their_names_too(world: World) -> None:
    with pytest.raises(
        NotFoundError, match=r"neither the archive nor the ledger has email/jane9, joe9: nothing"
    ):
        await redact(world, JobChoice(named=frozenset({("email", "jane9"), ("", "joe9"), ("", "jane1")})))
    with pytest.raises(NotFoundError, match="work/jane1"):
        await redact(world, JobChoice(named=frozenset({("work", "jane1")})))
    done = await redact(world, JobChoice(named=frozenset({("email", "jane1"), ("", "lives")})))
    assert (done.jobs, done.living, len(done.exports), len(await facts(world))) == (1, 1, 1, 1)
    more = await redact(world)  # of the same exports, once more
    assert (more.jobs, len(more.exports), len(await facts(world))) == (3, 2, 3)
    first, second = [fact for fact in await facts(world) if fact.first_sequence == 1]
    assert (second.before_sha256, second.events > first.events) == (first.manifest_sha256, True)
    assert (await proven(world)).sound


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ({}, "choose jobs by their names or by words"),
        ({"where": {"tenant": "jane"}, "named": frozenset({("", "a")})}, "one of both"),
        ({"where": {"colour": "red"}}, "'colour' is no word to choose by: give one of queue, task, tenant"),
    ],
)
def test_a_choice_says_what_is_meant(choice: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        JobChoice(**choice)


async def test_a_later_job_of_the_same_id_is_a_job_of_its_own(world: World) -> None:
    await jane(world, "jane1", tenant="joe")
    world.clock.at = NEW + timedelta(days=4)
    await world.archive(NEW + timedelta(days=3))
    before = (await history(world, "jane1"))[-1]
    await redact(world)
    found = await history(world, "jane1")
    assert found[-1] == before
    assert [each.redacted != "" for each in found if each.event.prev == ""] == [True, False]
    assert (await proven(world)).sound


class Moment(msgspec.Struct):
    """What lies on the disk and in the ledger at one step of a run."""

    step: str
    folder: Path
    last_sequence: int


class Camera:
    """Keeps every moment of a run, as a process that is killed there leaves it."""

    def __init__(self, world: World, place: Path) -> None:
        self.world = world
        self.place = place
        self.moments: list[Moment] = []

    def __call__(self, step: str, done: int, total: int) -> None:
        folder = self.place / f"{len(self.moments)}"
        shutil.copytree(self.world.folder, folder)
        last = self.world.log._ends().last_sequence
        self.moments.append(Moment(f"{step} {done} of {total}", folder, last))


def files(folder: Path) -> dict[Path, bytes]:
    return {
        each.relative_to(folder): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()
    }


async def back_at(world: World, moment: Moment, whole: MemoryLog) -> None:
    shutil.rmtree(world.folder)
    shutil.copytree(moment.folder, world.folder)
    world.log.copy_from(whole, through=moment.last_sequence)


async def test_a_run_that_dies_at_any_step_is_finished_by_the_next(world: World, tmp_path: Path) -> None:
    camera = Camera(world, tmp_path / "moments")
    await redactor(world, camera).run(JANE, reason=WHY)
    after, whole = files(world.folder), MemoryLog(clock=world.clock)
    whole.copy_from(world.log)
    recorded, names = await facts(world), [each.name for each in exports(world)]
    assert len(camera.moments) > 12
    finished: set[str] = set()
    for moment in camera.moments:
        await back_at(world, moment, whole)
        half = sum(each.last_sequence > moment.last_sequence for each in camera.moments) and await proven(
            world
        )
        if half and not half.sound:
            assert "run `jobledger audit redact` again" in half.text() or "altered" in half.text(), moment
        done = await redact(world)
        finished.update(done.finished)
        assert files(world.folder) == after, moment
        again = await facts(world)
        assert [each.manifest_sha256 for each in again] == [each.manifest_sha256 for each in recorded], moment
        report = await proven(world)
        assert report.sound, (moment, report.text())
    assert finished == set(names), "each of them was recorded and not in place at some moment"


async def test_a_run_for_other_jobs_finishes_what_was_recorded(world: World, tmp_path: Path) -> None:
    camera = Camera(world, tmp_path / "moments")
    await redactor(world, camera).run(JANE, reason=WHY)
    moment = next(each for each in camera.moments if each.step == "record 1 of 1")
    await back_at(world, moment, world.log)
    report = await proven(world)
    assert "it has values that were redacted: `redacted` of" in report.text()
    with pytest.raises(
        ArchiveRefusedError, match="are not in place yet: run this without a plan, which ends that"
    ):
        await redactor(world).plan(JANE)
    done = await redact(world, JobChoice(where={"tenant": "joe"}))
    assert (len(done.finished), len(done.exports), len(await facts(world))) == (1, 1, 2)
    assert (await proven(world)).sound


async def test_a_draft_that_nobody_recorded_is_removed(world: World, tmp_path: Path) -> None:
    camera = Camera(world, tmp_path / "moments")
    await redactor(world, camera).run(JANE, reason=WHY)
    await back_at(world, next(each for each in camera.moments if each.step == "record 0 of 1"), world.log)
    assert list(world.folder.glob("*/.redaction"))
    await redact(world, JobChoice(where={"tenant": "nobody"}))
    assert not list(world.folder.glob("*/.*"))
    assert (await facts(world), (await proven(world)).sound) == ([], True)


async def test_of_two_runs_at_once_one_is_refused(world: World) -> None:
    refused: list[str] = []

    class Meeting:
        """Begins another run in the middle of this one."""

        def __call__(self, step: str, _done: int, _total: int) -> None:
            if step == "write" and not refused:
                with pytest.raises(ArchiveRefusedError) as caught, locked(world.folder):
                    raise AssertionError("the folder is locked")
                refused.append(str(caught.value))

    await redactor(world, Meeting()).run(JANE, reason=WHY)
    assert refused == [f"another run is at work in {world.folder}: run this again when it has ended"]
    with (
        locked(world.folder),
        pytest.raises(ArchiveRefusedError, match="another archive run is at work"),
    ):
        await world.archive(NEW)
    assert len(await facts(world)) == 2


async def test_a_run_that_another_machine_overtook_records_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the lock does not reach: the condition of the append alone decides."""
    before, other = files(world.folder), World(world.folder.with_name("other"))
    shutil.copytree(world.folder, other.folder)
    other.log, append = world.log, world.log.append

    async def late(entries: Sequence[Entry]) -> int:
        monkeypatch.setattr(world.log, "append", append)
        await redact(other)
        return await append(entries)

    monkeypatch.setattr(world.log, "append", late)
    with pytest.raises(ArchiveRefusedError, match="another archive run or redaction was recorded meanwhile"):
        await redact(world)
    assert files(world.folder) == before
    assert not (await proven(world)).sound, "this copy of the archive still has the values"
    done = await redact(world)
    assert (len(done.exports), len(await facts(world))) == (2, 2), "the same is not recorded twice"
    assert (await proven(world)).sound


def forged(place: Path, before: bytes, after: bytes) -> None:
    """Change the files of an export, and its manifest so that it fits them."""
    manifest, entries = read_manifest(place), list[ExportedFile]()
    for entry in manifest.files:
        text = (place / entry.name).read_bytes()
        assert before in text
        text = text.replace(before, after, 1)
        (place / entry.name).write_bytes(text)
        digest = hashlib.sha256(text).hexdigest()
        entries.append(msgspec.structs.replace(entry, sha256=digest, bytes=len(text)))
    manifest = msgspec.structs.replace(manifest, files=tuple(entries))
    (place / MANIFEST).write_bytes(manifest_bytes(sealed(manifest)))


async def test_a_redacted_line_that_was_altered_by_hand_is_found(world: World) -> None:
    await redact(world)
    place = exports(world)[0]
    forged(place, b'"type":"noted"', b'"type":"noted" ')
    report = await proven(world)
    found = [each.sentence for each in report.violations if each.rule == "archive"]
    assert len(found) == 1
    assert "it is not as it was redacted: `redacted` of" in found[0]
    with pytest.raises(ArchiveRefusedError, match=r"is not as alice redacted it \(request 4711\)"):
        await redact(world)
    offline = await verify_export(place)
    assert [each.sentence for each in offline.violations] == [
        "its redacted lines are not those that manifest.json says"
    ]


async def test_a_line_that_was_redacted_without_the_fact_is_found(world: World) -> None:
    """As by who has the archive, and not the right to append to the ledger."""
    place, log = exports(world)[0], MemoryLog(clock=world.clock)
    log.copy_from(world.log)
    await redact(world)
    world.log.copy_from(log)
    report = await proven(world)
    found = [each for each in report.violations if each.rule == "archive"]
    assert [each.stream_sequence for each in found] == [
        read_manifest(each).first_sequence for each in exports(world)
    ]
    assert f"{place}: 7 lines in it were redacted, and no `redacted` event says so" in found[0].sentence
    with pytest.raises(ArchiveRefusedError, match="has redacted lines that no event of the ledger records"):
        await redact(world)


async def test_lines_beyond_those_that_were_recorded_are_found(world: World) -> None:
    """Somebody who may append too, and tells another number."""
    await redact(world)
    (place, _), last = exports(world), (await facts(world))[-1]
    stamp, view = (
        world.stamp(),
        REACTOR.view(*await end_of_chain(world.log, REACTOR.chain(world.log.names, ARCHIVE))),
    )
    event = Redacted(
        reactor=ARCHIVE,
        at=stamp.at,
        by="mallory",
        first_sequence=1,
        manifest_sha256=manifest_sha256(place),
        before_sha256=last.manifest_sha256,
        events=1,
        lines_sha256=last.lines_sha256,
        reason="",
    )
    await world.log.append(REACTOR.link(world.log.names, [event], view))
    assert "its 7 redacted lines are not the 1 that `redacted` of" in (await proven(world)).text()


async def test_a_copy_from_before_is_found_and_redacted_again_as_it_was(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.folder, tmp_path / "copy")
    await redact(world)
    after = files(world.folder)
    shutil.rmtree(world.folder)
    shutil.copytree(tmp_path / "copy", world.folder)
    assert "it has values that were redacted" in (await proven(world)).text()
    with pytest.raises(ArchiveRefusedError, match="run this for the same jobs as then first"):
        await redact(world, JobChoice(named=frozenset({("", "joe1")})))
    assert len((await redact(world)).exports) == 2
    assert (files(world.folder), len(await facts(world))) == (after, 2)


async def test_the_facts_are_found_where_they_were_archived_themselves(world: World) -> None:
    await redact(world)
    await world.do("lives", Complete(epoch=0, result=SAID))
    world.clock.at = NEW + timedelta(days=9)
    await world.archive(NEW + timedelta(days=8))
    report = await proven(world)
    assert report.sound, report.text()
    past = await read_past(world.log, [world.folder])
    to = read_manifest(exports(world)[1]).last_sequence
    half = await verify(past.log, to_sequence=to, witnesses=[ArchiveWitness(past, world.log)])
    assert "redacted" not in str(half.violations), "the facts behind the end of a check count"
    assert half.redacted == report.redacted
    done = await redact(world)
    assert (done.jobs, done.living, len(done.exports)) == (4, 1, 3), (
        "a job of which the rest was archived now"
    )
    assert (await proven(world)).sound


async def test_what_was_redacted_cannot_be_brought_back(world: World) -> None:
    await redact(world)
    with pytest.raises(NotAnExportError, match=r"the values of 7 events in .* were redacted, so they cannot"):
        await import_export(exports(world)[0], MemoryLog())
    manifest = read_manifest(exports(world)[1])
    silent_one = msgspec.structs.replace(manifest, format=2, redacted=msgspec.UNSET, previous=None)
    (exports(world)[1] / MANIFEST).write_bytes(manifest_bytes(sealed(silent_one)))
    held = MemoryLog(clock=world.clock)
    held.copy_from(world.log, through=manifest.first_sequence - 1)
    with pytest.raises(NotAnExportError, match=r"the values of the event at \d+ were redacted"):
        await import_export(exports(world)[1], held)
    with pytest.raises(InvalidInputError, match="were redacted: it cannot be exported again"):
        await write_export(ExportLog(exports(world)[0]), world.folder.with_name("again"))


async def test_what_cannot_be_redacted_is_refused_with_the_reason(world: World, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="give a reason"):
        await redactor(world).run(JANE, reason=" ")
    with pytest.raises(NotFoundError, match="there is no archive folder"):
        await Redactor(world.log, tmp_path / "no", world.stamp).run(JANE, reason=WHY)
    with pytest.raises(ArchiveRefusedError, match="nothing was ever archived"):
        await Redactor(MemoryLog(), world.folder, world.stamp).run(JANE, reason=WHY)
    early = Redactor(world.log, world.folder, lambda: msgspec.structs.replace(world.stamp(), form=1))
    with pytest.raises(RefusedError, match="redacting an archive needs form 2 of the ledger"):
        await early.run(JANE, reason=WHY)
    assert await facts(world) == []


async def test_nothing_is_redacted_before_the_archive_run_has_ended(world: World) -> None:
    world.clock.at = NEW + timedelta(days=9)
    with pytest.raises(CrashError):
        await world.archiver(on_progress=die_after_record()).run(NEW + timedelta(days=8))
    with pytest.raises(ArchiveRefusedError, match="the ledger still has events up to stream sequence"):
        await redact(world)
    await world.archive(NEW + timedelta(days=8))
    await redact(world)
    assert (await proven(world)).sound


def die_after_record() -> Callable[[str, int, int], None]:
    steps: list[str] = []

    def progress(step: str, _done: int, _total: int) -> None:
        steps.append(step)
        if steps[-2:] == ["record", "purge"]:
            raise CrashError

    return progress
