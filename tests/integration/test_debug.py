"""`jobs debug`: an attempt runs again here on what it ran on, comes to its own end, and the ledger stays as it was."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import pytest
from tests.support.archiving import NEW, OLD_JOBS, World
from tests.support.jetstream import api
from tests.support.working import LIMIT_S, working

from jobledger.audit.archive import Archiver, archive_deps
from jobledger.cli.main import run
from jobledger.ledger import Backoff, Context, Ledger, Snooze, connect, task
from jobledger.ledger.model.chain import load, transact
from jobledger.ledger.model.commands import Claim, TakeOver
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import event_type
from jobledger.ledger.model.subjects import JobRef, Names
from jobledger.workers import debug as again

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

T = TypeVar("T")
LARGE = "x" * 100_000

APP = """
from jobledger.ledger import Context, task

@task(queue="debug")
async def count(ctx: Context, words: str, fail: bool) -> int:
    begun = ctx.checkpoint_value or 0
    {body}
    if fail and ctx.attempt < 2:
        raise ValueError(f"attempt {{ctx.attempt}} fails on {{begun}}")
    return len(words) + begun

@task(queue="debug", run_in="process", timeout_s=20)
def twice(number: int) -> int:
    return 2 * number
"""


@task(name="count_here", queue="debug", max_attempts=3, backoff=Backoff(base_s=0.05))
async def count(ctx: Context, words: str, *, fail: bool) -> int:
    await ctx.checkpoint((ctx.checkpoint_value or 0) + 1)
    if fail and ctx.attempt < 2:
        raise ValueError(f"attempt {ctx.attempt} fails")
    return len(words)


@task(name="twice_here", queue="debug")
def twice(number: int) -> int | Snooze:
    return 2 * number


class Debug:
    """`jobledger jobs debug` in an environment, and an app, of the test's own."""

    def __init__(self, server: EmbeddedServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._server, self._folder, self._capsys = server, folder, capsys
        self.environment = f"t_{secrets.token_hex(6)}"
        self.app = f"app_{secrets.token_hex(4)}"

    @property
    def file(self) -> Path:
        return self._folder / f"{self.app}.py"

    def write_app(self, body: str = "pass") -> None:
        """Write the code that is to run here, which may differ from what ran."""
        text = APP.format(body=body).replace("@task(", '@task(name="count_here", ', 1)
        text = text.replace('@task(queue="debug", run_in', '@task(name="twice_here", queue="debug", run_in')
        self.file.write_text(text)

    def __call__(self, job_id: str, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        where = ["--url", self._server.url, "--environment", self.environment]
        projection = ["--projection", str(self._folder / "projection.db")]
        code = run(["jobs", "debug", job_id, "--app", self.app, *words, *where, *projection])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def with_ledger(self, function: Callable[[Ledger], Awaitable[T]]) -> T:
        async def call() -> T:
            async with connect(
                self._server.url, environment=self.environment, ledger_bytes_max=16 << 20, lease_s=2.0
            ) as ledger:
                return await function(ledger)

        return anyio.run(call)

    def work(self, words: str, *, fail: bool) -> str:
        """Run a job to its end and return its id."""

        async def work(ledger: Ledger) -> str:
            job = await ledger.enqueue(count, words, fail=fail)
            async with working(ledger, count, twice):
                await job.wait(timeout_s=LIMIT_S)
            return job.id

        return self.with_ledger(work)

    def enqueue(self, number: int) -> str:
        async def enqueue(ledger: Ledger) -> str:
            return (await ledger.enqueue(twice, number)).id

        return self.with_ledger(enqueue)

    def head(self) -> int:
        async def head(ledger: Ledger) -> int:
            return (await ledger.log.head()).last_sequence

        return self.with_ledger(head)


@pytest.fixture
def debug(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Debug:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Debug(nats_server, tmp_path, capsys)
    made.write_app()
    return made


def test_an_attempt_runs_again_on_its_own_input_and_checkpoint(debug: Debug) -> None:
    job_id = debug.work(
        LARGE, fail=True
    )  # fails once, with a checkpoint of 1; the input lies in the object store
    before = debug.head()
    code, out, err = debug(job_id, "--attempt", "1")
    assert code == 1
    assert "recorded  failed: ValueError: attempt 1 fails\n" in out
    assert "here      failed: ValueError: attempt 1 fails on 0\n" in out
    assert 'raise ValueError(f"attempt {ctx.attempt} fails on {begun}")' in out
    assert "attempt 1 did not complete here: the job would be waiting for its retry\n" in err
    code, out, _ = debug(job_id)  # the newest
    assert code == 0
    assert f"here      completed: {len(LARGE) + 1}\n" in out
    assert debug.head() == before


async def _everything(ledger: Ledger) -> list[Any]:
    """Return what the server holds of the environment: each stream's figures, and its consumers'."""
    root, found = ledger.names.ledger_stream.removesuffix("LEDGER"), list[Any]()
    listed = await api(ledger.inbox, "STREAM.LIST", {})
    assert listed["total"] == len(listed["streams"]), "one page"
    for info in sorted(listed["streams"], key=lambda each: str(each["config"]["name"])):
        name, state = info["config"]["name"], info["state"]
        if root not in name:
            continue
        consumers = (await api(ledger.inbox, f"CONSUMER.LIST.{name}", {}))["consumers"]
        places = sorted(
            (
                each["name"],
                each["delivered"]["consumer_seq"],
                each["ack_floor"]["stream_seq"],
                each["num_pending"],
                each["num_ack_pending"],
            )
            for each in consumers
            if each["config"].get(
                "durable_name"
            )  # the others are of whoever read a large value; the server drops them
        )
        figures = [state[each] for each in ("messages", "bytes", "first_seq", "last_seq", "last_ts")]
        found.append((name, *figures, state.get("num_deleted", 0), places))
    return found


def test_nothing_at_all_is_written(debug: Debug) -> None:
    """On a ledger where nobody else is at work: streams, buckets of payloads and leases, consumers."""
    job_id, waiting = debug.work(LARGE, fail=True), debug.enqueue(21)
    assert (
        debug(waiting, "--json")[0] == 0
    )  # finding jobs by a prefix makes the projection, not in the server
    debug.with_ledger(_leases_gone)
    before = debug.with_ledger(_everything)
    assert {"LEDGER", "PAYLOADS", "WORKERS", "TIMERS"} <= {each[0].rpartition("_")[2] for each in before}, (
        before
    )
    for words in ((job_id,), (job_id, "--attempt", "1"), (job_id[:20], "--json"), (waiting,)):
        assert debug(*words)[0] in {0, 1}
        assert debug.with_ledger(_everything) == before


async def _leases_gone(ledger: Ledger) -> None:
    """Wait until the leases of workers that ended are gone by their time to live."""
    async with asyncio.timeout(LIMIT_S):
        while await ledger.leases.all():
            await asyncio.sleep(0.1)


def test_what_would_have_been_recorded_is_told_as_json(debug: Debug) -> None:
    job_id = debug.work("four", fail=True)
    code, out, _ = debug(job_id[:18], "--attempt", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["attempt"], found["status"]) == (2, "completed")
    assert found["recorded"]["result"] == 4
    assert [event["type"] for event in found["events"]] == ["started", "completed"]
    assert found["events"][-1]["result"] == 5
    assert found["events"][-1]["by"] == "debug"


def test_a_job_that_never_ran_runs_here_and_stays_queued(debug: Debug) -> None:
    job_id = debug.enqueue(21)
    before = debug.head()
    code, out, _ = debug(job_id)  # a task for processes: here in this one
    assert code == 0
    assert "recorded  no end: it never ran, or is still running\n" in out
    assert "here      completed: 42\n" in out
    assert debug.head() == before


def test_a_task_that_ends_its_process_fails_there_and_the_command_goes_on(debug: Debug) -> None:
    job_id = debug.enqueue(21)
    debug.write_app()
    app = debug.file
    text = app.read_text()
    for end in ("import os; os._exit(7)", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"):
        app.write_text(text.replace("return 2 * number", end))
        code, out, err = debug(job_id)
        assert code == 1
        assert "here      failed: " in out
        assert "did not complete here" in err


def test_an_attempt_that_there_is_not_is_refused(debug: Debug) -> None:
    job_id = debug.work("four", fail=False)
    code, _, err = debug(job_id, "--attempt", "5")
    assert code == 2
    assert "has had 1 attempt: give --attempt 1 to 2" in err
    code, _, err = debug(job_id, "--attempt", "2")  # it has ended: there is no next one
    assert code == 4
    assert debug("no-such-job")[0] == 3


def test_the_debugger_stops_where_the_task_raised(debug: Debug, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = debug.work("four", fail=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("p (begun, words)\nq\n"))
    code, out, _ = debug(job_id, "--attempt", "1", "--pdb")
    assert code == 1
    assert "(Pdb) (0, 'four')" in out


def test_the_timeout_is_kept_without_the_debugger(debug: Debug) -> None:
    async def enqueue(ledger: Ledger) -> str:
        return (await ledger.enqueue(count.options(timeout_s=0.2), "four", fail=False)).id

    job_id = debug.with_ledger(enqueue)
    debug.write_app(body="import asyncio; await asyncio.sleep(0 if ctx.deadline is None else 30)")
    code, out, _ = debug(job_id)
    assert code == 1
    assert "failed: TimeoutError: the attempt was stopped after its timeout of 0.2" in out
    assert debug(job_id, "--pdb")[0] == 0


def test_a_task_that_swallows_cancellation_holds_nobody_up(
    debug: Debug, nats_server: EmbeddedServer, command: Callable[..., Any]
) -> None:
    async def enqueue(ledger: Ledger) -> list[str]:
        orders = (count.options(timeout_s=limit) for limit in (0.2, 60))
        return [(await ledger.enqueue(order, "four", fail=False)).id for order in orders]

    limited, long = debug.with_ledger(enqueue)
    debug.write_app(
        """import asyncio
    print("began", file=__import__("sys").stderr, flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass"""
    )
    where = [
        "--app",
        debug.app,
        "--queue",
        "debug",
        "--url",
        nats_server.url,
        "--environment",
        debug.environment,
    ]
    short = command("jobs", "debug", limited, *where)
    endless = command("jobs", "debug", long, *where)
    endless.said("began")
    assert endless.end(signal.SIGINT) == 130
    assert short.end() == 1
    assert "swallows cancellation" in short.errors


async def _take_over(ledger: Ledger) -> Any:
    job = await ledger.enqueue(twice, 4)
    chain = await transact(ledger.log, job.ref, Claim(worker="dead", lease_s=1), ledger.stamp)
    assert chain.job is not None
    over = TakeOver(worker="next", lease_s=1, lost_epoch=chain.job.claim_epoch)
    await transact(ledger.log, job.ref, over, ledger.stamp)
    assert (await load(ledger.log, job.ref)).job is not None
    return await again.fetch(ledger, await job.history())


def test_an_attempt_that_took_over_runs_again_as_such(debug: Debug) -> None:
    material = debug.with_ledger(_take_over)
    assert material.attempt == 2

    async def once_more() -> again.DebugResult:
        return await again.run(material, twice, Names(debug.environment))

    ran = anyio.run(once_more)
    assert [attempt.state for attempt in ran.job.attempts] == ["lost", "completed"]


@pytest.mark.anyio
async def test_attempts_that_were_archived_are_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    job = await world.enqueue("carried", *OLD_JOBS["retrying"])
    world.clock.at = NEW
    await world.enqueue("newer")
    await world.archive()
    chain = world.log.names.chain(JobRef(queue=job.queue, job_id=job.id))
    history = await world.log.read_chain(chain)
    assert event_type(history[0].event) == "carried"
    nobody: Any = None  # asked for large values alone
    for attempt in (None, 1):
        with pytest.raises(InvalidInputError, match=r"attempt 1 .* was archived.* --attempt 2, the next one"):
            await again.fetch(nobody, history, attempt)
    material = await again.fetch(nobody, history, 2)
    assert (material.attempt, material.recorded) == (2, ())


def test_an_attempt_before_the_first_is_none(debug: Debug) -> None:
    async def fetch(ledger: Ledger) -> None:
        job = await ledger.enqueue(twice, 4)
        await again.fetch(ledger, await job.history(), 0)

    with pytest.raises(InvalidInputError, match="has had 0 attempts: give --attempt 1 to 1"):
        debug.with_ledger(fetch)


def test_an_attempt_that_was_archived_runs_again_on_what_is_in_the_archive(
    debug: Debug, tmp_path: Path
) -> None:
    """Also where the object store has lost its large input; a job that is over is found there alone."""
    debug.write_app()
    job_id, archive = debug.work(LARGE, fail=True), tmp_path / "archive"

    async def move(ledger: Ledger) -> None:
        deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
        await Archiver(ledger.log, archive, deps).run(datetime.now(UTC))
        assert (await api(ledger.inbox, f"STREAM.PURGE.OBJ_{ledger.names.payloads_bucket}", {}))["success"]

    debug.with_ledger(move)
    code, _, err = debug(job_id)
    assert (code, "--archive DIR" in err) == (3, True), err
    for words, attempt, status in (
        (("--archive", str(archive)), 2, "completed"),
        (("--archive", str(next(archive.iterdir())), "--attempt", "1"), 1, "retry_wait"),
    ):
        code, out, err = debug(job_id, *words, "--json")
        found = json.loads(out)
        assert (found["attempt"], found["status"]) == (attempt, status), err
        assert code == (0 if status == "completed" else 1)
    shutil.rmtree(next(archive.iterdir()) / "payloads")
    code, _, err = debug(job_id, "--archive", str(archive))
    assert (code, "is not in" in err) == (1, True), err
