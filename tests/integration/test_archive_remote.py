"""An archive in a bucket: what is moved was read back from there, and every reader finds it, on any machine."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.conftest import ServerFactory
from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S
from tests.support.s3 import S3, s3_service
from tests.support.working import Connect, ended, working

from jobledger.admin.archive_place import _mark_of, require_place
from jobledger.admin.keeper import Keeper, clear_once, move, retention_of
from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.admin.verbs.retention import SetRetention
from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.archive.chain import read_past
from jobledger.audit.archive.mirror import MARK, drop_files, local_folder
from jobledger.audit.archive.plan import unread
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.errors import ArchiveAbsentError, ArchiveRefusedError
from jobledger.audit.export import write_export
from jobledger.audit.export.manifest import FileFormat
from jobledger.audit.export.payloads import check_payloads
from jobledger.audit.export.remote import DRAFTS, Remote
from jobledger.audit.verify import Report, verify
from jobledger.cli.main import run
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.model.archive_record import newest_archived
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError, RefusedError
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import counting

pytestmark = pytest.mark.anyio
SMALL = 256 << 10
ENOUGH = 50  #: jobs that are worth a move


@task(queue="work")
async def work(text: str) -> int:
    return len(text)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "machine"))
    with s3_service() as service:
        yield service


class Rig:
    """A ledger whose archive is in a bucket, and one machine that moves events into it."""

    def __init__(self, ledger: Ledger, s3: S3, folder: Path) -> None:
        self.ledger = ledger
        self.s3 = s3
        self.uri = s3.uri("ledger")
        self.projection = folder / "jobs.db"

    async def run_jobs(self, count: int, *, size: int = 20) -> None:
        async with working(self.ledger, work):
            for job in [await self.ledger.enqueue(work, text="x" * size) for _ in range(count)]:
                await ended(job)
            last = (await self.ledger.log.head()).last_sequence
            with anyio.fail_after(30):
                while await unread(self.ledger.log, self.ledger.inbox, last):
                    await anyio.sleep(0.02)

    async def set(self, **terms: Any) -> None:
        given: dict[str, Any] = {"keep_s": 0.0, "start": 0.1, "aim": 0.0, "to": self.uri, **terms}
        await self.ledger.do(SetRetention(**given))

    async def move(self) -> MoveOutcome:
        return await move(self.ledger, self.projection, await retention_of(self.ledger))

    async def run(self) -> None:
        """Archive by hand, as much as goes."""
        folder = await anyio.to_thread.run_sync(local_folder, self.uri)
        deps = archive_deps(self.ledger, by="ann", on_progress=lambda _step, _done, _total: None)
        await Archiver(self.ledger.log, folder, deps).run(self.ledger.clock.now())

    async def first(self) -> int:
        return (await self.ledger.log.head()).first_sequence

    async def check(self, jobs: int) -> None:
        """The archive and the ledger together are sound, and none of the jobs is missing."""
        folder = await anyio.to_thread.run_sync(local_folder, self.uri)
        report = await verify(await open_archive(self.ledger.log, folder))
        assert report.sound, report.violations
        assert dict(report.states) == {"completed": jobs}

    def names(self, word: str = "") -> list[str]:
        """Return the names of the files in the bucket that hold a word."""
        return sorted(each for each in self.s3.objects if word in each and not each.endswith("/"))


@pytest.fixture
async def rig(connected: Connect, s3: S3, tmp_path: Path) -> Any:
    async with connected(ledger_bytes_max=SMALL) as ledger:
        yield Rig(ledger, s3, tmp_path)


def _local_files(folder: Path) -> list[str]:
    return sorted(
        each.name for each in folder.rglob("*") if each.is_file() and not each.name.startswith(".jobledger")
    )


async def test_a_keeper_moves_events_into_a_bucket_and_keeps_manifests_alone(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.set()
    for jobs in (ENOUGH, 2 * ENOUGH):
        await rig.run_jobs(ENOUGH)
        moved = await rig.move()
        assert (bool(moved.events), moved.trouble) == (True, "")
        assert await rig.first() > 1
        folder = local_folder(rig.uri)
        assert set(_local_files(folder / moved.exports[-1])) == {"manifest.json"}
        await rig.check(jobs)
        assert len(_local_files(folder / moved.exports[-1])) == 2, "fetched to be checked"
    newest = await newest_archived(rig.ledger.log)
    assert newest is not None
    assert newest.folder == rig.uri
    assert MARK in "".join(rig.names("ledger/.jobledger"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another-machine"))
    await rig.check(2 * ENOUGH)
    await rig.run_jobs(ENOUGH)
    assert (await rig.move()).events
    await rig.check(3 * ENOUGH)


async def test_sending_is_cut_off_anywhere_and_goes_on_later(rig: Rig) -> None:
    """Whichever write is the last that the bucket takes, nothing is moved before all of the export is there."""
    await rig.set()
    await rig.run_jobs(ENOUGH)
    assert (await rig.move()).events
    await rig.run_jobs(ENOUGH)
    await rig.run_jobs(2, size=70_000)  # large values
    allowed, cut_off = 0, 0
    while True:
        before, left = await rig.first(), [allowed]

        def refuses(method: str, _key: str, left: list[int] = left) -> bool:
            if method in {"PUT", "POST"}:
                left[0] -= 1
            return left[0] < 0

        rig.s3.refuses = refuses
        moved = await rig.move()
        rig.s3.refuses = lambda _method, _key: False
        if moved.events:
            break
        assert "AccessDenied" in moved.trouble or "ACCESS_DENIED" in moved.trouble
        assert moved.unwritten
        assert await rig.first() == before
        cut_off += 1
        allowed += 1
    assert cut_off > 5, "a write of each kind was refused"
    await rig.check(2 * ENOUGH + 2)


async def test_bytes_that_come_back_changed_keep_events_in_the_ledger(rig: Rig) -> None:
    await rig.set()
    await rig.run_jobs(ENOUGH)
    rig.s3.spoils = lambda key: "events-" in key
    moved = await rig.move()
    assert "came back with other bytes" in moved.trouble
    assert await rig.first() == 1
    assert rig.names("manifest") == []
    rig.s3.spoils = lambda _key: False
    assert (await rig.move()).events
    await rig.check(ENOUGH)


async def test_files_that_are_altered_or_gone_are_found_and_a_bucket_that_is_away_is_no_verdict(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.set()
    await rig.run_jobs(ENOUGH)
    assert (await rig.move()).events
    (name,) = rig.names("events-")
    whole = rig.s3.objects[name]

    async def violations() -> list[str]:
        folder = local_folder(rig.uri)
        past = await read_past(rig.ledger.log, [folder])
        try:
            return [each.sentence for each in (await verify(past.log)).violations]
        finally:
            for each in folder.rglob("events-*"):
                each.unlink()

    assert await violations() == []
    rig.s3.objects[name] = whole[:-9] + b"#" + whole[-8:]
    assert "it was altered" in (await violations())[0]
    del rig.s3.objects[name]
    assert "it is missing" in (await violations())[0]
    rig.s3.objects[name] = whole
    rig.s3.refuses = lambda _method, key: "events-" in key
    with pytest.raises(ArchiveAbsentError, match="look at its address"):
        await violations()
    rig.s3.refuses = lambda _method, _key: False
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another-machine"))
    rig.s3.refuses = lambda _method, _key: True
    with pytest.raises(ArchiveAbsentError, match="ACCESS_DENIED"):
        local_folder(rig.uri)


async def test_what_is_still_here_of_an_export_does_not_hide_what_became_of_the_bucket(rig: Rig) -> None:
    await rig.run_jobs(2, size=70_000)
    await rig.run()
    await rig.check(2)  # fetches the events

    async def problems() -> str:
        past = await read_past(rig.ledger.log, [local_folder(rig.uri)])
        if not past.problems:
            check_payloads(past.exports[0].folder, past.exports[0].manifest)  # fetches the values
        return "; ".join(each.sentence for each in past.problems)

    assert [await problems(), await problems()] == ["", ""]
    for word in ("events-", "payloads.jsonl", "payloads/", "manifest"):
        name = rig.names(word)[-1]
        whole = rig.s3.objects.pop(name)
        assert f"{name} is missing there, or was altered" in await problems()
        rig.s3.objects[name] = whole[:-1] + b"#"
        assert f"{name} is missing there, or was altered" in await problems()
        rig.s3.objects[name] = whole
    (here,) = local_folder(rig.uri).rglob("events-*")
    here.write_bytes(b"spoilt by this disk")
    assert await problems() == ""
    await rig.check(2)


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
async def test_files_that_are_removed_here_while_somebody_reads_are_fetched_again(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: FileFormat
) -> None:
    monkeypatch.setattr(
        "jobledger.audit.archive.archiver.write_export", partial(write_export, file_format=file_format)
    )
    await rig.run_jobs(10)
    await rig.run()
    folder = local_folder(rig.uri)
    joined = await open_archive(rig.ledger.log, folder)
    for _ in range(2):
        report = await verify(joined)
        assert report.sound, report.violations
        (file,) = folder.rglob(f"events-*.{file_format}")
        drop_files(file.parent)
        assert not file.exists()


async def test_a_machine_without_room_for_a_file_is_no_verdict_on_it(rig: Rig) -> None:
    await rig.run_jobs(10)
    await rig.run()
    folder = local_folder(rig.uri)
    (folder / DRAFTS).rmdir()
    (folder / DRAFTS).write_text("in the way")
    with pytest.raises(ArchiveAbsentError, match="cannot be fetched into"):
        await verify(await open_archive(rig.ledger.log, folder))
    (folder / DRAFTS).unlink()
    await rig.check(10)


async def test_two_ledgers_that_begin_at_once_do_not_share_a_bucket(
    rig: Rig, nats_server: EmbeddedServer, environment: str, tmp_path: Path
) -> None:
    await rig.set()
    await rig.run_jobs(ENOUGH)
    head = await rig.ledger.log.head()
    require_place(local_folder(rig.uri), rig.ledger.names, head, None)
    settings: dict[str, Any] = {"environment": f"{environment}_b", "ledger_bytes_max": SMALL}
    async with connect(nats_server.url, **settings) as ledger:
        other = msgspec.json.encode(_mark_of(ledger.names, await ledger.log.head()))
    (mark,) = rig.names(MARK)
    rig.s3.objects[mark] = other  # it had looked before this one wrote its mark
    assert "is the archive of another ledger" in (await rig.move()).trouble
    assert (await rig.first(), rig.s3.objects[mark]) == (1, other)


async def test_a_bucket_that_was_emptied_or_is_of_another_ledger_takes_nothing(
    rig: Rig, nats_server: EmbeddedServer, environment: str, tmp_path: Path
) -> None:
    await rig.set()
    await rig.run_jobs(ENOUGH)
    assert (await rig.move()).events
    await rig.run_jobs(ENOUGH)
    settings: dict[str, Any] = {"environment": f"{environment}_b", "ledger_bytes_max": SMALL}
    async with connect(nats_server.url, **settings) as ledger:
        other = Rig(ledger, rig.s3, tmp_path / "other")
        await other.set()
        await other.run_jobs(ENOUGH)
        assert "is the archive of another ledger" in (await other.move()).trouble
        assert await other.first() == 1
    kept, first = dict(rig.s3.objects), await rig.first()
    rig.s3.objects.clear()
    moved = await rig.move()
    assert "is not the archive of this ledger" in moved.trouble
    assert (await rig.first(), rig.s3.objects) == (first, {})
    rig.s3.objects.update(kept)
    assert (await rig.move()).events
    await rig.check(2 * ENOUGH)


async def test_an_archive_goes_on_in_a_bucket_and_in_a_folder_again(rig: Rig, tmp_path: Path) -> None:
    """What a person copies from one place to the other, under the names it has, is the archive there."""
    for place in (tmp_path / "before", rig.uri, tmp_path / "after"):
        if isinstance(place, Path):
            place.mkdir()
            for name, data in rig.s3.objects.items():
                path = place / name.removeprefix("ledger/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        else:
            for path in (tmp_path / "before").rglob("*"):
                if path.is_file():
                    name = f"ledger/{path.relative_to(tmp_path / 'before')}"
                    rig.s3.objects[name] = path.read_bytes()
        await rig.set(to=str(place))
        await rig.run_jobs(ENOUGH)
        moved = await rig.move()
        assert (bool(moved.events), moved.trouble) == (True, "")
    report = await verify(await open_archive(rig.ledger.log, tmp_path / "after"))
    assert report.sound, report.violations
    assert dict(report.states) == {"completed": 3 * ENOUGH}


async def test_of_two_machines_at_once_one_moves_the_events(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both send the same events under two names, and the ledger names one of them."""
    await rig.run_jobs(10)
    homes = [tmp_path / "a", tmp_path / "b"]
    folders: list[Path] = []
    for home in homes:
        monkeypatch.setenv("XDG_DATA_HOME", str(home))
        folders.append(local_folder(rig.uri))
    ends: list[Exception | None] = []

    async def run(folder: Path) -> None:
        deps = archive_deps(rig.ledger, by="ann", on_progress=lambda _step, _done, _total: None)
        try:
            await Archiver(rig.ledger.log, folder, deps).run(rig.ledger.clock.now())
        except RefusedError as error:
            ends.append(error)
        else:
            ends.append(None)

    async with anyio.create_task_group() as group:
        for folder in folders:
            group.start_soon(run, folder)
    assert None in ends
    assert all(each is None or isinstance(each, ArchiveRefusedError) for each in ends), ends
    await rig.check(10)


async def test_an_unfinished_export_that_goes_too_far_is_removed_from_the_bucket_too(rig: Rig) -> None:
    await rig.run_jobs(10)

    def cut_off(step: str, _done: int, _total: int) -> None:
        if step == "record":
            raise ConnectionAbortedError

    folder = local_folder(rig.uri)
    deps = archive_deps(rig.ledger, by="ann", on_progress=cut_off)
    with pytest.raises(ConnectionAbortedError):
        await Archiver(rig.ledger.log, folder, deps).run(rig.ledger.clock.now())
    (sent,) = rig.names("manifest")
    deps = archive_deps(rig.ledger, by="bob", on_progress=lambda _step, _done, _total: None)
    await Archiver(rig.ledger.log, folder, deps).run(rig.ledger.clock.now(), through=20)
    assert sent not in rig.s3.objects
    assert len(rig.names("manifest")) == 1
    await rig.check(10)


async def test_files_go_from_the_machine_a_day_after_they_were_fetched_but_never_before_all_is_sent(
    rig: Rig,
) -> None:
    await rig.set()
    await rig.run_jobs(ENOUGH)
    await rig.run_jobs(2, size=70_000)
    rig.s3.refuses = lambda method, key: method in {"PUT", "POST"} and "payloads" in key
    assert not (await rig.move()).events
    assert rig.names("events-"), "a part was sent"
    folder = local_folder(rig.uri)
    long_ago = time.time() - 2 * 86_400

    def age() -> list[str]:
        files = [each for each in folder.rglob("*") if each.is_file()]
        for each in files:
            os.utime(each, (long_ago, long_ago))
        local_folder(rig.uri)
        return [each for each in _local_files(folder) if each.startswith("events-")]

    assert len(age()) == 1
    rig.s3.refuses = lambda _method, _key: False
    assert (await rig.move()).events
    await rig.check(ENOUGH + 2)
    assert len(_local_files(folder)) > 1, "fetched to be checked"
    assert age() == []
    assert _local_files(folder) == ["manifest.json"]
    await rig.check(ENOUGH + 2)


async def test_an_unfinished_export_of_another_machine_is_left_in_the_bucket(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That machine may be about to record it and to purge: a lock is seen by processes of one machine only."""
    await rig.run_jobs(10)
    mine = local_folder(rig.uri)
    goes_on, sent = anyio.Event(), anyio.Event()
    deps = archive_deps(rig.ledger, by="ann", on_progress=lambda _step, _done, _total: None)
    count = counting(rig.ledger.log, rig.projection, past=lambda: open_archive(rig.ledger.log, mine))

    async def wait(progress: Callable[[int, int], None]) -> Any:
        sent.set()
        await goes_on.wait()
        return await count(progress)

    slow = Archiver(rig.ledger.log, mine, msgspec.structs.replace(deps, count=wait))
    async with anyio.create_task_group() as group:
        group.start_soon(slow.run, rig.ledger.clock.now())
        with anyio.fail_after(20):
            await sent.wait()
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another-machine"))

        def cut_off(step: str, _done: int, _total: int) -> None:
            if step == "export":
                raise ConnectionAbortedError

        other = Archiver(
            rig.ledger.log, local_folder(rig.uri), msgspec.structs.replace(deps, on_progress=cut_off)
        )
        with contextlib.suppress(RefusedError, ConnectionAbortedError):
            await other.run(rig.ledger.clock.now(), through=20)
        goes_on.set()
    assert await rig.first() > 20
    await rig.check(10)


async def test_nothing_is_moved_or_purged_when_the_bucket_lost_the_newest_export(rig: Rig) -> None:
    """Its mark is there still, and this machine has the manifest."""
    await rig.set()
    await rig.run_jobs(ENOUGH)
    assert (await rig.move()).events
    await rig.run_jobs(ENOUGH)
    first = await rig.first()
    for each in rig.names("-"):
        if MARK not in each:
            del rig.s3.objects[each]
    moved = await rig.move()
    assert (moved.events, await rig.first()) == (0, first)
    assert "s3://bucket/ledger lacks the export" in moved.trouble


@pytest.mark.parametrize("step", ["record", "purge"])
async def test_what_was_sent_is_read_back_again_by_a_run_that_goes_on(rig: Rig, step: str) -> None:
    """Whether the run before was killed before or after it recorded the export: a file was lost since then."""
    await rig.run_jobs(10)

    def cut_off(now: str, _done: int, _total: int) -> None:
        if now == step:
            raise ConnectionAbortedError

    folder = local_folder(rig.uri)
    deps = archive_deps(rig.ledger, by="ann", on_progress=cut_off)
    with pytest.raises(ConnectionAbortedError):
        await Archiver(rig.ledger.log, folder, deps).run(rig.ledger.clock.now())
    (lost,) = rig.names("events-")
    del rig.s3.objects[lost]
    await rig.run()
    assert lost in rig.s3.objects
    await rig.check(10)


async def test_a_keeper_that_was_elsewhere_reads_what_others_moved_since(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.set()
    local_folder(rig.uri)  # as this machine found it
    terms = await retention_of(rig.ledger)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another-machine"))
    await rig.run_jobs(ENOUGH)
    await rig.run()  # by hand, so without a mark
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "machine"))
    assert await Keeper(rig.ledger, rig.move)._why_no_place(terms, await rig.ledger.log.head()) == ""


async def test_a_run_that_was_overtaken_leaves_no_files_on_its_machine(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each change of the machine that a keeper is on would leave an export behind, which nobody sees."""
    await rig.run_jobs(10)
    mine = local_folder(rig.uri)

    def cut_off(step: str, _done: int, _total: int) -> None:
        if step == "send":
            raise ConnectionAbortedError

    deps = archive_deps(rig.ledger, by="ann", on_progress=cut_off)
    with pytest.raises(ConnectionAbortedError):
        await Archiver(rig.ledger.log, mine, deps).run(rig.ledger.clock.now())
    assert len(_local_files(mine)) == 2
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another-machine"))
    await rig.run()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "machine"))
    await rig.run_jobs(1)
    await rig.run()
    assert set(_local_files(mine)) == {"manifest.json"}
    await rig.check(11)


async def test_a_manifest_that_is_half_written_or_damaged_here_stops_nobody(rig: Rig) -> None:
    await rig.set()
    await rig.run_jobs(ENOUGH)
    assert (await rig.move()).events
    folder = local_folder(rig.uri)
    (whole,) = folder.rglob("manifest.json")
    draft = folder / ".00000000000000000001-00000000000000000009.draft" / "manifest.json"
    draft.parent.mkdir()
    for each in (draft, whole):
        each.write_bytes(b"{")  # the first is of a run that was killed while it wrote it
        await rig.check(ENOUGH)
    await rig.run_jobs(ENOUGH)
    assert (await rig.move()).events
    await rig.check(2 * ENOUGH)


async def test_a_keeper_says_that_its_bucket_is_away(rig: Rig) -> None:
    await rig.set()
    await rig.run_jobs(ENOUGH)
    keeper = Keeper(rig.ledger, rig.move)
    terms, head = await retention_of(rig.ledger), await rig.ledger.log.head()
    assert (await rig.move()).events
    assert await keeper._why_no_place(terms, head) == ""
    rig.s3.refuses = lambda _method, _key: True
    assert "s3://bucket/ledger cannot be used" in await keeper._why_no_place(terms, head)


async def test_a_bucket_that_is_silent_or_gone_is_told_soon_and_taken_again_when_it_is_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.audit.export.remote._SILENCE_S", 0.5)
    await rig.set()
    await rig.run_jobs(ENOUGH)
    for fault in (rig.s3.silent, rig.s3.away):
        began = time.monotonic()
        with fault():
            moved = await rig.move()
        assert "s3://bucket/ledger cannot be used" in moved.trouble
        assert (moved.unwritten, await rig.first()) == (True, 1)
        assert time.monotonic() - began < LIMIT_S, "pyarrow alone waits for 99 s"
    assert (await rig.move()).events
    await rig.check(ENOUGH)


def test_a_limit_to_silence_leaves_the_rest_of_a_uri_as_it_is(s3: S3) -> None:
    files: Any = Remote(f"{s3.uri('x')}&allow_bucket_creation=true")._files
    _, (settings,) = files.__reduce__()
    assert (settings["connect_timeout"], settings["request_timeout"]) == (5.0, 5.0)
    assert (settings["scheme"], settings["endpoint_override"]) == ("http", f"127.0.0.1:{s3.port}")
    assert (settings["region"], settings["allow_bucket_creation"]) == ("us-east-1", True)
    assert not settings["access_key"], "pyarrow looks the key up again, so a changed key is used"


@pytest.mark.parametrize("setting", ["tls_verify_certificates=false", "tls_ca_dir_path=/etc/ssl/certs"])
def test_no_setting_of_a_uri_is_lost_for_a_limit(s3: S3, setting: str) -> None:
    files: Any = Remote(f"{s3.uri('x')}&{setting}")._files
    _, (settings,) = files.__reduce__()
    assert settings["connect_timeout"] < 0, (
        "the file system is as pyarrow made it, since it cannot be made again"
    )


@pytest.mark.parametrize("place", ["s3://key:secret@bucket/x", "gs://user@bucket"])
async def test_a_secret_in_a_uri_is_refused_and_not_repeated(rig: Rig, place: str) -> None:
    for do in (lambda: rig.set(to=place), lambda: anyio.to_thread.run_sync(local_folder, place)):
        with pytest.raises(InvalidInputError, match="leave that out") as refused:
            await do()
        assert "secret" not in str(refused.value)
        assert "user@" not in str(refused.value)


def test_every_error_of_pyarrow_is_told_as_one_of_the_place() -> None:
    pa: Any = importlib.import_module("pyarrow")
    remote = Remote("abfs://name.dfs.core.windows.net/box/x")
    assert remote._root == "box/x", "pyarrow takes no path that begins with a slash"
    with pytest.raises(ArchiveAbsentError, match="box/x cannot be used: Unknown error"), remote._asked():
        raise pa.ArrowException("Unknown error: no credentials")  # as Azure's part of it does


async def test_what_is_not_ours_in_a_bucket_is_not_read(rig: Rig) -> None:
    await rig.set()
    await rig.run_jobs(ENOUGH)
    digits = hashlib.sha256(b"{}").hexdigest()[:16]
    rig.s3.objects[f"ledger/{1:020}-{9:020}.{digits}/manifest.json"] = b"{}"  # named as ours are
    rig.s3.objects["ledger/backups/manifest.json"] = b"x"
    rig.s3.objects["ledger/notes.txt"] = b"x"
    assert (await rig.move()).events
    await rig.check(ENOUGH)
    assert not [key for _, key in rig.s3.asked if "backups" in key]


async def test_without_pyarrow_a_uri_says_what_to_install(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'jobledger\[parquet\]'"):
        local_folder(rig.s3.uri("never-opened"))
    await rig.run_jobs(ENOUGH)
    await rig.set(to=rig.s3.uri("never-opened"))
    assert "pip install" in (await rig.move()).trouble


async def test_an_export_in_a_bucket_is_brought_back_into_an_empty_ledger(
    server_factory: ServerFactory, s3: S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = server_factory(), server_factory()
    await old.start()
    await new.start()
    async with connect(old.url, ledger_bytes_max=16 << 20) as ledger:
        rig = Rig(ledger, s3, tmp_path)
        await rig.run_jobs(3, size=70_000)
        await rig.run()
        (manifest,) = rig.names("manifest")

    async def restored(export: str) -> tuple[int, str]:
        uri = s3.uri(f"ledger/{export}")
        code = await anyio.to_thread.run_sync(
            run, ("audit", "restore", uri, "--url", new.url, "--ledger-bytes-max", str(16 << 20))
        )
        return code, " ".join("".join(capsys.readouterr()).split())

    missing = await restored("nothing")
    assert missing[0] == 3, missing
    code, shown = await restored(manifest.split("/")[1])
    assert (code, "9 events were brought back" in shown) == (0, True), shown
    async with connect(new.url) as ledger:
        report = await verify(ledger.log)
        assert (report.sound, report.jobs) == (True, 3), report.text()
        job = next(iter([each async for batch in ledger.log.read() for each in batch]))
        handle = await ledger.job(job.event.job)
        reference = (await handle.snapshot()).order.input_ref
        assert reference is not None
        assert len(await ledger.inputs.stored(reference)) == reference.size_bytes


def test_commands_take_a_uri_wherever_they_take_the_folder_of_an_archive(
    cli: CommandLine, s3: S3, tmp_path: Path
) -> None:
    async def run_jobs(ledger: Ledger) -> None:
        await Rig(ledger, s3, tmp_path).run_jobs(3, size=70_000)
        await ledger.enqueue(work.options(id="waits", queue="other"), text="x" * 70_000)

    def call(*words: str) -> Any:
        answer = cli.run(*words, *cli.where, "--json")
        assert answer.code == 0, answer.err
        return answer

    uri = s3.uri("ledger")
    cli.with_ledger(run_jobs)
    moved = call("audit", "archive", "--before", datetime.now(UTC).isoformat(), "--to", uri)
    (export,) = json.loads(moved.out)["exports"]
    assert export.startswith("s3://bucket/ledger/0000")
    assert f"{export.removeprefix('s3://bucket/')}/manifest.json" in s3.objects
    assert call("audit", "verify", "--archive", uri).lines[-1]["sound"]
    assert call("jobs", "show", "waits", "--archive", uri).lines
    call("audit", "who", "--archive", uri)
    redacted = cli.run(
        "audit", "redact", "--archive", uri, "--where", "tenant=acme", "--reason", "law", *cli.where
    )
    assert redacted.code == 4, redacted.err
    assert "copy it into a folder" in " ".join(redacted.err.split())
    there = uri.replace("?", f"/{export.rpartition('/')[2]}?")
    alone = cli.run("audit", "verify", there)
    assert (alone.code, "copy it from there first" in " ".join(alone.err.split())) == (2, True), alone
    seals, key = tmp_path / "seals", str(tmp_path / "seal.pem")
    assert cli.run("audit", "keygen", key).code == 0
    call("audit", "seal", "--key", key, "--publish", str(seals))
    trusted = ("--seal", str(seals), "--seal-key", f"{key}.pub")
    assert call("audit", "verify", "--archive", uri, *trusted).lines[-1]["sound"]
    whole = seals.read_text(encoding="utf-8")
    root = json.loads(whole)["seal"]["merkle_root"]
    seals.write_text(whole.replace(root, root[::-1]), encoding="utf-8")
    assert cli.run("audit", "verify", "--archive", uri, *trusted, *cli.where).code == 4
    s3.refuses = lambda _method, _key: True
    away = cli.run("audit", "verify", "--archive", uri, *cli.where)
    assert (away.code, away.out) == (4, "")
    assert "s3://bucket/ledger cannot be used" in away.err
    s3.refuses = lambda _method, _key: False
    secret = cli.run("audit", "verify", "--archive", "s3://key:word@bucket/ledger", *cli.where)
    assert secret.code == 2
    assert "word" not in secret.err


async def forget(rig: Rig) -> MoveOutcome:
    """Look as a keeper does whose setting forgets whatever is old."""
    await rig.set(forget_after_s=0.0)
    return await clear_once(rig.ledger)


async def proof(rig: Rig) -> Report:
    past = await read_past(rig.ledger.log, [local_folder(rig.uri)])
    report = await verify(past.log, witnesses=[ArchiveWitness(past, rig.ledger.log)])
    assert report.sound, report.text()
    return report


async def test_a_keeper_forgets_exports_of_a_bucket_and_any_machine_knows(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large values and all; killed between the removals of any two files, another machine ends it."""
    for size in (70_000, 20):
        await rig.run_jobs(2, size=size)
        await rig.run()
    (first, second) = sorted({name.split("/")[1] for name in rig.names("manifest")})
    assert len(rig.names(first)) > 3, "events, a list of values, and values"
    rig.s3.refuses = lambda method, _key: method == "DELETE"
    done = await forget(rig)
    assert (done.forgotten, "no export is forgotten" in done.trouble) == ((), True)
    report = await proof(rig)
    assert report.forgotten is not None, "the fact comes first"
    assert "not proven: events 1 to" in report.text()
    left = [2]

    def refuses(method: str, _key: str) -> bool:
        left[0] -= method == "DELETE"
        return left[0] < 0

    rig.s3.refuses = refuses
    await forget(rig)
    rig.s3.refuses = lambda _method, _key: False
    await proof(rig)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another-machine"))
    await proof(rig)
    done = await forget(rig)
    assert (done.forgotten, done.trouble) == ((), "")
    assert rig.names(first) == [f"ledger/{first}/manifest.json"]
    assert len(rig.names(second)) > 1
    assert (await proof(rig)).forgotten == report.forgotten
    await rig.run_jobs(2)
    await rig.run()
    assert len((await forget(rig)).forgotten) == 1
    assert rig.names(second) == [f"ledger/{second}/manifest.json"]
    await proof(rig)


async def test_an_export_of_a_race_that_was_lost_is_forgotten_with_the_other(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.run_jobs(2)
    await rig.run()
    (name,) = rig.names("manifest")
    twin = name.split("/")[1].partition(".")[0] + ".0badc0de"
    for each in rig.names(name.split("/")[1]):
        rig.s3.objects[f"ledger/{twin}/{each.rpartition('/')[2]}"] = rig.s3.objects[each]
    await rig.run_jobs(2)
    await rig.run()
    assert len((await forget(rig)).forgotten) == 1
    assert [each.rpartition("/")[2] for each in rig.names(twin)] == ["manifest.json"]
    await proof(rig)
