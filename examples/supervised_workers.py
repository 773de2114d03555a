"""Two worker processes whose role comes from the environment; one is killed and replaced, then all stop in order."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.streams.text import TextReceiveStream

from jobledger.ledger import connect, task
from jobledger.ledger.server import EmbeddedServer


@task(queue="math")
async def add(a: int, b: int) -> int:
    return a + b


def role(url: str) -> dict[str, str]:
    """What an image is told to become a worker; a flag on the command line would win."""
    return {
        "JOBLEDGER_URL": url,
        "JOBLEDGER_APP": __file__,
        "JOBLEDGER_QUEUES": "math=3,reports=1",
        "JOBLEDGER_CONCURRENCY": "20",
        "JOBLEDGER_PROCESSES": "2",
        "JOBLEDGER_GRACE_S": "10",
    }


async def objects(process: anyio.abc.Process) -> AsyncIterator[dict[str, Any]]:
    """Read what `--json` prints: the supervisor's own line, then one for each worker that is ready."""
    assert process.stdout is not None
    rest = ""
    async for text in TextReceiveStream(process.stdout):
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield json.loads(line)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedServer(Path(folder), port=0) as server, connect(server.url) as ledger:
            command = [sys.executable, "-m", "jobledger.cli", "worker", "--json"]
            environment = {**os.environ, **role(server.url)}
            process = await anyio.open_process(command, env=environment, stderr=subprocess.DEVNULL)
            told = objects(process)
            print("the supervisor keeps", (await anext(told))["processes"], "processes")
            victim, _ = (await anext(told))["pid"], await anext(told)
            print("1 + 2 =", await (await ledger.enqueue(add, 1, 2)).result(timeout_s=10))

            os.kill(victim, signal.SIGKILL)
            killed_at = time.monotonic()
            successor = await anext(told)
            print(f"process {victim} was killed; {successor['worker']} took its place")
            print(f"after {time.monotonic() - killed_at:.1f} s")
            print("3 + 4 =", await (await ledger.enqueue(add, 3, 4)).result(timeout_s=10))

            process.send_signal(signal.SIGTERM)
            print("the supervisor ended with", await process.wait())
            await process.aclose()


if __name__ == "__main__":
    anyio.run(main)
