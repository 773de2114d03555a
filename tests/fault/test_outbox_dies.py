"""The outbox: application, relay, database and server are killed at random moments."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tests.conftest import ServerFactory
from tests.support.figures import Recorder
from tests.support.outbox_storm import Storm, storm
from tests.support.postgres import postgres_server

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(600)]

KILLS = 100


def _record(record: Recorder, row: str, where: str, done: Storm) -> None:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(done.kills.items()))
    record(
        row,
        f"SIGKILL of the application, the relay, nats-server{where} at random moments",
        faults=f"{sum(done.kills.values())} kills ({counts}); {len(done.committed):,} committed rows are one job each, "
        f"{len(done.rolled_back):,} that were rolled back none",
        jobs=len(done.jobs),
        events=done.events,
        now=time.monotonic(),
        worst_recovery=f"{done.last_s:.1f} s after the last one nothing waited",
    )


async def test_committed_rows_in_postgresql_are_one_job_each_through_a_hundred_kills(
    server_factory: ServerFactory, tmp_path: Path, chance: random.Random, record: Recorder
) -> None:
    with postgres_server() as postgres:
        address = postgres.new_database()
        server = server_factory(durability="power")
        done = await storm(tmp_path, address, server, postgres, chance, kills=KILLS)
    _record(record, "60a", ", PostgreSQL", done.hold())


async def test_committed_rows_in_sqlite_are_one_job_each_through_a_hundred_kills(
    server_factory: ServerFactory, tmp_path: Path, chance: random.Random, record: Recorder
) -> None:
    server = server_factory(durability="power")
    done = await storm(tmp_path, f"sqlite:{tmp_path / 'app.db'}", server, None, chance, kills=KILLS)
    _record(record, "60b", "", done.hold())
