"""Locks among real processes that are frozen and killed, and over a restart of the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.limits import LIMIT_S
from tests.support.timing import measured_slack
from tests.support.working import Connect

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, connect, sync, task
from jobledger.ledger.model.errors import LockLostError, LockReentryError, LockTimeoutError
from jobledger.ledger.model.lock import LOCK, Acquired, LockEvent
from jobledger.projections import Projector

if TYPE_CHECKING:
    from tests.conftest import ServerFactory

    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = os.pathsep.join(str(ROOT / portion) for portion in ("ledger", "projections", "workers", "cli"))
LEASE_S = 3.0
SMALL = 1 << 24


@task(queue="beside_locks")
def nothing() -> None:
    return None


class Holder:
    """A process that takes the lock; its stdout is read line by line, each wait has a limit."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            return (await self.process.stdout.readline()).decode().strip()

    async def held(self) -> int:
        word, number = (await self.line()).split()
        assert word == "held"
        return int(number)

    async def tell(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        await self.process.stdin.drain()

    async def end(self) -> int:
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()


StartHolder = Callable[..., Awaitable[Holder]]


@pytest.fixture
async def ledger(nats_server: EmbeddedServer, environment: str) -> AsyncIterator[Ledger]:
    """A client of an environment with short leases; it is there before any holder."""
    async with connect(
        nats_server.url, environment=environment, lease_s=LEASE_S, ledger_bytes_max=SMALL
    ) as made:
        yield made


@pytest.fixture
async def start(nats_server: EmbeddedServer, environment: str) -> AsyncIterator[StartHolder]:
    """Start holders; every one is gone at the end of the test, even a frozen one."""
    made: list[Holder] = []

    async def begin(kind: str, *, wait_s: float = LIMIT_S) -> Holder:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(str(HERE / "apps" / "hold_lock.py"), kind, nats_server.url, environment, "42", str(wait_s)),
            env={**os.environ, "PYTHONPATH": SOURCES},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        made.append(Holder(process))
        return made[-1]

    yield begin
    for holder in made:
        with contextlib.suppress(ProcessLookupError):
            holder.process.kill()
        await holder.process.wait()


async def events(ledger: Ledger) -> list[LockEvent]:
    subject = f"{ledger.names.ledger_root}.lock.>"
    batches = ledger.log.read_messages(subject=subject)
    return [LOCK.decode(message) async for batch in batches for message in batch]


def text_in(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT text FROM thing").fetchone()[0])


async def test_a_holder_frozen_beyond_its_lease_knows_it_and_cannot_write(
    ledger: Ledger, start: StartHolder, tmp_path: Path
) -> None:
    thing = tmp_path / "thing"
    frozen, waiting = await start("sync"), await start("sync")
    first, second = frozen, waiting
    done, (later,) = await asyncio.wait(
        {
            asyncio.create_task(frozen.held(), name="frozen"),
            asyncio.create_task(waiting.held(), name="waiting"),
        },
        return_when=asyncio.FIRST_COMPLETED,
    )
    if later.get_name() == "frozen":
        first, second = waiting, frozen
    await first.tell("check", f"write {thing} A")
    assert [await first.line(), await first.line()] == ["still held", "written"]
    first.process.send_signal(signal.SIGSTOP)
    assert await later > await done.pop()  # the second has it, and its line is read
    await second.tell("check", f"write {thing} B")
    assert [await second.line() for _ in range(2)] == ["still held", "written"]
    await first.tell("check", f"write {thing} C", "release")
    first.process.send_signal(signal.SIGCONT)
    assert (await first.line()).startswith("not held: lock account/42")
    assert [await first.line(), await first.line()] == ["refused", "lost"]
    await second.tell("release")
    assert await second.line() == "released"
    assert text_in(thing) == "AB"
    assert (await verify(ledger.log)).violations == ()


async def test_the_block_of_a_frozen_holder_is_cancelled_when_it_wakes(
    ledger: Ledger, start: StartHolder
) -> None:
    frozen = await start("async")
    number = await frozen.held()
    frozen.process.send_signal(signal.SIGSTOP)
    async with ledger.lock("account", "42", wait_s=LIMIT_S) as held:
        assert held.fencing_number > number
        frozen.process.send_signal(signal.SIGCONT)
        assert await frozen.line() == "lost"
        assert await frozen.end() == 0
        held.check()


async def test_a_killed_holder_is_followed_within_its_lease_and_five_seconds(
    ledger: Ledger, start: StartHolder
) -> None:
    killed = await start("async")
    number = await killed.held()
    with pytest.raises(LockTimeoutError) as caught:
        async with ledger.lock("account", "42", wait_s=0.1):
            pytest.fail("it is held")
    assert caught.value.fencing_number == number
    killed.process.kill()
    began = asyncio.get_running_loop().time()
    async with measured_slack(ledger) as slack, ledger.lock("account", "42", wait_s=2 * LIMIT_S) as held:
        assert asyncio.get_running_loop().time() - began < LEASE_S + 5 + slack.worst_s
        assert held.fencing_number > number
    acquired = [event for event in await events(ledger) if isinstance(event, Acquired)]
    assert [event.took_over for event in acquired] == [0, number]
    assert acquired[0].holder == caught.value.holder


async def test_a_holder_that_ends_in_order_is_not_waited_for(ledger: Ledger, start: StartHolder) -> None:
    holder = await start("async")
    await holder.held()
    await holder.tell("release")
    assert await holder.line() == "released"
    async with ledger.lock("account", "42", wait_s=0):
        pass
    assert await holder.end() == 0


async def test_of_five_processes_one_gets_it_and_the_others_are_told(
    ledger: Ledger, start: StartHolder
) -> None:
    racers = [await start("async", wait_s=0.3) for _ in range(5)]
    async with asyncio.timeout(2 * LIMIT_S - 2):
        lines = await asyncio.gather(*(racer.line() for racer in racers))
    winners = [number for number, line in enumerate(lines) if line.startswith("held ")]
    assert len(winners) == 1
    (acquired,) = await events(ledger)
    assert isinstance(acquired, Acquired)
    assert {line for line in lines if not line.startswith("held ")} == {f"timeout {acquired.holder}"}
    await racers[winners[0]].tell("release")
    assert await racers[winners[0]].line() == "released"


async def test_a_lock_is_held_over_a_restart_of_the_server(server_factory: ServerFactory) -> None:
    server = server_factory()
    await server.start()
    options = {"lease_s": LIMIT_S, "ledger_bytes_max": SMALL}
    async with connect(server.url, **options) as one, connect(server.url, **options) as two:  # type: ignore[arg-type]
        async with one.lock("account", "42") as held:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await server.stop()
            await server.start()
            with pytest.raises(LockTimeoutError) as caught:
                async with two.lock("account", "42", wait_s=0.3):
                    pytest.fail("it is held")
            assert caught.value.holder == held.holder
            held.check()
        async with two.lock("account", "42", wait_s=LIMIT_S) as second:
            assert second.fencing_number > held.fencing_number


async def test_a_server_away_longer_than_the_lease_cancels_the_block(server_factory: ServerFactory) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, lease_s=LEASE_S, ledger_bytes_max=SMALL) as ledger:

        async def stay() -> None:
            async with ledger.lock("account", "42"):
                await server.stop()
                await asyncio.sleep(600)

        with pytest.raises(LockLostError):
            async with asyncio.timeout(LEASE_S + LIMIT_S):
                await stay()
        await server.start()
        async with ledger.lock("account", "42", wait_s=LIMIT_S):
            pass


async def test_clients_that_hold_locks_are_no_workers(connected: Connect) -> None:
    async with connected() as one, one.lock("account", "42") as held:
        info = await one.leases.find(held.holder)
        assert info is not None
        assert info.kind == "client"
        assert await one.leases.all() == []


async def test_jobs_and_their_readers_do_not_mind_locks_between_them(ledger: Ledger, tmp_path: Path) -> None:
    async with ledger.lock("global", "nightly"):
        job = await ledger.enqueue(nothing)
    assert [stored.stream_sequence async for stored in ledger.events(follow=False)] == [2]
    assert [stored.stream_sequence for stored in await job.history()] == [2]
    with Projector(ledger.log, tmp_path / "p") as projector:
        assert (await projector.catch_up()).stream_sequence == 3
    assert (await verify(ledger.log)).violations == ()


def test_blocking_code_takes_locks_in_threads_and_is_told_the_same(nats_server: EmbeddedServer) -> None:
    inside: list[int] = []

    def work(number: int) -> int:
        with blocking.lock("account", "7", wait_s=LIMIT_S) as held:
            inside.append(number)
            assert inside == [number]
            held.check()
            inside.remove(number)
            return held.fencing_number

    options = {"environment": f"t_{secrets.token_hex(6)}", "lease_s": LEASE_S, "ledger_bytes_max": SMALL}
    with sync.connect(nats_server.url, **options) as blocking, ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(work, range(16)))
        assert len(set(numbers)) == 16
        with blocking.lock("account", "7") as held:
            with pytest.raises(LockReentryError), blocking.lock("account", "7"):
                pytest.fail("it would wait for itself")
            with pytest.raises(LockTimeoutError, match=held.holder):
                pool.submit(lambda: blocking.lock("account", "7", wait_s=0.05).__enter__()).result()
        with pytest.raises(ZeroDivisionError), blocking.lock("account", "7"):
            _ = 1 / 0
        with blocking.lock("account", "7", wait_s=0):
            pass
