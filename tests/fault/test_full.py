"""Rows 15 and 16 of the scoreboard: the disk is full, and the ledger's quota is reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ServerFactory
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, load_tasks
from tests.support.full_ledgers import unthrottled
from tests.support.jetstream import api
from tests.support.proof import prove
from tests.support.small_disk import Disk, SizeLimit, Tmpfs
from tests.support.watch import Watch, make_consumers

from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.errors import LedgerFullError, UnreachableError
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(120)]

TASKS = load_tasks()
APPEND_TIMEOUT_S = 3.0


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path, nats_server_binary: str) -> Iterator[Disk]:
    made: Disk
    if request.param == "ENOSPC":
        try:
            made = Tmpfs(tmp_path, tmp_path / "store" / "jetstream", nats_server_binary, mib=24, room_mib=4)
        except OSError as error:
            pytest.skip(str(error))
    else:
        made = SizeLimit(tmp_path, nats_server_binary, kib=512)
    yield made
    made.close()


@pytest.mark.parametrize("disk", ["ENOSPC", "EFBIG"], indirect=True)
async def test_a_full_disk_is_an_error_in_time_and_costs_nothing_that_was_acknowledged(
    disk: Disk, server_factory: ServerFactory, environment: str, tmp_path: Path, record: Recorder
) -> None:
    """Row 15: nats-server says nothing at all; the documented steps are: make room, restart it."""
    disk.fill()
    server = server_factory(tmp_path / "store", durability="power", binary=str(disk.binary))
    await server.start()
    settings: dict[str, Any] = {"environment": environment, "ledger_bytes_max": 64 << 20, "lease_s": 3.0}
    fleet = Fleet(tmp_path, server.url, environment, lease_s=3.0)
    try:
        async with (
            connect(server.url, **settings, append_timeout_s=APPEND_TIMEOUT_S) as ledger,
            connect(server.url, **settings) as watcher,
            Watch.following(watcher) as watch,
        ):
            await make_consumers(ledger, "work", ack_wait_s=2.0)
            await fleet.start()
            acknowledged, unsure, slowest_s = await _until_full(ledger)
            # As docs/operations.md says: make room, then restart the server. Nothing else.
            disk.free()
            await server.stop()
            await server.start()
            since = time.monotonic()
            await watch.until(lambda: {job for _, job in acknowledged} <= set(watch.ended))
            back_s = time.monotonic() - since
            after = await ledger.enqueue(TASKS["nap"].options(id="after"), 0.0)
            await after.result(timeout_s=10.0)
            acknowledged.append(("work", after.id))
            await watch.until(lambda: watch.count["queued"] >= len(acknowledged))
            proof = await prove(ledger, enqueued=acknowledged, unsure=unsure, trace=fleet.trace)
            assert await fleet.stop() == [0]
    finally:
        await fleet.close()
    proof.hold()
    assert slowest_s <= APPEND_TIMEOUT_S + 5.0  # an answer is waited for 5 s
    record(
        "15",
        "disk full under load: writes fail with "
        + ("ENOSPC (a small tmpfs)" if isinstance(disk, Tmpfs) else "EFBIG (RLIMIT_FSIZE)"),
        faults=f"1, {len(acknowledged):,} acknowledged and 0 lost, {len(unsure)} refused as unknown",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"an error {slowest_s:.1f} s after asking (limit set to {APPEND_TIMEOUT_S:g} s); "
        f"{back_s:.1f} s from the restart until all was done",
    )


async def _until_full(ledger: Ledger) -> tuple[list[tuple[str, str]], list[tuple[str, str]], float]:
    """Enqueue until three got no answer; return who got one, who got none, and the longest wait for that error."""
    acknowledged: list[tuple[str, str]] = []
    unsure: list[tuple[str, str]] = []
    slowest_s = 0.0
    for number in range(5_000):
        since = time.monotonic()
        wanted = TASKS["nap"].options(id=f"n-{number}", max_attempts=50)
        try:
            await ledger.enqueue(wanted, 0.0, "x" * 16_000)
        except UnreachableError:
            unsure.append(("work", f"n-{number}"))
            slowest_s = max(slowest_s, time.monotonic() - since)
            if len(unsure) == 3:
                return acknowledged, unsure, slowest_s
        else:
            acknowledged.append(("work", f"n-{number}"))
    raise AssertionError("the disk never was full")


@pytest.fixture
async def small(server: EmbeddedServer, environment: str) -> AsyncIterator[Ledger]:
    """A ledger that holds a few hundred jobs."""
    async with connect(server.url, environment=environment, ledger_bytes_max=256 << 10, lease_s=3.0) as made:
        await make_consumers(made, "work", ack_wait_s=2.0)
        yield unthrottled(made)


async def test_a_reached_quota_is_refused_cleanly_and_what_was_accepted_is_stored_exactly(
    small: Ledger, server: EmbeddedServer, environment: str, tmp_path: Path, record: Recorder
) -> None:
    """Row 16: with a worker that has outcomes to record when there is no room; then the quota is raised."""
    fleet = Fleet(tmp_path, server.url, environment, lease_s=3.0)
    accepted: list[tuple[str, str]] = []
    refused = 0
    slowest_s = 0.0
    try:
        async with Watch.following(small) as watch:
            await fleet.start()

            async def enqueue(number: int) -> None:
                nonlocal refused, slowest_s
                since = time.monotonic()
                try:
                    await small.enqueue(TASKS["nap"].options(id=f"n-{number}", max_attempts=50), 0.5)
                except LedgerFullError:
                    refused += 1
                    slowest_s = max(slowest_s, time.monotonic() - since)
                else:
                    accepted.append(("work", f"n-{number}"))

            for start in range(0, 2_000, 100):
                await asyncio.gather(*(enqueue(number) for number in range(start, start + 100)))
            assert refused
            assert len(watch.ended) < len(accepted), "no outcome was left to record"
            stream = small.names.ledger_stream
            config = (await api(small.inbox, f"STREAM.INFO.{stream}", {}))["config"]
            raised = await api(small.inbox, f"STREAM.UPDATE.{stream}", {**config, "max_bytes": 64 << 20})
            assert "error" not in raised, raised
            since = time.monotonic()
            await watch.until_ended(len(accepted))
            back_s = time.monotonic() - since
            proof = await prove(small, enqueued=accepted, trace=fleet.trace)
            assert await fleet.stop() == [0]
    finally:
        await fleet.close()
    proof.hold()
    assert set(watch.ended.values()) == {"completed"}
    record(
        "16",
        "the ledger's max_bytes is reached under load, then raised",
        faults=f"1, {refused:,} enqueues refused within {slowest_s:.2f} s, {len(accepted):,} accepted and stored",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{back_s:.1f} s from the raise until all was done",
    )
