"""Who asks for a job: said at every kind of enqueue, and kept by the job's first event and its fold."""

from __future__ import annotations

from typing import Any

import pytest

from jobledger.ledger import (
    ConfigurationError,
    Graph,
    InvalidInputError,
    JobHandle,
    JobRef,
    Ledger,
    Run,
    Signal,
    TaskDefinitionError,
    Unique,
    task,
    workflow,
)
from jobledger.ledger.model.commands import Carry
from jobledger.ledger.model.events import Carried
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio

DANA = "dana@shop.example"
go = Signal("go", int)


@task(queue="asked")
async def report(page: int) -> int:
    return page


@workflow(queue="asked")
async def order(run: Run) -> int:
    return await run.wait(go)


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


async def asker(ledger: Ledger, job: JobHandle[Any] | JobRef | str) -> str:
    """Return who asked for a job, by its fold, after making sure that its first event says the same."""
    handle = await ledger.job(job)
    found = (await handle.snapshot()).created_by
    assert (await handle.history())[0].event.by == found
    return found


async def test_the_process_is_named_unless_somebody_else_asked(ledger: MemoryLedger) -> None:
    assert await asker(ledger, await ledger.enqueue(report, 1)) == ledger.identity
    assert await asker(ledger, await ledger.enqueue(report.options(by=DANA), 1)) == DANA


async def test_who_asks_is_told_on_every_way_to_make_a_job(ledger: MemoryLedger) -> None:
    of_dana = report.options(by=DANA)
    await ledger.enqueue_many(of_dana, ({"page": n} for n in range(2)), ids=lambda each: f"m{each['page']}")
    await ledger.enqueue_many(of_dana, ({"page": n} for n in range(2)), batch="b1")
    graph = Graph("g")
    graph.add(report, 1)
    made: dict[str, Any] = {
        "many": "m1",
        "batch": "b1",
        "unique": await ledger.enqueue(report.options(by=DANA, unique=Unique()), 2),
        "period": await ledger.enqueue(report.options(by=DANA, unique=Unique(for_s=60)), 3),
        "debounced": await ledger.enqueue(report.options(by=DANA, debounce_s=60), 4),
        "later": await ledger.enqueue(report.options(by=DANA, delay_s=60), 4),
        "limited": await ledger.enqueue(report.options(by=DANA, limits=("api",)), 4),
        "graph": await ledger.run_graph(graph, by=DANA),
    }
    assert {way: await asker(ledger, job) for way, job in made.items()} == dict.fromkeys(made, DANA)


async def test_every_job_of_a_batch_names_who_asked_for_the_batch(ledger: MemoryLedger) -> None:
    await ledger.enqueue_many(report.options(by=DANA), ({"page": n} for n in range(3)), batch="b2")
    begun = {stored.event.by async for stored in ledger.events(follow=False) if not stored.event.prev}
    assert begun == {DANA}


async def test_who_sends_a_signal_asked_for_the_run_that_it_begins(ledger: MemoryLedger) -> None:
    await ledger.signal("o-1", go, 7, start=order.with_input(), by=DANA)
    assert await asker(ledger, "o-1") == DANA
    own = order.options(by="erin").with_input()
    await ledger.signal("o-2", go, 7, start=own, by=DANA)
    assert await asker(ledger, "o-2") == "erin"


async def test_who_triggers_a_schedule_asked_for_its_job_whoever_makes_it(ledger: MemoryLedger) -> None:
    await ledger.schedules.add("nightly", report, input={"page": 1}, cron="0 3 * * *")
    assert await asker(ledger, await ledger.schedules.trigger("nightly", by=DANA)) == DANA
    with pytest.raises(ConfigurationError, match="a delay_s or a by, which every tick decides"):
        await ledger.schedules.add("other", report.options(by=DANA), input={"page": 1}, cron="0 3 * * *")


async def test_who_asked_outlives_the_first_event(ledger: MemoryLedger) -> None:
    job = await ledger.enqueue(report.options(by=DANA, delay_s=60), 1)
    await ledger.execute(job.ref, Carry(through=1))
    carried = (await job.history())[-1].event
    assert isinstance(carried, Carried)
    assert carried.job_state.created_by == DANA
    assert (await job.snapshot()).created_by == DANA


async def test_a_name_that_nobody_could_read_is_refused(ledger: MemoryLedger) -> None:
    for name in ("two words", "x" * 129, "tab\t"):
        with pytest.raises(InvalidInputError, match="by must be 1 to 128 printable characters"):
            report.options(by=name)
    with pytest.raises(TaskDefinitionError, match="a node of task report cannot have by"):
        Graph("g").add(report.options(by=DANA), 1)
    assert [stored async for stored in ledger.events(follow=False)] == []
