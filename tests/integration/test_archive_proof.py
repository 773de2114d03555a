"""What the ledger says of its archive is held to the events: an archive that is another one, or not whole, is named."""

from __future__ import annotations

import itertools
import shutil
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.support.archiving import CLAIM, NEW, OLD, World, populate
from tests.support.forgery import Line, relinked, rewritten

from jobledger.audit.archive.chain import read_past, with_past
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.errors import ArchiveIncompleteError, NotAnExportError
from jobledger.audit.export import manifest_sha256, previous_of, read_manifest, write_export
from jobledger.audit.export.manifest import MANIFEST, manifest_bytes, sealed
from jobledger.audit.verify import CrossCheck, Report, verify
from jobledger.ledger.model.codec import decode
from jobledger.ledger.model.commands import Complete
from jobledger.ledger.model.events import Completed
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import Names

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A ledger with an archive of three exports."""
    world = World(tmp_path / "archive")
    await populate(world)
    for day in (1, 2, 3):
        await world.enqueue(f"more{day}", CLAIM, Complete(epoch=0))
        world.clock.at = NEW + timedelta(days=day)
        await world.archive(NEW + timedelta(days=day - 1, hours=12) if day > 1 else OLD + timedelta(days=1))
    assert len(exports(world)) == 3
    return world


def exports(world: World) -> list[Path]:
    return sorted(each for each in world.folder.iterdir() if not each.name.startswith("."))


async def proven(world: World, *places: Path) -> Report:
    past = await read_past(world.log, places or (world.folder,))
    is_archive = not places
    return await verify(past.log, witnesses=[ArchiveWitness(past, world.log, is_archive=is_archive)])


def told(report: Report) -> CrossCheck:
    (compared,) = [each for each in report.compared if each.what == "archive"]
    return compared


def forged(lines: list[Line]) -> list[Line]:
    """Another history of the same range, as sound as the one that was: whose job completed says another result."""
    at, line = next(
        (at, each)
        for at, each in enumerate(lines)
        if ".job.email." in each.subject and isinstance(decode(each.data), Completed)
    )
    changed = [*lines]
    changed[at] = line.with_event(result=msgspec.Raw(b'"another one"'))
    return relinked(changed, line.chain)


def chained_anew(world: World) -> None:
    """Make every manifest name the one before it as it is now, as who replaces a whole archive does."""
    places = exports(world)
    for before, place in itertools.pairwise(places):
        manifest = msgspec.structs.replace(read_manifest(place), previous=previous_of(before))
        (place / MANIFEST).write_bytes(manifest_bytes(sealed(manifest)))


async def test_an_archive_that_is_what_was_moved_agrees(world: World) -> None:
    report = await proven(world)
    assert report.sound, report.text()
    compared = told(report)
    last = read_manifest(exports(world)[-1]).last_sequence
    assert (compared.what, compared.sentence) == (
        "archive",
        f"3 of 3 exports, up to stream sequence {last}, agree with the ledger",
    )
    assert (await proven(world, *exports(world))).sound


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("whole_chain", [False, True])
async def test_another_sound_export_in_the_place_of_one_is_named_with_its_first_sequence(
    world: World, which: int, whole_chain: bool
) -> None:
    place = exports(world)[which]
    rewritten(place, forged, manifest=True)
    if whole_chain:
        chained_anew(world)
    first = read_manifest(place).first_sequence
    report = await proven(world)
    assert not report.sound
    found = [each for each in report.violations if each.rule == "archive"]
    assert (found[0].stream_sequence, report.violations[0]) == (first, found[0])
    assert any("is not what was moved there: its digest" in each.sentence for each in found)
    named = (
        exports(world)[-1] if whole_chain else place
    )  # whose manifest is not the one that the next, or the ledger, names
    begin = read_manifest(named).first_sequence
    assert any(f"{named} of stream sequence {begin} to" in each.sentence for each in found)
    assert told(report).agrees is False
    with pytest.raises(ArchiveIncompleteError, match="is not the export that"):
        await with_past(world.log, [world.folder])
    # Named one by one, in a chain of their own, the digest alone tells.
    chained_anew(world)
    alone = await proven(world, *exports(world))
    assert [each.stream_sequence for each in alone.violations if each.rule == "archive"] == [first]


async def test_a_manifest_written_anew_over_the_same_events_is_not_the_one_that_is_named(
    world: World,
) -> None:
    place = exports(world)[1]
    manifest = msgspec.structs.replace(read_manifest(place), jobledger="0.0.0")
    (place / MANIFEST).write_bytes(manifest_bytes(sealed(manifest)))
    report = await proven(world)
    (found,) = report.violations
    assert found.stream_sequence == manifest.first_sequence
    assert f"its manifest has the sha256 {manifest_sha256(place)}, and the named one" in found.sentence


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_an_export_that_is_missing_is_named_by_its_range(world: World, which: int) -> None:
    place = exports(world)[which]
    manifest = read_manifest(place)
    shutil.rmtree(place)
    range_of = f"of stream sequence {manifest.first_sequence} to {manifest.last_sequence}"
    for read in (read_past, with_past):
        with pytest.raises(ArchiveIncompleteError, match=f"lacks the export {range_of} whose manifest"):
            await read(world.log, [world.folder])


async def test_exports_out_of_order_or_with_one_left_out_are_refused(world: World) -> None:
    first, second, third = exports(world)
    for places in ([second, first, third], [first, third], [third, second, first]):
        with pytest.raises(NotAnExportError, match="does not continue"):
            await proven(world, *places)


async def test_exports_that_overlap_are_told_from_those_of_the_archive(world: World) -> None:
    """Left by a run that lost, or put there by somebody: the chain of manifests says which one counts."""
    joined = await with_past(world.log, [world.folder])
    through = read_manifest(exports(world)[1]).last_sequence
    await write_export(joined, world.folder / "wider", first=1, last=through)
    report = await proven(world)
    assert report.sound
    assert told(report).sentence.endswith("no part of the archive: wider")
    places = exports(world)
    shutil.rmtree(places[1])  # its range ends where the wider one does, which stands in its place
    broken = await proven(world)
    assert broken.violations[0].rule == "archive"
    assert "wider of stream sequence 1 to" in broken.violations[0].sentence


async def test_an_export_of_another_ledger_is_not_its_past(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    await populate(other)
    await other.do("queued", CLAIM)
    other.clock.at = NEW + timedelta(days=9)
    await other.archive(NEW + timedelta(days=8))
    (place,) = exports(other)
    report = await proven(world, place)
    assert not report.sound
    with pytest.raises(ArchiveIncompleteError, match="lacks the export"):
        await read_past(world.log, [other.folder])
    foreign = MemoryLog(names=Names("staging"))
    await write_export(foreign, world.folder / "foreign")
    with pytest.raises(NotAnExportError, match="is of environment 'staging'"):
        await read_past(world.log, [world.folder])


async def test_an_export_of_what_the_ledger_still_holds_is_held_to_it(tmp_path: Path) -> None:
    world = World(tmp_path / "archive")
    await populate(world)
    place = tmp_path / "export"
    await write_export(world.log, place)
    assert (await proven(world, place)).sound
    rewritten(place, lambda lines: [*lines[:-1], lines[-1].with_event(by="mallory")], manifest=True)
    report = await proven(world, place)
    assert [(each.rule, each.stream_sequence) for each in report.violations] == [("archive", 1)]
    assert "is not of this ledger, or one of both was altered" in report.violations[0].sentence
