"""`jobledger events` against a real server: what docs/cli.md shows, filters, subscriptions and their removal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.working import ended, working

from jobledger.ledger import Ledger, task
from jobledger.ledger.model.reactor import REACTOR, Archived
from jobledger.ledger.schema.asyncapi import asyncapi_document
from jobledger.ledger.schema.events import all_events_schema, event_schema

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
_VOLATILE = (
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "TIME"),
    (re.compile(r"\b\d+(\.\d)? m?s ago"), "AGO"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"[^\S\n]+"), " "),
)


@task(queue="billing", max_attempts=1)
async def charge(cents: int) -> None: ...


class Cli(CommandLine):
    """`jobledger events` on an environment of the test's own."""

    def __call__(self, *words: str, server: bool = True) -> Answer:
        return self.run("events", *words, *(self.where if server else ()))

    def story(self) -> None:
        """A job that completed, one that waits, and a subscription that has seen the first."""

        async def tell(ledger: Ledger) -> None:
            job = await ledger.enqueue(charge.options(id="invoice-7"), 100)
            async with working(ledger, charge):
                await ended(job)
            async for _ in ledger.events(durable="billing", types=["completed"], follow=False):
                pass
            job = await ledger.enqueue(charge.options(id="invoice-8"), 200)
            async with working(ledger, charge):
                await ended(job)

        self.with_ledger(tell)


@pytest.fixture
def cli(
    nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    monkeypatch.setenv("COLUMNS", "80")
    return Cli(nats_server.url, capsys)


def _normal(text: str) -> str:
    for pattern, word in _VOLATILE:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.splitlines())


def test_the_documented_outputs_are_the_real_ones(cli: Cli) -> None:
    cli.story()
    shown = re.findall(
        r"^```text\n\$ jobledger events ([^\n]+)\n(.*?)^```$", DOCS, flags=re.MULTILINE | re.DOTALL
    )
    assert [words.split()[0] for words, _ in shown] == ["tail", "subscriptions", "subscriptions"]
    for words, text in shown:
        answer = cli(*words.split())
        assert answer.code == 0, answer.err
        assert _normal(answer.out) == _normal(text)
    assert cli("subscriptions", "list").out.startswith("no durable subscriptions")


def test_what_shows_nothing_says_why_on_stderr(cli: Cli) -> None:
    cli.make_ledger()
    empty = cli("tail")
    assert (empty.code, empty.out, empty.err) == (0, "", "the ledger has no events yet\n")
    assert (cli("tail", "--json").out, cli("tail", "--json").err) == ("", "")
    cli.story()
    none = cli("tail", "--type", "discarded")
    assert (none.code, none.out, none.err) == (0, "", "no event matches\n")
    assert cli("tail").err == ""


def test_tail_chooses_by_job_task_type_and_aggregate(cli: Cli) -> None:
    cli.story()

    async def others(ledger: Ledger) -> None:
        async with ledger.lock("account", "42"):
            pass
        stamp = ledger.stamp("alice")
        event = Archived(
            reactor="archive", at=stamp.at, by=stamp.by, through_sequence=3, manifest_sha256="", head_hash="",
            digest="", count=3,
        )  # fmt: skip
        await ledger.log.append(REACTOR.link(ledger.names, [event], REACTOR.view(None)))

    cli.with_ledger(others)

    def tail(*words: str) -> list[int]:
        return [line["stream_sequence"] for line in cli("tail", "--json", *words).lines]

    assert tail() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert tail("--limit", "2") == [8, 9]
    assert tail("--type", "completed", "--limit", "1") == [6]
    assert tail("--job", "invoice-8") == [4, 5, 6]
    assert tail("--task", "charge", "--type", "started,completed", "--queue", "billing") == [2, 3, 5, 6]
    assert tail("--task", "refund") == []
    assert tail("--type", "completed,acquired,archived") == [3, 6, 7, 9]
    assert tail("--type", "completed", "--limit", "1", "--from", "4") == [6]
    assert (
        cli("tail", "--from", "9").out.split(maxsplit=2)[2]
        == "archived         reactor archive up to 3, 3 events, by alice\n"
    )


REFUSED: list[tuple[list[str], int, str]] = [
    (
        ["tail", "--type", "acquired", "--job", "x"],
        2,
        "job chooses events of jobs, and acquired is not one of them",
    ),
    (["tail", "--type", "begun"], 2, "there is no event type 'begun'"),
    (["tail", "--task", "a.b"], 2, "task name 'a.b' is not valid"),
    (["tail", "--job", "*"], 2, "job id '*' is not valid"),
    (["tail", "--from", "9"], 2, "--from 9 lies beyond the ledger's end, which is 6"),
    (["subscriptions", "remove", "nobody"], 3, "there is no subscription 'nobody'"),
    (["subscriptions", "remove", "a.b"], 2, "subscription 'a.b' is not valid"),
    (["schema", "begun"], 2, "there is no event type 'begun'; the types: scheduled"),
]


def test_what_cannot_be_answered_is_refused_in_a_sentence(cli: Cli) -> None:
    cli.story()
    for words, code, sentence in REFUSED:
        answer = cli(*words, server=words[0] != "schema")
        assert (answer.code, answer.out) == (code, ""), answer.err
        assert sentence in answer.err
        assert answer.err.count("\n") == 1


def test_subscriptions_and_schemas_speak_json(cli: Cli) -> None:
    cli.story()
    (listed,) = cli("subscriptions", "list", "--json").lines
    assert (listed["name"], listed["lag"], listed["pending"], listed["acknowledged_sequence"]) == (
        "billing",
        1,
        1,
        3,
    )
    assert listed["filter"] == {"types": ["completed"], "queue": None, "task": None, "job": None}
    assert cli("subscriptions", "remove", "billing", "--json").lines == [listed]
    assert cli("subscriptions", "list", "--json").out == ""
    assert cli("schema", "--json", server=False).lines == [all_events_schema()]
    assert json.loads(cli("schema", "released", server=False).out) == event_schema("released")
    assert json.loads(cli("asyncapi", server=False).out) == asyncapi_document()


def test_the_last_ten_are_found_however_far_back_they_lie(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobledger.cli.events.tail._WINDOW", 2)

    async def tell(ledger: Ledger) -> None:
        for number in range(12):
            await ledger.enqueue(
                charge.options(id=f"job-{number}", queue="old" if number < 3 else "new"), number
            )

    cli.with_ledger(tell)

    def tail(*words: str) -> list[int]:
        return [line["stream_sequence"] for line in cli("tail", "--json", *words).lines]

    assert tail() == list(range(3, 13))
    assert tail("--queue", "old") == [1, 2, 3]
    assert tail("--queue", "old", "--limit", "1") == [3]
    assert tail("--queue", "old", "--from", "2") == [2, 3]
