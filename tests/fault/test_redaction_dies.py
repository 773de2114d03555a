"""Rows 71a and 71b: `audit redact` is killed at each of its steps and at random moments, and run again.

Whatever moment it was, the next run ends it: the values are gone from every file, the ledger has one `redacted` for each
export, and both together are sound.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from tests.fault.conftest import ConnectTo
from tests.fault.test_keeper_dies import running, said
from tests.integration.test_owners import found_in
from tests.support.figures import Recorder
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.audit.archive import Archiver, archive_deps
from jobledger.audit.archive.chain import export_folders, read_past
from jobledger.audit.archive.plan import unread
from jobledger.audit.archive.witness import ArchiveWitness
from jobledger.audit.verify import Report, verify
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

EXPORTS: Final = 2
PERSONS: Final = 24  #: more than a run has steps; each person is redacted by a run of its own
KILLS: Final = 12
#: `audit redact` that kills itself the nth time that it tells how far it is; without a number it goes on to its end.
_MORTAL: Final = """
import asyncio, os, signal, sys
from pathlib import Path
from jobledger.audit.archive.redacted_jobs import JobChoice
from jobledger.audit.archive.redactor import Redactor
from jobledger.ledger import connect

url, environment, archive, tenant, fatal = sys.argv[1:]
told = []

def mortal(step, done, total):
    told.append(step)
    print(step, done, total, flush=True)
    if len(told) == int(fatal):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with connect(url, environment=environment) as ledger:
        choice = JobChoice(where={"tenant": tenant})
        await Redactor(ledger.log, Path(archive), ledger.stamp, mortal).run(choice, reason="4711")

asyncio.run(main())
"""


@task(queue="work")
async def work(text: str) -> str:
    return text


def person(number: int) -> str:
    return f"person-{number:03}"


def word(number: int) -> str:
    """Return a word that is in the values of one person's jobs alone."""
    return f"Canary-{number:03}-"


class Rig:
    """A ledger whose archive has exports with jobs of every person in each, one of them with a large value."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.archive = folder / "archive"
        self.place = ("--url", ledger.config.url, "--environment", ledger.names.environment)

    async def fill(self) -> None:
        for _ in range(EXPORTS):
            await self._run_jobs()
            deps = archive_deps(self.ledger, by="ann", on_progress=lambda _step, _done, _total: None)
            await Archiver(self.ledger.log, self.archive, deps).run(self.ledger.clock.now())
        assert len(export_folders([self.archive])) == EXPORTS

    async def _run_jobs(self) -> None:
        async with working(self.ledger, work):
            for number in range(PERSONS):
                mine = work.options(tenant=person(number), metadata={"who": word(number)})
                for text in (word(number), word(number) * 8_000):
                    await ended(await self.ledger.enqueue(mine, text=text))
            last = (await self.ledger.log.head()).last_sequence
            async with asyncio.timeout(LIMIT_S):
                while await unread(self.ledger.log, self.ledger.inbox, last):
                    await asyncio.sleep(0.02)

    def command(self, number: int) -> list[str]:
        """Return the command that redacts one person."""
        words = ("audit", "redact", "--archive", str(self.archive), "--where", f"tenant={person(number)}")
        return [sys.executable, "-P", "-m", "jobledger.cli", *words, "--reason", "4711", *self.place]

    async def facts(self) -> int:
        """Return how many events say that an export was redacted."""
        past = await read_past(self.ledger.log, (self.archive,))
        count = 0
        async for batch in past.log.read_messages(
            subject=REACTOR.of_type(past.log.names, "redacted", ARCHIVE)
        ):
            count += len(batch)
        return count

    async def prove(self) -> Report:
        past = await read_past(self.ledger.log, (self.archive,))
        return await verify(past.log, witnesses=[ArchiveWitness(past, self.ledger.log, is_archive=True)])

    async def finish(self, number: int) -> None:
        """Run the command for a person again: one fact an export came of both runs, no word is left, all is sound."""
        code, output = await said(*self.command(number))
        assert code == 0, output
        assert await self.facts() == EXPORTS * (number + 1)
        assert found_in(self.archive, word(number)) == {}
        assert found_in(self.archive, word(PERSONS - 1)), "others are left alone"
        report = await self.prove()
        assert report.sound, report.text()
        assert report.redacted > 0


@pytest.fixture
async def rig(connected: ConnectTo, tmp_path: Path) -> AsyncIterator[Rig]:
    async with connected() as ledger:
        made = Rig(ledger, tmp_path)
        await made.fill()
        yield made


async def test_a_redaction_that_is_killed_at_each_step_is_ended_by_the_next(
    rig: Rig, record: Recorder
) -> None:
    steps: list[str] = []
    for number in range(PERSONS - 1):
        given = (*rig.place[1::2], str(rig.archive), person(number), str(number + 1))
        code, output = await said(sys.executable, "-c", _MORTAL, *given)
        if code == 0:
            break
        assert code == -signal.SIGKILL, output
        steps.append(output.splitlines()[-1])
        await rig.finish(number)
    else:
        raise AssertionError(f"a run has more steps than there are persons: {steps}")
    kinds = {each.split()[0] for each in steps}
    assert kinds == {"look", "write", "record", "place"}, steps
    report = await rig.prove()
    record(
        "71a",
        "SIGKILL of `audit redact` at each step, then the same again",
        faults=f"{len(steps)}, one fact an export each time, 0 words left",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
    )


async def test_a_redaction_that_is_killed_at_random_is_ended_by_the_next(
    rig: Rig, chance: random.Random, record: Recorder
) -> None:
    began = time.monotonic()
    assert (await said(*rig.command(0)))[0] == 0
    whole_s, half, early = time.monotonic() - began, 0, 0
    await rig.finish(0)
    for number in range(1, KILLS + 1):
        words_before = found_in(rig.archive, word(number))
        async with running(*rig.command(number)) as process:
            drafts = asyncio.create_task(_draft_of(rig.archive))
            if number % 3:  # so that most of them are killed while they change files
                await asyncio.wait({drafts}, timeout=whole_s)
            await asyncio.sleep(chance.uniform(0.0, 0.05 if number % 3 else whole_s))  # a moment of its work
            drafts.cancel()
        was_killed = process.returncode == -signal.SIGKILL
        early += was_killed
        half += was_killed and found_in(rig.archive, word(number)) != words_before
        await rig.finish(number)
    assert early > KILLS // 3, "most were killed before their end"
    report = await rig.prove()
    record(
        "71b",
        "SIGKILL of `audit redact` at random moments, then the same again",
        faults=f"{KILLS}, {early} before its end and {half} with files half in place; one fact an export, 0 words left",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
    )


async def _draft_of(archive: Path) -> None:
    """Wait until a run writes a draft."""
    while not _has_draft(archive):
        await asyncio.sleep(0.002)


def _has_draft(archive: Path) -> bool:
    return any(archive.glob("*/.redaction"))
