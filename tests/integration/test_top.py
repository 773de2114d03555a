"""`jobledger top`: what it shows once, as JSON, and on a terminal until it is interrupted."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.ledger import Ledger, task

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer


@task(queue="mail")
async def send(number: int) -> None: ...


@pytest.fixture
def cli(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    async def fill(ledger: Ledger) -> None:
        jobs = [await ledger.enqueue(send, number) for number in range(3)]
        async with working(ledger, send):
            for job in jobs:
                await ended(job)
        await ledger.enqueue(send.options(queue="other"), 0)
        await ledger.enqueue(send.options(queue="other", delay_s=3600), 0)

    made = CommandLine(nats_server.url, capsys)
    made.with_ledger(fill)
    return made


def test_one_look_shows_queues_with_rates(cli: CommandLine, tmp_path: Path) -> None:
    shown = cli.run("top", "--once", "--interval", "0.2", *cli.where, "--projection", str(tmp_path / "p"))
    assert shown.code == 0, shown.err
    lines = [line.split() for line in shown.out.splitlines()]
    (other,) = [line for line in lines if line[:1] == ["other"]]
    assert other[1:9] == ["1", "0", "0", "1", "0", "0", "0", "0"]
    assert "queue other: 1 job waits, and no worker serves the queue (for " in shown.out
    assert "11 events, 0 events/s, 0 jobs running" in shown.out


def test_queues_are_sorted_by_a_column(cli: CommandLine, tmp_path: Path) -> None:
    where = ("--once", "--interval", "0.2", *cli.where, "--projection", str(tmp_path / "p"))
    for words, first in (((), "mail"), (("--sort", "queued"), "other"), (("--sort", "oldest"), "other")):
        shown = cli.run("top", *words, *where)
        queues = [line.split()[0] for line in shown.out.splitlines() if line.startswith(("mail", "other"))]
        assert queues[0] == first, shown.out
    assert cli.run("top", "--sort", "colour", *where).code == 2


def test_figures_of_the_last_hour_are_shown_by_queue_and_by_task(cli: CommandLine, tmp_path: Path) -> None:
    where = [*cli.where, "--projection", str(tmp_path / "p")]
    shown = cli.run("stats", *where)
    assert shown.code == 0, shown.err
    lines = [line.split() for line in shown.out.splitlines()]
    (mail,) = [line for line in lines if line[:1] == ["mail"]]
    assert "3" in mail
    assert "100.0%" in mail
    (found,) = cli.run("stats", "--by", "task", "--queue", "mail", "--json", *where).lines
    (task,) = found["tasks"]
    assert (task["name"], task["completed"], task["success_rate"], task["wait"]["count"]) == (
        "send",
        3,
        1.0,
        3,
    )
    assert sum(each["completed"] for each in found["spans"]) == 3
    assert cli.run("stats", "--queue", "nowhere", *where).out == "nothing happened in the last 1 h\n"
    assert cli.run("stats", "--last", "5s", *where).code == 2


def test_a_program_gets_an_object_a_look(cli: CommandLine, tmp_path: Path) -> None:
    where = [*cli.where, "--projection", str(tmp_path / "p")]
    shown = cli.run("top", "--once", "--interval", "200ms", "--json", *where)
    assert shown.code == 0, shown.err
    (look,) = [json.loads(line) for line in shown.out.splitlines()]
    assert look["stream_sequence"] == 11
    assert [(queue["queue"], queue["completed"], queue["queued"]) for queue in look["queues"]] == [
        ("mail", 3, 0),
        ("other", 0, 1),
    ]
    assert look["queues"][0]["per_s"] == {"enqueued": 0.0, "completed": 0.0, "failed": 0.0}


def test_on_a_terminal_it_goes_on_until_it_is_interrupted(cli: CommandLine, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "jobledger.cli", "top", "--interval", "0.2", *cli.where]
    process = subprocess.Popen(
        [*command, "--projection", str(tmp_path / "p")], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen, until = b"", time.monotonic() + LIMIT_S
    while seen.count(b"other") < 2 and time.monotonic() < until:
        seen += os.read(ours, 65_536)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            rest = os.read(ours, 65_536)
        except OSError:
            break
        if not rest:
            break
        seen += rest
    assert process.wait(LIMIT_S) == 0, seen
    assert seen.count(b"other") >= 2
    assert b"\x1b[?1049l" in seen, "the terminal is given back as it was"
    os.close(ours)
