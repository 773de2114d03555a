"""Gateways that are killed while many enqueue through them, and many who enqueue one job at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.figures import Recorder
from tests.support.limits import LIMIT_S

from jobledger.gateway.process.listening import listen
from jobledger.ledger import Ledger, task
from jobledger.ledger.adding.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(300)]

KILLS = 200
CLIENTS = 8

#: Forks a gateway process for every line that it reads: one that is killed costs no start of Python.
MOTHER = """
import os, sys, anyio
from pathlib import Path
from jobledger.gateway.access.local import LocalAccess
from jobledger.gateway.process.listening import listen
from jobledger.gateway.process.running import Process
from jobledger.gateway.process.serving import Settings
from jobledger.ledger import connect

url, environment, path, port = sys.argv[1:]

async def serve():
    async with connect(url, environment=environment, create=False) as ledger:
        process = Process(ledger, Path(path), LocalAccess(), Settings(), project=False)
        with listen("127.0.0.1", int(port), is_shared=True) as bound:
            await process.run(bound, lambda: os.write(1, b"up\\n"))

os.write(1, b"ready\\n")
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        anyio.run(serve)
    os.write(1, b"%d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"gone\\n")
"""


@task(queue="mail")
async def send(to: str) -> None:
    """Be enqueued only."""


async def announce(ledger: Ledger) -> None:
    entry = entry_of(send, worker="web-1-0a", at=ledger.clock.now())
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)


class Mother:
    """Begins gateways and kills them."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", MOTHER, *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _begin(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said = {self._line(), self._line()}
        return int((said - {"up"}).pop())

    async def run_and_kill(self, after_s: float) -> None:
        child = await asyncio.to_thread(self._begin)
        await asyncio.sleep(after_s)
        os.kill(child, 9)
        assert await asyncio.to_thread(self._line) == "gone", "it was at work until then"

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def durability() -> str:
    return "process"


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is kept while no gateway has it."""
    with listen("127.0.0.1", 0, is_shared=True) as bound:
        yield bound.getsockname()[1]


@pytest.fixture
def mother(server: EmbeddedServer, ledger: Ledger, tmp_path: Path, port: int) -> Iterator[Mother]:
    made = Mother(server.url, ledger.names.environment, str(tmp_path / "p.db"), str(port))
    yield made
    made.close()


class Client:
    """Enqueues one job after the other, each under a key of its own until somebody says that it is there."""

    def __init__(self, name: str, port: int) -> None:
        self._name = name
        self._url = f"http://127.0.0.1:{port}/v1/jobs"
        self.accepted: list[str] = []  #: ids that were answered with 202
        self.known: set[str] = set()  #: those, and ids that were there already
        self.broken = 0
        self.stopping = False

    async def run(self) -> None:
        number = 0
        async with httpx.AsyncClient(timeout=LIMIT_S) as http:
            while not self.stopping:
                number += 1
                await self._until_known(http, f"{self._name}-{number}")

    async def _until_known(self, http: httpx.AsyncClient, key: str) -> None:
        body = {"task": "send", "input": {"to": key}}
        while not self.stopping:
            try:
                answer = await http.post(self._url, json=body, headers={"idempotency-key": key})
            except (httpx.TransportError, AttributeError):  # the second of a socket that broke at once
                self.broken += 1
                await asyncio.sleep(0.005)
                continue
            assert answer.status_code in {200, 202}, answer.text
            self.known.add(answer.json()["id"])
            if answer.status_code == 202:
                self.accepted.append(answer.json()["id"])
            return


async def test_what_a_killed_gateway_accepted_is_in_the_ledger_once(
    mother: Mother, ledger: Ledger, port: int, chance: random.Random, record: Recorder
) -> None:
    """Row 40: SIGKILL at random moments while clients enqueue, and ask again under the same key."""
    await announce(ledger)
    clients = [Client(f"client-{number}", port) for number in range(CLIENTS)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run())
        for _ in range(KILLS):
            await mother.run_and_kill(after_s=0.02 + chance.random() * 0.2)
        for client in clients:
            client.stopping = True
    made: Counter[str] = Counter()
    events = 0
    async with contextlib.aclosing(ledger.log.read()) as batches:
        async for batch in batches:
            events += len(batch)
            made.update(stored.event.job for stored in batch if stored.event.task == "send")
    accepted = [each for client in clients for each in client.accepted]
    assert set(accepted) <= set(made), "a job that was answered with 202 is not there"
    assert set().union(*(client.known for client in clients)) <= set(made)
    assert max(made.values()) == 1
    assert len(set(accepted)) == len(accepted) > KILLS
    broken = sum(client.broken for client in clients)
    assert broken > 0, "nobody noticed"
    record(
        "40",
        "gateway killed while clients enqueue through it, each again under its Idempotency-Key",
        faults=f"{KILLS} kills; {broken:,} requests broke off, {len(accepted):,} answered 202, each in the ledger once",
        jobs=len(made),
        events=events,
        now=time.monotonic(),
    )
