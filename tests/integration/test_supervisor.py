"""Supervised workers, as real processes: replaced when dead, stopped in good order, never two for one job."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.processes import LIMIT_S, exists, lines, until
from tests.support.terminal import terminal, unstyled
from tests.support.working import attempts, types

from jobledger.cli.main import run
from jobledger.ledger import Ledger, Task, TaskRegistry, connect
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.nats.durables import consumer_config, ensure_consumer
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

WORK = Path(__file__).with_name("apps") / "work.py"
#: Of the consumers here: long against the worker's sign of life every 3.3 s, short against a lease of 15 s.
ACK_WAIT_S = 4.0
Command = Callable[..., Any]  # of a `Process`, see conftest.py
Tasks = dict[str, Task[..., Any]]


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return {each.name: each for each in TaskRegistry.load([str(WORK)])}


@pytest.fixture
def lease_s() -> float:
    """Short, so that a renewal comes soon; overridden where waiting for its end is what is tested."""
    return 3.0


@pytest.fixture
async def ledger(nats_server: EmbeddedServer, lease_s: float) -> AsyncIterator[Ledger]:
    async with connect(
        nats_server.url, environment=f"t_{secrets.token_hex(6)}", ledger_bytes_max=16 << 20, lease_s=lease_s
    ) as made:
        yield made


@pytest.fixture
def start(command: Command, ledger: Ledger) -> Command:
    """Start `jobledger worker` for the tasks of work.py on this test's ledger."""
    there = ("--url", ledger.config.url, "--environment", ledger.config.environment)

    def begin(*words: str, app: str = str(WORK), **options: Any) -> Any:
        return command("worker", "--app", app, *there, "--json", *words, **options)

    return begin


async def told(process: Any, limit_s: float = LIMIT_S) -> dict[str, Any]:
    line: dict[str, Any] = await anyio.to_thread.run_sync(process.line, limit_s)
    return line


async def workers_of(process: Any, count: int) -> list[int]:
    """Read the supervisor's own line, then those of its workers; return their process ids."""
    assert (await told(process))["processes"] == count
    return [(await told(process))["pid"] for _ in range(count)]


def words_of(pid: int, kind: str = "cmdline") -> list[str]:
    """Return the command line of a process, or its variables (`environ`)."""
    return Path(f"/proc/{pid}/{kind}").read_text(encoding="utf-8").split("\0")


async def ended(process: Any, number: signal.Signals | None = None, limit_s: float = LIMIT_S) -> int:
    code: int = await anyio.to_thread.run_sync(process.end, number, limit_s)
    return code


def began(trace: Path) -> int:
    """How many runs have begun; some may have ended by now."""
    return sum(word == "start" for word, *_ in lines(trace))


# Death and succession.


async def test_a_dead_process_is_replaced_within_two_seconds_again_and_again(start: Command) -> None:
    """Two seconds, or twice as long as the first two took to start, if the machine is that busy; the best of two."""
    begun_at = time.monotonic()
    supervisor = start("--processes", "2", "--no-schedules")
    await told(supervisor)
    victim, other = (await told(supervisor))["pid"], (await told(supervisor))["pid"]
    for process in (victim, other):  # a supervisor's workers are told what it was told
        assert "--no-schedules" in words_of(process)
    limit_s = max(2.0, 2 * (time.monotonic() - begun_at))
    took: list[float] = []
    for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):  # the last one ends in good order
        os.kill(victim, number)
        killed_at = time.monotonic()
        victim = (await told(supervisor))["pid"]
        took.append(time.monotonic() - killed_at)
    assert min(took[:2]) <= limit_s, (took, limit_s)
    assert exists(other)
    assert await ended(supervisor, signal.SIGTERM) == 0
    assert "was killed by SIGKILL: another starts in 0.1 s" in supervisor.errors
    assert "ended with code 0: another starts in 0.4 s" in supervisor.errors


@pytest.mark.parametrize("lease_s", [2 * LIMIT_S])  # whatever comes before was not brought by its end
async def test_jobs_of_a_dead_process_go_on_without_waiting_for_its_lease(
    start: Command, ledger: Ledger, tasks: Tasks, tmp_path: Path
) -> None:
    for priority in PRIORITIES:
        await ensure_consumer(
            ledger.inbox,
            ledger.names.ledger_stream,
            ledger.names.consumer("default", priority),
            consumer_config(
                ledger.names.dispatches("default", priority),
                ack_wait_s=ACK_WAIT_S,
                ack_pending_max=1000,
            ),
        )
    supervisor = start("--processes", "2")
    await workers_of(supervisor, 2)
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    jobs = [await ledger.enqueue(tasks["until_there"], str(trace), str(gate)) for _ in range(6)]
    await until(lambda: len(lines(trace)) == 6)
    victim = int(lines(trace)[0][3])
    lost = {job for _, job, _, pid in lines(trace) if int(pid) == victim}
    lease = next(info.worker for info in await ledger.leases.all() if info.pid == victim)
    os.kill(victim, signal.SIGKILL)
    await until(lambda: len(lines(trace)) == 6 + len(lost))
    assert await ledger.leases.find(lease) is None
    gate.touch()
    assert {await job.result(timeout_s=LIMIT_S) for job in jobs} <= {"attempt 1", "attempt 2"}
    for job in jobs:
        assert await attempts(job) == (["lost", "completed"] if job.id in lost else ["completed"])
    ends = Counter(job for word, job, *_ in lines(trace) if word == "end")
    assert ends == {job.id: 1 for job in jobs}
    assert await ended(supervisor, signal.SIGTERM) == 0
    assert f"worker {lease} is gone: its lease is ended" in supervisor.errors


# The end of all.


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="alone", marks=pytest.mark.fault),
        pytest.param(("--processes", "2"), id="supervised"),
    ],
)
async def test_a_term_signal_with_fifty_running_loses_nothing_and_doubles_nothing(
    start: Command, ledger: Ledger, tasks: Tasks, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Row 5 of the scoreboard: lost 0, duplicates 0, exit within the grace."""
    grace_s = 2 * LIMIT_S
    trace = tmp_path / "trace"
    worker = start("--grace", str(grace_s), *options)
    if options:
        await workers_of(worker, 2)
    else:
        await told(worker)
    jobs = [await ledger.enqueue(tasks["nap"], str(trace), 1.0 + number / 25) for number in range(50)]
    await until(lambda: began(trace) == 50)
    # All end in the grace, or would be given back; and nobody waits for the rest of it.
    assert await ended(worker, signal.SIGTERM) == 0
    for job in jobs:
        assert await types(job) == ["queued", "started", "completed"]
    assert Counter(job for word, job, *_ in lines(trace) if word == "end") == {job.id: 1 for job in jobs}


@pytest.mark.parametrize(
    "twice",
    [pytest.param(False, id="grace over", marks=pytest.mark.fault), pytest.param(True, id="second signal")],
)
async def test_what_does_not_end_in_time_is_given_back_with_its_attempt(
    start: Command, ledger: Ledger, tasks: Tasks, tmp_path: Path, *, twice: bool
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    worker = start("--grace", "600" if twice else "1", "--processes", "2")
    await workers_of(worker, 2)
    task = tasks["until_there"].options(max_attempts=1)
    jobs = [await ledger.enqueue(task, str(trace), str(gate)) for _ in range(50)]
    await until(lambda: len(lines(trace)) == 50)
    worker.child.send_signal(signal.SIGTERM)
    if twice:
        await anyio.to_thread.run_sync(worker.said, "a second signal stops at once")
        await anyio.sleep(0.5)
        assert worker.child.poll() is None
        worker.child.send_signal(signal.SIGTERM)
    assert await ended(worker) == 0
    for job in jobs:
        assert await types(job) == ["queued", "started", "interrupted", "queued"]
    gate.touch()
    other = start()
    await told(other)
    assert {await job.result(timeout_s=LIMIT_S) for job in jobs} == {"attempt 2"}
    assert Counter(job for word, job, *_ in lines(trace) if word == "end") == {job.id: 1 for job in jobs}
    assert await ended(other, signal.SIGTERM) == 0


async def test_a_signal_to_every_process_of_the_service_is_one_stop(
    start: Command, ledger: Ledger, tasks: Tasks, tmp_path: Path
) -> None:
    """As systemd stops a unit: supervisor and workers get SIGTERM, and the supervisor passes its own on."""
    trace = tmp_path / "trace"
    supervisor = start("--processes", "2", "--grace", str(LIMIT_S))
    pids = await workers_of(supervisor, 2)
    jobs = [await ledger.enqueue(tasks["nap"], str(trace), 1.5) for _ in range(4)]
    await until(lambda: began(trace) == 4)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    assert await ended(supervisor, signal.SIGTERM) == 0
    for job in jobs:
        assert await types(job) == ["queued", "started", "completed"]


async def test_workers_of_a_killed_supervisor_stop_in_good_order(
    start: Command, ledger: Ledger, tasks: Tasks, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    supervisor = start("--processes", "2")
    pids = await workers_of(supervisor, 2)
    jobs = [await ledger.enqueue(tasks["nap"], str(trace), 1.0) for _ in range(4)]
    await until(lambda: began(trace) == 4)
    supervisor.child.kill()
    await until(lambda: not any(map(exists, pids)))
    for job in jobs:
        assert await types(job) == ["queued", "started", "completed"]
    assert all(info.stopped for info in await ledger.leases.all() if info.pid in pids)


# Starts that fail, or are no longer wanted.


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "supervised"])
async def test_a_signal_before_there_is_anything_to_stop_ends_it_in_good_order(
    command: Command, options: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        worker = command("worker", "--app", str(WORK), "--url", url, *options)
        asking, _ = await anyio.to_thread.run_sync(silent.accept)
        with asking:  # it waits for a greeting that does not come
            assert await ended(worker, signal.SIGTERM) == 0
    assert worker.errors == ""


async def test_a_module_that_cannot_be_imported_ends_everything_with_its_words_once(
    start: Command, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('no good')", encoding="utf-8")
    supervisor = start("--processes", "3", app="broken")
    assert await ended(supervisor) == 2
    assert supervisor.errors.count("ValueError: no good") == 1


def test_no_server_and_no_module_are_told_before_any_process_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("APP", "URL", "PROCESSES"):
        monkeypatch.delenv(f"JOBLEDGER_{name}", raising=False)
    nowhere = ("--url", "nats://127.0.0.1:9", "--wait-for-server", "0")
    assert run(["worker", "--app", "x", "--processes", "2", *nowhere]) == 5
    assert "no server answers" in capsys.readouterr().err
    assert run(["worker", "--processes", "2"]) == 2
    assert "name their module with --app" in capsys.readouterr().err
    assert run(["worker", "--app", "x", "--processes", "0"]) == 2
    assert run(["worker", "--app", "x", "--supervised", "me:0"]) == 2
    assert "only a supervisor can give one" in capsys.readouterr().err


# The environment.


async def test_one_image_serves_many_roles_by_its_environment(command: Command, ledger: Ledger) -> None:
    variables = {
        "JOBLEDGER_APP": str(WORK),
        "JOBLEDGER_URL": ledger.config.url,
        "JOBLEDGER_ENVIRONMENT": ledger.config.environment,
        "JOBLEDGER_QUEUES": "email=3,reports=1",
        "JOBLEDGER_CONCURRENCY": "7",
        "JOBLEDGER_PROCESSES": "2",
        "JOBLEDGER_GRACE_S": "1.5",
    }
    supervisor = command("worker", "--json", "--grace", "2.5", variables=variables)
    pids = await workers_of(supervisor, 2)
    assert "JOBLEDGER_GRACE_S=2.5" in words_of(pids[0], "environ")  # what is on the command line wins
    assert ledger.config.url not in words_of(pids[0])  # it may hold a password
    listed = await ledger.leases.all()
    assert {each.concurrency for each in listed} == {7}
    assert {each.pid for each in listed} == set(pids)
    assert len({each.supervisor for each in listed}) == 1
    assert all(each.queues == ("email", "reports") for each in listed)
    where = ("--url", ledger.config.url, "--environment", ledger.config.environment)
    table = command("workers", "list", *where, variables=terminal())
    shown = unstyled("".join(table.rest()))
    assert table.end() == 0
    assert all(len(line) <= 80 for line in shown)
    assert sum(str(supervisor.child.pid) in line for line in shown) == 2
    assert await ended(supervisor, signal.SIGTERM) == 0


async def test_running_jobs_are_listed_by_id(
    start: Command, ledger: Ledger, tasks: Tasks, tmp_path: Path
) -> None:
    worker = start()
    await told(worker)
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    jobs = [await ledger.enqueue(tasks["until_there"], str(trace), str(gate)) for _ in range(3)]
    with anyio.fail_after(LIMIT_S):  # told with the next renewal
        while not (found := [info for info in await ledger.leases.all() if info.running == 3]):
            await anyio.sleep(0.1)
    assert set(found[0].jobs) == {job.id for job in jobs}
    gate.touch()
    assert await ended(worker, signal.SIGTERM) == 0


# The server.


async def test_a_server_restart_in_mid_work_needs_no_restart_of_the_workers(
    command: Command, server_factory: Callable[..., EmbeddedServer], tasks: Tasks, tmp_path: Path
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    server = server_factory()
    await server.start()
    async with connect(server.url) as ledger:
        words = ("--app", str(WORK), "--url", server.url, "--processes", "2", "--json")
        supervisor = command("worker", *words)
        pids = await workers_of(supervisor, 2)
        jobs = [await ledger.enqueue(tasks["until_there"], str(trace), str(gate)) for _ in range(10)]
        await until(lambda: len(lines(trace)) == 10)
        for kill in (False, True):
            if kill:
                assert server.pid is not None
                os.kill(server.pid, signal.SIGKILL)
                await server.wait()
            await server.stop()
            gate.touch()  # they end while there is no server, and keep their outcomes for it
            await until(lambda: sum(word == "end" for word, *_ in lines(trace)) >= 10)
            await server.start()
            more = [await ledger.enqueue(tasks["quick"], str(trace), number) for number in range(20)]
            assert [await job.result(timeout_s=LIMIT_S) for job in more] == list(range(20))
        for job in jobs:
            await job.result(timeout_s=LIMIT_S)
            assert (await attempts(job))[-1] == "completed"
        assert {int(pid) for *_, pid in lines(trace)} <= set(pids)
        assert await ended(supervisor, signal.SIGTERM) == 0
    assert "another starts" not in supervisor.errors


# Reload.

MODULE = """
from jobledger.ledger import task

@task
async def version() -> int:
    return {number}
"""


async def test_a_changed_file_starts_the_worker_anew_and_a_broken_one_is_waited_for(
    start: Command, ledger: Ledger, tmp_path: Path
) -> None:
    module = tmp_path / "shown.py"
    module.write_text(MODULE.format(number=1), encoding="utf-8")
    (tmp_path / "client.py").write_text(MODULE.format(number=0), encoding="utf-8")
    task = TaskRegistry.load([str(tmp_path / "client.py")]).get("version")
    worker = start("--reload", app="shown")
    (first,) = await workers_of(worker, 1)
    assert await (await ledger.enqueue(task)).result(timeout_s=LIMIT_S) == 1
    module.write_text("def broken(:\n", encoding="utf-8")
    await anyio.to_thread.run_sync(worker.said, "shown.py changed: restarting")
    await anyio.to_thread.run_sync(worker.said, "SyntaxError")
    await anyio.to_thread.run_sync(worker.said, "waiting for a change")
    assert not exists(first)
    module.write_text(MODULE.format(number=22), encoding="utf-8")
    second = (await told(worker))["pid"]
    assert second != first
    assert await (await ledger.enqueue(task)).result(timeout_s=LIMIT_S) == 22
    assert await ended(worker, signal.SIGTERM) == 0
