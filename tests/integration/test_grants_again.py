"""`limits verify` and `limits simulate` over jobs that a worker ran, and a check of that ledger."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import CommandLine
from tests.support.limited import archive_beyond, define, enqueue, grants
from tests.support.working import LIMIT_S, Connect, ended, working

from jobledger.admin.grants_again import compare_grants
from jobledger.audit.verify import verify
from jobledger.ledger import JobHandle, JobState, Ledger, Limit, task
from jobledger.workers.reactors import hosts
from jobledger.workers.reactors.flow.reactor import FlowReactor
from jobledger.workers.reactors.flow.turn import FlowOptions, Turn


@task(
    queue="mail", limits=(Limit("tenant", key="tenant", slots=1), Limit("global", slots=3, rate=400, burst=2))
)
async def send(tenant: str) -> None:
    await asyncio.sleep(0.01)


@task(queue="mixed")
async def mixed(n: int) -> None:
    await asyncio.sleep(0.001 * (n % 3))


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
    assert (found["different"], found["other_policy"]) == (0, 0)

    (now,) = cli.run("limits", "simulate", "--at", "1h/now", "--json", *cli.where).lines
    assert now["waits"] == 24
    for key, was in now["recorded"].items():  # it knows no worker that is busy, so it is never slower
        assert now["simulated"][key]["granted"] == was["granted"]
        assert now["simulated"][key]["longest_s"] <= was["longest_s"] + 0.05
    (slow,) = cli.run(
        "limits", "simulate", "--at", "1h/now", "--set", "global.rate=0.01", "--json", *cli.where
    ).lines
    assert slow["simulated"]["global"]["granted"] == 2, "the burst"
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
        (("--at", "1h/now", "--set", "a.rat=1"), "name of a limit 'a.rat' is not valid"),
        (("--at", "1h/now", "--set", "a.rate=0"), "limit a: rate must be a number above 0"),
        (("--at", "1h/now", "--set", "a:b.slots=x"), "limit a:b: key b: slots must be a whole number"),
        (("--at", "1h/now", "--set", "a.burst=none"), "a.burst needs a value"),
    ):
        refused = cli.run("limits", "simulate", *words, *cli.where)
        assert refused.code == 2, refused
        assert sentence in refused.err
    empty = cli.run("limits", "simulate", "--at", "1h/now", *cli.where)
    assert (empty.code, empty.out) == (0, "no job waited for a limit in that span\n")
    assert cli.run("limits", "verify", *cli.where).out == "nobody was granted anything yet\n"


async def _race(ledger: Ledger, others: tuple[Ledger, Ledger]) -> None:
    """Let workers come and go that both grant, beside definitions that change."""
    jobs: list[JobHandle[Any]] = []
    async with asyncio.timeout(LIMIT_S), working(others[0], mixed, concurrency=4):
        for turn in range(3):
            async with working(others[1], mixed, concurrency=4):
                await define(ledger, "global", slots=2 + turn)
                for n in range(20):
                    limits = ["global", f"tenant:{n % 3}", *(["other"] if n % 2 else [])]
                    jobs.append(await enqueue(ledger, mixed, *limits, given={"n": n}))
                for job in jobs:
                    await ended(job)


async def _run_some(ledger: Ledger, other: Ledger) -> None:
    async with asyncio.timeout(LIMIT_S), working(other, mixed):
        for n in range(3):
            await ended(await enqueue(ledger, mixed, "global", given={"n": n}))


def _leads_always(_turn: Turn) -> bool:
    return True


@pytest.mark.anyio
async def test_grants_of_workers_that_raced_come_out_the_same_also_behind_an_archive_run(
    connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = FlowOptions(snapshot_events=60, polite_s=0.0)
    monkeypatch.setattr(hosts, "FlowReactor", functools.partial(FlowReactor, options=options))
    # Whoever knows of something to grant grants it, however lately it heard of the other's grants.
    monkeypatch.setattr(Turn, "_leads", _leads_always)
    async with (
        connected() as ledger,
        connected(inline_bytes_max=1) as one,
        connected(inline_bytes_max=1) as two,
    ):
        await define(ledger, "tenant", slots=1)
        await define(ledger, "other", slots=2)
        stuck = await enqueue(ledger, mixed, "nowhere", given={"n": 0})
        await _race(ledger, (one, two))
        found = await compare_grants(ledger)
        stored = await grants(ledger)
        assert len({(event.by, event.began) for event in stored}) >= 3, "several authors"
        assert (found.grants, found.jobs) == (len(stored), 60)
        assert (found.different, found.unknown, found.archived, found.differences) == (0, 0, 0, ())

        await archive_beyond(ledger, tmp_path, 1)
        await _race(ledger, (one, two))
        # Of the turns there is no beginning any more where two newer snapshots are stored. The last one has one.
        begun = await grants(ledger)
        monkeypatch.setattr(hosts, "FlowReactor", functools.partial(FlowReactor, options=FlowOptions()))
        await _run_some(ledger, one)
        found, stored = await compare_grants(ledger), await grants(ledger)
        assert found.grants + found.archived == len(stored)
        assert found.grants >= len(stored) - len(begun) > 0
        assert (found.different, found.unknown, found.differences) == (0, 0, ())
        assert (await stuck.snapshot()).state is JobState.HELD
