"""Commands that stay: server, worker, up, projection run, demo, as real processes that get real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateways import as_account
from tests.support.limits import LIMIT_S
from tests.support.soundness import RowEnd
from tests.support.terminal import terminal, unstyled

from jobledger.cli.errors import INTERRUPTED
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(str(ROOT / portion) for portion in ("ledger", "projections", "workers", "cli"))
TASKS = """
import asyncio
import threading
from jobledger.ledger import task

@task(queue="math")
async def add(a: int, b: int = 1) -> int:
    return a + b

@task(queue="math", max_attempts=2)
def fail(why: str) -> None:
    raise ValueError(why)

@task(queue="math")
async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)

@task(queue="stuck")
def never_returns() -> None:
    threading.Event().wait()

@task(queue="stubborn")
async def swallows() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""

#: A worker that waits less long for what cannot be stopped.
IMPATIENT = """
import tasks_of_processes
from jobledger.workers import worker

never_returns, swallows = tasks_of_processes.never_returns, tasks_of_processes.swallows
assert worker._FAREWELL_S > 1
worker._FAREWELL_S = 1
"""


Start = Callable[..., Any]  # of a `Process`, see conftest.py


@pytest.fixture
def start(tmp_path: Path, command: Start) -> Start:
    (tmp_path / "tasks_of_processes.py").write_text(TASKS, encoding="utf-8")
    return command


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_waiting_begins_with_a_sentence_on_a_terminal_and_a_worker_names_a_queue_without_tasks(
    start: Start, nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ("--url", nats_server.url, "--environment", "said", "--app", "tasks_of_processes")
    worker = start("worker", "--queue", "math,mtah", *there)
    worker.said("no task has queue")
    assert (
        "queue mtah, so only jobs that are enqueued with --queue will come: did you mean math?"
        in worker.errors
    )
    for name, value in terminal().items():
        monkeypatch.setenv(name, value)
    waiting = start("enqueue", "add", "a=2", "b=3", "--id", "said-1", "--wait", *there)
    first, *_, last = unstyled("".join(waiting.rest()))
    assert first.startswith("job said-1 was added; its events follow until it ends")
    assert last == "result: 5"


@pytest.mark.parametrize("asked", [(), ("--access-log",)])
def test_up_logs_the_start_of_each_process_and_requests_only_where_asked(
    start: Start, asked: tuple[str, ...]
) -> None:
    up = start(
        *("up", "--app", "tasks_of_processes", "--port", "0", "--gateway-port", "0", "--json"),
        *("--durability", "process", *asked),
        variables={"JOBLEDGER_NO_GATEWAY": "0"},
    )
    ready = up.line()
    for _ in range(2):
        with urllib.request.urlopen(f"{ready['gateway']}/healthz", timeout=LIMIT_S) as answer:
            assert answer.status == 200
    up.said("takes webhooks-out")  # by the gateway's own worker, which starts last
    assert up.end(signal.SIGTERM) == 0
    said = [line for line in up.errors.splitlines() if " INFO " in line]
    starts = [line for line in said if " GET " not in line]
    assert [sum(word in line for line in starts) for word in (" takes ", " answers at ")] == [2, 1], said
    assert len(starts) == 3, said
    assert len(said) - len(starts) == (2 if asked else 0), said


def test_up_does_real_work_and_stops_in_order(start: Start) -> None:
    up = start("up", "--app", "tasks_of_processes", "--port", "0", "--durability", "process", "--json")
    ready = up.line()
    there = ("--url", ready["url"], "--app", "tasks_of_processes")
    done = start("enqueue", "add", "a=2", "b=3", "--wait", "--json", *there)
    assert done.line()["created"] is True
    events = [json.loads(line)["type"] for line in done.rest()]
    assert (events, done.end()) == (["queued", "started", "completed"], 0)
    failed = start("enqueue", "fail", "why=no [b]luck[/b]", "--id", "f", "--wait", *there)
    shown = "".join(failed.rest())
    assert "dead lettered" in shown
    assert "ValueError: no [b]luck[/b]" in shown
    assert failed.end() == 1
    assert "ended as dead lettered" in failed.errors
    job = start("jobs", "show", "f", "--json", "--url", ready["url"]).line()
    assert (job["status"], [each["status"] for each in job["attempts"]]) == (
        "dead_lettered",
        ["failed", "failed"],
    )
    assert "why" in job["attempts"][0]["error"]["traceback"]
    assert up.end(signal.SIGTERM) == 0
    assert _gone(ready["pid"])


def test_up_shows_the_metrics_of_the_ledger_and_of_its_worker_on_one_page(
    start: Start, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    up = start(
        *("up", "--app", "tasks_of_processes", "--port", "0", "--durability", "process", "--json"),
        *("--metrics-port", "0", "--metrics-token-file", str(token)),
    )
    ready = up.line()
    there = ("--url", ready["url"], "--app", "tasks_of_processes")
    assert start("enqueue", "add", "a=2", "b=3", "--wait", "--json", *there).end() == 0
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(ready["metrics"], timeout=LIMIT_S)
    known = urllib.request.Request(ready["metrics"], headers={"Authorization": "Bearer 0123456789abcdef"})
    deadline = time.monotonic() + LIMIT_S
    page = ""
    while "jobledger_jobs_completed_total{" not in page or "jobledger_up 1.0" not in page:
        assert time.monotonic() < deadline, page
        page = urllib.request.urlopen(known, timeout=LIMIT_S).read().decode()
    assert page.count("# TYPE jobledger_worker_build_info") == 1
    assert up.end(signal.SIGTERM) == 0
    open_to_all = start("up", "--port", "0", "--metrics-port", "0", "--metrics-host", "0.0.0.0")
    assert open_to_all.end() == 2
    assert "give a token file too" in open_to_all.errors


def test_up_ends_with_a_sentence_when_its_server_dies(start: Start) -> None:
    up = start("up", "--app", "tasks_of_processes", "--port", "0", "--json")
    os.kill(up.line()["pid"], signal.SIGKILL)
    assert up.end() == 5
    error = json.loads(up.errors.splitlines()[-1])["error"]
    assert "killed by signal 9" in error["message"]
    assert "Traceback" not in up.errors


@pytest.mark.timeout(60)  # seven starts of the program, one after the other
def test_the_server_keeps_its_store_and_refuses_a_second_owner(start: Start) -> None:
    first = start("server", "--dir", "store", "--port", "0", "--json")
    ready = first.line()
    assert (
        start(
            "enqueue", "add", "a=1", "--id", "kept", "--app", "tasks_of_processes", "--url", ready["url"]
        ).end()
        == 0
    )
    second = start("server", "--dir", "store", "--port", "0")
    assert second.end() == 4
    assert "another embedded nats-server" in second.errors
    port = ready["url"].rpartition(":")[2]
    third = start("server", "--dir", "elsewhere", "--port", port)
    assert third.end() == 4
    assert f"port {port}" in third.errors
    assert first.end(signal.SIGINT) == 0
    assert _gone(ready["pid"])
    again = start("server", "--dir", "store", "--port", "0", "--json")
    assert start("jobs", "show", "kept", "--json", "--url", again.line()["url"]).line()["id"] == "kept"


@pytest.mark.parametrize("how", ["term", "int", "eof"])
def test_a_worker_is_listed_and_stops_when_asked(start: Start, nats_server: EmbeddedServer, how: str) -> None:
    words = (
        "worker",
        "--app",
        "tasks_of_processes",
        "--queue",
        "math,other",
        "--url",
        nats_server.url,
        "--json",
    )
    worker = start(*words, "--until-eof", stdin=subprocess.PIPE)
    ready = worker.line()
    assert ready["queues"] == ["math", "other"]
    listed = [
        json.loads(line) for line in start("workers", "list", "--json", "--url", nats_server.url).rest()
    ]
    (found,) = (each for each in listed if each["worker"] == ready["worker"])
    assert (found["pid"], found["stopped"], found["supervisor"]) == (worker.child.pid, False, "")
    assert (found["queues"], found["version"]) == (["math", "other"], VERSION)
    if how == "eof":
        assert worker.child.stdin is not None
        worker.child.stdin.close()
        assert worker.end() == 0
    else:
        assert worker.end(signal.SIGTERM if how == "term" else signal.SIGINT) == 0


def test_a_second_signal_gives_running_jobs_back_at_once(start: Start, nats_server: EmbeddedServer) -> None:
    there = ("--app", "tasks_of_processes", "--url", nats_server.url)
    worker = start("worker", *there, "--json")
    worker.line()
    waiting = start("enqueue", "sleep", "seconds=60", "--id", "long", "--wait", "--json", *there)
    waiting.line()
    assert [waiting.line()["type"] for _ in range(2)] == ["queued", "started"]
    worker.child.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.child.wait(0.5)
    assert worker.end(signal.SIGTERM) == 0
    assert waiting.line()["type"] == "interrupted"


@pytest.mark.parametrize("stuck", ["never_returns", "swallows"])
def test_a_task_that_cannot_be_stopped_does_not_keep_the_worker(
    start: Start, tmp_path: Path, nats_server: EmbeddedServer, stuck: str
) -> None:
    (tmp_path / "impatient.py").write_text(IMPATIENT, encoding="utf-8")
    there = ("--app", "impatient", "--url", nats_server.url)
    worker = start("worker", *there, "--queue", stuck, "--grace", "0.2", "--json")
    worker.line()
    waiting = start("enqueue", stuck, "--queue", stuck, "--wait", "--json", *there)
    waiting.line()
    assert [waiting.line()["type"] for _ in range(2)] == ["queued", "started"]
    assert worker.end(signal.SIGTERM) == 0
    assert waiting.line()["type"] == "interrupted"


def test_an_error_ends_a_command_also_while_a_task_swallows_its_cancellation(tmp_path: Path) -> None:
    program = """if True:
        import asyncio
        import tasks_of_processes
        from jobledger.cli.session import run
        from jobledger.ledger.model.errors import UnreachableError

        async def fails():
            stubborn = asyncio.create_task(tasks_of_processes.swallows())
            await asyncio.sleep(0)
            raise UnreachableError("the server is gone")

        run(fails)
    """
    (tmp_path / "tasks_of_processes.py").write_text(TASKS, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (5, "jobledger: the server is gone\n")


def test_up_does_not_take_another_server_than_the_one_it_is_told_to_start(
    start: Start, tmp_path: Path
) -> None:
    there = {"JOBLEDGER_URL": "nats://user:secret@127.0.0.1:1"}
    up = start("up", "--dir", "d2", "--port", "0", variables=there)
    assert up.end() == 2
    assert "leave one of them out" in up.errors
    assert "secret" not in up.errors
    assert not (tmp_path / "d2").exists()


def test_waiting_ends_at_its_limit_and_the_job_goes_on(start: Start, nats_server: EmbeddedServer) -> None:
    there = ("--app", "tasks_of_processes", "--url", nats_server.url)
    waiting = start("enqueue", "add", "a=1", "--queue", "nobody", "--wait-timeout", "0.2", *there)
    assert waiting.end() == 1
    assert "it goes on" in waiting.errors


def test_ctrl_c_on_a_follower_is_quiet(start: Start, nats_server: EmbeddedServer) -> None:
    there = ("--app", "tasks_of_processes", "--url", nats_server.url)
    start("enqueue", "add", "a=1", "--queue", "quiet", *there).end()
    tail = start("events", "tail", "--follow", "--queue", "quiet", "--json", "--url", nats_server.url)
    assert tail.line()["queue"] == "quiet"
    start("enqueue", "add", "a=2", "--queue", "quiet", *there).end()
    assert tail.line()["input"] == {"a": 2}
    assert (tail.end(signal.SIGINT), tail.errors) == (130, "")


def test_ctrl_c_while_the_command_is_still_loading_is_quiet() -> None:
    program = """if True:
        import os, signal, sys
        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == "jobledger.cli.commands":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupt())
        from jobledger.cli.__main__ import main
        main()
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (INTERRUPTED, "", "")


def test_a_reader_that_goes_away_is_no_error(
    start: Start, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    there = ("--app", "tasks_of_processes", "--url", nats_server.url)
    for _ in range(3):
        start("enqueue", "add", "a=1", "--queue", "pipe", *there).end()
    command = [
        sys.executable,
        "-m",
        "jobledger.cli",
        "events",
        "tail",
        "--follow",
        "--queue",
        "pipe",
        "--url",
        nats_server.url,
    ]
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    start("enqueue", "add", "a=1", "--queue", "pipe", *there).end()
    assert child.stderr is not None
    assert child.stderr.read() == ""
    assert child.wait(LIMIT_S) == 0
    child.stderr.close()


def test_a_projection_follows_until_it_is_stopped(start: Start, nats_server: EmbeddedServer) -> None:
    there = ("--projection", "rows.db", "--url", nats_server.url)
    follower = start("projection", "run", "--json", *there)
    before = follower.line()["position"]
    made = start(
        "enqueue", "add", "a=1", "--queue", "rows", "--app", "tasks_of_processes", "--url", nats_server.url
    ).line()
    deadline = time.monotonic() + LIMIT_S
    while (found := start("projection", "status", "--json", *there).line())["lag_events"]:
        assert time.monotonic() < deadline
    assert found["position"] >= made["sequence"] > before
    assert follower.end(signal.SIGTERM) == 0


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_the_demo_kills_a_worker_and_loses_nothing(start: Start, row_end: RowEnd) -> None:
    demo = start("demo", "--files", "300", "--json", "--keep", "kept")
    lines = demo.rest()
    assert demo.end(limit_s=60) == 0, demo.errors
    report = json.loads(lines[-1])
    assert (report["ok"], report["faults"], report["files"]) == (True, [], 300)
    assert sum(report["states"].values()) == 300
    assert report["interrupted_jobs"]
    assert report["recovery_s"] < 20
    assert "killed worker" in demo.errors
    shown = " ".join(demo.errors.split())
    _, *words = re.findall(r"(\S+) (up --dir \S+ --app \S+ --port 0)", shown)[0][1].split()
    up = start("up", *words, "--json", variables={"JOBLEDGER_NO_GATEWAY": "0", "JOBLEDGER_GATEWAY_PORT": "0"})
    ready = up.line()
    job = f"{ready['gateway']}/v1/jobs/index/{report['interrupted_jobs'][0]}"
    assert start("demo", "--keep", "kept").end() == 2, "a server works there"
    with urllib.request.urlopen(urllib.request.Request(job, headers=as_account(ready))) as answer:
        assert len(json.load(answer)["attempts"]) > 1
    row_end.begins(ready["url"])
    anyio.run(row_end.holds)
    assert up.end(signal.SIGTERM) == 0


def test_a_folder_that_holds_something_else_is_not_what_a_demo_keeps_its_ledger_in(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    demo = start("demo", "--keep", "mine")
    assert demo.end() == 2
    assert "holds something that no demo left there" in demo.errors
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_demo_that_is_interrupted_leaves_nothing_behind(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    demo = start("demo")
    deadline = time.monotonic() + LIMIT_S
    while not list(tmp_path.glob("jobledger-demo-*/worker-2.log")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert demo.end(signal.SIGINT) == 130
    assert list(tmp_path.glob("jobledger-demo-*")) == []
    assert demo.errors == ""
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "jobledger-demo-") not in processes
