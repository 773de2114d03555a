"""`jobs fork`: an attempt runs again here on what it ran on, comes to its own end, and the ledger stays as it was."""

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
from jobledger.workers import fork as forks

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

T = TypeVar("T")
LARGE = "x" * 100_000

APP = """
from jobledger.ledger import Context, task

@task(queue="fork")
async def count(ctx: Context, words: str, fail: bool) -> int:
    begun = ctx.checkpoint_value or 0
    {body}
    if fail and ctx.attempt < 2:
        raise ValueError(f"attempt {{ctx.attempt}} fails on {{begun}}")
    return len(words) + begun

@task(queue="fork", run_in="process", timeout_s=20)
def twice(number: int) -> int:
    return 2 * number
"""


@task(name="count_here", queue="fork", max_attempts=3, backoff=Backoff(base_s=0.05))
async def count(ctx: Context, words: str, *, fail: bool) -> int:
    await ctx.checkpoint((ctx.checkpoint_value or 0) + 1)
    if fail and ctx.attempt < 2:
        raise ValueError(f"attempt {ctx.attempt} fails")
    return len(words)


@task(name="twice_here", queue="fork")
def twice(number: int) -> int | Snooze:
    return 2 * number


class Fork:
    """`jobledger jobs fork` in an environment, and an app, of the test's own."""

    def __init__(self, server: EmbeddedServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._server, self._folder, self._capsys = server, folder, capsys
        self.environment = f"t_{secrets.token_hex(6)}"
        self.app = f"app_{secrets.token_hex(4)}"

    def write_app(self, body: str = "pass") -> None:
        """Write the code that is to run here, which may differ from what ran."""
        text = APP.format(body=body).replace("@task(", '@task(name="count_here", ', 1)
        text = text.replace('@task(queue="fork", run_in', '@task(name="twice_here", queue="fork", run_in')
        (self._folder / f"{self.app}.py").write_text(text)

    def __call__(self, job_id: str, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        where = ["--url", self._server.url, "--environment", self.environment]
        projection = ["--projection", str(self._folder / "projection.db")]
        code = run(["jobs", "fork", job_id, "--app", self.app, *words, *where, *projection])
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
def fork(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Fork:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Fork(nats_server, tmp_path, capsys)
    made.write_app()
    return made


def test_an_attempt_runs_again_on_its_own_input_and_checkpoint(fork: Fork) -> None:
    job_id = fork.work(
        LARGE, fail=True
    )  # fails once, with a checkpoint of 1; the input lies in the object store
    before = fork.head()
    code, out, err = fork(job_id, "--attempt", "1")
    assert code == 1
    assert "recorded  failed: ValueError: attempt 1 fails\n" in out
    assert "here      failed: ValueError: attempt 1 fails on 0\n" in out
    assert 'raise ValueError(f"attempt {ctx.attempt} fails on {begun}")' in out
    assert "attempt 1 did not complete here: the job would be waiting for its retry\n" in err
    code, out, _ = fork(job_id)  # the newest
    assert code == 0
    assert f"here      completed: {len(LARGE) + 1}\n" in out
    assert fork.head() == before


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


def test_nothing_at_all_is_written(fork: Fork) -> None:
    """On a ledger where nobody else is at work: streams, buckets of payloads and leases, consumers."""
    job_id, waiting = fork.work(LARGE, fail=True), fork.enqueue(21)
    assert fork(waiting, "--json")[0] == 0  # finding jobs by a prefix makes the projection, not in the server
    fork.with_ledger(_leases_gone)
    before = fork.with_ledger(_everything)
    assert {"LEDGER", "PAYLOADS", "WORKERS", "TIMERS"} <= {each[0].rpartition("_")[2] for each in before}, (
        before
    )
    for words in ((job_id,), (job_id, "--attempt", "1"), (job_id[:20], "--json"), (waiting,)):
        assert fork(*words)[0] in {0, 1}
        assert fork.with_ledger(_everything) == before


async def _leases_gone(ledger: Ledger) -> None:
    """Wait until the leases of workers that ended are gone by their time to live."""
    async with asyncio.timeout(LIMIT_S):
        while await ledger.leases.all():
            await asyncio.sleep(0.1)


def test_what_would_have_been_recorded_is_told_as_json(fork: Fork) -> None:
    job_id = fork.work("four", fail=True)
    code, out, _ = fork(job_id[:18], "--attempt", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["attempt"], found["status"]) == (2, "completed")
    assert found["recorded"]["result"] == 4
    assert [event["type"] for event in found["events"]] == ["started", "completed"]
    assert found["events"][-1]["result"] == 5
    assert found["events"][-1]["by"] == "fork"


def test_a_job_that_never_ran_runs_here_and_stays_queued(fork: Fork) -> None:
    job_id = fork.enqueue(21)
    before = fork.head()
    code, out, _ = fork(job_id)  # a task for processes: here in this one
    assert code == 0
    assert "recorded  no end: it never ran, or runs still\n" in out
    assert "here      completed: 42\n" in out
    assert fork.head() == before


def test_an_attempt_that_there_is_not_is_refused(fork: Fork) -> None:
    job_id = fork.work("four", fail=False)
    code, _, err = fork(job_id, "--attempt", "5")
    assert code == 2
    assert "has had 1 attempt: give --attempt 1 to 2" in err
    code, _, err = fork(job_id, "--attempt", "2")  # it has ended: there is no next one
    assert code == 4
    assert fork("no-such-job")[0] == 3


def test_the_debugger_stops_where_the_task_raised(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = fork.work("four", fail=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("p (begun, words)\nq\n"))
    code, out, _ = fork(job_id, "--attempt", "1", "--pdb")
    assert code == 1
    assert "(Pdb) (0, 'four')" in out


def test_the_timeout_is_kept_without_the_debugger(fork: Fork) -> None:
    async def enqueue(ledger: Ledger) -> str:
        return (await ledger.enqueue(count.options(timeout_s=0.2), "four", fail=False)).id

    job_id = fork.with_ledger(enqueue)
    fork.write_app(body="import asyncio; await asyncio.sleep(0 if ctx.deadline is None else 30)")
    code, out, _ = fork(job_id)
    assert code == 1
    assert "failed: TimeoutError: the attempt was stopped after its timeout of 0.2" in out
    assert fork(job_id, "--pdb")[0] == 0


def test_a_task_that_swallows_cancellation_holds_nobody_up(
    fork: Fork, nats_server: EmbeddedServer, command: Callable[..., Any]
) -> None:
    async def enqueue(ledger: Ledger) -> list[str]:
        orders = (count.options(timeout_s=limit) for limit in (0.2, 60))
        return [(await ledger.enqueue(order, "four", fail=False)).id for order in orders]

    limited, long = fork.with_ledger(enqueue)
    fork.write_app(
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
        fork.app,
        "--queue",
        "fork",
        "--url",
        nats_server.url,
        "--environment",
        fork.environment,
    ]
    short = command("jobs", "fork", limited, *where)
    endless = command("jobs", "fork", long, *where)
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
    return await forks.fetch(ledger, await job.history())


def test_an_attempt_that_took_over_runs_again_as_such(fork: Fork) -> None:
    material = fork.with_ledger(_take_over)
    assert material.attempt == 2

    async def again() -> forks.Ran:
        return await forks.run(material, twice, Names(fork.environment))

    ran = anyio.run(again)
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
            await forks.fetch(nobody, history, attempt)
    material = await forks.fetch(nobody, history, 2)
    assert (material.attempt, material.recorded) == (2, ())


def test_an_attempt_before_the_first_is_none(fork: Fork) -> None:
    async def fetch(ledger: Ledger) -> None:
        job = await ledger.enqueue(twice, 4)
        await forks.fetch(ledger, await job.history(), 0)

    with pytest.raises(InvalidInputError, match="has had 0 attempts: give --attempt 1 to 1"):
        fork.with_ledger(fetch)


def test_an_attempt_that_was_archived_runs_again_on_what_is_in_the_archive(
    fork: Fork, tmp_path: Path
) -> None:
    """Also where the object store has lost its large input; a job that is over is found there alone."""
    fork.write_app()
    job_id, archive = fork.work(LARGE, fail=True), tmp_path / "archive"

    async def move(ledger: Ledger) -> None:
        deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
        await Archiver(ledger.log, archive, deps).run(datetime.now(UTC))
        assert (await api(ledger.inbox, f"STREAM.PURGE.OBJ_{ledger.names.payloads_bucket}", {}))["success"]

    fork.with_ledger(move)
    code, _, err = fork(job_id)
    assert (code, "--archive DIR" in err) == (3, True), err
    for words, attempt, status in (
        (("--archive", str(archive)), 2, "completed"),
        (("--archive", str(next(archive.iterdir())), "--attempt", "1"), 1, "retry_wait"),
    ):
        code, out, err = fork(job_id, *words, "--json")
        found = json.loads(out)
        assert (found["attempt"], found["status"]) == (attempt, status), err
        assert code == (0 if status == "completed" else 1)
    shutil.rmtree(next(archive.iterdir()) / "payloads")
    code, _, err = fork(job_id, "--archive", str(archive))
    assert (code, "is not in" in err) == (1, True), err
