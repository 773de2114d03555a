"""One host of three whose clock is wrong: nothing starts early, no schedule is silent, and the host says so."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.fault.apps import steady
from tests.support.figures import Recorder
from tests.support.fleet import Fleet
from tests.support.schedules import declare, facts

from jobledger.audit.archive import Archiver, archive_deps
from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, Task, TaskRegistry
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.schedules.events import Ticked

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

APP = Path(steady.__file__)
#: Debian's package faketime: it changes what a process is told of the wall clock. Without it the worker's own clock is.
LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
JOBS = 60
DELAY_S = 1.5
LATE_S = 5.0
WATCHED_S = 8.0


@pytest.fixture
def durability() -> str:
    return "process"


@pytest.fixture
def lease_s() -> float:
    return 15.0


@pytest.fixture
def apps(fleet: Fleet) -> dict[str, Task[..., object]]:
    fleet.app = APP
    return {each.name: each for each in TaskRegistry.load([str(APP)])}


def _with_wrong_clock(ahead_s: int) -> dict[str, str]:
    """Return the variables of a worker whose machine has a wrong clock."""
    if not LIBRARIES:
        return {steady.AHEAD: str(ahead_s)}
    return {"LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME": f"{ahead_s:+}s", "DONT_FAKE_MONOTONIC": "1"}


@pytest.mark.parametrize("ahead_s", [300, 86_400, -300, -86_400])
async def test_a_host_with_a_wrong_clock_harms_nobody(  # noqa: PLR0917 - what it harms, and with what
    ledger: Ledger,
    fleet: Fleet,
    apps: dict[str, Task[..., object]],
    ahead_s: int,
    tmp_path: Path,
    record: Recorder,
) -> None:
    """Row 42: one of three hosts 5 minutes or a day ahead or behind."""
    fleet.variables |= _with_wrong_clock(ahead_s)
    await (await fleet.begin()).ready()
    fleet.variables.clear()
    for _ in range(2):
        await (await fleet.begin()).ready()
    apart = [each.clock_apart_s for each in await ledger.leases.all()]
    assert [each for each in apart if abs(each) > 5.0] == [pytest.approx(ahead_s, abs=2.0)]

    await declare(ledger, queue="work", overlap="allow")
    delayed = [
        await ledger.enqueue(apps["child"].options(delay_s=DELAY_S), number=number) for number in range(JOBS)
    ]
    runs = [await ledger.enqueue(apps["patient"]) for _ in range(JOBS)]
    await asyncio.sleep(WATCHED_S)
    for job in (*delayed, *runs):
        await job.result(timeout_s=60)
        stored = [each.stored_at for each in await job.history()]
        assert DELAY_S - 0.05 < (stored[-1] - stored[0]).total_seconds() < DELAY_S + LATE_S
    ticks = [each for each in await facts(ledger) if isinstance(each, Ticked)]
    late_s = max((each.at - each.tick).total_seconds() for each in ticks if each.tick is not None)
    assert len(ticks) >= WATCHED_S - 2
    assert late_s < LATE_S
    await fleet.stop()
    latest_s, events = await _sound(ledger, tmp_path)
    record(
        "42",
        "one of three hosts whose clock is 5 minutes or a day ahead or behind",
        faults=f"clock {ahead_s:+} s ({'libfaketime' if LIBRARIES else 'injected'}); no dispatch early, a tick "
        f"{late_s:.1f} s late at most, times {latest_s:.2f} s ahead at most",
        jobs=len(delayed) + len(runs),
        events=events,
        now=time.monotonic(),
    )


async def _sound(ledger: Ledger, folder: Path) -> tuple[float, int]:
    """Check the ledger, archive what ended, check both; return how far ahead a recorded time was, and the events."""
    ahead_s = -LATE_S
    async for batch in ledger.log.read_messages():
        for message in batch:
            if isinstance(message, StoredEvent):
                ahead_s = max(ahead_s, (message.event.at - message.stored_at).total_seconds())
    assert ahead_s < LATE_S
    report = await verify(ledger.log)
    assert report.sound, report.violations
    deps = archive_deps(ledger, by="ops", on_progress=lambda _step, _done, _total: None)
    await Archiver(ledger.log, folder / "archive", deps).run(datetime.now(UTC) - timedelta(seconds=1))
    after = await verify(ledger.log)
    assert after.sound, after.violations
    return ahead_s, report.events
