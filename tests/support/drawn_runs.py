"""Runs of shapes that are drawn by chance, over items that fail until a person mends them: for a worker of any process."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from jobledger.ledger import Backoff, Graph, Job, JobHandle, JobState, Ledger, Run, Task, step, task, workflow
from jobledger.ledger.model.commands import Discard
from jobledger.ledger.model.job import evolve
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE, OnDeadLetter
from jobledger.ledger.model.subjects import JobRef

FILE: Final = Path(__file__)
#: Names a file with the numbers that fail, separated by spaces.
BROKEN: Final = "DRAWN_BROKEN"
#: What several branches, or a run of its own, may hold again.
_DEPTH_MAX: Final = 2
_END_S: Final = 60.0
#: Which part of the runs goes on where it is, and which part of what is broken is mended first.
_STAYS: Final = 0.4
_MENDED: Final = 0.5
#: How often what failed is begun again, where nothing is broken any more.
_TIMES_MAX: Final = 3

Kind = Literal["call", "map", "settle", "each", "step", "gather", "nest"]


class Part(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a run does next: `gather` and `nest` do parts, the others numbers."""

    does: Kind
    numbers: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    on_dead_letter: OnDeadLetter = "wait"
    limit: int = 0

    def all_numbers(self) -> Iterator[int]:
        """Yield the numbers of it and of all that is in it."""
        yield from self.numbers
        for part in self.parts:
            yield from part.all_numbers()


class Shape(msgspec.Struct, kw_only=True):
    """A run that is to be begun, over numbers of its own."""

    id: str
    numbers: tuple[int, ...]
    #: A person requeues what is dead until it completes; else it ends, and what failed is begun again.
    stays: bool
    parts: tuple[Part, ...] = ()
    graph: Graph | None = None  #: in place of parts

    async def begin(self, ledger: Ledger) -> JobHandle[Any]:
        if self.graph is not None:
            return await ledger.run_graph(self.graph, id=self.id)
        return await ledger.enqueue(drawn.options(id=self.id), self.parts)


def _work(number: int) -> int:
    broken = Path(os.environ[BROKEN]).read_text(encoding="ascii").split()
    if str(number) in broken:
        raise ValueError(f"number {number} is broken")
    return number


@task(name="sheet", queue="kids", max_attempts=1)
async def sheet(number: int) -> int:
    await asyncio.sleep(number * 37 % 100 / 1_000)
    return _work(number)


@step(max_attempts=1)
async def look(number: int) -> int:
    return _work(number)


# A run that lost all its attempts by kills cannot go on by requeues: its open children were cancelled with it.
@workflow(name="drawn", queue="one", max_attempts=6, backoff=Backoff(base_s=0.05))
async def drawn(run: Run, parts: tuple[Part, ...]) -> int:
    return sum([await _done(run, part) for part in parts])


async def _done(run: Run, part: Part) -> int:
    """Do a part, and return the sum of its numbers."""
    waiting = run.options(on_dead_letter=part.on_dead_letter)
    match part.does:
        case "call":
            return sum([await waiting.call(sheet, number) for number in part.numbers])
        case "map":
            return sum(await waiting.map(sheet, part.numbers, limit=part.limit))
        case "settle":
            return sum(end.value() for end in await run.map_settled(sheet, part.numbers, limit=part.limit))
        case "each":
            return sum(await run.each(look, part.numbers, chunk=2, limit=2))
        case "step":
            return sum([await run.step(look, number) for number in part.numbers])
        case "gather":
            return sum(await run.gather(*(functools.partial(_done, run, each) for each in part.parts)))
        case "nest":
            return await waiting.call(drawn, part.parts)


#: Of a graph, and of what else is drawn.
_QUEUES: Final = (BUILT_IN_QUEUE, "one")
TASKS: Final[tuple[Task[..., Any], ...]] = (drawn, sheet)


def draw(chance: random.Random, count: int) -> list[Shape]:
    """Return runs of random shapes; one in three is a graph."""
    shapes: list[Shape] = []
    for index in range(count):
        first, stays = index * 1_000, chance.random() < _STAYS
        numbers = itertools.count(first)
        if index % 3 == 2:
            shape = Shape(id=f"r{index}", numbers=(), stays=stays, graph=_graph(chance, numbers, stays=stays))
        else:
            parts = tuple(_part(chance, numbers, 0, stays=stays) for _ in range(chance.randint(1, 3)))
            shape = Shape(id=f"r{index}", numbers=(), stays=stays, parts=parts)
        shape.numbers = tuple(range(first, next(numbers)))
        shapes.append(shape)
    return shapes


def _part(chance: random.Random, numbers: Iterator[int], depth: int, *, stays: bool) -> Part:
    ends: OnDeadLetter = "wait" if stays else chance.choice(("wait", "fail"))
    # A settled map counts each dead letter as an end, whatever a person does.
    settled: tuple[Kind, ...] = () if stays else ("settle",)
    deeper: tuple[Kind, ...] = ("gather", "nest") * 2 if depth < _DEPTH_MAX else ()
    kinds: tuple[Kind, ...] = ("call", "map", "each", "step", *settled, *deeper)
    does = chance.choice(kinds)
    if does in {"gather", "nest"}:
        parts = tuple(_part(chance, numbers, depth + 1, stays=stays) for _ in range(chance.randint(2, 3)))
        return Part(does=does, parts=parts, on_dead_letter=ends)
    own = tuple(next(numbers) for _ in range(chance.randint(1, 5)))
    return Part(does=does, numbers=own, on_dead_letter=ends, limit=chance.choice((0, 2)))


def _graph(chance: random.Random, numbers: Iterator[int], *, stays: bool) -> Graph:
    graph = Graph(
        "drawn",
        on_dead_letter="wait" if stays else chance.choice(("wait", "fail")),
        on_failure=chance.choice(("stop", "continue")),
        limit=chance.choice((0, 2)),
    )
    nodes: list[Any] = []
    for _ in range(chance.randint(3, 8)):
        after = chance.sample(nodes, chance.randint(0, min(2, len(nodes))))
        nodes.append(graph.after(*after).add(sheet, next(numbers)))
    return graph


async def fail_and_mend(
    ledger: Ledger,
    chance: random.Random,
    shapes: Collection[Shape],
    file: Path,
    killing: Callable[[], AbstractAsyncContextManager[None]],
) -> int:
    """Begin runs of which one to all numbers fail, mend these bit by bit, and let every run complete.

    `file`: where the broken numbers stand. While a block of `killing` lasts, workers are killed.
    Returns how many steps and ends of children were copied.
    """
    staying = {JobRef(queue=_QUEUES[shape.graph is None], job_id=shape.id) for shape in shapes if shape.stays}
    numbers = [number for shape in shapes for number in shape.numbers]
    async with killing():
        broken = chance.sample(numbers, chance.randint(1, len(numbers)))
        _write(file, broken)
        runs = {shape.id: await shape.begin(ledger) for shape in shapes}
        await _ended(ledger, staying)
        _write(file, [each for each in broken if chance.random() >= _MENDED])
        await _begin_again(ledger, runs, staying)
        await _ended(ledger, staying)
    _write(file, [])
    requeueing = asyncio.create_task(_requeue_dead(ledger, chance, staying))
    for _ in range(_TIMES_MAX):
        await _begin_again(ledger, runs, staying)
        await _ended(ledger, staying)
    await requeueing
    for shape in shapes:
        result = await runs[shape.id].result(timeout_s=_END_S)
        assert (result if shape.graph is None else sum(result.values())) == sum(shape.numbers), shape
    return _copied(await jobs(ledger), numbers)


def _write(file: Path, broken: Iterable[int]) -> None:
    file.write_text(" ".join(map(str, broken)), encoding="ascii")


async def jobs(ledger: Ledger) -> dict[JobRef, Job]:
    """Return all jobs as their events add up."""
    found: dict[JobRef, Job] = {}
    async for batch in ledger.log.read():
        for stored in batch:
            ref = JobRef(queue=stored.event.queue, job_id=stored.event.job)
            found[ref] = evolve(found.get(ref), stored.event, stored.stream_sequence)
    return found


async def _ended(ledger: Ledger, staying: Collection[JobRef]) -> None:
    """Wait until all jobs but those of runs that stay have ended; discard a dead letter for which its run waits."""
    async with asyncio.timeout(_END_S):
        while True:
            found = await jobs(ledger)
            others = {ref: job for ref, job in found.items() if _root_of(found, ref) not in staying}
            if all(job.is_final for job in others.values()):
                return
            for ref, job in others.items():
                above = job.member
                if job.state is JobState.DEAD_LETTERED and above is not None:
                    run = found[JobRef(queue=above.queue, job_id=above.job)]
                    if run.state is JobState.WAITING and _awaits_dead(run, above.step):
                        await ledger.execute(ref, Discard(reason="it is not needed"))
            await asyncio.sleep(0.1)


async def _begin_again(ledger: Ledger, runs: dict[str, JobHandle[Any]], staying: Collection[JobRef]) -> None:
    """Begin again what failed of the runs that have ended."""
    for name, run in runs.items():
        if run.ref not in staying and (await run.snapshot()).state is not JobState.COMPLETED:
            runs[name] = await ledger.rerun(run, failed=True, id=f"{run.id}-again")


async def _requeue_dead(ledger: Ledger, chance: random.Random, runs: Collection[JobRef]) -> None:
    """Requeue whatever is dead of runs, at any moment, until these have completed."""
    open_jobs: list[str] = []
    try:
        async with asyncio.timeout(_END_S):
            while True:
                found = await jobs(ledger)
                if all(found[ref].state is JobState.COMPLETED for ref in runs):
                    return
                below = {ref: job for ref, job in found.items() if _root_of(found, ref) in runs}
                open_jobs = [
                    f"{ref} is {job.state}, {job.last_sequence}"
                    for ref, job in below.items()
                    if not job.is_final
                ]
                for ref, job in below.items():
                    if job.state is JobState.DEAD_LETTERED:
                        await asyncio.sleep(chance.uniform(0.0, 0.05))
                        await ledger.handle_of(ref).retry()
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise AssertionError(f"not completed in {_END_S:.0f} s: {'; '.join(open_jobs)}") from error


def _root_of(found: Mapping[JobRef, Job], ref: JobRef) -> JobRef:
    """Return the run above a job that is nobody's child."""
    while (member := found[ref].member) is not None:
        ref = JobRef(queue=member.queue, job_id=member.job)
    return ref


def _awaits_dead(run: Job, key: str) -> bool:
    """Return whether a dead letter among the children of a step has not ended."""
    order = run.steps[key].order
    return order is not None and order.on_dead_letter == "wait"


def _copied(found: Mapping[JobRef, Job], numbers: Collection[int]) -> int:
    """Return how many steps and ends of children were copied: no number was done by two jobs, and no step done twice."""
    done = Counter(
        msgspec.json.decode(job.order.input)["number"]
        for job in found.values()
        if job.task == sheet.name and job.state is JobState.COMPLETED
    )
    assert {number: times for number, times in done.items() if times > 1} == {}
    assert set(done) <= set(numbers)
    copied = 0
    for ref, job in found.items():
        rerun_of = job.order.rerun_of
        if rerun_of is not None:
            source = found[JobRef(queue=rerun_of.queue, job_id=rerun_of.job)]
            whole = {
                key for key, step in source.steps.items() if step.state == "completed" and not step.failed
            }
            assert whole <= {key for key, step in job.steps.items() if step.copied is not None}, ref
            copied += rerun_of.steps + rerun_of.children
    return copied
