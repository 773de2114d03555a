"""A worker that has a pool and nothing else: prints `<pid> busy` and `<pid> idle`, then waits to be killed.

`run_pool.py HOW SILENCE_S`: how the busy process hangs, and the pool's `silence_s`, 0 for none.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from jobledger.workers.pool.pool import Call, PoolConfig, ProcessPool, TaskValue


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Say:
    """Prints what is heard."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    def heartbeat(self) -> None:
        """Note that the task has begun."""
        self.began.set()

    def progress(self, done: float, total: float | None, note: str) -> None:
        """Print the process that was started."""
        assert total is None
        tell(f"{done:.0f} {note}")

    async def checkpoint_text(self, text: bytes) -> None:
        """Nothing is kept."""
        raise AssertionError(text)


def call(task: str, **arguments: object) -> Call:
    """Return a call of a task."""
    text = msgspec.Raw(msgspec.json.encode(arguments))
    return Call(task=task, input=text, job_id="j", queue="q", attempt=1, worker="w")


async def main(how: str, silence_s: float) -> None:
    """Keep one process busy and one idle."""
    config = PoolConfig(size=2, silence_s=silence_s or None)
    async with ProcessPool([str(Path(__file__).with_name("pool_tasks.py"))], config) as pool:
        say = Say()
        busy = asyncio.create_task(
            pool.run(call("hang", how=how), say, on_begin=lambda pid: tell(f"{pid} busy"))
        )
        await say.began.wait()
        result = await pool.run(call("pid"))
        assert isinstance(result, TaskValue)
        assert isinstance(result.value, msgspec.Raw)
        tell(f"{bytes(result.value).decode()} idle")
        tell("ready")
        await busy


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
