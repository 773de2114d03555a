"""What an enqueuer says of a job on the command line, shown again, and by which lists and bulk acts choose."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.command_line import Answer, CommandLine

from jobledger.cli.session import operator
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.commands import DeadLetter

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

TASKS = """
from jobledger.ledger import task

@task(queue="mail", limits=("smtp",))
def send(number: int) -> None:
    pass
"""


@task(queue="mail")
async def send(number: int) -> None: ...


class Cli(CommandLine):
    """The command line on an environment of the test's own."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.file = str(folder / "projection.db")
        self.app = folder / "tasks_of_test_cli_said.py"
        self.app.write_text(TASKS, encoding="utf-8")

    def __call__(self, *words: str) -> Answer:
        return self.run(*words, *self.where, "--projection", self.file)

    def enqueue(self, *words: str) -> Answer:
        return self.run("enqueue", "send", "number=1", "--app", str(self.app), *words, *self.where)

    def listed(self, *words: str) -> list[str]:
        answer = self("jobs", "list", "--json", *words)
        assert answer.code == 0, answer.err
        return sorted(line["id"] for line in answer.lines)


@pytest.fixture
def cli(nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(nats_server.url, tmp_path, capsys)


def test_what_is_said_at_enqueue_is_shown_again(cli: Cli) -> None:
    said = (
        "--tenant",
        "acme",
        "--correlation",
        "run-7",
        "--metadata",
        "region=eu",
        "--metadata",
        "note=a b = c",
    )
    assert cli.enqueue("--id", "j1", *said, "--limit", "tenant:acme", "--limit", "global").code == 0
    assert cli.enqueue("--id", "j2").code == 0
    (row,) = [line for line in cli("jobs", "list", "--json").lines if line["id"] == "j1"]
    shown = cli("jobs", "show", "j1", "--json").lines[0]
    for found in (row, shown):
        assert (found["status"], found["tenant"], found["correlation"]) == ("held", "acme", "run-7")
        assert found["metadata"] == {"note": "a b = c", "region": "eu"}
        assert found["limits"] == ["global", "smtp", "tenant:acme"]
    page = cli("jobs", "show", "j1").out
    for line in (
        "tenant       acme",
        "limits       global smtp tenant:acme",
        "correlation  run-7",
        'metadata     {"note":"a b = c","region":"eu"}',
    ):
        assert line in page
    tail = cli.run("events", "tail", *cli.where).out
    assert "tenant acme, for global, smtp, tenant:acme" in tail, tail
    assert "tenant" not in cli("jobs", "show", "j2").out
    assert (row["created_by"], shown["created_by"]) == (operator(), operator())
    assert f"created by   {operator()}\n" in page


CHOSEN: list[tuple[tuple[str, ...], list[str]]] = [
    (("--tenant", "acme"), ["a1", "a2", "dead"]),
    (("--tenant", "acm"), []),
    (("--tenant", ""), []),
    (("--correlation", "run-7"), ["a1", "b1"]),
    (("--metadata", "region=eu"), ["a1", "b1"]),
    (("--metadata", "region=eu", "--metadata", "note=x y"), ["b1"]),
    (("--metadata", "region="), []),
    (("--limited-by", "global"), ["a1", "a2"]),
    (("--limited-by", "tenant"), ["a1", "b1"]),
    (("--limited-by", "tenant:acme"), ["a1"]),
    (("--limited-by", "ten"), []),
    (("--tenant", "acme", "--limited-by", "tenant:acme", "--queue", "mail"), ["a1"]),
    (("--tenant", "acme' OR '1'='1"), []),
    (("--created-by", "dana@shop.example"), ["a2", "plain"]),
    (("--created-by", "dana@shop.example", "--tenant", "acme"), ["a2"]),
    (("--created-by", ""), []),
]


def fill(cli: Cli) -> None:
    jobs: dict[str, dict[str, Any]] = {
        "a1": {"tenant": "acme", "correlation": "run-7", "metadata": {"region": "eu"}, "limits": ("global", "tenant:acme")},
        "a2": {"tenant": "acme", "limits": ("global",), "by": "dana@shop.example"},
        "b1": {"tenant": "bmce", "correlation": "run-7", "metadata": {"region": "eu", "note": "x y"}, "limits": ("tenant:acme-2",)},
        "plain": {"by": "dana@shop.example"},
        "dead": {"tenant": "acme"},
        "dead-2": {"tenant": "bmce"},
    }  # fmt: skip

    async def enqueue(ledger: Ledger) -> None:
        for name, said in jobs.items():
            job = await ledger.enqueue(send.options(id=name, **said), 1)
            if name.startswith("dead"):
                await ledger.execute(job.ref, DeadLetter(reason="rejected"))

    cli.with_ledger(enqueue)


def test_lists_choose_by_what_was_said(cli: Cli) -> None:
    fill(cli)
    for words, expected in CHOSEN:
        assert cli.listed(*words) == expected, words
    assert [line["job_id"] for line in cli("dlq", "list", "--tenant", "bmce", "--json").lines] == ["dead-2"]


def test_the_next_page_is_a_command_that_is_told(cli: Cli) -> None:
    fill(cli)
    found: list[str] = []
    words = [
        "jobs",
        "list",
        "--state",
        "queued",
        "--state",
        "held",
        "--limit",
        "2",
        "--input",
        "number=1",
        *cli.where,
    ]
    words += ["--projection", cli.file]
    for _ in range(4):
        shown = cli.run(*words)
        assert shown.code == 0, shown.err
        found += [line.split()[0] for line in shown.out.splitlines()[2:]]
        if "the next page" not in shown.err:
            break
        _, *words = shlex.split(shown.err.split("`")[1])
    assert found == ["plain", "b1", "a2", "a1"]
    refused = cli("jobs", "list", "--after", words[-1], "--tenant", "acme")
    assert (refused.code, "other filters" in refused.err) == (2, True)


def test_counts_are_of_every_state_of_what_was_chosen(cli: Cli) -> None:
    fill(cli)
    (counts,) = cli("jobs", "list", "--counts", "--state", "queued", "--tenant", "acme", "--json").lines
    assert {state: count for state, count in counts["by_state"].items() if count} == {
        "held": 2,
        "dead_lettered": 1,
    }
    assert (counts["searched_back_to"], counts["position"]["behind_events"]) == (None, 0)
    shown = cli("jobs", "list", "--counts").out.splitlines()
    assert [line.split() for line in shown[2:]] == [["held", "3"], ["queued", "1"], ["dead", "lettered", "2"]]
    assert cli("jobs", "list", "--counts", "--text", "nobody wrote this").out == "no jobs\n"
    assert cli("jobs", "list", "--text", "", "--json").code == 2


def test_bulk_acts_choose_by_what_was_said(cli: Cli) -> None:
    fill(cli)
    planned = cli("jobs", "cancel", "--limited-by", "tenant:acme", "--plan")
    assert planned.out.endswith("1 job would be cancelled; nothing was changed\n")
    assert cli("jobs", "cancel", "--correlation", "run-7", "--yes").code == 0
    assert cli.listed("--state", "cancelled") == ["a1", "b1"]
    assert cli("dlq", "requeue", "--tenant", "acme", "--yes").code == 0
    assert cli("jobs", "discard", "--tenant", "bmce", "--yes").code == 0
    assert (cli.listed("--state", "queued"), cli.listed("--state", "discarded")) == (
        ["dead", "plain"],
        ["dead-2"],
    )


def test_what_is_no_limit_chooses_no_job(cli: Cli) -> None:
    """An empty name is a variable of a script that is not set: it must not cancel every job."""
    fill(cli)
    before = cli("jobs", "list", "--json").lines
    for word in ("", "smtp api", "a.b"):
        refused = cli("jobs", "cancel", "--queue", "mail", "--yes", "--limited-by", word)
        assert (refused.code, "jobledger: " in refused.err) == (2, True), (word, refused.out)
        assert cli("jobs", "list", "--limited-by", word).code == 2
    assert [job["status"] for job in cli("jobs", "list", "--json").lines] == [job["status"] for job in before]


def test_what_cannot_be_said_is_refused_before_any_server_is_asked(cli: Cli) -> None:
    nowhere = ("--url", "nats://127.0.0.1:1")
    for words, sentence in (
        (("jobs", "cancel", "a1", "--tenant", "acme"), "name jobs by their ids or choose them by options"),
        (("jobs", "list", "--metadata", "region"), "--metadata 'region' is not a pair of the form key=value"),
        (("dlq", "list", "--metadata", "a=1", "--metadata", "a=2"), "--metadata has 'a' twice"),
    ):
        answer = cli.run(*words, *nowhere)
        assert (answer.code, sentence in answer.err) == (2, True), answer.err
    for said, sentence in (
        (("--tenant", "a b"), "tenant must be 1 to 128 printable characters without spaces, got 'a b'"),
        (("--metadata", "region"), "--metadata 'region' is not a pair of the form key=value"),
        (("--limit", "queue:mail"), "limit 'queue:mail' has a name that the ledger itself uses"),
        (("--limit", "a.b"), "name of a limit 'a.b' is not valid"),
    ):
        answer = cli.run("enqueue", "send", "number=1", "--app", str(cli.app), *said, *nowhere)
        assert answer.code == 2
        assert sentence in answer.err
