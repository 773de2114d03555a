"""Exports that the keeper forgot, at the command line: the run, the verdict, and what every reader of an archive says."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.integration.test_cli_archived import Cli, charge, whole

from jobledger.audit.archive.chain import Past, read_past
from jobledger.audit.archive.forgetter import Forgetter
from jobledger.ledger import Ledger
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.log import Log

__all__ = ["whole"]
ARCHIVE = ("--archive", "archive")
FORGOTTEN = r"events 1 to 6, forgotten on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z by keeper"


async def more(ledger: Ledger) -> None:
    """Let a job of the second export live on, so that the first one alone is forgotten."""
    await ledger.cancel(
        (await ledger.job("charge-3", queue="billing")).ref, reason="it is of the first export", by="bob"
    )
    await ledger.enqueue(charge.options(id="charge-4"), 400)


@pytest.fixture
def archived(whole: Cli) -> Cli:
    """Three exports, of which the first one has six events; a projection has read all."""
    whole.archive()
    whole.with_ledger(more)
    assert whole("jobs", "list").code == 0
    whole.archive()
    whole.with_ledger(lambda ledger: ledger.enqueue(charge.options(id="charge-5"), 500))
    whole.archive()
    return whole


@pytest.fixture
def cli(archived: Cli) -> Cli:
    """The first export is forgotten."""
    place = str(Path("archive").absolute())
    assert archived("retention", "set", "--to", place, "--keep", "0s", "--forget-after", "0s").code == 0
    answer = archived("retention", "run", "--once")
    assert answer.code == 0, answer.err
    assert "forgot 1 export of the archive, with 6 events" in answer.out
    assert "job charge-4 of queue billing, which has events in it, has not ended" in said(answer.err)
    return archived


def said(text: str) -> str:
    return " ".join(text.split())


def test_a_setting_of_years_is_set_and_shown(whole: Cli) -> None:
    answer = whole("retention", "set", "--forget-after", "10y")
    assert (answer.code, "forget exports after 3650 d" in said(answer.out)) == (0, True), answer
    answer = whole("retention", "set", "--forget-after", "7d")
    assert answer.code == 2
    assert "forget_after_s must be from 2,592,000 (keep_s) to" in said(answer.err)
    answer = whole("retention", "set", "--forget-after", "none")
    assert "forget" not in answer.out


def test_the_keeper_forgets_and_the_verdict_says_so(cli: Cli) -> None:
    assert [len(list(each.iterdir())) for each in exports()] == [1, 2, 2]
    verified = cli("audit", "verify", *ARCHIVE)
    assert verified.code == 0, verified
    assert [bool(re.search(f"not proven: {FORGOTTEN}$", line)) for line in verified.out.splitlines()].count(
        True
    ) == 1
    assert cli("audit", "verify").code == 0
    shown = said(cli("retention", "show").out)
    assert re.search(r"forgotten last .* up to stream sequence 6", shown)
    (trail,) = [
        each for each in cli("audit", "trail", "reactor/archive").out.splitlines() if "forgotten" in each
    ]
    assert "the export of 1 to 6" in said(trail)
    answer = cli("retention", "run", "--once")
    assert (answer.code, "forgot" in answer.out) == (0, False), answer


def test_a_projection_that_is_rebuilt_equals_another_one_and_counts_what_is_forgotten(cli: Cli) -> None:
    assert cli("jobs", "list").code == 0
    path = cli.lines("projection", "status")[0]["projection"]

    def counted() -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT task, enqueued, completed, cancelled FROM totals").fetchall()

    before = counted()
    assert before == [("charge", 5, 1, 2)]
    (rebuilt,) = cli.lines("projection", "rebuild", *ARCHIVE)
    assert (rebuilt["begins_at"], rebuilt["counts_begin_at"]) == (7, 1)
    assert cli("projection", "verify", *ARCHIVE).code == 0
    assert counted() == before


def exports() -> list[Path]:
    return sorted(each for each in Path("archive").iterdir() if each.is_dir())


@pytest.mark.parametrize(
    ("words", "code", "pattern"),
    [
        (("jobs", "show", "charge-1", *ARCHIVE), 3, f"{FORGOTTEN}, are gone for good"),
        (("jobs", "show", "charge-1"), 3, f"reads those as well, but for {FORGOTTEN}"),
        (("audit", "trail", "charge-1", *ARCHIVE), 3, f"{FORGOTTEN}, are gone for good"),
        (("audit", "who", *ARCHIVE), 0, f"{FORGOTTEN}, are gone for good"),
        (("events", "tail", "--from", "2"), 1, f"{FORGOTTEN}, are gone for good; begin later"),
        (("events", "tail", "--from", "8"), 1, "8 is not held any more; read the archive first"),
        (("projection", "rebuild", *ARCHIVE), 0, f"{FORGOTTEN}, are gone for good, and in no row"),
        (("projection", "verify", *ARCHIVE), 4, f"{FORGOTTEN}, are gone for good: rebuild it"),
        (("jobs", "show", "charge-4", "--sequence", "3", *ARCHIVE), 4, f"{FORGOTTEN}, are gone for good"),
        (
            ("audit", "redact", *ARCHIVE, "--jobs", "names", "--reason", "x"),
            3,
            f"neither the archive nor the ledger has charge-1: nothing was redacted; nobody has {FORGOTTEN}",
        ),
    ],
)
def test_each_reader_says_one_sentence(cli: Cli, words: tuple[str, ...], code: int, pattern: str) -> None:
    Path("names").write_text("charge-1\n")
    answer = cli(*words)
    assert answer.code == code, answer
    assert re.search(pattern, said(answer.out + answer.err)), answer


def test_exports_that_are_named_one_by_one_and_an_export_alone(cli: Cli) -> None:
    first, *others = map(str, exports())
    every = [word for each in (first, *others) for word in ("--archive", each)]
    answer = cli("audit", "verify", *every)
    assert (answer.code, bool(re.search(f"is no more: {FORGOTTEN}; leave it out", said(answer.err)))) == (
        4,
        True,
    ), answer
    assert cli("audit", "verify", *every[2:]).code == 0
    assert "it is missing" in said(cli("audit", "verify", first).err)
    assert cli("audit", "verify", others[0]).code == 0


def test_a_check_that_a_keeper_disturbs_gives_no_verdict(
    archived: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_and_forget(log: Log, places: Sequence[Path]) -> Past:
        past, now = await read_past(log, places), datetime.now(UTC)
        done = await Forgetter(log, places[0], lambda: Stamp(at=now, by="keeper")).run(now)
        assert len(done.exports) == 1
        return past

    with monkeypatch.context() as patch:
        patch.setattr("jobledger.cli.audit.verify.read_past", read_and_forget)
        answer = archived("audit", "verify", "--record", *ARCHIVE)
    assert answer.code == 4, answer
    assert re.search(
        rf"removed exports while this check read them \({FORGOTTEN}\), .*: run it again", said(answer.err)
    )
    assert "verified" not in archived("audit", "trail", "reactor/verify").out
    assert archived("audit", "verify", *ARCHIVE).code == 0


def test_an_archive_that_lost_an_export_is_not_sound_without_the_fact(archived: Cli) -> None:
    shutil.rmtree(exports()[0])
    answer = archived("audit", "verify", *ARCHIVE)
    assert (answer.code, "lacks the export of stream sequence 1 to 6" in said(answer.err)) == (4, True), (
        answer
    )
