"""A worker whose event loop stands still is of no use: its supervisor replaces it, and its jobs go on elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.fleet import Fleet, load_tasks
from tests.support.limits import LIMIT_S
from tests.support.watch import make_consumers
from tests.support.working import Connect

from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.workers.supervision.supervisor import SupervisorConfig

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

TASKS = load_tasks()
LEASE_S = 2.0  # half of what a worker may be silent for


@pytest.fixture
async def ledger(connected: Connect) -> AsyncIterator[Ledger]:
    async with connected(lease_s=LEASE_S) as made:
        await make_consumers(made, "work", ack_wait_s=1.0)
        yield made


@pytest.fixture
async def fleet(nats_server: EmbeddedServer, ledger: Ledger, tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path, nats_server.url, ledger.config.environment, lease_s=LEASE_S)
    yield made
    await made.close()


async def test_a_worker_that_a_task_blocks_for_ever_is_killed_and_replaced(
    ledger: Ledger, fleet: Fleet
) -> None:
    supervisor = await fleet.start("--processes", "1")
    (blocked,) = supervisor.children()
    job = await ledger.enqueue(TASKS["block"], 3600.0)
    assert await job.result(timeout_s=LIMIT_S) == 2  # it blocks at its first attempt only
    (successor,) = supervisor.children()
    assert successor != blocked
    assert await supervisor.stop() == 0
    said = supervisor.log_path.read_text(encoding="utf-8")
    assert f"worker process {blocked} has not been heard of for 4 s" in said


async def test_a_worker_that_is_busy_with_well_behaved_tasks_is_left_alone(
    ledger: Ledger, fleet: Fleet
) -> None:
    supervisor = await fleet.start("--processes", "1")
    before = supervisor.children()
    job = await ledger.enqueue(TASKS["nap"], 5.0)
    assert await job.result(timeout_s=LIMIT_S) == 1
    assert supervisor.children() == before


def test_a_silence_shorter_than_two_beats_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"silence_s must be at least 2, got 1.5"):
        SupervisorConfig(silence_s=1.5)
