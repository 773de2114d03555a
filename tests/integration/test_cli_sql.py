"""`jobledger sql`: questions of one's own over the projection, which read and do nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

from jobledger.ledger import Ledger, task


@task(queue="mail")
async def send(to: str) -> None: ...


@pytest.fixture
def filled(cli: CommandLine, here: Path) -> CommandLine:
    async def fill(ledger: Ledger) -> None:
        for number in range(3):
            await ledger.enqueue(send.options(id=f"j{number}", tenant="acme"), "ann")

    cli.with_ledger(fill)
    return cli


def test_rows_are_a_table_objects_or_csv(filled: CommandLine) -> None:
    query = "select id, tenant from jobs where queue = :queue and id > 'j0' order by id"
    asked = ("sql", query, "--param", "queue=mail", *filled.where)
    assert filled.run(*asked).out.splitlines() == ["id   tenant", "───────────", "j1   acme", "j2   acme"]
    assert filled.run(*asked, "--json").lines == [
        {"id": "j1", "tenant": "acme"},
        {"id": "j2", "tenant": "acme"},
    ]
    assert filled.run(*asked, "--format", "csv").out == "id,tenant\nj1,acme\nj2,acme\n"
    cut = filled.run(*asked, "--limit", "1")
    assert "j2" not in cut.out
    assert "the first 1 rows" in cut.err


def test_what_could_steer_a_terminal_is_written_out(filled: CommandLine) -> None:
    assert "\\x1b[31m" in filled.run("sql", "select char(27) || '[31m' as a", *filled.where).out


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("delete from jobs", "it may read rows and nothing else"),
        ("attach 'other.db' as other", "it may read rows and nothing else"),
        ("pragma journal_mode = delete", "it may read rows and nothing else"),
        ("select load_extension('x')", "nothing else"),
        ("select 1; select 2", "one statement at a time"),
        ("select * from nowhere", "no such table: nowhere"),
        ("", "the SQL asks for nothing"),
    ],
)
def test_what_is_no_question_is_refused_and_changes_nothing(
    filled: CommandLine, query: str, reason: str
) -> None:
    found = filled.run("sql", query, "--json", *filled.where)
    assert (found.code, found.out) == (2, "")
    assert reason in json.loads(found.err)["error"]["message"]
    assert filled.run("sql", "select count(*) as n from jobs", "--json", *filled.where).lines == [{"n": 3}]


def test_a_question_without_an_end_ends(filled: CommandLine) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    found = filled.run("sql", endless, "--timeout", "200ms", *filled.where)
    assert found.code == 2
    assert "took longer than 0.2 s" in found.err
