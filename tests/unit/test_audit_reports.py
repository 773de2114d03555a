"""Reports of a check as files, and what an earlier one asks of the next check: without a server."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.orders import enqueue_of

from jobledger.audit.verify import Checker, Report, verify
from jobledger.audit.verify.file import read_report, write_report
from jobledger.ledger.model.chain import commit, load
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, Names

pytestmark = pytest.mark.anyio

BEGIN = datetime(2026, 1, 2, 8, tzinfo=UTC)


async def _holding(*jobs: str) -> MemoryLog:
    log = MemoryLog()
    for job in jobs:
        await _enqueue(log, job)
    return log


async def _enqueue(log: MemoryLog, job: str) -> None:
    ref = JobRef(queue="q", job_id=job)
    order = enqueue_of(ref, task="t")
    await commit(log, await load(log, ref), decide(None, order, Stamp(at=BEGIN, by="shop")))


# Reports as files.


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def _report() -> Report:
    return await verify(await _holding("a"))


async def test_a_report_is_read_as_it_was_written_and_replaced_as_a_whole(tmp_path: Path) -> None:
    report = await _report()
    path = tmp_path / "report.json"
    path.write_text("something older", encoding="utf-8")
    write_report(report, path)
    assert read_report(path) == report
    assert names_in(tmp_path) == ["report.json"]


async def test_a_report_that_cannot_take_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    report = await _report()
    path = tmp_path / "report.json"
    path.mkdir()
    with pytest.raises(OSError, match=r"report\.json"):
        write_report(report, path)
    assert names_in(tmp_path) == ["report.json"]


def test_a_missing_report_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="make one with --report"):
        read_report(tmp_path / "none.json")


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"head_sequence": -7},
        {"from_sequence": 0},
        {"from_sequence": 9},
        {"digest": "zz"},
        {"digest": 7},
        {"violations": None},
    ],
)
async def test_what_is_no_report_is_refused(tmp_path: Path, change: dict[str, Any] | None) -> None:
    path = tmp_path / "report.json"
    body = msgspec.to_builtins(await _report())
    path.write_bytes(b"[" * 5_000 if change is None else msgspec.json.encode(body | change))
    with pytest.raises(InvalidInputError, match="is not a report of `jobledger audit verify`"):
        read_report(path)


def test_a_file_that_cannot_be_a_report_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 1 << 30)
    with pytest.raises(InvalidInputError, match="too large"):
        read_report(path)


# What an earlier report asks of a check.


async def test_a_report_of_an_empty_ledger_is_continued_by_any(tmp_path: Path) -> None:
    empty = Checker(Names()).finish()
    assert (await verify(await _holding("a"), before=empty)).sound
    assert Checker(Names(), before=empty).finish().sound


async def test_a_check_that_ends_before_the_earlier_report_is_refused() -> None:
    log = await _holding(*"abc")
    before = await verify(log)
    with pytest.raises(InvalidInputError, match="to_sequence is 2, and the earlier report goes up to 3"):
        await verify(log, to_sequence=2, before=before)
