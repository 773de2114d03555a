"""A ledger of three replicas: what is read is never older than what was acknowledged, and what is made later is as safe."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.cluster import Cluster, cluster
from tests.support.jetstream import api

from jobledger.ledger import JobState, Ledger, connect, task
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.nats.infos import StreamInfo, StreamState
from jobledger.ledger.nats.read_index import is_proven

pytestmark = pytest.mark.anyio

JOBS = 150
#: How often to look for a replica that lags; each look is 150 jobs.
_LOOKS_MAX = 20
_SECOND_NS = 1_000_000_000


@task(queue="mail")
async def send(number: int) -> int:
    return number


@pytest.fixture(scope="module")
async def servers(
    anyio_backend: object, nats_server_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    async with cluster(nats_server_binary, tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
async def ledger(servers: Cluster, environment: str) -> AsyncIterator[Ledger]:
    async with connect(servers.url, environment=environment, replicas=3, ledger_bytes_max=64 << 20) as made:
        yield made


async def _older(ledger: Ledger, other: Ledger, prefix: str = "j") -> Counter[str]:
    """Return how many answers were older than what was acknowledged before, by what was asked."""
    found: Counter[str] = Counter()

    async def one(number: int) -> None:
        job = await ledger.enqueue(send.options(id=f"{prefix}-{number}"), number)
        for name, reader in (("same client", ledger), ("other client", other)):
            try:
                await reader.job(job.id)
            except JobNotFoundError:
                found[name] += 1
        try:
            await job.cancel()
        except JobNotFoundError:
            found["cancel"] += 1
            return
        if await other.handle_of(job.ref).state() is not JobState.CANCELLED:
            found["state"] += 1

    for start in range(0, JOBS, 10):
        await asyncio.gather(*(one(number) for number in range(start, start + 10)))
    return found


async def test_what_was_acknowledged_is_read_at_once_by_everybody(
    servers: Cluster, ledger: Ledger, environment: str
) -> None:
    async with connect(servers.url, environment=environment) as other:
        assert await _older(ledger, other) == {}


async def test_without_the_proof_some_answers_are_older(
    servers: Cluster, ledger: Ledger, environment: str
) -> None:
    """So the test before can fail: replicas do lag, by a millisecond or two."""
    async with connect(servers.url, environment=environment) as other:
        for each in (ledger, other):
            each.log._index = None  # type: ignore[attr-defined]
        for look in range(_LOOKS_MAX):
            try:
                if await _older(ledger, other, prefix=f"look-{look}"):
                    return
            except JobNotFoundError:
                return
    pytest.fail(f"no answer of {_LOOKS_MAX * JOBS * 4} was older")


async def test_a_replica_that_is_silent_delays_reads_by_less_than_a_second(
    servers: Cluster, ledger: Ledger
) -> None:
    jobs = [await ledger.enqueue(send, number) for number in range(30)]
    frozen = await _follower(servers, ledger)
    os.kill(frozen, signal.SIGSTOP)
    try:
        for job in jobs:
            began = time.monotonic()
            assert await job.state() is JobState.QUEUED
            assert time.monotonic() - began < 2.0
    finally:
        os.kill(frozen, signal.SIGCONT)


async def test_what_is_made_later_has_the_replicas_of_the_ledger(
    servers: Cluster, ledger: Ledger, environment: str
) -> None:
    async with connect(servers.url, environment=environment) as other:
        assert other.config.replicas == 3
    names: list[str] = (await api(ledger.inbox, "STREAM.NAMES", {}))["streams"]
    ours = [each for each in names if environment.upper() in each]
    copies = {each: (await _info(ledger, each))["config"]["num_replicas"] for each in ours}
    assert len(copies) > 3
    assert set(copies.values()) == {3}


@pytest.mark.parametrize(
    ("heard_s", "proven"),
    [([], True), ([0.1, 0.1], True), ([0.1, 30.0], True), ([2.5, 2.5], False), ([0.1, 3, 3, 3], False)],
)
def test_a_leader_is_believed_that_heard_of_a_majority_lately(heard_s: list[float], *, proven: bool) -> None:
    replicas = [{"name": f"n{n}", "active": int(each * _SECOND_NS)} for n, each in enumerate(heard_s)]
    info = StreamInfo(config={}, state=StreamState(), cluster={"leader": "n9", "replicas": replicas})
    assert is_proven(info) == proven


async def _info(ledger: Ledger, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = await api(ledger.inbox, f"STREAM.INFO.{stream}", {})
    return found


async def _follower(servers: Cluster, ledger: Ledger) -> int:
    """Return the process id of a server that neither leads the ledger nor has our connection."""
    leader = (await _info(ledger, ledger.names.ledger_stream))["cluster"]["leader"]
    url = ledger.connection.connected_url
    assert url is not None
    return next(
        server.pid
        for number, (port, server) in enumerate(servers.servers.items())
        if f"n{number}" != leader and port != url.port
    )
