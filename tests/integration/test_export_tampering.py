"""Whatever is done to a copy of an export is found and named, and what only an earlier report can tell is told by one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest
from tests.support.forgery import Line, copied, lines_of, relinked, rewritten
from tests.support.stories import rich
from tests.support.working import LIMIT_S, working

from jobledger.audit.diff import Side, compare
from jobledger.audit.errors import NotAnExportError
from jobledger.audit.export import (
    ExportLog,
    Selection,
    read_export,
    read_manifest,
    verify_export,
    write_export,
)
from jobledger.audit.export.restore import chain_of
from jobledger.audit.seals.keys import make_keys, read_signer
from jobledger.audit.seals.seals import seal_next
from jobledger.audit.verify import Report, verify
from jobledger.audit.verify.file import write_report
from jobledger.cli.main import run
from jobledger.ledger import Backoff, Context, Ledger, Retry, connect, task
from jobledger.ledger.model.errors import CorruptLedgerError, LedgerError
from jobledger.ledger.model.log import Entry

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

FLIPS = 60

AT = 7  # index of a line in the middle


@task(queue="work", max_attempts=2, backoff=Backoff(base_s=0.05))
async def double(ctx: Context, number: int) -> int | Retry:
    if number % 3 == 0:
        raise ValueError(f"{number} does not please")
    return 2 * number


class Exports(NamedTuple):
    """A real server's ledger, exported in all ways, and what was known of it when that was done."""

    whole: Path  #: JSON Lines, one file
    parts: Path  #: the same, several files
    parquet: Path
    job: Path  #: one job alone, so with holes
    before: Report
    kept: Path  #: the same report as a file
    seals: Path  #: what was published of the one seal, which is the newest event


@pytest.fixture(scope="module")
async def exports(nats_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    folder = tmp_path_factory.mktemp("exports")
    async with connect(nats_server.url, environment="tampering", ledger_bytes_max=16 << 20) as ledger:
        job = await _history(ledger)
        log = ledger.log
        make_keys(folder / "seal.pem")
        seal = await seal_next(log, read_signer(folder / "seal.pem"), by="auditor", at=datetime.now(UTC))
        assert seal is not None
        (folder / "seals.jsonl").write_text(seal.line())
        await write_export(log, folder / "whole")
        await write_export(log, folder / "parts", file_bytes_max=8_000)
        await write_export(log, folder / "parquet", file_format="parquet")
        await write_export(log, folder / "job", selection=Selection(job=job))
        before = await verify(log)
    write_report(before, folder / "report.json")
    assert before.sound, before.text()
    assert before.events > 80
    return Exports(
        folder / "whole",
        folder / "parts",
        folder / "parquet",
        folder / "job",
        before,
        folder / "report.json",
        folder / "seals.jsonl",
    )


async def _history(ledger: Ledger) -> str:
    """Every type of event, and what a worker made of a dozen jobs; return one of these that failed twice."""
    newest: dict[str, int] = {}
    for message in rich().messages:
        subject = message.subject.replace("ledger.", f"{ledger.names.ledger_root}.", 1)
        chain = chain_of(subject)
        newest[chain] = await ledger.log.append([Entry(subject, message.data, chain, newest.get(chain, 0))])
    jobs = [await ledger.enqueue(double, number) for number in range(12)]
    async with working(ledger, double):
        await asyncio.gather(*(job.wait(timeout_s=LIMIT_S) for job in jobs))
    return jobs[3].id


async def named(folder: Path, before: Report | None = None) -> list[tuple[int, str, str]]:
    """Return what is found: sequence, rule and sentence, and one of rule "manifest" when that cannot even be read."""
    try:
        report = await verify_export(folder, before=before)
    except (CorruptLedgerError, NotAnExportError) as error:
        return [(0, "manifest", str(error))]
    assert report.sound == (not report.violations)
    return [(each.stream_sequence, each.rule, each.sentence) for each in report.violations]


async def test_untouched_exports_are_sound(exports: Exports) -> None:
    for folder in (exports.whole, exports.parts, exports.parquet):
        assert await named(folder, exports.before) == []
        assert (await verify_export(folder)).digest == exports.before.digest
    assert await named(exports.job) == []


@pytest.mark.parametrize("which", ["parts", "parquet", "job"])
async def test_one_flipped_bit_anywhere_is_found_and_its_file_named(
    which: str, exports: Exports, tmp_path: Path
) -> None:
    source: Path = getattr(exports, which)
    copy, chance = copied(source, tmp_path / "copy"), random.Random(which)
    files = sorted(copy.iterdir())
    for _ in range(FLIPS):
        file = chance.choice(files)
        data = bytearray(file.read_bytes())
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        data[at] ^= 1 << bit
        file.write_bytes(data)
        found = await named(copy)
        assert found, f"{file.name}: bit {bit} of byte {at}"
        assert any(file.name in sentence for _, _, sentence in found), (file.name, at, bit, found)
        with pytest.raises(LedgerError, match=file.name):
            list(read_export(copy))
        data[at] ^= 1 << bit
        file.write_bytes(data)
    assert await named(copy) == []


async def test_a_flipped_bit_in_an_event_is_named_with_its_sequence(exports: Exports, tmp_path: Path) -> None:
    copy = copied(exports.whole, tmp_path / "copy")
    file = next(copy.glob("events-*"))
    file.write_bytes(file.read_bytes().replace(b'"type":"started"', b'"type":"starved"', 1))
    victim = next(each for each in lines_of(exports.whole) if b'"started"' in each.data)
    found = await named(copy)
    assert (1, "export", f"{file.name}: it was altered: its checksum is not what the manifest says") in found
    assert [rule for sequence, rule, _ in found if sequence == victim.stream_sequence] == ["readable"]
    with pytest.raises(CorruptLedgerError, match=file.name):
        await ExportLog(copy).get(victim.stream_sequence)


Change = Callable[[list[Line]], list[Line]]


def _dropped(lines: list[Line]) -> list[Line]:
    return lines[:19] + lines[20:]


def _swapped(lines: list[Line]) -> list[Line]:
    return [*lines[:19], lines[20], lines[19], *lines[21:]]


def _repeated(lines: list[Line]) -> list[Line]:
    return [*lines[:20], lines[19], *lines[20:]]


@pytest.mark.parametrize(
    ("change", "sequence", "words"),
    [
        (_dropped, 20, "stream sequence 20 is missing"),
        (_swapped, 20, "stream sequence 20 comes after 21"),
        (_repeated, 20, "stream sequence 20 comes after 20"),
    ],
)
async def test_dropped_swapped_and_repeated_events_are_found_also_when_the_manifest_was_forged(
    change: Change, sequence: int, words: str, exports: Exports, tmp_path: Path
) -> None:
    accident = copied(exports.whole, tmp_path / "accident")
    rewritten(accident, change, manifest=False)
    found = await named(accident)
    assert {rule for _, rule, _ in found} >= {"export", "sequence"}
    forged = copied(exports.whole, tmp_path / "forged")
    rewritten(forged, change, manifest=True)
    found = await named(forged)
    if found[0][1] == "manifest":  # one event more or less does not even fit the range
        assert "it is called complete" in found[0][2]
    else:
        assert any(each[0] == sequence and words in each[2] for each in found), found


async def test_a_drop_that_renumbers_what_follows_breaks_its_chain(exports: Exports, tmp_path: Path) -> None:
    lines = lines_of(exports.whole)
    at = next(at for at, line in enumerate(lines) if b'"type":"started"' in line.data)

    def closed_up(lines: list[Line]) -> list[Line]:
        later = [line._replace(stream_sequence=line.stream_sequence - 1) for line in lines[at + 1 :]]
        return lines[:at] + later

    copy = copied(exports.whole, tmp_path / "copy")
    rewritten(copy, closed_up, manifest=True)
    found = await named(copy)
    assert {"chain", "transition"} & {rule for _, rule, _ in found}
    assert all(rule != "export" for _, rule, _ in found)


def _victim(lines: list[Line], kind: str) -> int:
    """Return where an event of a worker's job is that something of the same job follows."""
    for at, line in enumerate(lines):
        wanted = ".job.work." in line.subject and line.subject.endswith(f".{kind}")
        if wanted and any(later.chain == line.chain for later in lines[at + 1 :]):
            return at
    raise AssertionError(kind)


def _forged_worker(lines: list[Line]) -> list[Line]:
    at = _victim(lines, "started")
    return [*lines[:at], lines[at].with_event(worker="mallory"), *lines[at + 1 :]]


def _forged_worker_and_links(lines: list[Line]) -> list[Line]:
    at = _victim(lines, "started")
    return relinked(_forged_worker(lines), lines[at].chain)


def _forged_outcome(lines: list[Line]) -> list[Line]:
    """Turn the failure of an attempt into a success, with every link behind it made anew."""
    at = _victim(lines, "failed")
    event = msgspec.json.decode(lines[at].data)
    kept = {name: event[name] for name in ("v", "job", "queue", "task", "at", "by", "prev", "attempt")}
    data = msgspec.json.encode({"type": "completed", **kept})
    subject = lines[at].subject.replace(".failed", ".completed")
    forged = [*lines[:at], lines[at]._replace(subject=subject, data=data), *lines[at + 1 :]]
    return relinked(forged, lines[at].chain)


async def test_an_altered_time_of_the_server_is_a_notice_where_the_checksums_were_made_anew(
    exports: Exports, tmp_path: Path
) -> None:
    def later(lines: list[Line]) -> list[Line]:
        moved = lines[AT]._replace(stored_at=lines[AT].stored_at + timedelta(days=1_826))
        return [*lines[:AT], moved, *lines[AT + 1 :]]

    for manifest, rules in ((False, ["export"]), (True, [])):
        copy = copied(exports.whole, tmp_path / f"copy-{manifest}")
        sequence = lines_of(copy)[AT].stream_sequence
        rewritten(copy, later, manifest=manifest)
        report = await verify_export(copy)
        assert [each.rule for each in report.violations] == rules
        apart, back = report.times.notices()
        assert f"stream sequence {sequence} and the event's own are " in apart
        assert f"goes back by 1,826.0 d at stream sequence {sequence + 1}" in back


async def test_a_forged_event_breaks_the_link_of_the_next_one(exports: Exports, tmp_path: Path) -> None:
    copy = copied(exports.whole, tmp_path / "copy")
    lines = lines_of(exports.whole)
    at = _victim(lines, "started")
    follower = next(line for line in lines[at + 1 :] if line.chain == lines[at].chain)
    rewritten(copy, _forged_worker, manifest=False)
    assert [each[1] for each in await named(copy)] == ["export", "chain", "export"]
    copy = copied(exports.whole, tmp_path / "copy")
    rewritten(copy, _forged_worker, manifest=True)
    assert [each[:2] for each in await named(copy)] == [(follower.stream_sequence, "chain")]


async def test_an_illegal_history_is_found_however_well_it_is_linked(
    exports: Exports, tmp_path: Path
) -> None:
    copy = copied(exports.whole, tmp_path / "copy")
    lines = lines_of(exports.whole)
    at = _victim(lines, "failed")
    follower = next(line for line in lines[at + 1 :] if line.chain == lines[at].chain)
    rewritten(copy, _forged_outcome, manifest=True)
    found = await named(copy)
    assert {rule for _, rule, _ in found} <= {"transition", "outcome", "attempts"}
    assert found[0][0] == follower.stream_sequence


async def test_a_legal_history_written_anew_is_told_by_an_earlier_report_and_by_the_original(
    exports: Exports, tmp_path: Path
) -> None:
    copy = copied(exports.whole, tmp_path / "copy")
    at = _victim(lines_of(exports.whole), "started")
    rewritten(copy, _forged_worker_and_links, manifest=True)
    report = await verify_export(copy)
    assert report.sound  # it is a ledger that could have been
    assert "only an earlier report" in report.not_proven[-2]
    assert [each[1] for each in await named(copy, exports.before)] == ["history"]
    last = exports.before.head_sequence
    sides = [
        Side(log=ExportLog(each), first_sequence=1, last_sequence=last) for each in (exports.whole, copy)
    ]
    difference = await compare(*sides)
    assert difference.first_difference == at + 1
    assert not difference.shares_past


async def test_a_tail_that_was_cut_off_is_told_by_an_earlier_report(exports: Exports, tmp_path: Path) -> None:
    accident = copied(exports.whole, tmp_path / "accident")
    rewritten(accident, lambda lines: lines[:-5], manifest=False)
    last = exports.before.head_sequence
    found = await named(accident)
    assert found[0][1] == "export"
    assert any(f"{last - 4} to {last} are missing at the end" in sentence for _, _, sentence in found)
    file = next(accident.glob("events-*"))
    file.write_bytes(file.read_bytes()[:-40])
    assert any("the file was cut off" in sentence for _, _, sentence in await named(accident))
    forged = copied(exports.whole, tmp_path / "forged")
    rewritten(forged, lambda lines: lines[:-5], manifest=True)
    assert await named(forged) == []  # said by "not proven", and by whoever kept a report
    found = await named(forged, exports.before)
    assert [each[:2] for each in found] == [(last - 4, "history")]
    assert "the ledger ends before" in found[0][2]


async def test_missing_and_foreign_files_are_named(exports: Exports, tmp_path: Path) -> None:
    manifest = read_manifest(exports.parts)
    assert len(manifest.files) > 2
    for entry in manifest.files:
        copy = copied(exports.parts, tmp_path / "copy")
        (copy / entry.name).unlink()
        found = await named(copy)
        assert found[0][1:] == ("export", f"{entry.name}: it is missing")
        with pytest.raises(CorruptLedgerError, match=f"{entry.name}.*it is missing"):
            list(read_export(copy))
    copy = copied(exports.parts, tmp_path / "copy")
    stranger = "events-00000000000000009000-00000000000000009001.jsonl"
    (copy / stranger).write_text("")
    assert await named(copy) == [(0, "export", f"{stranger} is not in the manifest")]
    (copy / "manifest.json").unlink()
    assert "has no manifest.json" in (await named(copy))[0][2]


async def test_a_selection_has_to_have_whole_chains(exports: Exports, tmp_path: Path) -> None:
    lines = lines_of(exports.job)
    assert any(b.stream_sequence > a.stream_sequence + 1 for a, b in pairwise(lines))
    at = next(at for at, line in enumerate(lines) if b'"type":"started"' in line.data)
    copy = copied(exports.job, tmp_path / "copy")
    rewritten(copy, lambda lines: lines[:at] + lines[at + 1 :], manifest=True)
    assert (await named(copy))[0][1] == "chain"
    copy = copied(exports.job, tmp_path / "copy")
    rewritten(copy, lambda lines: lines[1:], manifest=True)
    assert (await named(copy))[0][1] == "chain"
    copy = copied(exports.job, tmp_path / "copy")
    rewritten(copy, lambda lines: [lines[1], lines[0], *lines[2:]], manifest=True)
    assert {"sequence", "manifest"} & {rule for _, rule, _ in await named(copy)}


def _spoiled(exports: Exports, folder: Path) -> list[Path]:
    """Return exports of which each is damaged in another way."""
    made: list[Path] = []

    def copy(source: Path) -> Path:
        made.append(copied(source, folder / f"copy-{len(made)}"))
        return made[-1]

    for change in (_dropped, _swapped, _repeated, _forged_worker, _forged_outcome):
        for manifest in (False, True):
            rewritten(copy(exports.whole), change, manifest=manifest)
    rewritten(copy(exports.whole), lambda lines: lines[:-5], manifest=False)
    for source in (exports.parts, exports.parquet):
        chance = random.Random(str(source.name))
        for file in sorted(source.iterdir())[-3:]:
            victim = copy(source) / file.name
            data = bytearray(victim.read_bytes())
            data[chance.randrange(len(data))] ^= 0x40
            victim.write_bytes(data)
        for file in (next(source.glob("events-*")), source / "manifest.json"):
            (copy(source) / file.name).unlink()
            (copy(source) / file.name).write_bytes(b"")
    return made


async def test_the_command_finds_each_and_exits_with_4(
    exports: Exports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*words: str) -> tuple[int, str, str]:
        code = run(["audit", "verify", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    def all_of_them() -> None:
        assert answer(str(exports.whole))[0] == 0
        assert answer(str(exports.parquet / "manifest.json"), "--against", str(exports.kept))[0] == 0
        for folder in _spoiled(exports, tmp_path):
            code, out, err = answer(str(folder))
            assert (code, "Traceback" in out + err, "is sound" in out) == (4, False, False), (
                folder,
                out,
                err,
            )
            assert err.startswith("jobledger: ")
            assert len(err.splitlines()) == 1
        forged = copied(exports.whole, tmp_path / "forged")
        rewritten(forged, _forged_worker_and_links, manifest=True)
        code, out, err = answer(str(forged), "--against", str(exports.kept), "--json")
        assert (code, json.loads(out)["broken"]) == (4, {"history": 1, "seal": 1})
        assert "rule `history` is broken" in json.loads(err)["error"]["message"]
        code, _, err = answer(str(forged))  # the seal in it is over the events as they were
        assert (code, "rule `seal` is broken" in err) == (4, True)
        rewritten(forged, lambda lines: lines[:-1], manifest=True)
        code, out, err = answer(str(forged))
        assert (code, err, "not proven: that the export" in out) == (0, "", True)
        trusted = ("--seal-key", str(exports.kept.with_name("seal.pem.pub")), "--seal", str(exports.seals))
        code, _, err = answer(str(forged), *trusted)
        assert (code, "rule `seal` is broken" in err) == (4, True)
        code, out, err = answer(str(exports.parquet), *trusted)
        assert (code, err, out.count("not proven"), "when the server stored" in out) == (0, "", 3, True)
        assert answer(str(tmp_path / "nowhere"))[0] == 3
        assert answer(str(exports.whole), "--from", "3")[0] == 2
        assert answer(str(exports.job), "--against", str(exports.kept))[0] == 2

    await asyncio.to_thread(all_of_them)
