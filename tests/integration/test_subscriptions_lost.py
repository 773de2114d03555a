"""Subscriptions that lose their server, connection or process: what was handed out comes again, nothing is missed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ServerFactory
from tests.support.subscribing import LIMIT_S, enqueue, take, until_acknowledged
from tests.support.working import Connect, until

from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.errors import ServerUnreachableError

APPS = Path(__file__).parent / "apps"
SOURCES = os.pathsep.join(str(APPS.parents[2] / part) for part in ("ledger", "projections", "workers", "cli"))
pytestmark = pytest.mark.anyio


async def test_acks_and_events_survive_a_server_killed_under_its_readers(
    server_factory: ServerFactory,
) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, ledger_bytes_max=16 << 20) as ledger:
        seen: list[int] = []

        async def read() -> None:
            async with ledger.subscription("s", max_in_flight=8, ack_wait_s=2) as sub:
                async for delivery in sub:
                    async with delivery:
                        seen.append(delivery.stored.stream_sequence)

        async def watch() -> list[int]:
            async with ledger.events(live=True) as events:
                begun.set()
                return [stored.stream_sequence for stored in await take(events, 60)]

        begun = asyncio.Event()
        watching, reading = asyncio.create_task(watch()), asyncio.create_task(read())
        await begun.wait()
        await enqueue(ledger, *range(30))
        await until(lambda: len(seen) >= 10)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.stop()
        await server.start()
        await enqueue(ledger, *range(30, 60))
        await until(lambda: set(seen) >= set(range(1, 61)))
        assert await watching == list(range(1, 61))
        # What was acknowledged just before the kill comes again: the server writes acks down a moment later.
        await until_acknowledged(ledger, "s", 60)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_an_ack_that_could_not_be_sent_is_sent_after_the_reconnect(
    server_factory: ServerFactory,
) -> None:
    server = server_factory()
    await server.start()
    async with (
        connect(server.url, ledger_bytes_max=16 << 20) as ledger,
        ledger.subscription("s", ack_wait_s=60) as sub,
    ):
        await enqueue(ledger, 1, 2)
        first, second = await take(sub, 2)
        await server.stop()
        await until(lambda: not ledger.connection.is_connected)
        await first.ack()
        await second.nak()  # lost: comes again after its ack wait
        assert list(sub._owed) == [1]
        await server.start()
        await ledger.connection.wait_connected(LIMIT_S)
        await until_acknowledged(ledger, "s", 1)
        assert not sub._owed


async def test_a_connection_that_is_closed_ends_the_reader(connected: Connect) -> None:
    async with connected() as ledger, ledger.subscription("s") as sub:
        waiting = asyncio.create_task(anext(sub))
        await asyncio.sleep(0)
        await ledger.connection.close()
        with pytest.raises(ServerUnreachableError, match="closed while subscription s was read"):
            async with asyncio.timeout(LIMIT_S):
                await waiting


async def test_what_a_killed_process_held_is_handed_out_again(ledger: Ledger) -> None:
    await enqueue(ledger, 1, 2, 3)
    words = [sys.executable, str(APPS / "read_events.py"), ledger.config.url, ledger.names.environment]
    child = await asyncio.create_subprocess_exec(
        *words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCES}
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            lines = [int(await child.stdout.readline()) for _ in range(2)]
        assert lines == [1, 2]
        await until_acknowledged(ledger, "crash", 1)
    finally:
        child.send_signal(signal.SIGKILL)
        await child.wait()
    async with ledger.subscription("crash") as sub:
        found = sorted([(each.stored.stream_sequence, each.delivered) for each in await take(sub, 2)])
    assert found == [(2, 2), (3, 2)]
