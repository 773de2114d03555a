"""What a job takes of a server, of the projection's file, and of an archive run: the figures of docs/capacity.md.

    python benchmarks/capacity.py [--jobs 100000] [--json]

Jobs with an input of 100 bytes are enqueued, then run by a worker, then followed into a projection, then archived. Bytes
are those of the stream as the server counts them and of files; memory is what the server's process has more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
from shared import LEDGER_BYTES, LIMIT_S, memory_mib, reached, run, show, worker_processes
from shared import work as serve

from jobledger.cli.main import run as command
from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector
from jobledger.workers import WorkerConfig

_MIB: Final = 1 << 20
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


async def measure(jobs: int, folder: Path) -> dict[str, float]:
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


def _quietly(words: tuple[str, ...]) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        assert command(words) == 0, words


def main() -> None:
    """Measure, or be the worker."""
    reader = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reader.add_argument("--jobs", type=int, default=100_000)
    reader.add_argument("--json", action="store_true")
    reader.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    given = reader.parse_args()
    if given.worker:
        working: Coroutine[Any, Any, None] = serve(given.worker, TaskRegistry([small]), WorkerConfig())
        run(working)
        return
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder:
        os.environ["XDG_DATA_HOME"] = folder
        show(run(measure(given.jobs, Path(folder))), as_json=given.json)


if __name__ == "__main__":
    main()
