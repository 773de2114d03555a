"""Exports: what is written is what the ledger holds, byte for byte, and nothing is there before all of it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.conftest import ROOT, SOURCES
from tests.support.histories import SteppedClock, memory_history, random_history, ref_of
from tests.support.stories import BEGIN, rich, stored_in

from jobledger.audit.errors import ExportDamagedError, ExportExistsError, NotAnExportError
from jobledger.audit.export import (
    ExportLog,
    FileFormat,
    JoinedLog,
    Selection,
    import_export,
    manifest_sha256,
    previous_of,
    read_export,
    read_manifest,
    verify_export,
    write_export,
)
from jobledger.audit.verify import verify
from jobledger.audit.verify.unproven import TIMES
from jobledger.ledger.model.codec import Message, digest
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    SequenceGapError,
)
from jobledger.ledger.model.log import Entry, Head, Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import Names

if TYPE_CHECKING:
    from jobledger.ledger import Ledger

pytestmark = pytest.mark.anyio

FORMATS: tuple[FileFormat, ...] = ("jsonl", "parquet")
SMALL = 20_000  # bytes, so that an export has several files


async def all_of(log: Log, subject: str | None = None, first: int = 1) -> list[Message]:
    return [
        message
        async for batch in log.read_messages(from_sequence=first, subject=subject)
        for message in batch
    ]


def bytes_of(messages: list[Message]) -> list[tuple[int, str, bytes]]:
    return [(each.stream_sequence, each.subject, each.data) for each in messages]


def inside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=FORMATS)
async def exported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[MemoryLog, Path]:
    log = await memory_history(jobs=300, steps=900)
    folder = tmp_path / "export"
    await write_export(log, folder, file_format=request.param, file_bytes_max=SMALL)
    return log, folder


async def test_an_export_holds_every_event_as_it_was_stored(exported: tuple[MemoryLog, Path]) -> None:
    log, folder = exported
    manifest, everything = read_manifest(folder), await all_of(log)
    assert list(read_export(folder)) == everything
    assert len(manifest.files) > 2
    assert (manifest.complete, manifest.count) == (True, len(everything))
    assert (manifest.first_sequence, manifest.last_sequence) == (1, len(everything))
    report = await verify(log)
    assert (manifest.digest, manifest.head_hash) == (report.digest, report.head_hash)
    found = await verify_export(folder)
    assert (found.digest, found.violations) == (report.digest, report.violations)
    assert found.what == "export"


async def test_an_export_reads_like_the_log_it_was_made_from(exported: tuple[MemoryLog, Path]) -> None:
    log, folder = exported
    export, last = ExportLog(folder), (await log.head()).last_sequence
    for first in (0, 1, 2, 300, last - 1, last, last + 1):
        assert await all_of(export, first=first) == await all_of(log, first=first)
    queue = "ledger.job.queue-1.*.queued.normal"
    assert await all_of(export, subject=queue, first=9) == await all_of(log, subject=queue, first=9)
    moment = (await all_of(log))[111].stored_at
    since = [each async for batch in export.read(from_time=moment) for each in batch]
    assert since == [each async for batch in log.read(from_time=moment) for each in batch]
    for number in (0, 7, 59):
        chain = log.names.chain(ref_of(number))
        assert await export.read_chain(chain) == await log.read_chain(chain)
        assert await export.last(chain) == await log.last(chain)
    for sequence in (0, 1, 256, 512, 513, last, last + 1):
        assert await export.get(sequence) == await log.get(sequence)
    subjects = [(await all_of(log))[3].subject, "ledger.job.no.such.queued.normal"]
    assert await export.present(subjects) == await log.present(subjects) == {subjects[0]}
    with pytest.raises(SequenceGapError, match=f"ends at stream sequence {last}"):
        await all_of(export, first=last + 2)


async def test_an_export_takes_nothing(exported: tuple[MemoryLog, Path]) -> None:
    export = ExportLog(exported[1])
    entry = Entry("ledger.job.q.j.queued.normal", b"{}", "ledger.job.q.j.>", 0)
    with pytest.raises(RefusedError, match="read only"):
        await export.append([entry])
    with pytest.raises(RefusedError, match="read only"):
        await export.submit([entry])
    with pytest.raises(RefusedError, match="read only"):
        await export.purge(1)
    with pytest.raises(InvalidInputError, match="cannot be followed"):
        await anext(export.read_messages(follow=True))
    with pytest.raises(NotAnExportError, match="environment"):
        ExportLog(exported[1], Names("staging"))


@pytest.mark.parametrize("file_format", FORMATS)
async def test_bytes_that_no_line_of_json_can_hold_come_back(file_format: FileFormat, tmp_path: Path) -> None:
    odd = [
        b"",
        b"{}",
        b' {"a": 1} ',
        b'{"a":\n1}',
        b'"\xff\xfe"',
        b"\x00\x01",
        b"[" * 3000 + b"]" * 3000,
        b'"\\ud800"',
    ]
    odd += ['"\u2028 ü 𝄞"'.encode(), b'{"a":1}{', b"1e400", b'{"a":1,"a":2}', b"\xef\xbb\xbf{}", b'"\r"']
    log = MemoryLog()
    for number, data in enumerate(odd):
        chain = f"ledger.lock.odd.{number}.>"
        await log.append([Entry(f"ledger.lock.odd.{number}.acquired", data, chain, 0)])
    folder = tmp_path / "export"
    manifest = await write_export(log, folder, file_format=file_format)
    assert [message.data for message in read_export(folder)] == odd
    if file_format == "jsonl":
        text = (folder / manifest.files[0].name).read_bytes()
        assert (text.count(b"\n"), text.count(b"\r")) == (len(odd), 0)
        assert text.count(b'"data":') == 4


async def test_a_range_and_a_selection_hold_what_was_chosen(tmp_path: Path) -> None:
    log = await memory_history()
    part = await write_export(log, tmp_path / "part", first=50, last=99)
    assert bytes_of(list(read_export(tmp_path / "part"))) == bytes_of(await all_of(log))[49:99]
    assert (part.complete, part.first_sequence, part.last_sequence, part.count) == (True, 50, 99, 50)
    with pytest.raises(SequenceGapError, match="begins at stream sequence 50"):
        await all_of(ExportLog(tmp_path / "part"), first=2)
    ref = ref_of(7)
    for name, selection, subject in (
        ("queue", Selection(queue="queue-1"), "ledger.job.queue-1.>"),
        ("job", Selection(job=ref.job_id), f"ledger.job.*.{ref.job_id}.>"),
        ("both", Selection(queue=ref.queue, job=ref.job_id), log.names.chain(ref)),
    ):
        manifest = await write_export(log, tmp_path / name, selection=selection)
        wanted = await all_of(log, subject=subject)
        assert list(read_export(tmp_path / name)) == wanted
        assert 0 < manifest.count < 300
        assert (manifest.complete, manifest.last_sequence) == (False, (await log.head()).last_sequence)
    neither = await write_export(log, tmp_path / "no", selection=Selection(queue="queue-0", job=ref.job_id))
    assert (neither.count, neither.files, list(read_export(tmp_path / "no"))) == (0, (), [])


async def test_an_empty_ledger_has_an_empty_export(tmp_path: Path) -> None:
    manifest = await write_export(MemoryLog(), tmp_path / "a")
    assert (manifest.count, manifest.last_sequence, manifest.files) == (0, 0, ())
    assert list(read_export(tmp_path / "a")) == []
    assert (await verify_export(tmp_path / "a")).sound
    assert await import_export(tmp_path / "a", MemoryLog()) == 0


async def test_a_range_that_the_ledger_does_not_hold_is_refused(tmp_path: Path) -> None:
    log = await memory_history(steps=50)
    last = (await log.head()).last_sequence
    for first, end in ((1, last + 1), (last + 2, None), (9, 3), (0, None), (last + 1, None), (-1, 3)):
        with pytest.raises(InvalidInputError):
            await write_export(log, tmp_path / "a", first=first, last=end)
    assert inside(tmp_path) == []


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    log, other = await memory_history(), await memory_history(seed=2)
    last = min((await log.head()).last_sequence, (await other.head()).last_sequence)
    folder = tmp_path / "export"
    first = await write_export(log, folder, last=last)
    before = manifest_sha256(folder)
    assert await write_export(log, folder, last=last) == first
    assert manifest_sha256(folder) == before
    refused: list[tuple[MemoryLog, dict[str, Any], str]] = [
        (log, {"last": last - 1}, "another export"),
        (log, {"last": last, "file_format": "parquet"}, "another export"),
        (log, {"last": last, "selection": Selection(queue="queue-1")}, "another export"),
        (log, {"last": last, "previous": previous_of(folder)}, "another export"),
        (other, {"last": last}, "of another ledger"),
    ]
    for source, options, sentence in refused:
        with pytest.raises(ExportExistsError, match=sentence):
            await write_export(source, folder, **options)
    assert list(read_export(folder)) == (await all_of(log))[:last]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("mine", "file"):
        with pytest.raises(ExportExistsError, match="not an export"):
            await write_export(log, tmp_path / name)
    (tmp_path / "empty").mkdir()
    await write_export(log, tmp_path / "empty")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    await write_export(log, tmp_path / "empty" / ".." / "beside")
    assert inside(tmp_path) == ["beside", "empty", "export", "file", "mine"]
    file = folder / first.files[0].name
    assert read_manifest(file) == first
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ExportDamagedError, match="bytes, and the manifest says"):
        await write_export(log, folder, last=last)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.support.histories import memory_history
from jobledger.audit.export import writer as export_writer
from jobledger.audit.export import write_export

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "rename":
    export_writer._move_into_place = die
progress = die if sys.argv[2] == "reading" else None

async def main():
    log = await memory_history(jobs=300, steps=900)
    await write_export(log, Path(sys.argv[1]), file_bytes_max=20_000, on_progress=progress)

asyncio.run(main())
"""


def killed(folder: Path, where: str) -> int:
    """Return how a process ended that writes an export and is killed on the way."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), SOURCES])}
    words = [sys.executable, "-c", KILLED, str(folder), where]
    return subprocess.run(words, env=environment, check=False, timeout=30).returncode


@pytest.mark.parametrize("where", ["reading", "rename"])
async def test_a_killed_export_leaves_nothing_and_is_run_again(where: str, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    assert await asyncio.to_thread(killed, folder, where) == -signal.SIGKILL
    assert inside(tmp_path) == [".export.draft"]
    log = await memory_history(jobs=300, steps=900)
    await write_export(log, folder, file_bytes_max=SMALL)
    assert list(read_export(folder)) == await all_of(log)
    assert inside(tmp_path) == ["export"]


async def test_two_that_write_the_same_export_do_not_meet(tmp_path: Path) -> None:
    log = await memory_history()
    folder = tmp_path / "export"
    refused: list[str] = []

    async def meanwhile() -> None:
        with contextlib.suppress(StopIteration):
            await write_export(log, folder)

    class Nosy(MemoryLog):
        async def head(self) -> Head:
            return await log.head()

        async def read_messages(self, **options: Any) -> AsyncGenerator[list[Message], None]:
            with pytest.raises(ExportExistsError, match="another process writes this export now") as found:
                await meanwhile()
            refused.append(str(found.value))
            async for batch in log.read_messages(**options):
                yield batch

    await write_export(Nosy(), folder)
    assert len(refused) == 1
    assert list(read_export(folder)) == await all_of(log)


async def test_an_export_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    log = await memory_history(jobs=300, steps=900)

    class Torn(MemoryLog):
        async def head(self) -> Head:
            return await log.head()

        async def read_messages(self, **options: Any) -> AsyncGenerator[list[Message], None]:
            async for batch in log.read_messages(**options):
                yield batch
                return

    with pytest.raises(SequenceGapError, match="cut off meanwhile"):
        await write_export(Torn(), tmp_path / "export")
    assert inside(tmp_path) == []


async def test_what_is_no_export_is_told_from_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no export"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(NotAnExportError, match=r"no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format":4,"new":[]}')
    with pytest.raises(NotAnExportError, match="newer jobledger"):
        read_manifest(tmp_path / "manifest.json")


async def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'jobledger\[parquet\]'"):
        await write_export(await memory_history(steps=10), tmp_path / "a", file_format="parquet")
    assert inside(tmp_path) == []


async def test_a_real_ledger_comes_back_whole_into_an_empty_one(ledger: Ledger, tmp_path: Path) -> None:
    """Row 13: an export brings back all of what it holds, here from a server to memory and back to a server."""
    await random_history(ledger.log, seed=3, jobs=20, steps=150)
    events = await all_of(ledger.log)
    manifest = await write_export(ledger.log, tmp_path / "one", file_bytes_max=SMALL)
    memory = MemoryLog(names=ledger.names, clock=SteppedClock())
    assert await import_export(tmp_path / "one", memory) == len(events)
    assert bytes_of(await all_of(memory)) == bytes_of(events)
    again = await write_export(memory, tmp_path / "two")
    assert (again.digest, again.head_hash, again.count) == (
        manifest.digest,
        manifest.head_hash,
        manifest.count,
    )
    assert await import_export(tmp_path / "one", memory) == 0
    assert await import_export(tmp_path / "two", ledger.log) == 0


async def test_an_export_is_imported_into_a_server_and_gone_on_with(ledger: Ledger, tmp_path: Path) -> None:
    source = MemoryLog(names=ledger.names, clock=SteppedClock())
    await random_history(source, seed=4, jobs=20, steps=150)
    events = bytes_of(await all_of(source))
    await write_export(source, tmp_path / "head", last=40)
    await write_export(source, tmp_path / "all")
    await write_export(source, tmp_path / "tail", first=41, previous=previous_of(tmp_path / "head"))
    with pytest.raises(RefusedError, match="bring back first what comes before"):
        await import_export(tmp_path / "tail", ledger.log)
    assert await import_export(tmp_path / "all", ledger.log, through=17) == 17
    assert await import_export(tmp_path / "head", ledger.log) == 23
    assert await import_export(tmp_path / "tail", ledger.log) == len(events) - 40
    assert bytes_of(await all_of(ledger.log)) == events
    assert await import_export(tmp_path / "all", ledger.log) == 0
    await write_export(source, tmp_path / "some", selection=Selection(queue="queue-1"))
    with pytest.raises(NotAnExportError, match="only a whole range"):
        await import_export(tmp_path / "some", MemoryLog(names=ledger.names))
    other = MemoryLog(names=ledger.names)
    await random_history(other, seed=5, jobs=20, steps=20)
    with pytest.raises(RefusedError, match="another event than the export at stream sequence 1"):
        await import_export(tmp_path / "all", other)


async def test_exports_and_the_live_log_behind_them_read_as_one(tmp_path: Path) -> None:
    log = await memory_history()
    everything = await all_of(log)
    await write_export(log, tmp_path / "a", last=100)
    await write_export(log, tmp_path / "b", first=101, last=150, previous=previous_of(tmp_path / "a"))
    exports = [ExportLog(tmp_path / "a"), ExportLog(tmp_path / "b")]
    whole = JoinedLog(exports, log)
    assert await all_of(whole) == everything
    await log.purge(150)
    for first in (1, 100, 101, 150, 151, 200):
        assert await all_of(whole, first=first) == everything[first - 1 :]
    chain = log.names.chain(ref_of(7))
    assert bytes_of(list(await whole.read_chain(chain))) == [
        each for each in bytes_of(everything) if each[1].startswith(chain[:-1])
    ]
    for sequence in (1, 100, 101, 151, len(everything)):
        assert await whole.get(sequence) == everything[sequence - 1]
    newest = await whole.last(chain)
    assert newest is not None
    assert (await whole.head()).first_sequence == 1
    assert newest == [each for each in everything if each.subject.startswith(chain[:-1])][-1]
    moment = everything[120].stored_at
    assert [each async for batch in whole.read_messages(from_time=moment) for each in batch] == everything[
        120:
    ]
    with pytest.raises(NotAnExportError, match="does not continue"):
        JoinedLog(exports[::-1], log)
    await write_export(MemoryLog(), tmp_path / "empty")
    with pytest.raises(SequenceGapError, match="rewound or replaced"):
        await all_of(JoinedLog(exports, MemoryLog()))


async def test_a_ledger_whose_beginning_is_archived_is_exported_from_where_it_begins(tmp_path: Path) -> None:
    log = await memory_history()
    everything = await all_of(log)
    await log.purge(30)
    manifest = await write_export(log, tmp_path / "a")
    assert (manifest.first_sequence, list(read_export(tmp_path / "a"))) == (31, everything[30:])
    with pytest.raises(InvalidInputError, match="begins at 31"):
        await write_export(log, tmp_path / "b", first=30)


async def test_what_an_export_cannot_prove_is_said(tmp_path: Path) -> None:
    log = await stored_in(rich(), MemoryLog())
    last = (await log.head()).last_sequence

    async def unproven(name: str, **options: Any) -> list[str]:
        await write_export(log, tmp_path / name, **options)
        report = await verify_export(tmp_path / name)
        assert report.violations == ()
        return [each.split()[1] for each in report.not_proven]

    assert await unproven("all") == ["the", "the"]  # ... export is of this ledger, and when ... server stored
    assert await unproven("tail", first=9) == ["needs", "the", "the"]
    assert await unproven("queue", selection=Selection(queue="email")) == ["no", "the", "the"]
    assert await unproven("job", selection=Selection(job="d"), first=5) == ["no", "needs", "the", "the"]
    before = await verify(log, to_sequence=last - 3)
    report = await verify_export(tmp_path / "all", before=before)
    assert (report.sound, report.not_proven[-1]) == (True, TIMES)
    assert report.not_proven[0].startswith(f"that nothing was cut off beyond {last - 3}")
    assert f"stream sequence {last - 2} to {last} were not rewritten" in report.not_proven[1]
    with pytest.raises(InvalidInputError, match="cannot be compared"):
        await verify_export(tmp_path / "job", before=before)
    assert digest((await all_of(log))[-1].data) == report.head_hash
    assert (await all_of(log))[0].stored_at - BEGIN > timedelta(0)
