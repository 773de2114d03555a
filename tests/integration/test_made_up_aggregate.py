"""An aggregate is declared once: one that the product does not have is listed, checked, told, described and kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.command_line import CommandLine
from tests.support.made_up import THING, dropped, made

from jobledger.ledger import Ledger, task
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.chain import Addition, commit_all
from jobledger.ledger.model.commands import Claim, Complete
from jobledger.ledger.schema.asyncapi import asyncapi_document
from jobledger.ledger.schema.events import event_schema

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.unsound_ledger("an aggregate is made up, which only the test knows")


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    monkeypatch.setitem(AGGREGATES, THING.name, THING)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return CommandLine(nats_server.url, capsys)


@task(queue="q")
async def idle() -> None: ...


async def tell(ledger: Ledger) -> None:
    """A finished job, a thing that was dropped, and one that is there: sequences 1 to 6."""
    job = await ledger.enqueue(idle.options(id="j"))
    claimed = await ledger.execute(job.ref, Claim(worker="w", lease_s=1))
    await ledger.execute(job.ref, Complete(epoch=claimed.claim_epoch))
    both: list[Addition] = [(View(), [made("ball", size=3), dropped("ball")]), (View(), [made("doll")])]
    await commit_all(ledger.log, both)


def test_its_events_are_listed_and_chosen_by_type(cli: CommandLine) -> None:
    cli.with_ledger(tell)
    shown = cli.run("events", "tail", *cli.where)
    assert (shown.code, shown.err) == (0, "")
    assert [line.split(maxsplit=2)[2] for line in shown.out.splitlines()[3:]] == [
        "made             thing toy/ball of size 3, by test",
        "dropped          thing toy/ball by test",
        "made             thing toy/doll of size 1, by test",
    ]
    chosen = cli.run("events", "tail", "--type", "dropped", "--json", *cli.where)
    assert [(line["type"], line["name"]) for line in chosen.lines] == [("dropped", "ball")]
    refused = cli.run("events", "tail", "--type", "made", "--queue", "q", *cli.where)
    assert refused.code == 2
    assert "queue chooses events of jobs, and made is not one of them" in refused.err


def test_its_chains_and_rules_are_checked(cli: CommandLine) -> None:
    async def drop_again(ledger: Ledger) -> None:
        await tell(ledger)
        newest = THING.view(await ledger.log.last(THING.chain(ledger.names, "toy", "ball")))
        await commit_all(ledger.log, [(newest, [dropped("ball")])])

    cli.with_ledger(tell)
    assert cli.run("audit", "verify", *cli.where).code == 0
    broken = CommandLine(cli.url, cli._capsys)
    broken.with_ledger(drop_again)
    found = broken.run("audit", "verify", "--json", *broken.where)
    assert found.code == 4
    (violation,) = json.loads(found.out)["violations"]
    assert (violation["job"], violation["rule"]) == ("thing toy/ball", "transition")
    assert violation["sentence"] == "`dropped` without a thing"


def test_a_forged_link_of_its_chain_is_found(cli: CommandLine) -> None:
    async def forge(ledger: Ledger) -> None:
        await tell(ledger)
        newest = THING.view(await ledger.log.last(THING.chain(ledger.names, "toy", "doll")))
        await commit_all(
            ledger.log, [(View(newest.state, newest.last_sequence, b"other"), [dropped("doll")])]
        )

    cli.with_ledger(forge)
    found = cli.run("audit", "verify", "--json", *cli.where)
    assert found.code == 4
    assert [each["rule"] for each in json.loads(found.out)["violations"]] == ["chain"]


def test_an_archive_run_leaves_the_newest_event_of_each_of_its_chains(cli: CommandLine) -> None:
    cli.with_ledger(tell)
    done = cli.run(
        "audit", "archive", "--before", datetime.now(UTC).isoformat(), "--to", "archive", "--json", *cli.where
    )
    assert done.code == 0, done.err
    left = cli.run("events", "tail", "--json", *cli.where)
    kept = [(line["stream_sequence"], line["type"]) for line in left.lines]
    assert kept[0] == (5, "dropped")
    assert (6, "made") in kept
    assert cli.run("audit", "verify", "--archive", "archive", *cli.where).code == 0


def test_its_events_have_a_schema_and_a_channel(cli: CommandLine) -> None:
    assert event_schema("made")["properties"]["size"]["description"] == "how large it is"
    document = asyncapi_document()
    assert document["channels"]["thing_made"]["address"] == "ledger.thing.{kind}.{name}.made"
    shown = cli.run("events", "schema", "dropped")
    assert json.loads(shown.out)["$id"] == "urn:jobledger:event:thing:dropped:v1"


def test_its_chain_has_a_trail(cli: CommandLine) -> None:
    cli.with_ledger(tell)
    shown = cli.run("audit", "trail", "thing/toy/ball", *cli.where)
    assert (shown.code, shown.out.splitlines()[0]) == (0, "thing toy/ball")
    told = [
        line.partition("  ")[2].split("  ")[-1]
        for line in shown.out.splitlines()
        if line.endswith(", by test")
    ]
    assert told == ["made: of size 3, by test", "dropped, by test"]
    assert "chain of 2 events: unbroken" in shown.out
    as_json = json.loads(cli.run("audit", "trail", "thing/toy/ball", "--json", *cli.where).out)
    assert [line["event"] for line in as_json["lines"]] == ["made", "dropped"]
    for wrong, code, sentence in (
        ("thing/toy/car", 3, "no event of thing toy/car is in the ledger"),
        ("thing/toy", 2, "give the id of a job, or lock/SCOPE/LOCK, reactor/REACTOR, "),
        ("thing/toy/a b", 2, "name"),
    ):
        refused = cli.run("audit", "trail", wrong, *cli.where)
        assert refused.code == code
        assert sentence in refused.err
