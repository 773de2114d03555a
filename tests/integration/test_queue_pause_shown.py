"""What tells of paused queues: tables, metrics, commands, and a ledger in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from tests.support.command_line import CommandLine

from jobledger.ledger import Ledger, task
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.metrics.exposition import Measure
from jobledger.ledger.model.commands import Claim
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, Store
from jobledger.projections.metrics import names
from jobledger.projections.metrics.figures import read_figures
from jobledger.projections.metrics.metrics import figures_metrics
from jobledger.projections.tables.queues import read_pauses
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


@task(queue="mail")
async def send(number: int) -> int:
    return number


def samples(measure: Measure, metrics: Iterable[Metric]) -> dict[str, float]:
    """Return what a metric says of each queue."""
    (found,) = (each for each in metrics if each.name == measure.name)
    return {sample.labels["queue"]: sample.value for sample in found.samples}


async def test_the_tables_say_which_queues_are_paused(ledger: Ledger, tmp_path: Path) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    for queue in ("mail", "open"):
        await ledger.enqueue(send.options(queue=queue), 1)
    await ledger.pause_queue("mail", until=end, reason="r", by="ann", interrupt=True)
    await ledger.pause_queue("other", by="bob")
    await ledger.resume_queue("other", by="eve")
    with Projector(ledger.log, tmp_path / "p.db") as projector:
        await projector.catch_up()
    with Store.open(tmp_path / "p.db") as store:
        found = read_pauses(store.select)
        figures = read_figures(store, 200, datetime.now(UTC))
        told = {
            now: samples(names.QUEUE_PAUSED, figures_metrics(figures, now)) for now in (end - HOUR / 2, end)
        }
    assert told == {
        end - HOUR / 2: {"mail": 1, "open": 0, "(other)": 0},
        end: {"mail": 0, "open": 0, "(other)": 0},
    }
    assert {queue: (state.paused, state.by, state.until, state.reason, state.interrupt, state.sequence) for queue, state in found.items()} == {
        "mail": (True, "ann", end, "r", True, 3),
        "other": (False, "eve", None, "", False, 5),
    }  # fmt: skip


async def test_a_ledger_in_memory_leaves_the_jobs_of_a_paused_queue() -> None:
    async with MemoryLedger(send) as ledger:
        await ledger.pause_queue("mail", until=ledger.clock.now() + timedelta(hours=1))
        job = await ledger.enqueue(send, 7)
        assert await ledger.run_pending() == []
        await ledger.resume_queue("mail")
        assert [each.id for each in await ledger.run_pending()] == [job.id]
        await ledger.pause_queue("mail", until=ledger.clock.now() + timedelta(hours=1))
        await ledger.enqueue(send, 8)
        assert await ledger.run_pending() == []
        assert len(await ledger.advance(timedelta(hours=2))) == 1


@pytest.fixture
def cli(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    made = CommandLine(nats_server.url, capsys)

    async def fill(ledger: Ledger) -> None:
        await ledger.enqueue(send, 1)

    made.with_ledger(fill)
    return made


def test_commands_say_what_they_did_and_who_paused_what(cli: CommandLine, tmp_path: Path) -> None:
    rows = [*cli.where, "--projection", str(tmp_path / "p.db")]
    refused = cli.run("queues", "resume", "mail", *cli.where)
    assert (refused.code, "queue mail is not paused: there is nothing to resume" in refused.err) == (4, True)
    assert cli.run("queues", "pause", "mail", "--until", "2001-01-01", *cli.where).code == 2
    assert cli.run("queues", "pause", "a.b", *cli.where).code == 2
    paused = cli.run("queues", "pause", "mail", "--until", "1h", "--reason", "r", "--json", *cli.where)
    said = json.loads(paused.out)
    assert (said["queue"], said["pause"]["reason"], said["pause"]["interrupt"]) == ("mail", "r", False)
    assert "no worker serves queue mail at this moment" in paused.err
    (row,) = [json.loads(line) for line in cli.run("queues", "list", "--json", *rows).out.splitlines()]
    assert (row["queue"], row["counts"]["queued"]) == ("mail", 1)
    assert row["pause"]["until"] == said["pause"]["until"]
    (before,) = cli.run("queues", "list", "--sequence", "1", "--json", *rows).out.splitlines()
    assert json.loads(before)["pause"] is None
    shown = cli.run("queues", "list", *rows).out
    assert (
        f"by {said['pause']['by']}, ends in 1 h" in shown
        or f"by {said['pause']['by']}, ends in 60 min" in shown
    )
    looked = cli.run("top", "--once", "--interval", "0.2", *rows)
    assert f"queue mail: paused by {said['pause']['by']} until " in looked.out
    examined = cli.run("doctor", *rows).out
    assert "paused by" in " ".join(examined.split())
    assert "`jobledger queues resume mail` ends that" in " ".join(examined.split())
    drained = cli.run("queues", "drain", "mail", "--json", *rows)
    assert (drained.code, json.loads(drained.out)["running"]) == (0, 0)
    assert json.loads(drained.out)["pause"] == said["pause"]  # it was paused, and is as it was
    assert cli.run("queues", "drain", "mail", "--reason", "another", *rows).code == 0
    assert cli.run("queues", "pause", "fresh", *cli.where).code == 0  # a queue that never had a job
    listed = [json.loads(line) for line in cli.run("queues", "list", "--json", *rows).out.splitlines()]
    assert [each["queue"] for each in listed if each["pause"]] == ["fresh", "mail"]
    tail = cli.run("events", "tail", "--type", "queue.paused", *cli.where).out
    assert [line.split()[2] for line in tail.splitlines()] == ["paused"] * 3
    assert "chain of 2 events: unbroken" in cli.run("audit", "trail", "queue/mail", *cli.where).out
    assert cli.run("audit", "verify", *cli.where).code == 0


def test_a_drain_whose_time_is_over_says_what_runs_and_leaves_the_queue_paused(
    cli: CommandLine, tmp_path: Path
) -> None:
    async def run_one(ledger: Ledger) -> None:
        keeper = LeaseKeeper(
            ledger.leases, ledger.clock, ("mail",), running=lambda: 1, on_lost=lambda _: None
        )
        await keeper.open()
        job = await ledger.enqueue(send, 2)
        await ledger.execute(job.ref, Claim(worker=keeper.identity, lease_s=60.0))

    cli.with_ledger(run_one)
    words = ("--until", "1h", "--reason", "deploy", "--interrupt", "--wait-timeout", "0.1")
    rows = [*cli.where, "--projection", str(tmp_path / "p.db")]
    drained = cli.run("queues", "drain", "mail", *words, *rows)
    assert (drained.code, drained.out) == (1, "")
    assert "queue mail is paused; 1 job runs on 1 worker" in drained.err
    assert "after 0.1 s 1 job runs on 1 worker; queue mail stays paused" in drained.err
    (row,) = [json.loads(line) for line in cli.run("queues", "list", "--json", *rows).out.splitlines()]
    assert (row["pause"]["reason"], row["pause"]["interrupt"]) == ("deploy", True)
    assert row["pause"]["until"] > datetime.now(UTC).isoformat()
    assert cli.run("queues", "drain", "mail", "--until", "2001-01-01", *rows).code == 2
