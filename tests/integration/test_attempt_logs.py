"""What the code of an attempt logs is kept by job, attempt and step, within bounds; a job that logs nothing leaves nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.cli.main import run as run_command
from jobledger.ledger import Backoff, Context, JobFailedError, JobHandle, Ledger, Run, step, task, workflow
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
