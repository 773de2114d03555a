"""`jobs cancel|retry|run|why` from outside, and what stands behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.support.jetstream import api
from tests.support.tables import each_row
from tests.support.working import LIMIT_S, ended, types, until, working

from jobledger.audit.why import Facts, Why, explain, find_facts
from jobledger.ledger import Attempt, Context, Job, JobState, Ledger, Retry, Run, TaskRegistry, task, workflow
from jobledger.ledger.model.commands import Claim, DeadLetter
from jobledger.ledger.model.errors import IllegalTransitionError, JobNotFoundError, UnknownTaskError
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.leases import TASKS_MAX, WorkerInfo
from jobledger.ledger.nats.task_book import TaskEntry, find_task, write_tasks
from jobledger.workers import Worker
from jobledger.workers.single import run_one

pytestmark = pytest.mark.anyio


@task(queue="sums", max_attempts=2)
async def add(a: int, b: int) -> int:
    return a + b


@task(queue="sums")
async def waits(context: Context) -> None:
    await asyncio.sleep(60)


@task(queue="sums", max_attempts=3)
async def not_now() -> Retry:
    return Retry(3_600, "not now")


TASKS = TaskRegistry([add, waits, not_now])


async def _why(ledger: Ledger, ref: JobRef) -> Why:
    job = await (await ledger.job(ref.job_id)).snapshot()
    return explain(job, await find_facts(ledger, job))


async def test_one_job_runs_here_past_its_queue_and_nobody_runs_it_again(ledger: Ledger) -> None:
    first, second = [await ledger.enqueue(add, 1, n) for n in (2, 3)]
    after = await run_one(ledger, TASKS, second.ref, by="ada")
    assert (after.state, bytes(after.result)) == (JobState.COMPLETED, b"4")
    async with working(ledger, add):
        assert await first.result(timeout_s=LIMIT_S) == 3
    assert await types(second) == ["queued", "started", "completed"]


async def test_a_delayed_job_runs_here_and_now(ledger: Ledger) -> None:
    job = await ledger.enqueue(add.options(delay_s=3_600), 1, 2)
    assert (await run_one(ledger, TASKS, job.ref)).state is JobState.COMPLETED
    assert await types(job) == ["scheduled", "queued", "started", "completed"]


async def test_what_cannot_run_here_is_refused(ledger: Ledger) -> None:
    job = await ledger.enqueue(add, 1, 2)
    with pytest.raises(UnknownTaskError):
        await run_one(ledger, TaskRegistry([waits]), job.ref)
    assert await types(job) == ["queued"]
    await ledger.execute(job.ref, Claim(worker="w-1-00000000", lease_s=2))
    with pytest.raises(IllegalTransitionError, match="is running: it cannot be run now"):
        await run_one(ledger, TASKS, job.ref)
    with pytest.raises(JobNotFoundError):
        await run_one(ledger, TASKS, JobRef(queue="sums", job_id="nothing"))


async def test_stopped_half_way_it_gives_the_job_back(ledger: Ledger) -> None:
    job = await ledger.enqueue(waits)
    running = asyncio.create_task(run_one(ledger, TASKS, job.ref))
    while (await job.state()) is not JobState.RUNNING:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    after = await job.snapshot()
    assert (after.state, after.attempts_given_back) == (JobState.QUEUED, 1)


async def test_a_job_run_here_hears_of_its_cancel(ledger: Ledger) -> None:
    job = await ledger.enqueue(waits)
    running = asyncio.create_task(run_one(ledger, TASKS, job.ref))
    while (await job.state()) is not JobState.RUNNING:
        await asyncio.sleep(0.01)
    await ledger.cancel(job.ref)
    assert (await asyncio.wait_for(running, LIMIT_S)).state is JobState.CANCELLED


async def test_why_says_what_a_job_waits_for(ledger: Ledger) -> None:
    alone = await ledger.enqueue(add, 1, 2)
    said = await _why(ledger, alone.ref)
    assert said.sentence == "no worker serves queue sums"
    assert said.event_sequence == 1
    later = await ledger.enqueue(add.options(delay_s=7_200), 1, 2)
    assert "it is not due before" in (await _why(ledger, later.ref)).sentence
    async with working(ledger, add, waits, not_now, concurrency=1):
        await ended(alone)
        assert "attempt 1 completed it" in (await _why(ledger, alone.ref)).sentence
        again = await ledger.enqueue(not_now)
        while (await again.state()) is not JobState.RETRY_WAIT:
            await asyncio.sleep(0.01)
        assert "attempt 1 failed (Retry: not now)" in (await _why(ledger, again.ref)).sentence
        busy = await ledger.enqueue(waits)
        while (await busy.state()) is not JobState.RUNNING:
            await asyncio.sleep(0.01)
        assert "attempt 1 runs on worker" in (await _why(ledger, busy.ref)).sentence
        behind = await ledger.enqueue(add, 3, 4)
        assert "it stands in queue sums (normal) with" in (await _why(ledger, behind.ref)).sentence
        await ledger.cancel(busy.ref)
        await ended(behind)
    lost = await ledger.enqueue(add, 5, 6)
    await ledger.execute(lost.ref, Claim(worker="dead-1-00000000", lease_s=2))
    assert "runs nowhere any more" in (await _why(ledger, lost.ref)).sentence
    await ledger.execute(
        lost.ref, DeadLetter(reason="max_deliver", epoch=(await lost.snapshot()).claim_epoch)
    )
    said = await _why(ledger, lost.ref)
    assert "it waits for a person" in said.sentence
    assert said.hint == f"jobledger dlq requeue {lost.id}"


@task(queue="sums", name="brandnew")
async def brand_new() -> None:
    return


async def test_a_task_that_no_worker_has_is_named_until_one_comes(ledger: Ledger) -> None:
    async with working(ledger, add) as worker:
        await worker.taking.wait()
        job = await ledger.enqueue(brand_new)
        said = await _why(ledger, job.ref)
        assert said.sentence == "1 worker serves queue sums, none has a task brandnew"
        assert said.hint == "jobledger worker --app ... --queue sums"
        async with working(ledger, brand_new) as other:
            await other.taking.wait()
            assert "none has a task" not in (await _why(ledger, job.ref)).sentence
        await until_lease_ends(ledger, other.identity)
        job = await ledger.enqueue(brand_new)
        assert "none has a task brandnew" in (await _why(ledger, job.ref)).sentence


@workflow(queue="sums", name="total", version="1")
async def total_1(run: Run) -> int:
    return 1


@workflow(queue="sums", name="total", version="2")
async def total_2(run: Run) -> int:
    return 2


async def test_a_version_of_a_run_that_no_worker_has_is_named_until_one_comes(ledger: Ledger) -> None:
    async with working(ledger, total_1) as worker:
        await worker.taking.wait()
        job = await ledger.enqueue(total_2)
        said = await _why(ledger, job.ref)
        lacking = "none has version 2 of workflow total, with which this run began"
        assert said.sentence == f"1 worker serves queue sums, {lacking}"
        async with working(ledger, total_2):
            assert await job.result(timeout_s=LIMIT_S) == 2


class Address(BaseModel):
    street: str


class Person(BaseModel):
    address: Address


@task(queue="sums")
async def describe(person: Person, folder: Path, anything: object, times: int = 1) -> None:
    """Say where somebody lives."""


async def _announced(ledger: Ledger, name: str, by: Worker) -> TaskEntry:
    async with asyncio.timeout(LIMIT_S):
        while (
            found := await find_task(ledger.inbox, ledger.names, name)
        ) is None or found.worker != by.identity:
            await asyncio.sleep(0.01)
    return found


async def test_a_worker_announces_what_its_tasks_are(ledger: Ledger) -> None:
    assert await find_task(ledger.inbox, ledger.names, "describe") is None
    async with working(ledger, describe, add) as first, working(ledger, describe) as second:
        for worker in (first, second):
            await worker.taking.wait()
        async with asyncio.timeout(LIMIT_S):
            while (found := await find_task(ledger.inbox, ledger.names, "describe")) is None:
                await asyncio.sleep(0.01)
        assert found.worker in {first.identity, second.identity}
        await _announced(ledger, "add", first)
    assert (found.queue, found.text) == ("sums", "Say where somebody lives.")
    definitions = found.input["$defs"]
    assert definitions["describe"]["required"] == ["person", "folder", "anything"]
    properties = definitions["describe"]["properties"]
    assert properties["folder"] == {"type": "string", "format": "path"}
    assert properties["anything"] is True
    assert properties["times"] == {"type": "integer", "default": 1}
    (part,) = [each["$ref"] for each in properties["person"]["properties"].values()]
    assert definitions[part.removeprefix("#/$defs/")]["properties"]["street"]["type"] == "string"


async def test_who_had_a_task_last_is_told_when_its_lease_is_over(ledger: Ledger) -> None:
    async with working(ledger, brand_new) as worker:
        await _announced(ledger, "brandnew", worker)
    job = await ledger.enqueue(brand_new)
    said = (await _why(ledger, job.ref)).sentence
    last = f"; worker {worker.identity} was the last to start with task brandnew, at "
    assert said.startswith(f"no worker serves queue sums{last}")
    async with working(ledger, add) as other:
        await other.taking.wait()
        said = (await _why(ledger, job.ref)).sentence
        assert said.startswith(f"1 worker serves queue sums, none has a task brandnew{last}")


async def test_a_worker_that_may_not_announce_its_tasks_works_all_the_same(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    other = {"name": f"KV_{ledger.names.tasks_bucket}", "subjects": ["elsewhere"]}
    assert "error" not in await api(ledger.inbox, f"STREAM.CREATE.{other['name']}", other)
    async with working(ledger, add) as worker:
        await until(lambda: "its work goes on" in caplog.text)
        assert await (await ledger.enqueue(add, 1, 2)).result(timeout_s=LIMIT_S) == 3
        assert worker.counts().lease_is_valid


async def test_a_task_whose_description_is_too_large_is_announced_without_it(ledger: Ledger) -> None:
    entry = TaskEntry(
        name="vast", queue="q", text="x" * 70_000, input={}, worker="w", announced_at=ledger.clock.now()
    )
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
    found = await find_task(ledger.inbox, ledger.names, "vast")
    assert found == msgspec.structs.replace(entry, text="", input=True)


async def test_many_workers_that_start_at_once_make_one_bucket(ledger: Ledger) -> None:
    entries = [
        TaskEntry(name="t", queue="q", text="", input=True, worker=f"w{n}", announced_at=ledger.clock.now())
        for n in range(20)
    ]
    await asyncio.gather(*(write_tasks(ledger.inbox, ledger.names, [each], replicas=1) for each in entries))
    assert await find_task(ledger.inbox, ledger.names, "t") in entries


async def test_who_only_reads_makes_no_bucket(ledger: Ledger) -> None:
    job = await ledger.enqueue(brand_new)
    await _why(ledger, job.ref)
    assert "error" in await api(ledger.inbox, f"STREAM.INFO.KV_{ledger.names.tasks_bucket}", {})


async def until_lease_ends(ledger: Ledger, worker: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await ledger.leases.find(worker) is not None:
            await asyncio.sleep(0.01)


async def test_a_worker_that_does_not_name_its_tasks_may_have_any(ledger: Ledger) -> None:
    many = TaskRegistry([task(queue="sums", name=f"t{n}")(noop) for n in range(TASKS_MAX + 1)])
    async with working(ledger, registry=many) as worker:
        await worker.taking.wait()
        job = await ledger.enqueue(brand_new)
        assert "none has a task" not in (await _why(ledger, job.ref)).sentence


async def noop() -> None:
    return


async def test_a_paused_consumer_is_named_and_how_to_resume_it(ledger: Ledger) -> None:
    async with working(ledger, add) as worker:
        await worker.taking.wait()
        pause = f"CONSUMER.PAUSE.{ledger.names.ledger_stream}.work_sums_normal"
        resumed = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
        assert (await api(ledger.inbox, pause, {"pause_until": resumed.isoformat()}))["paused"]
        job = await ledger.enqueue(add, 1, 2)
        said = await _why(ledger, job.ref)
        assert (
            f"somebody paused consumer work_sums_normal until {resumed:%Y-%m-%dT%H:%M:%S}Z" in said.sentence
        )
        assert said.hint == f"nats consumer resume {ledger.names.ledger_stream} work_sums_normal"
        assert (await api(ledger.inbox, pause, {}))["paused"] is False
        assert await job.result(timeout_s=LIMIT_S) == 3


def test_what_a_person_can_do_is_never_to_ask_again() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    job = Job(
        id="j", queue="q", task="t", state=JobState.QUEUED, created_at=now, updated_at=now, last_sequence=3
    )
    info = WorkerInfo(worker="w", host="h", pid=1, queues=("q",), started_at=now, renewed_at=now)
    said = explain(job, Facts(now=now, workers=(info,), backlog=0, delivered=3))
    assert "it was delivered to a worker that has not started it" in said.sentence
    assert "--why" not in said.hint


@each_row("state", list(JobState))
def test_every_state_has_its_sentence(state: JobState) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    attempt: Any = {"number": 1, "worker": "w", "epoch": 2, "started_at": now}
    job = Job(
        id="j",
        queue="q",
        task="t",
        state=state,
        created_at=now,
        updated_at=now,
        last_sequence=3,
        due_at=now + timedelta(seconds=90),
        attempts=(Attempt(**attempt),),
    )
    said = explain(job, Facts(now=now))
    assert (said.status, bool(said.sentence)) == (state.value, True)
    assert "None" not in said.sentence


# From the command line.


async def test_the_commands(nats_server: Any, command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(
        "from jobledger.ledger import task\n\n\n"
        '@task(queue="sums", max_attempts=1)\nasync def add(a: int, b: int) -> int:\n'
        "    if a < 0:\n        raise ValueError('negative')\n    return a + b\n"
    )
    target = ("--url", nats_server.url, "--environment", "acts", "--json")

    def answer(*words: str, code: int = 0) -> dict[str, Any]:
        process = command(*words, *target)
        lines = process.rest()
        assert process.end() == code, process.errors
        said = lines[-1] if lines else process.errors
        return json.loads(said)  # type: ignore[no-any-return]

    def all_of_it() -> None:
        app = ("--app", "sums.py")
        size = ("--ledger-bytes-max", "16777216")
        answer("enqueue", "add", "a=1", "b=2", "--id", "one", *app, *size)
        assert answer("jobs", "show", "--why", "one")["sentence"] == "no worker serves queue sums"
        assert answer("jobs", "run", "one", *app)["result"] == 3
        assert answer("jobs", "run", "one", *app, code=4)["error"]["type"] == "IllegalTransitionError"
        then = answer("jobs", "show", "--why", "one", "--sequence", "1")
        assert (then["status"], then["event_sequence"], then["hint"]) == ("queued", 1, "")
        assert "which workers lived then is not known" in then["sentence"]
        then = answer("jobs", "show", "--why", "one", "--sequence", "2")
        assert then["status"] == "running"
        assert then["sentence"].endswith("whether that worker lived then is not known")
        assert answer("jobs", "show", "--why", "one", "--sequence", "3")["status"] == "completed"
        assert (
            answer("jobs", "show", "--why", "one", "--sequence", "0", code=3)["error"]["type"]
            == "JobNotYetError"
        )
        answer("enqueue", "add", "a=-1", "b=2", "--id", "two", *app)
        failed = command("jobs", "run", "two", *app, *target)
        assert failed.end() == 1
        assert "dead letter" in failed.errors
        assert answer("jobs", "retry", "two", "--reason", "again")["attempts_left"] == 1
        assert answer("jobs", "cancel", "two")["status"] == "cancelled"
        assert answer("jobs", "show", "--why", "nothing", code=3)["error"]["type"] == "JobNotFoundError"

    await asyncio.to_thread(all_of_it)
