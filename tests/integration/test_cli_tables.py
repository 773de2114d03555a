"""`jobledger tables`: what runs made, shown, written into a file and removed; and the projection's rows of it."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.loops import run_in_loop
from tests.support.working import LIMIT_S, working

from jobledger.ledger import Ledger, Run, connect, workflow

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer


@workflow(queue="etl", max_attempts=1)
async def totals(run: Run) -> int:
    rows = await run.write("rows", ({"sku": f"s{n % 2}", "cents": n} for n in range(1_000)))
    query = "SELECT sku, sum(cents)::BIGINT AS cents FROM t GROUP BY sku ORDER BY sku"
    return (await run.sql(query, into="sums", t=rows)).rows


class Cli(CommandLine):
    """The command line with a projection of the test's own, on an environment of its own unless it is told another one."""

    def __init__(
        self, url: str, folder: Path, capsys: pytest.CaptureFixture[str], environment: str | None = None
    ) -> None:
        super().__init__(url, capsys, environment)
        self._rows = ("--projection", str(folder / "projection.db"))

    def __call__(self, *words: str) -> Answer:
        return self.run(*words, *self.where, *self._rows)


@pytest.fixture(scope="module")
def filled(nats_server: EmbeddedServer) -> str:
    """The environment of a run that has ended, for tests that leave its tables as they are."""

    async def fill() -> str:
        environment = f"t_{secrets.token_hex(6)}"
        async with connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20) as ledger:
            await _fill(ledger)
        return environment

    return run_in_loop(fill)


@pytest.fixture
def reader(
    nats_server: EmbeddedServer,
    filled: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("COLUMNS", "80")
    return Cli(nats_server.url, tmp_path, capsys, filled)


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("COLUMNS", "80")
    made = Cli(nats_server.url, tmp_path, capsys)
    made.with_ledger(_fill)
    return made


async def _fill(ledger: Ledger) -> None:
    async with working(ledger, totals):
        job = await ledger.enqueue(totals.options(id="totals-1"))
        assert await job.result(timeout_s=LIMIT_S) == 2


def test_tables_are_listed_shown_exported_and_removed(cli: Cli, tmp_path: Path) -> None:
    listed = cli("tables", "list", "totals", "--json").lines
    assert [(each["step"], each["rows"], each["job_id"]) for each in listed] == [
        ("sums", 2, "totals-1"),
        ("rows", 1_000, "totals-1"),
    ]
    shown = cli("tables", "list").out
    assert shown.splitlines()[0].split() == ["run", "step", "rows", "size", "kept", "for"]
    assert "totals-1   rows   1,000" in shown
    sums = cli("tables", "show", "totals-1", "sums", "--json").lines[0]
    assert sums["stored"] is True
    assert sums["columns"] == {"sku": "string", "cents": "int64"}
    assert "cents    int64" in cli("tables", "show", "totals-1", "sums").out

    path = tmp_path / "out" / "sums.parquet"
    written = cli("tables", "export", "totals-1", "sums", str(path))
    assert (written.code, written.out) == (0, f"2 rows, {_size(sums['bytes'])}, in {path}\n")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sums["sha256"]
    assert pq.read_table(path).num_rows == 2
    again = cli("tables", "export", "totals-1", "sums", str(path))
    assert (again.code, "exists: name a file that does not" in again.err) == (2, True)

    plan = cli("tables", "remove", "totals-1", "--plan", "--json").lines
    assert [(each["step"], each["result"]) for each in plan] == [("sums", "planned"), ("rows", "planned")]
    unsure = cli("tables", "remove", "totals-1")
    assert (unsure.code, "--yes" in unsure.err) == (2, True)
    gone = cli("tables", "remove", "totals-1", "sums")
    assert gone.code == 0
    assert "sums: 2 rows" in gone.out
    assert cli("tables", "show", "totals-1", "sums", "--json").lines[0]["stored"] is False
    rest = cli("tables", "remove", "totals-1", "--yes", "--json").lines
    assert [each["step"] for each in rest] == ["rows"]
    assert cli("tables", "remove", "totals-1").out == "no table of run totals-1 has rows that are stored\n"
    lost = cli("tables", "export", "totals-1", "sums", str(tmp_path / "none"))
    assert lost.code == 3
    assert "`jobledger jobs rerun totals-1 --from sums` makes it again" in lost.err
    assert sorted(each.name for each in path.parent.iterdir()) == ["sums.parquet"]


def _size(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes < 1_000 else f"{size_bytes / 1024:.1f} KiB"


def test_what_is_not_there_is_told_with_what_is(reader: Cli) -> None:
    wrong = reader("tables", "show", "totals-1", "sum")
    assert wrong.code == 3
    assert "run totals-1 has no table 'sum'; its steps with tables: sums, rows" in wrong.err
    assert reader("tables", "list", "nobody").code == 3


def test_steps_say_how_many_rows_they_made_and_a_rebuilt_projection_has_the_same(reader: Cli) -> None:
    assert "1,000 rows" in reader("jobs", "show", "--steps", "totals-1").out
    assert "2 rows" in reader("jobs", "show", "totals-1", "--tree").out
    before = reader("tables", "list", "--json").lines
    assert reader("projection", "verify").code == 0
    assert reader("projection", "rebuild").code == 0
    assert reader("tables", "list", "--json").lines == before


def test_a_question_in_sql_is_asked_of_the_tables_of_a_run(reader: Cli) -> None:
    query = "select s.sku, s.cents, count(*) n from sums s join rows r using (sku) group by all order by 1"
    table = reader("tables", "query", "totals-1", query)
    assert table.out.splitlines() == [
        "sku   cents    n",
        "──────────────────",
        "s0    249500   500",
        "s1    250000   500",
    ]
    assert reader("tables", "query", "totals-1", query, "--json").lines == [
        {"sku": "s0", "cents": 249_500, "n": 500},
        {"sku": "s1", "cents": 250_000, "n": 500},
    ]
    typed = "select date '2026-01-02' as day, 1.50::decimal(9, 2) as euros, [1, 2] as list, null as nothing"
    assert reader("tables", "query", "totals-1", typed, "--format", "csv").out == (
        'day,euros,list,nothing\n2026-01-02,1.50,"[1, 2]",\n'
    )
    assert reader("tables", "query", "totals-1", typed, "--json").lines == [
        {"day": "2026-01-02", "euros": "1.50", "list": [1, 2], "nothing": None}
    ]
    cut = reader("tables", "query", "totals-1", 'select cents from "rows" order by cents', "--limit", "2")
    assert cut.out.split()[2:] == ["0", "1"]
    assert "the first 2 rows" in cut.err


def test_what_is_no_question_to_tables_is_refused(reader: Cli) -> None:
    for query, reason in (
        ("drop view rows", "a query of tables is one SELECT"),
        ("select 1; select 2", "a query of tables is one SELECT"),
        ("select * from read_text('/etc/hostname')", "Permission Error"),
        ("select * from sum", "tables of the run: rows, sums"),
        ("select nothing from rows", '"nothing" not found'),
        ("", "got nothing"),
    ):
        found = reader("tables", "query", "totals-1", query)
        assert (found.code, found.out, reason in found.err) == (2, "", True), found.err


def test_a_question_to_tables_without_an_end_ends_and_one_without_rows_says_why(cli: Cli) -> None:
    endless = "select count(*) from range(1000000) a, range(1000000) b"
    found = cli("tables", "query", "totals-1", endless, "--timeout", "500ms")
    assert (found.code, "took longer than 0.5 s" in found.err) == (2, True)
    assert cli("tables", "remove", "totals-1", "rows", "--yes").code == 0
    gone = cli("tables", "query", "totals-1", "select * from rows")
    assert (gone.code, "makes it again" in gone.err) == (3, True)
    assert cli("tables", "query", "totals-1", "select count(*) as n from sums", "--json").lines == [{"n": 2}]
    assert cli("tables", "query", "nobody", "select 1").code == 3
