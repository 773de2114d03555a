"""Declare a schedule in code, with a hook that chooses each job's input, and skip a tick."""

import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import JobHandle, Schedule, Skip, TaskRegistry, Tick, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

made: list[JobHandle[str]] = []
enough = anyio.Event()


@task(queue="reports", max_attempts=3)
async def report(number: int) -> str:
    return f"report {number} is sent"


def before(tick: Tick) -> dict[str, int] | Skip:
    number = len(made) + 1
    return {"number": number} if tick.at.second % 10 else Skip("a rest every ten seconds")


async def after(tick: Tick, job: JobHandle[str]) -> None:
    print(f"the tick at {tick.at:%S} s made job {job.id.partition('-')[0]}-...")
    made.append(job)
    if made[1:]:
        enough.set()


SCHEDULE = Schedule("reports", every_s=1, task=report, input={"number": 0}, before=before, after=after)


async def main() -> None:
    registry = TaskRegistry([report])
    registry.add_schedule(SCHEDULE)  # TaskRegistry.load finds it at the top of a module by itself
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, registry)
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                with anyio.fail_after(30):
                    await enough.wait()
                    for job in made[:2]:
                        print(await job.result(timeout_s=10))
                paused = await ledger.schedules.pause("reports", reason="that is enough")
                print(f"paused, as {paused.definition.source} declared it")
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
