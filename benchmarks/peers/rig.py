"""One system on a new server: its client, its workers, and the file of starts that they write."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from peers.processes import Child, cpu_by_process, cpu_since, memory_kib
from peers.programs.load import SERVER, START, STARTS
from peers.servers import Server, serve
from peers.systems import CACHE, HERE, NODE, SYSTEMS, Setting

from jobledger.ledger import LedgerError

PADDING: Final = 52  #: makes an input of about 100 bytes
ANSWER_S: Final = 60.0  #: how long the client may take
_STALL_S: Final = 15.0  #: how long no job may start while some wait
_WARM: Final = 0.2  #: the first part of a drain, which counts for nothing: compilers warm up
_LOOK_S: Final = 0.01
_WORKER_STOP_S: Final = 1.0
#: Where the file of starts lies: in memory, where there is such a folder.
_MEMORY: Final = next((each for each in ("/dev/shm",) if os.path.isdir(each)), None)  # noqa: PTH112, S108


class FailedError(Exception):
    """A system did not do what was asked of it."""


#: What one system may do wrong without an end of the others' measurements.
FAILURES: Final = (FailedError, LedgerError, OSError, RuntimeError)


class Start(NamedTuple):
    """The start of a job."""

    number: int
    sent_ns: int
    at_ns: int
    process: int


class Sent(NamedTuple):
    """What it took to enqueue."""

    first: int  #: the number of the first job
    jobs: int
    rate: float
    client_us: float
    server_us: float


class DrainRate(NamedTuple):
    """What it took to run jobs that waited."""

    rate: float
    worker_us: float
    server_us: float


class Rig:
    """A server, a client and workers. All processes end with the block of `rigged`."""

    def __init__(self, name: str, server: Server, folder: Path, starts: Path) -> None:
        self.system = SYSTEMS[name]
        self.server = server
        self.workers: list[Child] = []
        self.client: Child
        self.jobs = 0  #: enqueued so far
        self._name = name
        self._folder = folder
        self._starts = starts
        kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
        self._environment = {
            **{each: os.environ[each] for each in kept if each in os.environ},
            "PYTHONPATH": str(HERE.parent),
            SERVER: server.url,
            STARTS: str(starts),
            "BENCH_PACKAGES": str(CACHE / NODE),
        }

    @property
    def worker_pids(self) -> list[int]:
        """The processes of the workers."""
        return [worker.pid for worker in self.workers]

    async def open(self) -> None:
        """Start the client."""
        self.client = await self._child("client", is_asked=True)
        await self._answer()

    async def close(self) -> None:
        """End all that was started."""
        for child in (*self.workers, *([self.client] if hasattr(self, "client") else [])):
            await child.kill()

    async def _child(self, *role: str, is_asked: bool = False) -> Child:
        words = self.system.command(self._name, *role)
        log = self._folder / f"{role[0]}.log"
        return await Child.start(
            words, log, environment=self._environment, folder=self._folder, is_asked=is_asked
        )

    async def _answer(self) -> dict[str, Any]:
        stdout = self.client.process.stdout
        assert stdout is not None, "it is a pipe"
        try:
            line = await asyncio.wait_for(stdout.readline(), ANSWER_S)
        except TimeoutError:
            raise FailedError(f"the client did not answer within {ANSWER_S:g} s") from None
        if not line:
            await self.client.process.wait()
            raise FailedError(f"the client ended: {self.client.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def enqueue(self, do: str, jobs: int, *, padding: float = PADDING, **more: float) -> Sent:
        """Let the client enqueue, and wait until it has."""
        stdin = self.client.process.stdin
        assert stdin is not None, "it is a pipe"
        first = self.jobs
        self.jobs += jobs
        told = {"do": do, "jobs": jobs, "first": first, "padding": padding, **more}
        before = cpu_by_process([self.server.pid])
        stdin.write(json.dumps(told).encode() + b"\n")
        answer = await self._answer()
        server_us = cpu_since(before, [self.server.pid]) / jobs * 1e6
        return Sent(first, jobs, jobs / answer["s"], answer["cpu_s"] / jobs * 1e6, server_us)

    async def start_workers(self, count: int, concurrency: int) -> None:
        """Start workers."""
        for _ in range(count):
            self.workers.append(await self._child("worker", str(concurrency)))

    async def stop_workers(self) -> None:
        """Stop the workers once they have told their last outcomes; some take seconds to stop in order."""
        await asyncio.sleep(0.2)
        await asyncio.gather(*(worker.stop(limit_s=_WORKER_STOP_S) for worker in self.workers))
        self.workers.clear()

    def starts(self, first: int, jobs: int) -> list[Start]:
        """Return the first start of each of these jobs, in the order of time."""
        data = self._starts.read_bytes()
        whole = len(data) // START.size * START.size
        found: dict[int, Start] = {}
        for each in START.iter_unpack(data[:whole]):
            if first <= each[0] < first + jobs:
                found.setdefault(each[0], Start(*each))
        return sorted(found.values(), key=lambda start: start.at_ns)

    def count(self) -> int:
        """Return how many starts there were in all."""
        return self._starts.stat().st_size // START.size

    async def until(self, is_so: Callable[[], bool], limit_s: float = _STALL_S) -> None:
        """Wait until something is so; no more than `limit_s` without a start."""
        last, end = self.count(), time.monotonic() + limit_s
        while not is_so():
            await asyncio.sleep(_LOOK_S)
            if (now := self.count()) != last:
                last, end = now, time.monotonic() + limit_s
            elif time.monotonic() > end:
                words = self.workers[0].last_words() if self.workers else "there is no worker"
                raise FailedError(f"no job started for {limit_s:g} s: {words}")

    async def all_starts(self, first: int, jobs: int) -> list[Start]:
        """Wait until each of these jobs has started; return the starts as `starts` does.

        The file is read as a whole only when it is long enough: what reads it shares the cores with the jobs.
        """
        await self.until(lambda: self.count() >= self.jobs and len(self.starts(first, jobs)) == jobs)
        return self.starts(first, jobs)

    async def until_started(self, count: int) -> None:
        """Wait until this many jobs have started."""
        await self.until(lambda: self.count() >= count)

    async def drain(self, before: int, workers: int, concurrency: int) -> DrainRate:
        """Start workers for the jobs from number `before` on, and return what it took once all have started.

        The first fifth does not count, nor what ran before the last of the workers had its first job.
        """
        jobs, count = self.jobs - before, self.count()
        await self.start_workers(workers, concurrency)
        await self.until(lambda: self.count() - count >= jobs * _WARM)
        pids = [self.server.pid, *self.worker_pids]
        done, cpu = self.count() - count, [cpu_by_process([pid]) for pid in pids]
        await self.until(lambda: self.count() - count >= jobs)
        ran = max(1, jobs - done)
        spent = [cpu_since(each, [pid]) / ran * 1e6 for each, pid in zip(cpu, pids, strict=True)]
        return DrainRate(drain_rate(await self.all_starts(before, jobs), workers), sum(spent[1:]), spent[0])

    def memory_kib(self) -> float:
        """Return the memory of the server."""
        return memory_kib([self.server.pid])


def drain_rate(starts: list[Start], workers: int) -> float:
    """Return the jobs a second of a drain."""
    first_of: dict[int, int] = {}
    for start in starts:
        first_of.setdefault(start.process, start.at_ns)
    began = starts[int(len(starts) * _WARM)].at_ns
    if len(first_of) == workers:  # unless each of them is several processes
        began = max(began, *first_of.values())
    ended = starts[-1].at_ns
    counted = sum(began < start.at_ns for start in starts)
    if counted < len(starts) // 20 or ended <= began:
        raise FailedError("the jobs were done before the last worker had one")
    return counted / (ended - began) * 1e9


def folder_bytes(folder: Path) -> int:
    """Return what the files of a folder hold."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextlib.asynccontextmanager
async def rigged(name: str, setting: Setting) -> AsyncGenerator[Rig, None]:
    """Run a new server and a client for the length of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder,
        tempfile.NamedTemporaryFile(prefix="jobledger-bench-", dir=_MEMORY) as starts,
    ):
        async with serve(SYSTEMS[name].server, setting, Path(folder)) as server:
            rig = Rig(name, server, Path(folder), Path(starts.name))
            try:
                await rig.open()
                yield rig
            finally:
                await rig.close()
