"""What the code of an attempt logs is kept by job, attempt and step, within bounds; a job that logs nothing leaves nothing."""

from __future__ import annotations

import asyncio
import builtins
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.cli.main import run as run_command
from jobledger.ledger import (
    Backoff,
    Context,
    JobFailedError,
    JobHandle,
    Ledger,
    Run,
    TaskRegistry,
    step,
    task,
    workflow,
)
from jobledger.ledger.nats import api
from jobledger.ledger.nats.attempt_logs import JobLogs

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

log = logging.getLogger("logged_app")


@pytest.fixture(autouse=True)
def _speaks() -> Iterator[None]:
    log.setLevel(logging.INFO)
    yield
    log.setLevel(logging.NOTSET)


@task(queue="logs", max_attempts=2, backoff=Backoff(base_s=0))
async def fails(context: Context, name: str) -> None:
    log.info("looks for %s", name)
    context.logger.warning("there is none")
    logging.getLogger("jobledger.of_ours").warning("not the task's")
    log.debug("below its level")
    raise ValueError(name)


@task(queue="logs")
def in_thread(name: str) -> None:
    try:
        int(name)
    except ValueError:
        log.exception("in a thread")


@task(queue="logs")
async def much(lines: int) -> None:
    for number in range(lines):
        log.info("line %d %s", number, "x" * 100)
    log.info("\x00" * 100_000)


@task(queue="logs")
async def silent() -> None:
    return None


@step
async def charge(euros: int) -> int:
    log.info("charges %d", euros)
    return euros


@step
def post(euros: int) -> int:
    log.info("posts %d", euros)
    return euros


@workflow(queue="logs")
async def order(run: Run) -> None:
    log.info("begins")
    await run.step(charge, 7)
    await run.step(post, 8)


_go: asyncio.Event


@task(queue="logs")
async def waits() -> None:
    log.info("first")
    await _go.wait()
    log.info("second")


async def kept(job: JobHandle[Any], **chosen: Any) -> JobLogs:
    """Wait until the log of an attempt that has ended is stored, and return what is kept."""
    async with asyncio.timeout(LIMIT_S):
        while not (found := await job.logs()).ended:
            await asyncio.sleep(0.01)
    return await job.logs(**chosen) if chosen else found


async def test_lines_are_kept_by_attempt_with_job_and_trace(ledger: Ledger) -> None:
    async with working(ledger, fails, in_thread):
        job = await ledger.enqueue(fails, "ada")
        with pytest.raises(JobFailedError):
            await job.result(timeout_s=LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            while len((found := await kept(job)).items) < 4:
                await asyncio.sleep(0.01)
        other = await ledger.enqueue(in_thread, "bob")
        await ended(other)
        (threaded,) = (await kept(other)).items
    said = [(line.attempt, line.level, line.logger, line.text) for line in found.items]
    assert said == [
        (number, *words)
        for number in (1, 2)
        for words in (
            ("info", "logged_app", "looks for ada"),
            ("warning", "jobledger.task", "there is none"),
        )
    ]
    assert {(line.job, len(line.trace), line.step) for line in found.items} == {(job.id, 32, "")}
    assert [line.attempt for line in (await job.logs(attempt=2)).items] == [2, 2]
    assert threaded.text.startswith("in a thread\nTraceback")
    assert "ValueError" in threaded.text


async def test_the_oldest_lines_are_cut_and_counted(ledger: Ledger) -> None:
    async with working(ledger, much):
        job = await ledger.enqueue(much, 2_000)
        await ended(job)
        found = await kept(job)
        message = await api.get_message(
            ledger.inbox,
            f"KV_{ledger.names.logs_bucket}",
            {"last_by_subj": f"$KV.{ledger.names.logs_bucket}.logs.{job.id}.*"},
        )
    cut = found.cut[1]
    assert cut > 1_000
    assert len(found.items) + cut == 2_001
    assert found.items[0].number == cut + 1
    assert found.items[-2].text.startswith("line 1999 ")
    assert found.items[-1].text.endswith("... (cut)")
    assert message is not None
    assert len(message.content) < (64 << 10) + 1_000


async def test_lines_of_steps_say_so(ledger: Ledger) -> None:
    async with working(ledger, order):
        job = await ledger.enqueue(order)
        await ended(job)
        found = await kept(job)
        charged = await job.logs(step="charge")
    assert sorted((line.step, line.text) for line in found.items) == [
        ("", "begins"),
        ("charge", "charges 7"),
        ("post", "posts 8"),
    ]
    assert [line.text for line in charged.items] == ["charges 7"]


async def test_the_log_of_an_attempt_that_runs_can_be_followed(ledger: Ledger) -> None:
    global _go  # noqa: PLW0603 - a task has no other way in
    _go = asyncio.Event()
    async with working(ledger, waits):
        job = await ledger.enqueue(waits)
        async with asyncio.timeout(LIMIT_S):
            while not (found := await job.logs()).items:
                await asyncio.sleep(0.01)
        assert [line.text for line in found.items] == ["first"]
        assert not found.ended
        _go.set()
        assert [line.text for line in (await kept(job)).items] == ["first", "second"]


async def test_the_command_shows_and_follows_them(
    ledger: Ledger, nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    global _go  # noqa: PLW0603 - a task has no other way in
    _go = asyncio.Event()
    place = ("--url", nats_server.url, "--environment", ledger.names.environment)

    def command(*words: str) -> int:
        return run_command(("jobs", "logs", *words, *place))

    async with working(ledger, waits):
        job = await ledger.enqueue(waits)
        async with asyncio.timeout(LIMIT_S):
            while not (await job.logs()).items:
                await asyncio.sleep(0.01)
        following = asyncio.create_task(asyncio.to_thread(command, job.id, "--follow", "--json"))
        _go.set()
        assert await following == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(line["text"], line["number"]) for line in lines] == [("first", 1), ("second", 2)]
        assert {(line["job"], line["attempt"], line["step"]) for line in lines} == {(job.id, 1, "")}
        assert await asyncio.to_thread(command, job.id, "--attempt", "1") == 0
        assert "INFO attempt=1 logged_app: second" in capsys.readouterr().out
        assert await asyncio.to_thread(command, job.id, "--attempt", "2") == 0
        assert "nothing that it logged is kept" in capsys.readouterr().out


POOLED = """
import contextvars, logging, threading

from jobledger.ledger import Context, Run, step, task, workflow

log = logging.getLogger("pooled_app")
left, spoken = threading.Event(), threading.Event()


@task(queue="logs", run_in="process")
async def digs(context: Context, name: str) -> None:
    log.warning("digs %s", name)
    context.logger.warning("deeper")
    print("printed", name, sep="-")
    for number in range(2_000 if name == "much" else 0):
        log.warning("line %d %s", number, "x" * 100)


@task(queue="logs", run_in="process")
def leaves(name: str) -> None:
    # A thread that runs on, and speaks in the next job's time.
    def late() -> None:
        left.wait(60)
        log.warning("late")
        spoken.set()

    run = contextvars.copy_context().run
    threading.Thread(target=run, args=(late,), daemon=True).start()


@task(queue="logs", run_in="process")
def hears(name: str) -> None:
    left.set()
    spoken.wait(60)
    log.warning("heard")


@step(run_in="process")
def dig(metres: int) -> int:
    log.warning("digs %d m", metres)
    print("printed")
    return metres


@workflow(queue="logs")
async def mine(run: Run) -> None:
    await run.step(dig, 7)
"""


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskRegistry]:
    """Tasks and steps for the processes of a pool."""
    (tmp_path / "pooled_app.py").write_text(POOLED)
    monkeypatch.syspath_prepend(tmp_path)
    yield TaskRegistry.load(["pooled_app"])
    sys.modules.pop("pooled_app", None)


async def test_lines_of_processes_of_the_pool_are_kept_as_those_of_threads(
    ledger: Ledger, pooled: TaskRegistry
) -> None:
    async with working(ledger, registry=pooled, pool_size=1):
        dug = await ledger.enqueue(pooled.get("digs"), name="gold")
        much = await ledger.enqueue(pooled.get("digs"), name="much")
        run = await ledger.enqueue(pooled.get("mine"))
        for job in (dug, much, run):
            await ended(job)
        found, cut, steps = await kept(dug), await kept(much), await kept(run, step="dig")
    assert [(line.attempt, line.logger, line.text) for line in found.items] == [
        (1, "pooled_app", "digs gold"),
        (1, "jobledger.task", "deeper"),
    ]
    assert {(line.job, len(line.trace)) for line in found.items} == {(dug.id, 32)}
    assert cut.cut[1] > 1_000
    assert cut.items[-1].text.startswith("line 1999 ")
    assert [(line.step, line.text) for line in steps.items] == [("dig", "digs 7 m")]


async def test_a_line_of_an_earlier_call_is_not_told_of_the_next_job(
    ledger: Ledger, pooled: TaskRegistry
) -> None:
    async with working(ledger, registry=pooled, pool_size=1):
        await ended(await ledger.enqueue(pooled.get("leaves"), name="a"))
        job = await ledger.enqueue(pooled.get("hears"), name="b")
        await ended(job)
        assert [line.text for line in (await kept(job)).items] == ["heard"]


@task(queue="logs")
async def prints(name: str) -> None:
    print("found", name, "\x1b[31m")  # noqa: T201 - what is tested
    print()  # noqa: T201 - what is tested
    print("to a file", file=io.StringIO())
    print("in two", "lines", sep="\n", file=sys.stderr)  # noqa: T201 - what is tested


@task(queue="logs")
def prints_in_thread(name: str) -> None:
    print(f"thread {name}")  # noqa: T201 - what is tested


async def test_prints_are_kept_where_the_worker_was_asked_to(
    ledger: Ledger, pooled: TaskRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    before = builtins.print
    async with (
        working(ledger, registry=pooled, pool_size=1, log_prints=True),
        working(ledger, prints, prints_in_thread, log_prints=True, queues=("prints",)),
    ):
        jobs = [
            await ledger.enqueue(each, name="ada")
            for each in (
                prints.options(queue="prints"),
                prints_in_thread.options(queue="prints"),
                pooled.get("digs"),
            )
        ]
        run = await ledger.enqueue(pooled.get("mine"))
        for job in (*jobs, run):
            await ended(job)
        print("outside of jobs")  # noqa: T201 - what is tested
        found = [(await kept(job)).items for job in (*jobs, run)]
    assert [[(line.level, line.text) for line in lines if line.logger == "print"] for lines in found] == [
        [("info", "found ada \x1b[31m"), ("info", "in two\nlines")],
        [("info", "thread ada")],
        [("info", "printed-ada")],
        [("info", "printed")],
    ]
    assert [line.step for line in found[3]] == ["dig", "dig"]
    out, err = capsys.readouterr()
    assert ("found ada" in out, "thread ada" in out, "in two\nlines" in err) == (True, True, True)
    assert builtins.print is before
    async with working(ledger, prints_in_thread):
        job = await ledger.enqueue(prints_in_thread, "bob")
        await ended(job)
    assert (await job.logs()).items == []


async def test_jobs_that_log_nothing_make_no_bucket(ledger: Ledger) -> None:
    async with working(ledger, silent, much, log_bytes_max=0):
        job = await ledger.enqueue(silent)
        await ended(job)
        await ended(await ledger.enqueue(much, 3))  # this worker keeps none
    assert (await job.logs()).items == []
    with pytest.raises(api.MissingError):
        await api.stream_info(ledger.inbox, f"KV_{ledger.names.logs_bucket}")


async def test_a_bucket_that_takes_nothing_harms_no_job(ledger: Ledger) -> None:
    stream = f"KV_{ledger.names.logs_bucket}"
    await api.create_stream(ledger.inbox, stream, {"subjects": ["elsewhere.>"], "allow_direct": True})
    async with working(ledger, much):
        job = await ledger.enqueue(much, 3)
        await ended(job)
    assert (await job.logs()).items == []
