"""The nemesis: does one seeded harm after another to workers, the server and the network between, and says what it did."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from tests.support.fleet import Fleet, WorkerProcess
from tests.support.proxy import Proxy, is_append_answer, is_delivery
from tests.support.watch import Watch

from jobledger.ledger.server import EmbeddedServer

_ACK_WORDS: Final = b"+ACK"


async def kill_server(server: EmbeddedServer, chance: random.Random) -> None:
    """End the server without a word, and start it again up to a second later."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await asyncio.sleep(chance.uniform(0.0, 1.0))
    await server.start()


async def restart_server(server: EmbeddedServer, _chance: random.Random) -> None:
    """Stop the server in good order, and start it again."""
    await server.stop()
    await server.start()


async def freeze_server(server: EmbeddedServer, chance: random.Random) -> None:
    """Let the server stand still for up to 2.5 seconds."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(chance.uniform(0.2, 2.5))
    finally:
        os.kill(server.pid, signal.SIGCONT)


class Nemesis:
    """Harms what it is given until it is stopped; everything is whole again when `run` returns."""

    def __init__(
        self,
        chance: random.Random,
        *,
        server: EmbeddedServer,
        proxy: Proxy,
        fleet: Fleet,
        watch: Watch,
        crews: dict[str, tuple[str, ...]],
        proxied: str,
    ) -> None:
        """`crews`: name -> options of a supervisor that is kept alive; `proxied`: the one that goes through the proxy."""
        self._chance = chance
        self._server = server
        self._proxy = proxy
        self._fleet = fleet
        self._watch = watch
        self._crews = crews
        self._proxied = proxied
        self._alive: dict[str, WorkerProcess] = {}
        self._frozen: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()
        self.recovery_s: list[float] = []  #: from the server's return to the next outcome
        self._harms: dict[Callable[[], Awaitable[None]], int] = {
            self.kill_worker: 30,
            self.freeze_worker: 10,
            self.freeze_worker_beyond_its_lease: 14,
            self.kill_supervisor: 2,
            self.kill_server: 12,
            self.restart_server: 4,
            self.freeze_server: 8,
            self.cut: 8,
            self.half_open: 6,
            self.steal_answers: 8,
            self.steal_deliveries: 4,
            self.delay: 4,
            self.byte_by_byte: 4,
            self.lose_acks: 8,
            self.repeat_acks: 6,
        }

    async def run(self, until: Callable[[], bool]) -> None:
        """Go on until something holds."""
        for name in self._crews:
            await self._begin(name)
        harms, weights = list(self._harms), list(self._harms.values())
        try:
            while not until():
                (harm,) = self._chance.choices(harms, weights)
                self.done[harm.__name__] += 1
                await harm()
                await self._keep()
                await asyncio.sleep(self._chance.uniform(0.1, 0.8))
        finally:
            await asyncio.gather(*self._frozen)
            self._proxy.to_steal.clear()
        await self._keep()

    async def _begin(self, name: str) -> None:
        url = self._fleet.url
        if name == self._proxied:
            url = url.replace(f":{self._server.port}", f":{self._proxy.port}")
        self._alive[name] = await self._fleet.begin(*self._crews[name], url=url)

    async def _keep(self) -> None:
        """Start dead supervisors again, as a process manager does."""
        for name, process in list(self._alive.items()):
            if not process.alive:
                await self._begin(name)

    async def make_whole(self, limit_s: float = 60.0) -> None:
        """Wait until every worker that should live does, and takes work."""
        wanted = {name: int(words[words.index("--processes") + 1]) for name, words in self._crews.items()}
        async with asyncio.timeout(limit_s):
            while any(process.ready_children() != wanted[name] for name, process in self._alive.items()):
                await self._keep()
                await asyncio.sleep(0.1)

    def _workers(self) -> list[int]:
        return [pid for process in self._alive.values() for pid in process.children()]

    def _any_worker(self) -> int | None:
        workers = self._workers()
        return self._chance.choice(workers) if workers else None

    async def kill_worker(self) -> None:
        if (pid := self._any_worker()) is not None:
            self._fleet.kill(pid)

    async def freeze_worker(self) -> None:
        if (pid := self._any_worker()) is not None:
            await self._fleet.freeze(pid, self._chance.uniform(0.1, self._fleet.lease_s / 3))

    async def freeze_worker_beyond_its_lease(self) -> None:
        if (pid := self._any_worker()) is not None:
            seconds = self._fleet.lease_s + self._chance.uniform(1.0, 3.0)
            task = asyncio.create_task(self._fleet.freeze(pid, seconds))
            self._frozen.add(task)
            task.add_done_callback(self._frozen.discard)

    async def kill_supervisor(self) -> None:
        name = self._chance.choice(sorted(self._alive))
        self._fleet.kill(self._alive[name].pid)
        await self._alive[name].process.wait()

    async def kill_server(self) -> None:
        await kill_server(self._server, self._chance)
        await self._recovered()

    async def restart_server(self) -> None:
        await restart_server(self._server, self._chance)
        await self._recovered()

    async def freeze_server(self) -> None:
        await freeze_server(self._server, self._chance)
        await self._recovered()

    async def _recovered(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.recovery_s.append(await self._watch.recovered_s(time.monotonic(), 20.0))

    async def cut(self) -> None:
        self._proxy.cut()

    async def half_open(self) -> None:
        self._proxy.hold()
        await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        if self._chance.random() < 0.5:
            self._proxy.cut()
        self._proxy.release()

    async def steal_answers(self) -> None:
        self._proxy.to_steal[is_append_answer] = self._chance.randint(1, 20)

    async def steal_deliveries(self) -> None:
        self._proxy.to_steal[is_delivery] = self._chance.randint(1, 20)

    async def delay(self) -> None:
        self._proxy.delay_s, self._proxy.straggle_share = 0.1, 0.05
        await asyncio.sleep(2.0)
        self._proxy.delay_s = 0.0

    async def byte_by_byte(self) -> None:
        whole, self._proxy.piece_bytes = self._proxy.piece_bytes, 1
        await asyncio.sleep(1.0)
        self._proxy.piece_bytes = whole

    async def lose_acks(self) -> None:
        self._proxy.drop_share[_ACK_WORDS] = 0.5
        await asyncio.sleep(1.5)
        self._proxy.drop_share.clear()

    async def repeat_acks(self) -> None:
        self._proxy.repeat_share[_ACK_WORDS] = 0.5
        await asyncio.sleep(1.5)
        self._proxy.repeat_share.clear()
