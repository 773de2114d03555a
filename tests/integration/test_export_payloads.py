"""Large inputs, checkpoints and results go with an export, are checked in it, and come back from it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.jetstream import api
from tests.support.working import LIMIT_S, ended, working

from jobledger.audit.errors import ExportDamagedError, ExportExistsError
from jobledger.audit.export import (
    Manifest,
    Selection,
    import_export,
    read_manifest,
    verify_export,
    write_export,
)
from jobledger.audit.export.manifest import MANIFEST, ExportedPayloads, manifest_bytes, sealed
from jobledger.audit.export.payloads import PAYLOAD_LIST, PAYLOADS, PayloadFiles
from jobledger.ledger import Context, Ledger, connect, task
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.payloads import Stores

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.shared_ledger]


@task(queue="large", max_attempts=2)
async def enlarge(ctx: Context, text: str, times: int) -> str:
    if times > 1:
        await ctx.checkpoint({"text": text * 2})
    return text * times


@pytest.fixture(scope="module")
async def ledger(nats_server: EmbeddedServer) -> AsyncIterator[Ledger]:
    async with connect(
        nats_server.url, environment=f"t_{secrets.token_hex(6)}", ledger_bytes_max=16 << 20
    ) as made:
        async with working(made, enlarge):
            large = [("a" * 100_000, 1), ("b" * 100_000, 3), ("c" * 100_000, 0), ("d", 200_000), ("e", 1)]
            for text, times in large:
                await ended(await made.enqueue(enlarge.options(id=f"job-{text[0]}"), text, times))
        await made.enqueue(enlarge.options(id="waits"), "a" * 100_000, 1)  # an equal value is kept once
        yield made


def stores(ledger: Ledger) -> Stores:
    return Stores(ledger.inputs, ledger.results)


def payloads(manifest: Manifest) -> ExportedPayloads:
    assert not isinstance(manifest.payloads, msgspec.UnsetType)
    return manifest.payloads


@pytest.fixture(scope="module")
async def whole(ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "whole"
    await write_export(ledger.log, folder, payloads=stores(ledger))
    return folder


#: Inputs of a, b, c; the result of a, which is another text than its input; of b; the checkpoint of b; the result of d.
COUNT = 7


async def test_an_export_holds_each_large_value_once_by_its_digest(ledger: Ledger, whole: Path) -> None:
    found = payloads(read_manifest(whole))
    assert (found.included, found.count, found.stored) == (True, COUNT, COUNT)
    files = {each.name: each.stat().st_size for each in (whole / PAYLOADS).iterdir()}
    assert (len(files), sum(files.values())) == (COUNT, found.bytes)
    job = await (await ledger.job("job-b")).snapshot()
    for reference in (job.order.input_ref, job.checkpoint_ref, job.result_ref):
        assert reference is not None
        assert files[reference.sha256] == reference.size_bytes
        assert (
            await PayloadFiles(whole).get(NO_VALUE, reference)
            == (whole / PAYLOADS / reference.sha256).read_bytes()
        )
    report = await verify_export(whole)
    assert report.sound, report.text()
    assert f"large values: {COUNT} of {COUNT} are stored" in report.text()
    again = await write_export(ledger.log, whole, payloads=stores(ledger))
    assert again == read_manifest(whole)


async def test_left_out_they_are_counted_and_said_to_be_unproven(ledger: Ledger, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    manifest = await write_export(ledger.log, folder)
    assert payloads(manifest) == ExportedPayloads(
        included=False, count=COUNT, gone=0, differs=0, bytes=0, sha256=""
    )
    assert not (folder / PAYLOADS).exists()
    report = await verify_export(folder)
    assert report.sound, report.text()
    assert f"not proven: the {COUNT} large inputs and results that events refer to: left out" in report.text()
    with pytest.raises(ExportExistsError, match="without large values"):
        await write_export(ledger.log, folder, payloads=stores(ledger))
    one = await write_export(
        ledger.log, tmp_path / "one", selection=Selection(job="job-c"), payloads=stores(ledger)
    )
    assert (payloads(one).count, one.complete) == (1, False)
    none = await write_export(
        ledger.log, tmp_path / "none", selection=Selection(job="job-e"), payloads=stores(ledger)
    )
    assert payloads(none) == ExportedPayloads(included=True, count=0, gone=0, differs=0, bytes=0, sha256="")
    assert (await verify_export(tmp_path / "none")).sound


def changed(manifest: Manifest, folder: Path, **changes: Any) -> None:
    said = msgspec.structs.replace(payloads(manifest), **changes)
    (folder / MANIFEST).write_bytes(manifest_bytes(sealed(msgspec.structs.replace(manifest, payloads=said))))


def _lines(folder: Path, change: Callable[[list[bytes]], list[bytes]], **said: int) -> None:
    """Rewrite the list, and what the manifest says of it, as who wants to deceive does."""
    path = folder / PAYLOAD_LIST
    data = b"".join(change(path.read_bytes().splitlines(keepends=True)))
    path.write_bytes(data)
    changed(read_manifest(folder), folder, sha256=hashlib.sha256(data).hexdigest(), **said)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _any(folder: Path) -> Path:
    return min((folder / PAYLOADS).iterdir())


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (lambda at: _flip(_any(at)), "it was altered: its sha256 is not its name"),
    "gone": (lambda at: _any(at).unlink(), "it is missing"),
    "cut": (lambda at: _any(at).write_bytes(b""), "it was altered: its sha256 is not its name"),
    # What would be read for ever, or into all the memory there is.
    "a pipe": (lambda at: _instead(_any(at), os.mkfifo), "a pipe"),
    "a device": (
        lambda at: _instead(_any(at), lambda path: path.symlink_to("/dev/zero")),
        "a device",
    ),
    "a pipe as list": (lambda at: _instead(at / PAYLOAD_LIST, os.mkfifo), "a pipe"),
    "a pipe of events": (
        lambda at: _instead(at / read_manifest(at).files[0].name, os.mkfifo),
        "a pipe",
    ),
    "endless": (lambda at: _instead(_any(at), _sparse), "more than the 1,073,741,824 there can be"),
    "added": (
        lambda at: (at / PAYLOADS / "note.txt").write_text("x"),
        "1 files in it are not in payloads.jsonl",
    ),
    "folder gone": (lambda at: shutil.rmtree(at / PAYLOADS), "it is missing"),
    "list gone": (lambda at: (at / PAYLOAD_LIST).unlink(), "payloads.jsonl: it is missing"),
    "list flipped": (lambda at: _flip(at / PAYLOAD_LIST), "payloads.jsonl"),
    "line left out": (
        lambda at: _lines(at, lambda lines: lines[1:], count=COUNT - 1),
        f"refer to {COUNT - 1} large values, and they refer to {COUNT}",
    ),
    "line added": (
        lambda at: _lines(
            at, lambda lines: [*lines, lines[0].replace(lines[0][11:75], b"f" * 64)], count=COUNT + 1
        ),
        "lists " + "f" * 64 + ", to which no event refers",
    ),
    "out of order": (lambda at: _lines(at, lambda lines: lines[::-1]), "out of order"),
    "a path": (
        lambda at: _lines(
            at, lambda lines: [lines[0].replace(lines[0][11:75], b"../" * 21 + b"x"), *lines[1:]]
        ),
        "not one that was written",
    ),
    "said to be gone": (
        lambda at: _lines(at, lambda lines: [lines[0].replace(b'"stored"', b'"gone"'), *lines[1:]], gone=1),
        "and the manifest says",
    ),
}

#: What keeps an export from being brought back; the others only a check can tell.
REFUSED = (
    "a pipe",
    "a device",
    "a pipe as list",
    "a pipe of events",
    "endless",
    "flipped",
    "gone",
    "cut",
    "folder gone",
    "list gone",
    "list flipped",
    "out of order",
    "a path",
)


@pytest.mark.parametrize("harm", HARMS)
async def test_whatever_is_done_to_them_is_found(whole: Path, tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    do, sentence = HARMS[harm]
    do(folder)
    report = await verify_export(folder)
    assert not report.sound
    assert any(each.rule == "export" and sentence in each.sentence for each in report.violations), (
        report.text()
    )
    if harm in REFUSED:
        names = Names(read_manifest(folder).environment)
        with pytest.raises(ExportDamagedError):
            await import_export(folder, MemoryLog(names=names), payloads=_Kept())


class _Kept:
    """Takes what is brought back."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def keep(self, _store: str, reference: PayloadRef, text: bytes) -> None:
        self.values[reference.sha256] = text


async def test_a_manifest_that_contradicts_itself_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    manifest = read_manifest(folder)
    for said in ({"gone": COUNT + 1}, {"differs": -1}, {"sha256": ""}, {"included": False}, {"bytes": -1}):
        changed(manifest, folder, **said)
        with pytest.raises(ExportDamagedError, match="contradicts itself"):
            read_manifest(folder)
    for other in ({"format": 1}, {"payloads": msgspec.UNSET}):
        (folder / MANIFEST).write_bytes(manifest_bytes(sealed(msgspec.structs.replace(manifest, **other))))
        with pytest.raises(ExportDamagedError, match="not of its format"):
            read_manifest(folder)


async def test_an_export_of_the_first_format_is_still_read(ledger: Ledger, tmp_path: Path) -> None:
    manifest = await write_export(ledger.log, tmp_path / "old")
    old = msgspec.structs.replace(manifest, format=1, payloads=msgspec.UNSET)
    (tmp_path / "old" / MANIFEST).write_bytes(manifest_bytes(sealed(old)))
    assert b"payloads" not in (tmp_path / "old" / MANIFEST).read_bytes()
    report = await verify_export(tmp_path / "old")
    assert report.sound, report.text()
    assert "that events refer to: left out of the export" in report.text()


async def test_what_is_gone_from_the_store_is_told_and_the_rest_is_exported(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with connect(
        nats_server.url, environment=f"t_{secrets.token_hex(6)}", ledger_bytes_max=16 << 20
    ) as made:
        async with working(made, enlarge):
            for text in "ab":
                await ended(await made.enqueue(enlarge.options(id=text), text * 100_000, 1))
        assert (await api(made.inbox, f"STREAM.PURGE.OBJ_{made.names.results_bucket}", {}))["success"]
        damaged = (await (await made.job("a")).snapshot()).order.input_ref
        assert damaged is not None
        store: Any = await made.connection.jetstream().object_store(made.names.payloads_bucket)
        await store.put(damaged.sha256, b"{}")
        found = payloads(await write_export(made.log, tmp_path / "export", payloads=stores(made)))
        assert (found.count, found.stored, found.gone, found.differs) == (4, 1, 2, 1)
        report = await verify_export(tmp_path / "export")
        assert (report.broken, report.violations[0].job) == ({"payload": 1}, "large/a")
        assert "1 of 4 are stored, 2 gone (results expire after a week), 1 differ" in report.text()
        lines = (tmp_path / "export" / PAYLOAD_LIST).read_bytes().splitlines()
        states = sorted(json.loads(line)["state"] for line in lines)
        assert states == ["differs", "gone", "gone", "stored"]


async def test_a_ledger_brought_back_runs_the_jobs_that_wait_and_reads_the_results(
    nats_server: EmbeddedServer, ledger: Ledger, whole: Path
) -> None:
    names, count = ledger.names, read_manifest(whole).count
    values = _Kept()
    assert await import_export(whole, MemoryLog(names=names), payloads=values) == count
    assert len(values.values) == COUNT
    for stream in (names.ledger_stream, f"OBJ_{names.payloads_bucket}", f"OBJ_{names.results_bucket}"):
        assert (await api(ledger.inbox, f"STREAM.DELETE.{stream}", {}))["success"]
    async with connect(nats_server.url, environment=names.environment, ledger_bytes_max=16 << 20) as again:
        for appended in (count, 0):
            assert await import_export(whole, again.log, payloads=stores(again)) == appended
        assert await (await again.job("job-b")).result(timeout_s=LIMIT_S) == "b" * 300_000
        async with working(again, enlarge):
            assert await (await again.job("waits")).result(timeout_s=LIMIT_S) == "a" * 100_000
