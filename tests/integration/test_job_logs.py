"""What a worker's log says of jobs: what became of each, which attempt a line is of, and nothing of their inputs."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.working import ended, until, working

from jobledger.ledger import Backoff, Cancel, Ledger, Snooze, task
from jobledger.ledger.model.commands import Claim
from jobledger.workers import JobFilter
from jobledger.workers.process import log_what_nobody_catches

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

APP = """
import logging
from jobledger.ledger import Backoff, Context, task

log = logging.getLogger("myapp")

@task(queue="logs", max_attempts=2, backoff=Backoff(base_s=0))
async def fails(secret: str) -> None:
    log.warning("on the loop")
    raise ValueError("no such user")

@task(queue="logs")
def in_thread(secret: str) -> str:
    log.warning("in a thread")
    return secret

@task(queue="logs", run_in="process")
def in_process(context: Context, secret: str) -> str:
    log.warning("in a process")
    context.logger.info("by its context")
    return secret
"""


class Kept(logging.Handler):
    """Keeps records as a handler of any program would get them."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(JobFilter(lambda: "the worker"))
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of_jobs(self) -> list[tuple[str, str]]:
        """Return level and text of the lines about jobs."""
        return [
            (each.levelname, each.getMessage())
            for each in self.records
            if each.name == "jobledger.workers.jobs"
        ]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, loggers = (
        Kept(),
        [logging.getLogger(name) for name in ("jobledger", "myapp", "jobledger.workers.jobs")],
    )
    logging.getLogger().addHandler(handler)
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.DEBUG)
    yield handler
    logging.getLogger().removeHandler(handler)
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


log = logging.getLogger("myapp")


@task(max_attempts=2, backoff=Backoff(base_s=0.05))
async def fails(secret: str) -> None:
    raise ValueError(f"no such user\n{'x' * 1_000}")


@task
async def does(secret: str) -> str | Cancel | Snooze:
    async def inner() -> None:
        log.info("in a task of its own")

    await asyncio.create_task(inner())
    await asyncio.to_thread(log.info, "in a thread of its own")
    return Cancel("nothing to do") if secret == "cancel" else secret


async def test_a_worker_says_what_became_of_each_job(ledger: Ledger, kept: Kept) -> None:
    async with working(ledger, fails, does):
        dead = await ended(await ledger.enqueue(fails, "hush"))
        done = await ended(await ledger.enqueue(does, "hush"))
        cancelled = await ended(await ledger.enqueue(does, "cancel"))
    told = kept.of_jobs()
    assert [level for level, _ in told] == ["DEBUG", "INFO", "DEBUG", "WARNING", *["DEBUG"] * 4]
    texts = [text for _, text in told]
    assert texts[0] == "attempt 1 starts"
    assert texts[1].startswith("attempt 1 failed: ValueError: no such user xxx")
    assert "...; attempt 2 starts at 20" in texts[1]
    assert texts[3].startswith(
        "the job is a dead letter (exhausted) after attempt 2: ValueError: no such user"
    )
    assert texts[5].startswith("attempt 1 completed, after 0.")
    assert texts[7].startswith("attempt 1 cancelled: nothing to do, after 0.")
    assert not any("hush" in each.getMessage() for each in kept.records)
    # Each line of an attempt names it, whoever wrote it.
    by_job: dict[str, set[str]] = {}
    for each in kept.records:
        if each.name in {"myapp", "jobledger.workers.jobs"}:
            assert each.queue == "default"
            assert each.worker not in {"", "the worker"}
            assert each.trace_id == each.job.replace("-", "")
            by_job.setdefault(each.job, set()).add(f"{each.task} {each.attempt}")
    assert by_job == {dead.id: {"fails 1", "fails 2"}, done.id: {"does 1"}, cancelled.id: {"does 1"}}
    assert {each.worker for each in kept.records if each.name == "jobledger.workers"} == {"the worker"}


async def test_a_dead_letter_that_a_claim_makes_is_told_too(ledger: Ledger, kept: Kept) -> None:
    job = await ledger.enqueue(does.options(max_attempts=1), "hush")
    await ledger.execute(job.ref, Claim(worker="dead-1-00000000", lease_s=1.0))
    async with working(ledger, does):
        await ended(job)
    (line,) = [each for each in kept.records if each.levelno == logging.WARNING and each.job == job.id]
    assert line.getMessage().startswith("the job is a dead letter (exhausted) after attempt 1")
    assert (line.queue, line.task, line.attempt) == ("default", "does", 1)


async def test_only_who_asks_for_it_hears_of_starts_and_good_ends(ledger: Ledger, kept: Kept) -> None:
    logging.getLogger("jobledger.workers.jobs").setLevel(logging.INFO)
    async with working(ledger, does):
        await ended(await ledger.enqueue(does, "hush"))
    assert kept.of_jobs() == []


async def test_exceptions_that_nobody_catches_are_logged(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", threading.excepthook)
    monkeypatch.setattr("sys.unraisablehook", __import__("sys").unraisablehook)
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    log_what_nobody_catches(loop)

    class Value:
        def __repr__(self) -> str:
            return "hush"

    class Dying(Value):
        def __del__(self) -> None:
            raise KeyError("finalizer")

    def fail(_: object) -> None:
        raise KeyError("callback")

    def fail_in_thread() -> None:
        raise KeyError("thread")

    try:
        loop.call_soon(fail, Value())
        thread = threading.Thread(target=fail_in_thread, name="mine")
        thread.start()
        await asyncio.to_thread(thread.join)
        Dying()
        gc.collect()
        await until(lambda: len(kept.records) >= 3)
    finally:
        loop.set_exception_handler(handler)
    told = {str(each.exc_info[1]): each.getMessage() for each in kept.records if each.exc_info}
    assert told["'thread'"] == "thread mine ended in an exception"
    assert told["'callback'"].startswith("event loop: ")
    assert "could go nowhere" in told["'finalizer'"]
    assert not any("hush" in each.getMessage() for each in kept.records)


def test_the_command_writes_lines_of_json(
    command: Callable[..., Any], nats_server: EmbeddedServer, environment: str, tmp_path: Any
) -> None:
    (tmp_path / "logged.py").write_text(APP, encoding="utf-8")
    where = ("--app", "logged", "--url", nats_server.url, "--environment", environment)
    worker = command("worker", "--json", "--log-format", "json", *where)
    named = worker.line()["worker"]
    for name in ("fails", "in_thread", "in_process"):
        command("enqueue", name, "secret=hush", "--id", name, "--wait", "--json", *where).end()
    assert worker.end(15) == 0
    lines = [json.loads(line) for line in worker.errors.splitlines()]
    assert "hush" not in worker.errors
    assert {each["worker"] for each in lines} == {named}
    app = [
        (each["message"], each["job"], each["attempt"], each["queue"])
        for each in lines
        if each["logger"] == "myapp"
    ]
    assert app == [
        ("on the loop", "fails", 1, "logs"),
        ("on the loop", "fails", 2, "logs"),
        ("in a thread", "in_thread", 1, "logs"),
        ("in a process", "in_process", 1, "logs"),
    ]
    told = [(each["level"], each["message"]) for each in lines if each["logger"] == "jobledger.workers.jobs"]
    assert told == [
        ("info", "attempt 1 failed: ValueError: no such user; attempt 2 starts at once"),
        ("warning", "the job is a dead letter (exhausted) after attempt 2: ValueError: no such user"),
    ]
    assert any(each["logger"] == "jobledger.notes" and "stopping" in each["message"] for each in lines)


SPEAKS = """
import logging
from jobledger.ledger import task

log = logging.getLogger(__name__)

@task(queue="logs")
async def speaks() -> None:
    log.info("sending")
    log.debug("more than anybody wants")
    logging.getLogger("library").info("not the application's")

@task(queue="logs", run_in="process")
def digs() -> None:
    log.info("digging")
"""


@pytest.mark.parametrize("task", ["speaks", "digs"])
def test_what_loggers_of_the_application_say_is_kept_from_info_on(
    task: str, command: Callable[..., Any], nats_server: EmbeddedServer, environment: str, tmp_path: Any
) -> None:
    (tmp_path / "speaking.py").write_text(SPEAKS, encoding="utf-8")
    place = ("--url", nats_server.url, "--environment", environment)
    where = ("--app", "speaking", *place)
    assert command("enqueue", task, "--id", "one", "--ledger-bytes-max", "16777216", *where).end() == 0
    worker = command("worker", "--until-idle", *where)
    assert worker.end() == 0
    logs = command("jobs", "logs", "one", "--json", *place)
    said = {"speaks": "sending", "digs": "digging"}[task]
    told = [json.loads(line) for line in logs.rest()]
    assert [(each["level"], each["logger"], each["text"]) for each in told] == [("info", "speaking", said)]
