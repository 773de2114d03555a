"""Runs of five steps whose workers are killed (SIGKILL), between two steps or inside one, at seeded places.

Counts what ran: every step that had ended ran once, the one in flight twice, and a step that may run only once is in doubt.
`python workflow_kill.py [RUNS] [SEED]`; it starts itself again as workers.
"""

import asyncio
import logging
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from jobledger.ledger import JobHandle, Ledger, Run, TaskRegistry, connect, step, workflow
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

STEPS = 5
WORKERS = 4
LIMIT_S = 120
KILLED_INSIDE_TWICE = 2


def folder() -> Path:
    """Return where workers leave their notes; they are told by the environment."""
    return Path(os.environ.get("WORKFLOW_KILL_FOLDER", "."))


def note(words: str) -> None:
    """Add a line that survives the process."""
    with (folder() / "notes").open("a", encoding="utf-8") as notes:
        notes.write(f"{words}\n")


def die_at(run_id: str, place: str) -> None:
    """Kill this process if the run is to lose its worker here, the first time."""
    told = folder() / run_id
    if told.exists() and told.read_text(encoding="utf-8") == place:
        told.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@step
async def add(run_id: str, number: int, total: int) -> int:
    note(f"{run_id} {number} begins")
    die_at(run_id, f"inside {number}")
    note(f"{run_id} {number} ends")
    return total + number


@step(once=True)
async def wire(run_id: str) -> str:
    note(f"{run_id} wire begins")
    die_at(run_id, "inside wire")
    return "wired"


@workflow(queue="sums", max_attempts=2)  # one that recorded a step does not count when it is lost
async def add_up(run: Run, wires: int) -> int:
    total = 0
    for number in range(1, STEPS + 1):
        total = await run.step(add, run.id, number, total)
        die_at(run.id, f"between {number}")
    for _ in range(wires):
        await run.step(wire, run.id)
    return total


async def work(url: str) -> None:
    """Be a worker until somebody ends this process."""
    async with connect(url) as ledger:
        await Worker(ledger, TaskRegistry([add_up]), WorkerConfig(concurrency=1, ack_wait_s=1)).run()


async def keep_working(url: str, stopped: asyncio.Event) -> int:
    """Keep one worker process running; return how often it was killed."""
    kills = 0
    while not stopped.is_set():
        process = await asyncio.create_subprocess_exec(sys.executable, __file__, "worker", url)
        ending = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([ending, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ending.done():
            process.kill()
            await ending
        else:
            kills += process.returncode == -signal.SIGKILL
    return kills


async def enqueue(ledger: Ledger, runs: int, chance: random.Random) -> dict[str, tuple[str, JobHandle[int]]]:
    """Enqueue runs, and decide where each loses its worker."""
    made: dict[str, tuple[str, JobHandle[int]]] = {}
    for number in range(runs):
        is_wired = number % 5 == 0
        place = (
            "inside wire"
            if is_wired
            else f"{chance.choice(['between', 'inside'])} {chance.randint(1, STEPS)}"
        )
        run_id = f"run-{number}"
        (folder() / run_id).write_text(place, encoding="utf-8")
        made[run_id] = place, await ledger.enqueue(add_up.options(id=run_id), int(is_wired))
    return made


async def check(run_id: str, place: str, job: JobHandle[int]) -> None:
    """Hold what ran against what was recorded."""
    ended = await job.wait(timeout_s=LIMIT_S)
    lines = (folder() / "notes").read_text(encoding="utf-8").splitlines()
    begun = Counter(
        line.split()[1] for line in lines if line.startswith(f"{run_id} ") and line.endswith("begins")
    )
    in_flight = place.removeprefix("inside ") if place.startswith("inside") else ""
    for number in range(1, STEPS + 1):
        expected = KILLED_INSIDE_TWICE if in_flight == str(number) else 1
        assert begun[str(number)] == expected, (run_id, place, begun)
    if in_flight == "wire":
        assert begun["wire"] == 1, (run_id, begun)
        assert ended.error is not None, run_id
        assert ended.error.kind == "in_doubt", ended.error
        print(f"{run_id}, killed {place}: in doubt, and not done again")
        return
    assert await job.result() == STEPS * (STEPS + 1) // 2
    print(f"{run_id}, killed {place}: the sum is right, {sum(begun.values())} calls for {STEPS} steps")


async def main(runs: int = 20, seed: int = 7) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["WORKFLOW_KILL_FOLDER"] = directory
        server = EmbeddedServer(folder() / "server", port=0)
        async with server, connect(server.url, lease_s=1) as ledger:  # 15 s unless a ledger is made with less
            made = await enqueue(ledger, runs, random.Random(seed))
            stopped = asyncio.Event()
            workers = [
                asyncio.create_task(keep_working(server.url, stopped)) for _ in range(min(WORKERS, runs))
            ]
            try:
                for run_id, (place, job) in made.items():
                    await check(run_id, place, job)
            finally:
                stopped.set()
                kills = sum(await asyncio.gather(*workers))
            assert kills == runs, kills
            print(f"{kills} workers were killed; every step that had ended ran once (seed {seed})")


if __name__ == "__main__":
    logging.getLogger("jobledger").setLevel(logging.CRITICAL)  # that workers are lost is what this shows
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work(sys.argv[2]))
    else:
        numbers = [int(word) for word in sys.argv[1:3]]
        asyncio.run(main(*numbers))
