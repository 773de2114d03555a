"""Workers of many queues on a real server that is killed: it forgets the consumers of work, and no job is lost by that."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.support.roles import authorization, printed, user
from tests.support.secured import secured
from tests.support.working import LIMIT_S, becomes, ended, types, until, working

from jobledger.audit.verify import verify
from jobledger.ledger import JobHandle, JobState, Ledger, TaskRegistry, connect, task
from jobledger.ledger.nats.durables import find_consumer
from jobledger.ledger.nats.floors import Mark, Note, make_bucket, mark_of, read_floor, write_floor
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers.attempt import intake

pytestmark = pytest.mark.anyio

QUEUES = 12
SLOTS = 8
BYTES = 64 << 20


class Gates:
    """What running jobs wait for: nothing ends before its gate is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.runs: Counter[str] = Counter()

    def registry(self, queues: int) -> TaskRegistry:
        async def pass_through(name: str, waits: bool) -> str:
            self.runs[name] += 1
            if waits:
                await self.open.wait()
            return name

        return TaskRegistry(
            [task(name=f"pass_{number}", queue=f"q{number}")(pass_through) for number in range(queues)]
        )


async def consumer(ledger: Ledger, queue: str) -> ConsumerInfo | None:
    names = ledger.names
    return await find_consumer(ledger.inbox, names.ledger_stream, names.consumer(queue, "normal"))


async def until_noted(ledger: Ledger, queue: str, settled: int) -> None:
    """Wait until the floor of a queue's lane is noted at a stream sequence or behind it."""
    name = ledger.names.consumer(queue, "normal")
    async with asyncio.timeout(LIMIT_S):
        while (await read_floor(ledger.inbox, ledger.log, name) or 0) < settled:
            await asyncio.sleep(0.02)


async def kill_and_restart(server: EmbeddedServer, ledger: Ledger) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await server.stop()
    await until(lambda: not ledger.connection.is_connected)
    await server.start()
    await ledger.connection.wait_connected(LIMIT_S)


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_NOTE_EVERY_S", 0.05)
    monkeypatch.setattr(intake, "_NOTE_PAUSE_S", 0.0)


@pytest.mark.usefixtures("_often")
async def test_jobs_of_many_queues_that_wait_run_and_have_ended_each_end_once_after_a_kill(
    tmp_path: Path,
) -> None:
    server, gates = EmbeddedServer(tmp_path / "store", port=0), Gates()
    async with server, connect(server.url, ledger_bytes_max=BYTES) as ledger:
        tasks = gates.registry(QUEUES)
        async with working(ledger, registry=tasks, concurrency=SLOTS) as worker:
            jobs: list[JobHandle[str]] = []

            async def add(name: str, *, waits: bool) -> JobHandle[str]:
                number = len(jobs) % QUEUES
                jobs.append(await ledger.enqueue(tasks.get(f"pass_{number}"), name=name, waits=waits))
                return jobs[-1]

            first = [await add(f"first {number}", waits=False) for number in range(2 * QUEUES)]
            for job in first:
                await ended(job)
            for number in range(QUEUES):
                await until_noted(ledger, f"q{number}", first[QUEUES + number].sequence)
            for number in range(SLOTS):
                await add(f"runs {number}", waits=True)
            await until(lambda: worker.running == SLOTS)
            for number in range(QUEUES):
                await add(f"waits {number}", waits=False)
            found = await consumer(ledger, "q0")
            assert found is not None
            assert found.config.get("mem_storage")
            await kill_and_restart(server, ledger)
            gates.open.set()
            for job in jobs:
                await ended(job)
            again = await consumer(ledger, "q0")
            assert again is not None
            assert again.config["opt_start_seq"] > first[QUEUES].sequence, "it begins behind what was noted"
            assert [await types(job) for job in jobs] == [["queued", "started", "completed"]] * len(jobs)
            assert set(gates.runs.values()) == {1}
            report = await verify(ledger.log)
            assert report.sound, report.text()


@pytest.mark.usefixtures("_often")
async def test_jobs_that_ended_behind_one_that_runs_on_are_settled_without_a_claim(tmp_path: Path) -> None:
    server, gates = EmbeddedServer(tmp_path / "store", port=0), Gates()
    async with server, connect(server.url, ledger_bytes_max=BYTES) as ledger:
        tasks = gates.registry(1)
        async with working(ledger, registry=tasks, concurrency=SLOTS) as worker:
            before = await ledger.enqueue(tasks.get("pass_0"), name="before", waits=False)
            await ended(before)
            long = await ledger.enqueue(tasks.get("pass_0"), name="long", waits=True)
            await becomes(long, JobState.RUNNING)
            await ledger.enqueue_many(
                tasks.get("pass_0"), ({"name": f"short {number}", "waits": False} for number in range(100))
            )
            await until(lambda: len(gates.runs) == 102)
            await until_noted(ledger, "q0", before.sequence)
            taken, delivered = worker._taken, worker.counts().deliveries
            await kill_and_restart(server, ledger)

            async def is_settled() -> bool:
                found = await consumer(ledger, "q0")
                return found is not None and found.pending == 0 and found.ack_pending == 1

            async with asyncio.timeout(LIMIT_S):
                while not await is_settled():
                    await asyncio.sleep(0.02)
            assert worker.counts().deliveries - delivered >= 100, "all behind the long one came again"
            assert worker._taken - taken < 10, "and few took a slot"
            gates.open.set()
            await ended(long)
            assert set(gates.runs.values()) == {1}


async def test_where_nobody_noted_a_floor_a_lane_begins_at_the_first_dispatch_that_counts(
    tmp_path: Path,
) -> None:
    server, gates = EmbeddedServer(tmp_path / "store", port=0), Gates()
    async with server, connect(server.url, ledger_bytes_max=BYTES) as ledger:
        tasks = gates.registry(1)
        async with working(ledger, registry=tasks):
            await ended(await ledger.enqueue(tasks.get("pass_0"), name="done", waits=False))
        waiting = await ledger.enqueue(tasks.get("pass_0"), name="waits", waits=False)
        await kill_and_restart(server, ledger)
        assert await consumer(ledger, "q0") is None, "the server has forgotten it"
        async with working(ledger, registry=tasks):
            await ended(waiting)
            found = await consumer(ledger, "q0")
            assert found is not None
            assert found.config["opt_start_seq"] == waiting.sequence
        assert set(gates.runs.values()) == {1}


async def test_a_floor_counts_only_for_the_ledger_of_which_it_was_noted(ledger: Ledger) -> None:
    names = ledger.names
    assert await make_bucket(ledger.inbox, names, replicas=1)
    lane = names.consumer("q0", "normal")
    await ledger.enqueue(Gates().registry(1).get("pass_0"), name="one", waits=False)
    mark = await mark_of(ledger.log)
    head = mark.sequence

    async def noted(settled: int, mark: Mark) -> int | None:
        await write_floor(ledger.inbox, names, lane, Note(settled=settled, mark=mark))
        return await read_floor(ledger.inbox, ledger.log, lane)

    assert await noted(head, mark) == head
    assert await noted(head, Mark(sequence=head, sha256=mark.sha256[::-1])) is None, "other events"
    assert await noted(head, Mark(sequence=head + 1, sha256=mark.sha256)) is None, "it lost its end"
    assert await noted(head + 1, mark) is None
    assert await noted(head, mark) == head
    await ledger.inbox.ask(f"$KV.{names.lanes_bucket}.{lane}", {"of": "a newer version"}, timeout_s=LIMIT_S)
    assert await read_floor(ledger.inbox, ledger.log, lane) is None
    assert await read_floor(ledger.inbox, ledger.log, names.consumer("q1", "normal")) is None


async def test_a_worker_that_may_note_no_floors_makes_its_consumers_in_files(
    nats_server_binary: str, tmp_path: Path
) -> None:
    rights = "\n".join(
        line for line in printed("worker", "--queue", "q0", "--of", "old").splitlines() if "LANES" not in line
    )
    tasks = Gates().registry(1)
    with secured(nats_server_binary, tmp_path / "server", authorization(user("old", rights))) as running:
        async with connect(running.url(host="all:p@127.0.0.1"), ledger_bytes_max=BYTES) as ledger:
            async with (
                connect(running.url(host="old:p@127.0.0.1"), create=False) as bound,
                working(bound, registry=tasks, reactors=False),
            ):
                await ended(await ledger.enqueue(tasks.get("pass_0"), name="one", waits=False))
                found = await consumer(ledger, "q0")
            assert found is not None
            assert not found.config.get("mem_storage")
