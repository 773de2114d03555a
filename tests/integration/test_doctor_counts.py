"""What `doctor` leaves out of a long list: it says how many more there are, and which command shows all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.schedules import declare, overdue

from jobledger.ledger import Ledger, task
from jobledger.ledger.nats.durables import ensure_consumer, reactor_consumer
from jobledger.ledger.server import EmbeddedServer


@task(queue="mail")
async def mail() -> None: ...


async def _fill(ledger: Ledger) -> None:
    """14 queues that are paused and have consumers that are not, 7 late schedules, 7 limits that nobody set."""
    config = reactor_consumer((), ack_wait_s=1.0)
    for number in range(14):
        await ledger.pause_queue(f"q{number:02}")
        name = ledger.names.consumer(f"q{number:02}", "normal")
        await ensure_consumer(ledger.inbox, ledger.names.ledger_stream, name, config)
    for number in range(7):
        known = await declare(ledger, f"s{number}", every_s=60)
        await overdue(ledger, known, hours=2)
        await ledger.enqueue(mail.options(limits=(f"limit{number}",)))


def test_doctor_says_how_many_more_there_are_and_what_shows_them(
    nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = CommandLine(nats_server.url, capsys)
    cli.with_ledger(_fill)
    rows = ("--projection", str(tmp_path / "rows.db"))
    listed = cli.run("limits", "list", *rows, *cli.where)
    assert "limit6   nobody set it: 1 job waits" in listed.out, listed
    last = cli.run("limits", "list", "--json", *rows, *cli.where).lines[-1]
    assert (last["name"], last["defined"], last["held"]) == ("limit6", False, 1)

    (found,) = cli.run("doctor", "--json", *rows, *cli.where).lines
    told = {(each["check"], each["found"]): each["advice"] for each in found["checks"]}
    assert "(and 13 more)" in next(found for _, found in told if found.startswith("consumer work_q00"))
    assert ("queues", "and 2 more, less busy: `jobledger queues list` shows all") in told
    of_streams = [each for each in found["checks"] if each["check"].startswith("stream")]
    assert {each["status"] for each in of_streams} == {"ok"}, of_streams
    assert "cop" not in " ".join(each["found"] + each["advice"] for each in of_streams), (
        "a server alone has no copies"
    )
    hurts = [(each["kind"], each["object"], each["found"], each["count"]) for each in found["diagnoses"]]
    assert [each[:3] for each in hurts if each[0] == "queue_paused"][-1] == (
        "queue_paused",
        "queues",
        "and 2 more",
    )
    assert sum(each[3] for each in hurts if each[0] == "queue_paused") == 14
    assert "`jobledger queues list` shows all" in {each["advice"] for each in found["diagnoses"]}
    late = [each for each in hurts if each[0] == "schedule_late"]
    assert [each[1] for each in late] == [f"schedule s{number}" for number in range(7)]
    assert all(each[2].startswith("its tick is late by") for each in late)
    assert [each[1:3] for each in hurts if each[0] == "limit_undefined"][4] == (
        "limit limit4",
        "nobody defined it, and 1 job is held by it",
    )
