"""The outbox while all that takes part in it is killed: a few kills; `make faults` has many."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.conftest import ServerFactory
from tests.support.outbox_storm import storm
from tests.support.postgres import postgres_server

pytestmark = pytest.mark.anyio
SEED = 7


async def test_each_row_that_was_committed_is_one_job_whoever_is_killed(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    with postgres_server() as postgres:
        address = postgres.new_database()
        done = await storm(tmp_path, address, server_factory(), postgres, random.Random(SEED), kills=8)
    assert set(done.hold().kills) == {"application", "relay", "server", "database"}


async def test_each_row_that_was_committed_in_sqlite_is_one_job_whoever_is_killed(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    done = await storm(
        tmp_path, f"sqlite:{tmp_path / 'app.db'}", server_factory(), None, random.Random(SEED), kills=6
    )
    done.hold()
