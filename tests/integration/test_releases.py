"""Ledgers that earlier releases wrote and archived: sound, readable, and their jobs go on with the code of today."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.conftest import ServerFactory
from tests.releases import release_app
from tests.support.limited import take_snapshot
from tests.support.working import LIMIT_S, working

from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.archive.chain import read_past
from jobledger.audit.archive.redacted_jobs import JobChoice
from jobledger.audit.archive.redactor import Redactor
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.export.restore import import_export
from jobledger.audit.verify import verify
from jobledger.ledger import JobState, Ledger, connect
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef

pytestmark = pytest.mark.anyio

TASKS = (
    release_app.plain,
    release_app.flaky,
    release_app.waiting,
    release_app.flow,
    release_app.limited,
)
RELEASES = sorted(each.parent for each in (Path(__file__).parents[1] / "releases").glob("*/live"))
#: Where some of its jobs are when a release has written its ledger.
STATES = {
    ("plain", "later"): JobState.SCHEDULED,
    ("idle", "waiting"): JobState.QUEUED,
    ("plain", "dead"): JobState.DEAD_LETTERED,
    ("runs", "run"): JobState.WAITING,
    ("plain", "newest"): JobState.COMPLETED,
}


async def sound(log: Log) -> None:
    report = await verify(log)
    assert report.sound, report.text()


async def job_of(ledger: Ledger, queue: str, job: str) -> JobState:
    return (await ledger.handle_of(JobRef(queue=queue, job_id=job)).snapshot()).state


@pytest.mark.parametrize("release", RELEASES, ids=lambda each: each.name)
async def test_a_ledger_that_a_release_archived_is_sound_and_its_jobs_go_on(
    release: Path, server_factory: ServerFactory, tmp_path: Path
) -> None:
    archive = sorted((release / "archive").iterdir())
    async with server_factory() as server, connect(server.url) as ledger:
        for export in (*archive, release / "live"):
            await import_export(export, ledger.log)
        await sound(ledger.log)
        await ledger.log.purge(int(archive[-1].name.partition("-")[2]))
        await sound(ledger.log)
        await sound(await open_archive(ledger.log, release / "archive"))
        assert {each: await job_of(ledger, *each) for each in STATES} == STATES
        await _go_on(ledger)
        moved = Path(shutil.copytree(release / "archive", tmp_path / "archive"))
        await take_snapshot(ledger)  # grants are kept up to the newest one
        deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
        done = await Archiver(ledger.log, moved, deps).run(datetime.now(UTC))
        assert done.jobs_archived > len(STATES), done.held_back_by
        await sound(ledger.log)
        await sound(await open_archive(ledger.log, moved))
        await _redact(ledger, moved)


async def _redact(ledger: Ledger, folder: Path) -> None:
    """Take the values of the jobs that the release began out of its archive."""
    redacted = 0
    for queue in ("plain", "idle", "runs", "jobledger"):
        redactor = Redactor(ledger.log, folder, lambda: ledger.stamp("alice"))
        redacted += (await redactor.run(JobChoice(where={"queue": queue}), reason="old")).events
    past = await read_past(ledger.log, [folder])
    report = await verify(past.log, witnesses=[ArchiveWitness(past, ledger.log)])
    assert report.sound, report.text()
    assert report.redacted == redacted > len(STATES)


async def _go_on(ledger: Ledger) -> None:
    """Run what waits, from the inputs that were carried over the archive."""
    async with working(ledger, *TASKS):
        waiting = ledger.handle_of(JobRef(queue="idle", job_id="waiting"))
        assert await waiting.result(timeout_s=LIMIT_S) == 8
        run = ledger.handle_of(JobRef(queue="runs", job_id="run"))
        await ledger.signal(run, release_app.go, "on")
        assert await run.result(timeout_s=LIMIT_S) == 2
