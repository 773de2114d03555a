"""What the programs of all peers share: the jobs, a record of each start, and a client that is told what to do.

    python -P -m peers.programs.load NAME client|worker CONCURRENCY

`NAME` is a module beside this one. It has a class `Program` with the methods of `Peer`, and a function `work` that is the
worker and never returns. The client reads one JSON object a line and answers each with one:

    {"do": "bulk" | "single" | "hang", "jobs": 1000, "first": 0, "padding": 60}
    {"do": "paced", "jobs": 300, "first": 0, "padding": 60, "every_s": 0.005, "at_once": 1}

It uses nothing but the standard library, and uvloop where the peer's environment has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import struct
import sys
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

#: The number of the job, when it was enqueued and when it started (CLOCK_MONOTONIC, ns), the process that ran it.
START: Final = struct.Struct("<qqqq")
STARTS: Final = "BENCH_STARTS"  #: names the variable that names the file of starts
SERVER: Final = "BENCH_SERVER"
HANGS_S: Final = 600.0  #: of the job whose worker is killed
_BULK: Final = 1_000  #: jobs of one call

Job = dict[str, Any]


class Peer(Protocol):
    """What a client can do; `add_many` is the bulk call of the peer, or as many single calls at once."""

    async def open(self) -> None: ...
    async def add(self, job: Job) -> object: ...
    async def add_many(self, jobs: list[Job]) -> object: ...
    async def hang(self, job: Job) -> object: ...
    async def close(self) -> None: ...


class Starts:
    """The file of starts: one short write a job, which costs each peer the same 2 microseconds."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._process = 0

    def note(self, job: Mapping[str, Any]) -> None:
        """Note that a job has started here."""
        now = time.monotonic_ns()
        if self._file is None or self._process != os.getpid():  # a worker may fork
            self._file = os.open(os.environ[STARTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._process = os.getpid()
        os.write(self._file, START.pack(job["number"], job["sent_ns"], now, self._process))


starts: Final = Starts()


def server() -> str:
    """Return the address of the server."""
    return os.environ[SERVER]


def job(number: int, padding: int) -> Job:
    """Return the input of a job: about 100 bytes of JSON with a padding of 52."""
    return {"number": number, "sent_ns": time.monotonic_ns(), "padding": "x" * padding}


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where there is one."""
    with contextlib.suppress(ImportError):
        uvloop: Any = importlib.import_module("uvloop")
        uvloop.run(work)
        return
    asyncio.run(work)


async def add_at_once(peer: Peer, jobs: list[Job]) -> None:
    """Add jobs by single calls, 100 of them at once: for a peer without a bulk call."""
    left = iter(jobs)

    async def add() -> None:
        for each in left:
            await peer.add(each)

    await asyncio.gather(*(add() for _ in range(100)))


async def _bulk(peer: Peer, told: Mapping[str, Any]) -> None:
    first, end = told["first"], told["first"] + told["jobs"]
    for low in range(first, end, _BULK):
        numbers = range(low, min(low + _BULK, end))
        await peer.add_many([job(number, told["padding"]) for number in numbers])


async def _single(peer: Peer, told: Mapping[str, Any]) -> None:
    for number in range(told["first"], told["first"] + told["jobs"]):
        await peer.add(job(number, told["padding"]))


async def _paced(peer: Peer, told: Mapping[str, Any]) -> None:
    """Add the same number of jobs at each beat. When a beat is late, the next ones move with it."""
    due = time.monotonic()
    for low in range(told["first"], told["first"] + told["jobs"], told["at_once"]):
        numbers = range(low, min(low + told["at_once"], told["first"] + told["jobs"]))
        await asyncio.gather(*(peer.add(job(number, told["padding"])) for number in numbers))
        due = max(due + told["every_s"], time.monotonic())
        await asyncio.sleep(due - time.monotonic())


async def _hang(peer: Peer, told: Mapping[str, Any]) -> None:
    await peer.hang(job(told["first"], told["padding"]))


_DOES: Final = {"bulk": _bulk, "single": _single, "paced": _paced, "hang": _hang}


async def obey(peer: Peer) -> None:
    """Do what the lines of the standard input say, until they end."""
    await peer.open()
    loop = asyncio.get_running_loop()
    _say({"ready": True})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        told = json.loads(line)
        began, cpu = time.perf_counter(), time.process_time()
        await _DOES[told["do"]](peer, told)
        _say({"s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu})
    await peer.close()


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Be the client or a worker of a peer."""
    name, role, *rest = sys.argv[1:]
    program: Any = importlib.import_module(f"peers.programs.{name}")
    if role == "client":
        run(obey(program.Program()))
    else:
        program.work(int(rest[0]))


if __name__ == "__main__":
    main()
