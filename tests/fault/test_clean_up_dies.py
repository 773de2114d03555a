"""Row 62g: the keeper's process that deletes large values is killed while clients refer to these values (ADR 069).

Hours are seconds here, in that process too. No event ever names a value that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import time
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec
import pytest
from tests.fault.conftest import ConnectTo
from tests.support.figures import Recorder
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.admin.verbs.retention import SetRetention
from jobledger.gateway.process.children import ChildEndedError, child, messages, setup_of
from jobledger.gateway.process.messages import KeeperReport
from jobledger.ledger import Ledger, task
from jobledger.ledger.nats.stored_values import StoredValues
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

KILLS: Final = 12
CLIENTS: Final = 3
#: For twelve hours. A client has as long between its look at a value and its append.
GRACE: Final = timedelta(seconds=4)
#: For how long clients refer to a value that no event names, so that some refer to each of those at its last moment.
FRESH_S: Final = 3 * GRACE.total_seconds()
#: Python reads it first in each process that it starts.
_SHORT_HOURS: Final = f"""
from datetime import timedelta
from jobledger.audit.archive import unnamed
unnamed.GRACE = timedelta(seconds={GRACE.total_seconds()})
unnamed.LEFT = 2 * unnamed.GRACE
"""


@task(queue="work")
async def work(text: str) -> int:
    return len(text)


class Rig:
    """A ledger to whose large values clients refer, and the keeper's process that deletes those that no event names."""

    def __init__(self, ledger: Ledger, server: EmbeddedServer, folder: Path) -> None:
        self.ledger = ledger
        self.server = server
        self.setup = msgspec.structs.replace(
            setup_of(ledger, folder / "jobs.db", "keeper"), archive=str(folder / "archive"), clears=True
        )
        self.stored = StoredValues(ledger.inbox, ledger.names, ledger.inputs)
        self.texts: list[tuple[float, str]] = []  #: when it was stored, and the value
        self.made = 0  #: values that were stored
        self.slowest_s = 0.0  #: how long a client took to refer to one
        self.kills = self.passes = 0

    async def put(self) -> None:
        """Store values as clients do that die before they append an event."""
        while True:
            text = secrets.token_hex(40_000)
            data = msgspec.json.encode({"text": text})
            await self.ledger.inputs.put(data, what="input", key="")
            self.made += 1
            self.texts.append((time.monotonic(), text))
            await asyncio.sleep(0.1)

    async def refer(self, chance: random.Random) -> None:
        """Enqueue jobs that name some of the values, at any moment of their lives."""
        while True:
            await asyncio.sleep(chance.uniform(0.1, 0.6))
            since = time.monotonic() - FRESH_S
            fresh = [text for at, text in self.texts if at > since]
            if fresh:
                began = time.monotonic()
                await self.ledger.enqueue(work, text=chance.choice(fresh))
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    async def clear(self, kill_after_s: float | None) -> float:
        """Let the process look at the values, and kill it so long after it is connected; return how long it worked."""
        async with child("keeper", self.setup) as running:
            ending = asyncio.create_task(self._end_of(running))
            await self._connected(ending)
            began = time.monotonic()
            await asyncio.wait({ending}, timeout=kill_after_s)
            if not ending.done():
                os.kill(running.pid, signal.SIGKILL)
                self.kills += 1
            with contextlib.suppress(ChildEndedError):
                moved = await ending
                assert not moved.trouble
                self.passes += 1
            return time.monotonic() - began

    async def _end_of(self, running: object) -> MoveOutcome:
        async for message in messages(running):  # type: ignore[arg-type]
            if isinstance(message, KeeperReport):
                return message.moved
        raise AssertionError("its messages end with an error")

    async def _connected(self, ending: asyncio.Task[MoveOutcome]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not ending.done() and not await anyio.to_thread.run_sync(self._is_connected):
                await asyncio.sleep(0.005)

    def _is_connected(self) -> bool:
        with urllib.request.urlopen(f"{self.server.monitor_url}/connz", timeout=LIMIT_S) as answer:
            return any(each.get("name") == "jobledger-keeper" for each in json.load(answer)["connections"])

    async def left(self) -> int:
        return len([value async for value in self.stored.all() if not value.is_removed])


@pytest.fixture
async def rig(
    connected: ConnectTo, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rig]:
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "sitecustomize.py").write_text(_SHORT_HOURS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "short"), prepend=os.pathsep)
    (tmp_path / "archive").mkdir()
    async with connected() as ledger:
        await ledger.do(SetRetention(keep_s=0.0, to=str(tmp_path / "archive")))
        yield Rig(ledger, server, tmp_path)


async def test_no_value_that_an_event_names_is_missing_after_kills_of_the_clean_up(
    rig: Rig, chance: random.Random, record: Recorder
) -> None:
    doing = [asyncio.create_task(rig.put())]
    doing += [asyncio.create_task(rig.refer(random.Random(chance.random()))) for _ in range(CLIENTS)]
    try:
        whole_s = await rig.clear(None)
        while rig.kills < KILLS:
            assert not any(each.done() for each in doing), doing
            whole_s = max(whole_s, await rig.clear(chance.uniform(0.0, whole_s)))
    finally:
        for each in doing:
            each.cancel()
        await asyncio.wait(doing)
    await asyncio.sleep(2 * GRACE.total_seconds())  # an hour of this world: what is not named is old then
    for _ in range(2):
        await rig.clear(None)
    gone = rig.made - await rig.left()
    assert gone > 0, "some were deleted"
    assert rig.slowest_s < GRACE.total_seconds(), (
        "a client has that long; the machine is too slow for this row"
    )
    jobs = await _run_all(rig.ledger)
    record(
        "62g",
        "SIGKILL of the keeper's process that deletes large values, while clients refer to them",
        faults=f"{rig.kills} kills, {rig.passes} whole passes; {gone:,} of {rig.made:,} values deleted, 0 of those that "
        "an event names",
        jobs=jobs,
        events=(await rig.ledger.log.head()).last_sequence,
        now=time.monotonic(),
    )


async def _run_all(ledger: Ledger) -> int:
    """Run every job, which needs its value; return how many there were."""
    jobs: set[str] = set()
    async for batch in ledger.log.read():
        jobs.update(each.event.job for each in batch)
    async with working(ledger, work):
        for each in jobs:
            job = await ended(await ledger.job(each))
            assert job.state == "completed", job
    return len(jobs)
