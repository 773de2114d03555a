"""What is no event, from the command line: every reader goes on, counts agree, a check names it, a person accepts it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import anyio
import nats
import pytest
from tests.support.command_line import CommandLine
from tests.support.working import LIMIT_S, working

from jobledger.audit.export import import_export
from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Store

pytestmark = pytest.mark.unsound_ledger("messages that are no events are published")

RUBBISH = {
    "job.acked.one.completed": b"\xff\xfe no text",
    "job.acked.one.queued.normal": b"{}",
    "job.acked.two.started": b'{"type":"started","v":1,"at":"0001-01-01T00:00:00Z","by":"x","prev":"","job":"two",'
    b'"queue":"acked","task":"t","attempt":99999999999999999999,"worker":"w","lease_s":1}',
    "lock.account.1.acquired": b"[]",
    "reactor.seals.sealed": b"not a seal",
    "unreadable.1.acknowledged": b"null",
    "no.such.thing": b"",
}


@task(queue="acked")
async def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    return CommandLine(nats_server.url, capsys)


async def work(ledger: Ledger) -> None:
    async with working(ledger, double):
        for name in ("one", "two"):
            job = await ledger.enqueue(double.options(id=name), 1)
            assert await job.result(timeout_s=LIMIT_S) == 2


async def litter(ledger: Ledger) -> None:
    client = await nats.connect(ledger.config.url)
    try:
        for end, data in RUBBISH.items():
            await client.jetstream().publish(f"{ledger.names.ledger_root}.{end}", data)
    finally:
        await client.close()


def test_every_reader_goes_on_and_a_check_names_each_until_it_is_accepted(cli: CommandLine) -> None:
    cli.with_ledger(litter)
    cli.with_ledger(work)
    rows = ("--projection", "p.db", *cli.where)
    assert [line["status"] for line in cli.run("jobs", "list", "--json", *rows).lines] == ["completed"] * 2
    with Store.open("p.db") as store:
        aside = store.select("SELECT stream_sequence, acknowledged_by FROM unreadable ORDER BY 1")
    assert aside == [(number, None) for number in range(1, len(RUBBISH) + 1)]

    tail = cli.run("events", "tail", "--from", "1", "--json", *cli.where)
    assert sum("unreadable" in line for line in tail.lines) == len(RUBBISH)
    shown = cli.run("events", "tail", "--from", "1", *cli.where)
    assert shown.code == 0
    assert sum(" unreadable " in line for line in shown.out.splitlines()) == len(RUBBISH)

    doctor = {line["check"]: line for line in cli.run("doctor", "--json", *rows).lines[0]["checks"]}
    assert doctor["unreadable"]["status"] == "warn"
    assert doctor["unreadable"]["found"].startswith("7 messages that are no events up to stream sequence ")

    verdict = cli.run("audit", "verify", "--json", *rows)
    report = json.loads(verdict.out)
    assert (verdict.code, report["broken"]) == (4, {"readable": len(RUBBISH)})
    assert [each["stream_sequence"] for each in report["violations"]] == list(range(1, len(RUBBISH) + 1))
    exported = cli.run("audit", "export", "whole", *cli.where)
    assert exported.code == 0, exported.err

    for number in range(1, len(RUBBISH) + 1):
        done = cli.run("audit", "acknowledge", str(number), "--reason", "a test", "--json", *cli.where)
        assert done.code == 0, done.err
        assert json.loads(done.out)["sequence"] == number
    sound = cli.run("audit", "verify", "--with-projection", "--json", *rows)
    report = json.loads(sound.out)
    assert (sound.code, report["sound"], report["acknowledged_count"]) == (0, True, len(RUBBISH))
    assert {each["reason"] for each in report["acknowledged"]} == {"a test"}
    assert cli.run("audit", "verify", *rows).out.count("acknowledged: stream sequence") == len(RUBBISH)
    assert cli.run("jobs", "list", *rows).code == 0
    doctor = {line["check"]: line for line in cli.run("doctor", "--json", *rows).lines[0]["checks"]}
    assert doctor["unreadable"]["found"].endswith("; 7 acknowledged")
    # A part of the ledger that ends before somebody accepted it.
    assert cli.run("audit", "verify", "--to", str(len(RUBBISH)), *rows).code == 0


def test_what_can_be_read_and_what_is_not_there_is_refused(cli: CommandLine) -> None:
    cli.with_ledger(work)
    refused = cli.run("audit", "acknowledge", "1", "--reason", "x", *cli.where)
    assert refused.code == 4
    assert "stream sequence 1 is an event that can be read" in refused.err
    assert cli.run("audit", "acknowledge", "999", "--reason", "x", *cli.where).code == 3
    assert cli.run("audit", "acknowledge", "1", "--reason", " ", *cli.where).code == 2
    cli.with_ledger(litter)
    place = str(len(cli.run("events", "tail", "--from", "1", "--json", *cli.where).lines))
    assert cli.run("audit", "acknowledge", place, "--reason", "x", *cli.where).code == 0
    again = cli.run("audit", "acknowledge", place, "--reason", "y", *cli.where)
    assert again.code == 4
    assert f"stream sequence {place} was acknowledged by" in again.err


def test_an_archive_takes_what_was_accepted_and_a_restored_ledger_has_it_again(cli: CommandLine) -> None:
    cli.with_ledger(litter)
    cli.with_ledger(work)
    for number in range(1, len(RUBBISH) + 1):
        assert cli.run("audit", "acknowledge", str(number), "--reason", "a test", *cli.where).code == 0
    assert cli.run("audit", "export", "whole", *cli.where).code == 0
    moved = cli.run(
        "audit", "archive", "--before", datetime.now(UTC).isoformat(), "--to", "archive", *cli.where
    )
    assert moved.code == 0, moved.err
    assert cli.run("audit", "verify", "--archive", "archive", *cli.where).code == 0
    assert cli.run("audit", "verify", "whole").code == 0

    async def restored() -> list[tuple[str, bytes]]:
        log = MemoryLog(names=Names(cli.environment))
        await import_export(Path("whole"), log)
        report = await verify(log)
        assert (report.sound, report.acknowledged_count) == (True, len(RUBBISH))
        return [(each.subject, each.data) async for batch in log.read_messages() for each in batch]

    root = Names(cli.environment).ledger_root
    expected = [(f"{root}.{end}", data) for end, data in RUBBISH.items()]
    assert anyio.run(restored)[: len(RUBBISH)] == expected
