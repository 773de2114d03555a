"""`jobledger reactors` beside workers that host none: retries, delays, limits, schedules and runs go on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.conftest import Process
from tests.support.command_line import CommandLine

APP = """
from jobledger.ledger import Backoff, Context, Limit, Run, task, workflow

@task(queue="mail", backoff=Backoff(base_s=0.1, jitter=0.0))
async def again(ctx: Context, n: int) -> int:
    if ctx.attempt == 1:
        raise ValueError(n)
    return n

@task(queue="mail", limits=(Limit("api", slots=1),))
async def limited(n: int) -> int:
    return n

@workflow(queue="mail")
async def adds(run: Run, n: int) -> int:
    got = await run.map(again, range(n))
    await run.sleep(0.1)
    return sum(got)
"""

Command = Callable[..., Process]


@pytest.fixture
def app(tmp_path: Path) -> str:
    path = tmp_path / "tasks.py"
    path.write_text(APP, encoding="utf-8")
    return str(path)


def test_a_worker_without_reactors_and_the_reactors_beside_it_run_everything(
    cli: CommandLine, command: Command, app: str
) -> None:
    worker = command("worker", "--app", app, "--no-reactors", "--json", *cli.where)
    assert worker.line()["queues"] == ["mail"]
    reactors = command("reactors", "--json", *cli.where)
    assert reactors.line()["queues"] == ["jobledger"]
    for words in (("again", "n=1"), ("limited", "n=1"), ("adds", "n=3"), ("again", "n=2", "--delay", "1s")):
        found = cli.run("enqueue", *words, "--app", app, "--wait", *cli.where)
        assert found.code == 0, found
    listed = {row["queues"][0]: row for row in cli.run("workers", "list", "--json", *cli.where).lines}
    assert {queue: row["reactors"] for queue, row in listed.items()} == {"mail": False, "jobledger": True}
    healthy = cli.run("health", "--role", "worker", "--queue", "jobledger", *cli.where)
    assert healthy.code == 0
    assert worker.end(signal.SIGTERM) == 0
    assert cli.run("health", "--role", "worker", *cli.where).code == 1, (
        "reactors are no worker of the application"
    )
    assert reactors.end(signal.SIGTERM) == 0
    assert cli.run("audit", "verify", *cli.where).code == 0


def test_without_reactors_a_retry_waits_and_doctor_says_what_is_missing(
    cli: CommandLine, command: Command, app: str
) -> None:
    worker = command("worker", "--app", app, "--no-reactors", "--json", *cli.where)
    worker.line()
    found = cli.run("enqueue", "again", "n=1", "--app", app, "--wait", "--wait-timeout", "2s", *cli.where)
    assert found.code != 0
    checks = cli.run("doctor", "--json", *cli.where).lines[0]["checks"]
    (workers,) = [each for each in checks if each["check"] == "workers"]
    assert (workers["status"], "none of them hosts the reactors" in workers["found"]) == ("warn", True)
