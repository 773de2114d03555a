"""Runs that wait for a person's yes on a worker of ten slots, which is restarted while they wait.

Two clients send every signal, so each comes twice: early, while its run waits, while no worker runs, after the time was
over, and after the run has ended. `python approval.py [RUNS]`, 1,000 where nothing is said.
"""

import asyncio
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

import msgspec

from jobledger.ledger import (
    JobHandle,
    Ledger,
    Run,
    Signal,
    TaskRegistry,
    UnknownSignalError,
    connect,
    step,
    workflow,
)
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

SLOTS = 10
LIMIT_S = 120
HOUR_S = 3600.0
AT_ONCE = 50  # requests of this program on their way


class Answer(msgspec.Struct):
    """What a signal says."""

    by: str
    yes: bool = True


approved = Signal("approved", Answer)
decided = Signal("decided", Answer)  # by the manager, who is asked when nobody else answered in time


@step
async def ask(who: str, number: int) -> str:
    return f"request {number} was sent to {who}"


@workflow(queue="requests")
async def request(run: Run, number: int, team_s: float, manager_s: float) -> str:
    await run.step(ask, "the team", number)
    try:
        answer = await run.wait(approved, timeout_s=team_s)
    except TimeoutError:
        await run.step(ask, "the manager", number)
        try:
            answer = await run.wait(decided, timeout_s=manager_s)
        except TimeoutError:
            return "withdrawn"
    return f"{'approved' if answer.yes else 'refused'} by {answer.by}"


#: When the team's signal is sent -> how long the team and the manager have, and what has to come of it.
WHEN = {
    "before the run begins": (HOUR_S, HOUR_S, "approved by eve"),
    "while the run waits": (HOUR_S, HOUR_S, "approved by eve"),
    "while no worker runs": (HOUR_S, HOUR_S, "refused by eve"),
    "when the time is over": (0.2, HOUR_S, "approved by the manager"),
    "after the run's end": (0.2, 0.2, "withdrawn"),
}
Runs = dict[str, list[JobHandle[str]]]


class Clients:
    """Two clients that send the same: a phone and a web page, say. Counts what the ledger answered."""

    def __init__(self, *ledgers: Ledger) -> None:
        self._ledgers = ledgers
        self._free = asyncio.Semaphore(AT_ONCE)
        self.answers: Counter[str] = Counter()

    async def send(self, runs: Iterable[JobHandle[str]], signal: Signal[Answer], answer: Answer) -> None:
        """Send a signal to runs, each of them from both clients at once."""
        sent = [self._send(ledger, run, signal, answer) for run in runs for ledger in self._ledgers]
        await asyncio.gather(*sent)

    async def _send(
        self, ledger: Ledger, run: JobHandle[str], signal: Signal[Answer], answer: Answer
    ) -> None:
        async with self._free:
            try:
                is_new = await ledger.signal(run, signal, answer, id=f"{signal.name}-of-{answer.by}")
                self.answers["recorded" if is_new else "known already"] += 1
            except UnknownSignalError:
                self.answers["refused, the run has ended"] += 1


@contextlib.asynccontextmanager
async def working(url: str) -> AsyncGenerator[None]:
    """Have a worker for the length of the block; it stops as in a deploy."""
    async with connect(url) as ledger, asyncio.TaskGroup() as group:
        worker = Worker(ledger, TaskRegistry([request]), WorkerConfig(concurrency=SLOTS, grace_s=1))
        group.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()


async def begin(ledger: Ledger, count: int) -> Runs:
    """Enqueue `count` runs, as many for each time at which a signal may come."""
    runs: Runs = {when: [] for when in WHEN}
    for number in range(count):
        when = list(WHEN)[number % len(WHEN)]
        team_s, manager_s, _ = WHEN[when]
        task = request.options(id=f"request-{number}")
        runs[when].append(await ledger.enqueue(task, number, team_s, manager_s))
    return runs


async def until_waiting(runs: Iterable[JobHandle[str]], signal: Signal[Answer]) -> int:
    """Wait until each run waits for a signal; return how many they are."""
    count = 0
    async with asyncio.timeout(LIMIT_S):
        for run in runs:
            while (await run.snapshot()).awaited != (signal.name,):  # noqa: ASYNC110 - a look at it
                await asyncio.sleep(0.02)
            count += 1
    return count


async def answer_all(url: str, runs: Runs, clients: Clients) -> None:
    """Send every signal at its time; the worker is stopped and another one started in between."""
    eve, manager = Answer(by="eve"), Answer(by="the manager")
    early, waiting, stopped, late, ended = (runs[when] for when in WHEN)
    await clients.send(early, approved, eve)
    async with working(url):
        count = await until_waiting([*waiting, *stopped], approved) + await until_waiting(late, decided)
        print(f"{count} runs wait; the worker has {SLOTS} slots, and is stopped")
    await clients.send(stopped, approved, Answer(by="eve", yes=False))
    async with working(url):
        await clients.send(waiting, approved, eve)
        await clients.send(late, approved, eve)  # kept, and taken by no wait
        await clients.send(late, decided, manager)
        for run in (run for some in runs.values() for run in some):
            await run.wait(timeout_s=LIMIT_S)
    await clients.send(ended, approved, eve)


async def show(runs: Runs, clients: Clients) -> None:
    """Print what became of the runs, and fail if one is not as it has to be."""
    print(f"{'signal sent':22} {'runs':>5}  {'state':10} result")
    for when, some in runs.items():
        found = Counter([(str(await run.state()), await run.result()) for run in some])
        for (state, result), count in found.items():
            print(f"{when:22} {count:5}  {state:10} {result}")
        assert found == {("completed", WHEN[when][2]): len(some)}, found
    for answer, count in sorted(clients.answers.items()):
        print(f"{count} signals: {answer}")


async def main(count: int = 1_000) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with (
            EmbeddedServer(Path(directory), port=0) as server,
            connect(server.url) as phone,
            connect(server.url) as page,
        ):
            runs, clients = await begin(phone, count), Clients(phone, page)
            await answer_all(server.url, runs, clients)
            await show(runs, clients)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:2])))
