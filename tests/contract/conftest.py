"""The logs under contract: in memory, and JetStream's on a real server in an environment of its own."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest
from tests.support.lock_worlds import World, memory_world, server_world
from tests.support.replicas import depose_leader, make_lag

from jobledger.ledger.connection import connect
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.memory import MemoryLog

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

MakeLog = Callable[..., AbstractAsyncContextManager[Log]]


@contextlib.asynccontextmanager
async def _memory(stored_bytes_max: int = 64 << 20) -> AsyncGenerator[Log]:
    yield MemoryLog(stored_bytes_max=stored_bytes_max)


_LOGS = ["memory", "jetstream-pipeline", "jetstream-group", "jetstream-lagging", "jetstream-deposed"]


@pytest.fixture(params=_LOGS)
def make_log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeLog:
    """Make an empty log; `stored_bytes_max` bounds what it takes.

    Reads of the last two are answered as a cluster may answer them: by replicas that lag, by a leader that was deposed.
    """
    kind, _, way = str(request.param).partition("-")
    if kind == "memory":
        return _memory
    server: EmbeddedServer = request.getfixturevalue("nats_server")

    @contextlib.asynccontextmanager
    async def jetstream(stored_bytes_max: int = 64 << 20) -> AsyncGenerator[Log]:
        environment = f"t_{secrets.token_hex(6)}"
        async with connect(
            server.url,
            environment=environment,
            ledger_bytes_max=stored_bytes_max,
            commit=way if way in ("pipeline", "group") else "auto",
        ) as ledger:
            if way == "lagging":
                make_lag(ledger)
            elif way == "deposed":
                depose_leader(ledger, monkeypatch)
            yield ledger.log

    return jetstream


@pytest.fixture
async def log(make_log: MakeLog) -> AsyncIterator[Log]:
    async with make_log() as made:
        yield made


@pytest.fixture(params=["memory", "jetstream"])
def make_world(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[World]]:
    if request.param == "memory":
        return memory_world
    server: EmbeddedServer = request.getfixturevalue("nats_server")
    return functools.partial(server_world, server)


@pytest.fixture
async def world(make_world: Callable[[], AbstractAsyncContextManager[World]]) -> AsyncIterator[World]:
    async with make_world() as made:
        yield made
