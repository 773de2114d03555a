"""Gateways that are killed while many enqueue through them, others send webhooks in, and webhooks go out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import NamedTuple

import anyio
import httpx
import pytest
from tests.support.figures import Recorder
from tests.support.limits import LIMIT_S
from tests.support.receivers import Receiver, receiving
from tests.support.watch import make_consumers

from jobledger.admin.hooks.webhooks import put_webhook
from jobledger.admin.limits import set_limit
from jobledger.audit.verify import verify
from jobledger.gateway.process.listener import listen
from jobledger.ledger import Ledger, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import DeadLettered
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.delivery import DELIVERY, MatchedJob
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.model.hooks.schemes import PRESETS, sign
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.deliveries import LIMIT

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(600)]

KILLS = 200
#: The last gateways live longer: slots of limits are given by workers that live as long as a lease, and webhooks go out.
LONGER = 25
CLIENTS = 6
SENDERS = 2
SECRET = "the secret of the test"
#: A delivery makes a job in each; the jobs of the first one are told to a receiver.
QUEUES = ("bills", "parcels", "stock")
#: How long deliveries that killed workers held may take: a lease each, and another try.
DRAINED_WITHIN_S = 120.0

#: Forks a gateway process for every line that it reads: one that is killed costs no start of Python. Its own worker,
#: which a gateway has in a child process, is part of it here: so it dies at the same moment, at work.
MOTHER = """
import os, socket, sys, anyio
from pathlib import Path
from tests.support.open_gateway import LocalAccess
from jobledger.gateway.process.children import setup_of
from jobledger.gateway.process.messages import TO_CHILD
from jobledger.gateway.process.listener import listen
from jobledger.gateway.process.gateway_process import Process
from jobledger.gateway.process.server import Settings
from jobledger.gateway.process.worker import work
from jobledger.ledger import connect
from jobledger.ledger.webhooks.secrets import Secrets
from jobledger.workers.processes.line import Line
import msgspec

url, environment, path, port = sys.argv[1:]

async def serve():
    async with connect(url, environment=environment, create=False, lease_s=1.0) as ledger:
        process = Process(
            ledger, Path(path), LocalAccess(), Settings(), project=False, secrets=Secrets(os.environ)
        )
        setup = msgspec.structs.replace(setup_of(ledger, Path(path), "worker"), allow_targets=("127.0.0.0/8",))
        ours, theirs = socket.socketpair()
        line = await Line.over(ours, TO_CHILD)
        with listen("127.0.0.1", int(port), is_shared=True) as bound:
            async with anyio.create_task_group() as group:
                group.start_soon(work, ledger, setup, line, None)
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
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SHOP": SECRET},
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

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Let a gateway run for the length of the block, and kill it."""
        child = await asyncio.to_thread(self._begin)
        try:
            yield
        finally:
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
def lease_s() -> float:
    """Shorter than the longer lives: else the dead would always be first in turn to give slots."""
    return 1.0


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
        self._url = f"http://127.0.0.1:{port}"
        self.accepted: list[str] = []  #: what was answered with 202
        self.known: set[str] = set()  #: those, and what was there already
        self.broken = 0
        self.stopping = False

    async def run(self) -> None:
        number = 0
        async with httpx.AsyncClient(base_url=self._url, timeout=LIMIT_S) as http:
            while not self.stopping:
                number += 1
                await self._until_known(http, f"{self._name}-{number}")

    async def _until_known(self, http: httpx.AsyncClient, key: str) -> None:
        while not self.stopping:
            try:
                answer = await self._ask(http, key)
            except (httpx.TransportError, AttributeError):  # the second of a socket that broke at once
                self.broken += 1
                await asyncio.sleep(0.005)
                continue
            assert answer.status_code in {200, 202}, answer.text
            name = self._named(answer)
            self.known.add(name)
            if answer.status_code == 202:
                self.accepted.append(name)
            return

    async def _ask(self, http: httpx.AsyncClient, key: str) -> httpx.Response:
        body = {"task": "send", "input": {"to": key}}
        return await http.post("/v1/jobs", json=body, headers={"idempotency-key": key})

    def _named(self, answer: httpx.Response) -> str:
        return str(answer.json()["id"])


class Sender(Client):
    """Sends one delivery of a webhook after the other, each again until somebody says that it was taken."""

    async def _ask(self, http: httpx.AsyncClient, key: str) -> httpx.Response:
        body = b'{"order": "%s"}' % key.encode()
        signed = {"x-hub-signature-256": sign(PRESETS["github"], SECRET, body), "x-github-delivery": key}
        return await http.post("/in/shop", content=body, headers=signed)

    def _named(self, answer: httpx.Response) -> str:
        said = answer.json()
        assert [each["queue"] for each in said["jobs"]] == list(QUEUES)
        return str(said["delivery"])


async def hooks(ledger: Ledger, url: str) -> None:
    """Have each delivery make three jobs, and tell a receiver of one of them.

    What a killed worker holds keeps its slot until it is handed out again: soon here, and there are slots enough.
    """
    await set_limit(ledger, LIMIT, {"slots": 1_000}, by="ann")
    await make_consumers(ledger, DELIVERIES_QUEUE, ack_wait_s=2.0)
    rules = tuple(RouteRule(name=queue, task="send", queue=queue, input={"to": "/order"}) for queue in QUEUES)
    route = RouteDefinition(scheme="github", secrets=("env:SHOP",), rules=rules)
    await ledger.routes.set("shop", route, by="ann")
    webhook = WebhookDefinition(
        target=WebhookTarget(url=url),
        events=("queued",),
        queue=QUEUES[0],
        secrets=("env:SHOP",),
        allow_http=True,
        allow_private=True,
    )
    await put_webhook(ledger, "told", webhook, by="ann")


class Found(NamedTuple):
    """What is in the ledger afterwards."""

    made: Counter[str]  #: how often each job was made, but for those that deliver
    deliveries: dict[str, tuple[MatchedJob, ...]]  #: the jobs that each delivery says it made
    told: dict[
        str, str
    ]  #: the job of each event that the webhook is for, by the id of the delivery that tells it
    begun: Counter[str]  #: how often each of those was begun
    dead: set[str]  #: the jobs of the webhook that are dead letters: each of their attempts was killed
    events: int


async def found_in(ledger: Ledger) -> Found:
    found = Found(Counter(), {}, {}, Counter(), set(), (await ledger.log.head()).last_sequence)
    async with contextlib.aclosing(ledger.log.read_messages()) as batches:
        async for batch in batches:
            for message in batch:
                if isinstance(message, StoredEvent):
                    _note(found, message)
                elif message.subject.startswith(DELIVERY.everything(ledger.names).rstrip(">")):
                    said = DELIVERY.decode(message)
                    assert said.delivery not in found.deliveries, "recorded twice"
                    found.deliveries[said.delivery] = said.matched
    return found


def _note(found: Found, stored: StoredEvent) -> None:
    event = stored.event
    if event.task == "send":
        found.made[event.job] += 1
        if event.queue == QUEUES[0]:
            found.told[f"told-{stored.stream_sequence}"] = event.job
    elif event.task == "deliver":
        found.begun[event.job] += not event.prev
        if isinstance(event, DeadLettered):
            is_by_kills = event.error is not None and event.error.kind == "lost"
            assert is_by_kills, f"{event.job} is a dead letter for another reason than the kills"
            found.dead.add(event.job)
        else:
            found.dead.discard(event.job)


async def _drained(ledger: Ledger, receiver: Receiver) -> Found:
    """Wait until the receiver was told of each job. A gateway runs.

    Few of the gateways live long enough for an attempt. So some jobs may have lost all their attempts to kills, and wait
    as dead letters: these are requeued, as a person would do.
    """
    with anyio.fail_after(DRAINED_WITHIN_S):
        while True:
            found = await found_in(ledger)
            for job in found.dead:
                await ledger.requeue(job, queue=DELIVERIES_QUEUE, reason="its workers were killed", by="ann")
            if set(found.told) <= set(receiver.ids):
                return await found_in(ledger)  # a job of the last ones may be newer than what was read before
            await asyncio.sleep(0.5)


async def test_what_a_killed_gateway_accepted_is_in_the_ledger_once(
    mother: Mother, ledger: Ledger, port: int, chance: random.Random, record: Recorder
) -> None:
    """Row 40: SIGKILL at random moments while clients enqueue and providers deliver, again under the same name."""
    await announce(ledger)
    clients = [Client(f"client-{number}", port) for number in range(CLIENTS)]
    senders = [Sender(f"sender-{number}", port) for number in range(SENDERS)]
    async with receiving() as receiver:
        await hooks(ledger, receiver.url)
        async with asyncio.TaskGroup() as group:
            for each in (*clients, *senders):
                group.create_task(each.run())
            for number in range(KILLS):
                async with mother.running():
                    # Requests are answered at once; a delivery goes out after a second, so some live that long.
                    await asyncio.sleep(0.02 + chance.random() * (3 if number % 8 == 7 else 0.2))
            for each in (*clients, *senders):
                each.stopping = True
        early = len(receiver.requests)
        async with mother.running():
            found = await _drained(ledger, receiver)
    _check_jobs(clients, found)
    _check_deliveries(senders, found)
    assert found.begun == Counter(dict.fromkeys(found.told, 1)), "of each event one job of the webhook"
    assert early > LONGER, "webhooks went out while gateways died"
    assert (await verify(ledger.log)).sound
    broken = sum(each.broken for each in (*clients, *senders))
    assert broken > 0, "nobody noticed"
    accepted = sum(len(each.accepted) for each in clients)
    record(
        "40",
        "gateway killed while clients enqueue through it, others send webhooks in, and webhooks go out",
        faults=f"{KILLS} kills; {broken:,} requests broke off, {accepted:,} answered 202, each in the ledger once; "
        f"{len(found.deliveries):,} webhooks in, each with its {len(QUEUES)} jobs once; {len(found.told):,} out, each one job",
        jobs=len(found.made) + len(found.begun),
        events=found.events,
        now=time.monotonic(),
    )


def _check_jobs(clients: list[Client], found: Found) -> None:
    accepted = [each for client in clients for each in client.accepted]
    assert set(accepted) <= set(found.made), "a job that was answered with 202 is not there"
    assert set().union(*(client.known for client in clients)) <= set(found.made)
    assert max(found.made.values()) == 1
    assert len(set(accepted)) == len(accepted) > KILLS


def _check_deliveries(senders: list[Sender], found: Found) -> None:
    accepted = [each for sender in senders for each in sender.accepted]
    assert set(accepted) <= set(found.deliveries), "a delivery that was answered with 202 is not there"
    assert len(set(accepted)) > KILLS / 4
    for delivery, matched in found.deliveries.items():
        assert [each.queue for each in matched] == list(QUEUES), f"{delivery} says that it made others"
        assert [found.made[each.job] for each in matched] == [1] * len(QUEUES), (
            f"{delivery} made half of its jobs"
        )
    by_delivery = {each.job for matched in found.deliveries.values() for each in matched}
    assert by_delivery >= set(found.told.values()), "a job of no delivery"
