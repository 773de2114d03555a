"""`limits verify` and `limits simulate` over jobs that a worker ran, and a check of that ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.working import LIMIT_S, ended, working

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, Limit, task
from jobledger.ledger.server import EmbeddedServer


@task(queue="mail", limits=(Limit("tenant", key="tenant", slots=1), Limit("global", slots=3)))
async def send(tenant: str) -> None:
    await asyncio.sleep(0.01)


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return CommandLine(nats_server.url, capsys)


async def _run(ledger: Ledger) -> None:
    jobs = [await ledger.enqueue(send, tenant) for _ in range(6) for tenant in ("a", "b", "c", "d")]
    async with asyncio.timeout(LIMIT_S), working(ledger, send, concurrency=8):
        for job in jobs:
            await ended(job)


def test_grants_of_a_worker_are_proven_come_out_the_same_and_are_simulated(cli: CommandLine) -> None:
    cli.with_ledger(_run)
    report = cli.with_ledger(lambda ledger: verify(ledger.log))
    assert (report.sound, report.grants) == (True, 24)
    assert report.proven == ("above", "slot", "order", "rate", "void")
    told = cli.run("limits", "verify", *cli.where)
    assert told.code == 0, told
    assert "come out the same" in told.out
    (found,) = cli.run("limits", "verify", "--json", *cli.where).lines
    assert (found["jobs"], found["different"], found["other_policy"]) == (24, 0, 0)

    (now,) = cli.run("limits", "simulate", "--at", "1h/now", "--json", *cli.where).lines
    assert now["waits"] == 24
    more = cli.run(
        "limits", "simulate", "--at", "1h/now", "--set", "tenant=6", "--set", "global=none", *cli.where
    )
    assert "tenant:a " in more.out
    (wide,) = cli.run(
        "limits",
        "simulate",
        "--at",
        "1h/now",
        "--set",
        "tenant=6",
        "--set",
        "global=none",
        "--json",
        *cli.where,
    ).lines
    assert wide["simulated"]["global"]["p99_s"] < now["simulated"]["global"]["p99_s"]
    none = cli.run("limits", "simulate", "--at", "1h/now", "--set", "tenant:a=0", *cli.where)
    assert "tenant:a starves: 6 jobs wait, and none would be granted" in none.out


def test_what_cannot_be_simulated_is_refused(cli: CommandLine) -> None:
    cli.make_ledger()
    for words, sentence in (
        (("--at", "10:00"), "is not FROM/TO"),
        (("--at", "now/1h"), "Z: give the earlier time first"),
        (("--at", "1h/now", "--set", "tenant"), "is not LIMIT=N"),
        (("--at", "1h/now", "--set", "a b=1"), "name of a limit 'a b' is not valid"),
    ):
        refused = cli.run("limits", "simulate", *words, *cli.where)
        assert refused.code == 2, refused
        assert sentence in refused.err
    empty = cli.run("limits", "simulate", "--at", "1h/now", *cli.where)
    assert (empty.code, empty.out) == (0, "no job waited for a limit in that span\n")
    assert cli.run("limits", "verify", *cli.where).out == "nobody was granted anything yet\n"
