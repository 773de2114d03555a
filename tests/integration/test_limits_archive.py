"""An archive run across jobs that wait for limits, hold slots, were granted and not queued, or wait for a time."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from pathlib import Path

import pytest
from tests.support.limited import (
    archive_beyond,
    define,
    enqueue,
    grants,
    peaks,
    take_snapshot,
    times_granted,
)
from tests.support.working import Connect, ended, until, working

from jobledger.audit.archive import open_archive
from jobledger.audit.verify import verify
from jobledger.ledger import Context, JobHandle, JobState, Snooze, task
from jobledger.ledger.model.limits.definition import LIMIT
from jobledger.ledger.model.limits.flow import GrantedJob
from jobledger.workers.reactors import hosts
from jobledger.workers.reactors.flow.admission import Admitter
from jobledger.workers.reactors.flow.reactor import FlowReactor
from jobledger.workers.reactors.flow.turn import FlowOptions
from jobledger.workers.reactors.flow.unclaimed_slots import UnclaimedSlots

pytestmark = pytest.mark.anyio

STARTED: Counter[str] = Counter()
GATE = asyncio.Event()


@task(queue="work", max_attempts=3)
async def work(ctx: Context, kind: str) -> str | Snooze:
    STARTED[kind] += 1
    if kind == "runs":
        await GATE.wait()
    if kind == "parks" and ctx.attempt == 1:
        return Snooze(1.5)
    return kind


async def test_a_fresh_reactor_goes_on_behind_an_archive(
    connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    STARTED.clear()
    GATE.clear()
    options = FlowOptions(snapshot_s=0.2)
    monkeypatch.setattr(hosts, "FlowReactor", functools.partial(FlowReactor, options=options))
    jobs: list[JobHandle[str]] = []
    async with connected() as ledger, connected() as other:
        await define(ledger, "all", slots=3)
        await define(ledger, "never", slots=0)
        with monkeypatch.context() as crashing:
            _leave_unqueued(crashing, "granted")
            async with working(other, work, grace_s=0.1):
                jobs = [
                    await enqueue(
                        ledger, work, "all", job_id="parks", given={"kind": "parks"}, max_attempts=3
                    )
                ]
                await until(lambda: STARTED["parks"] == 1)
                for job_id, kind in (
                    ("r1", "runs"),
                    ("r2", "runs"),
                    ("granted", "x"),
                    ("w1", "x"),
                    ("w2", "x"),
                ):
                    given = {"kind": kind}
                    jobs.append(
                        await enqueue(ledger, work, "all", job_id=job_id, given=given, max_attempts=3)
                    )
                stuck = await enqueue(ledger, work, "all", "never", given={"kind": "x"})
                await until(lambda: STARTED["runs"] == 2)
                head = (await ledger.log.head()).last_sequence
                await archive_beyond(ledger, tmp_path, head)
        assert (await times_granted(ledger)) == {}, "the grants are in the archive"
        definition = await ledger.log.last(LIMIT.chain(ledger.names, "all"))
        assert definition is not None
        assert definition.stream_sequence > head
        GATE.set()
        async with connected() as fresh, working(fresh, work):
            for job in jobs:
                assert (await ended(job)).state is JobState.COMPLETED, job.id
            assert (await stuck.snapshot()).state is JobState.HELD
            await define(ledger, "never", slots=1)
            assert (await ended(stuck)).state is JobState.COMPLETED
        joined = await open_archive(ledger.log, tmp_path)
        for log in (ledger.log, joined):
            report = await verify(log)
            assert report.sound, report.text()
        held, _ = await peaks(joined)
        assert held == {"all": 3, "never": 1}


async def test_a_carried_job_keeps_its_place_before_those_that_were_held_later(
    connected: Connect, tmp_path: Path
) -> None:
    early, late = ("a", "b", "c"), ("later", "last")
    async with connected() as ledger, connected() as fresh:

        async def add(names: tuple[str, ...]) -> list[JobHandle[str]]:
            return [await enqueue(ledger, work, "all", job_id=each, given={"kind": "x"}) for each in names]

        await define(ledger, "all", slots=0)
        jobs = await add(early)
        held = (await ledger.log.head()).last_sequence
        await take_snapshot(ledger)
        jobs += await add(late)
        newest = (await ledger.log.head()).last_sequence
        await archive_beyond(ledger, tmp_path, held)
        carried = await ledger.log.last(ledger.names.all_of_type("carried"))
        assert carried is not None
        assert (await ledger.log.head()).first_sequence < newest < carried.stream_sequence
        await define(ledger, "all", slots=1)
        async with working(fresh, work):
            for job in jobs:
                assert (await ended(job)).state is JobState.COMPLETED, job.id
        granted = [job.job for event in await grants(ledger) for job in event.jobs]
        assert granted == [*early, *late]
        report = await verify(await open_archive(ledger.log, tmp_path))
        assert report.sound, report.text()
        assert "order" in report.proven


def _leave_unqueued(crashing: pytest.MonkeyPatch, job_id: str) -> None:
    """Let reactors grant a job and die before they queue it, as far as this job is concerned."""
    admit = Admitter.admit

    def admit_others(self: Admitter, granted: GrantedJob, grant: int) -> None:
        if granted.job != job_id:
            admit(self, granted, grant)

    async def look_at_nobody(_self: UnclaimedSlots) -> None: ...

    crashing.setattr(Admitter, "admit", admit_others)
    crashing.setattr(UnclaimedSlots, "look", look_at_nobody)
