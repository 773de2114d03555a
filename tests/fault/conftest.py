"""What the fault suite shares: one seed for all, servers as they are shipped, fleets of real workers, the figures."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ServerFactory
from tests.support.cluster import Cluster, cluster
from tests.support.figures import Recorder
from tests.support.fleet import Fleet
from tests.support.soundness import RowEnd
from tests.support.watch import make_consumers

from jobledger.ledger import Ledger, connect
from jobledger.ledger.server import EmbeddedServer

VARIABLE = "JOBLEDGER_FAULT_SEED"
SEED = int(os.environ.get(VARIABLE) or secrets.randbelow(1 << 31))

#: What rows say at the end of a run.
_TOLD: list[str] = []

ConnectTo = Callable[..., AbstractAsyncContextManager[Ledger]]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in _TOLD:
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"faults: {VARIABLE}={SEED} repeats this run's choices")


@pytest.fixture
def tell() -> Callable[[str], None]:
    """Say a line at the end of the run, whatever becomes of the row."""
    return _TOLD.append


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """The choices of one test, the same whichever others run."""
    return random.Random(f"{SEED}:{request.node.name}")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Recorder:
    return Recorder(request.node.nodeid, SEED, time.monotonic())


@pytest.fixture
def durability() -> str:
    """As nats.conf is shipped: every append is fsynced."""
    return "power"


@pytest.fixture
async def server(server_factory: ServerFactory, durability: str) -> EmbeddedServer:
    """A nats-server of the test's own; as `server_factory` says, its ledgers are looked at in the end."""
    made = server_factory(durability=durability)
    await made.start()
    return made


@pytest.fixture
async def replicas(
    anyio_backend: object, nats_server_binary: str, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Cluster]:
    """Three nats-servers of the test's own as one cluster; their ledgers are looked at in the end, too."""
    async with cluster(nats_server_binary, tmp_path) as made:
        end = RowEnd(request.node, tmp_path)
        end.begins(made.url)
        yield made
        await end.holds()


@pytest.fixture
def environment() -> str:
    return f"t_{secrets.token_hex(6)}"


@pytest.fixture
def lease_s() -> float:
    """A short one; overridden where the default is what is tried."""
    return 3.0


@pytest.fixture
def connected(server: EmbeddedServer, environment: str, lease_s: float) -> ConnectTo:
    """Connect to the test's environment; the first who does makes it. Its enqueues wait until a fault is over."""

    def make(url: str | None = None, **settings: Any) -> AbstractAsyncContextManager[Ledger]:
        given: dict[str, Any] = {
            "ledger_bytes_max": 1 << 30,
            "lease_s": lease_s,
            "request_timeout_s": 30.0,
            **settings,
        }
        return connect(url or server.url, environment=environment, **given)

    return make


@pytest.fixture
def ack_wait_s() -> float:
    """A short one; overridden where the default is what is tried."""
    return 2.0


@pytest.fixture
async def ledger(connected: ConnectTo, ack_wait_s: float) -> AsyncIterator[Ledger]:
    """One client, and the consumers of its workers."""
    async with connected() as made:
        await make_consumers(made, "work", ack_wait_s=ack_wait_s)
        yield made


@pytest.fixture
def secret() -> str:
    """A word that is in every input and in the workers' address, and must not be in any log."""
    return f"hush{secrets.token_hex(8)}"


@pytest.fixture
async def fleet(
    server: EmbeddedServer, environment: str, ledger: Ledger, tmp_path: Path, secret: str
) -> AsyncIterator[Fleet]:
    """Workers of the test's environment; at its end every one of them is gone."""
    url = f"nats://worker:{secret}@127.0.0.1:{server.port}"
    made = Fleet(tmp_path, url, environment, lease_s=await ledger.leases.duration_s())
    yield made
    await made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file that tasks wait for; it is there at the latest when the test is over."""
    path = tmp_path / "gate"
    yield path
    path.touch()
