"""`jobledger health`: one exit code for one part of a fleet, as containers ask for it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.ledger import Ledger, task


@task(queue="mail")
async def send(number: int) -> int:
    return number


def test_a_server_is_well_where_the_ledger_answers(cli: CommandLine) -> None:
    asked = cli.run("health", *cli.where)
    assert (asked.code, asked.out.strip()) == (0, "the ledger answers: 0 events")
    (shown,) = cli.run("health", "--role", "server", "--json", *cli.where).lines
    assert shown == {"role": "server", "ok": True, "found": "the ledger answers: 0 events"}
    missing = cli.run("health", "--url", cli.url, "--environment", "nobodys")
    assert (missing.code != 0, "there is no ledger" in missing.err) == (True, True), missing
    away = cli.run("health", "--url", "nats://127.0.0.1:9")
    assert (away.code, "no server answers" in away.err) == (5, True), away


def test_a_worker_is_well_while_it_holds_a_lease_and_takes_its_queues(cli: CommandLine) -> None:
    host = socket.gethostname()
    asked = cli.run("health", "--role", "worker", *cli.where)
    assert (asked.code, asked.out.strip()) == (1, f"no worker of the host {host} is alive")

    async def look(ledger: Ledger) -> None:
        async with working(ledger, send) as worker:
            await asyncio.wait_for(worker.taking.wait(), LIMIT_S)
            well = await asyncio.to_thread(
                cli.run, "health", "--role", "worker", "--queue", "mail", *cli.where
            )
            assert (well.code, well.out.strip().startswith(f"1 worker of the host {host}: ")) == (0, True), (
                well
            )
            idle = await asyncio.to_thread(
                cli.run, "health", "--role", "worker", "--queue", "other", *cli.where
            )
            assert (idle.code, idle.out.strip()) == (1, f"no worker of the host {host} takes jobs of other")
            assert (await asyncio.to_thread(_workers, cli)) == (
                "ok",
                "1 live, 0 jobs running, 1 of them hosts the reactors",
            )

    assert _workers(cli) == ("warn", "0 live, 0 jobs running")
    cli.with_ledger(look)
    assert cli.run("health", "--role", "worker", *cli.where).code == 1
    for words in (("--role", "boss"), ("--queue", "mail")):
        wrong = cli.run("health", *words, *cli.where)
        assert (wrong.code, words[0] in wrong.err) == (2, True)


def test_a_gateway_is_well_while_it_is_ready(command: Callable[..., Any], tmp_path: Path) -> None:
    server = command("server", "--dir", "store", "--port", "0", "--json")
    url = server.line()["url"]
    gateway = command("gateway", "--url", url, "--port", "0", "--json")
    address = gateway.line()["gateway"]
    asked = ("health", "--role", "gateway", "--gateway", address)
    well = command(*asked)
    assert (well.rest(), well.end()) == ([f"the gateway at {address} is ready\n"], 0)
    server.end(signal.SIGINT)
    line = _not_ready(command, asked)
    assert json.loads(line)["found"].startswith(f"the gateway at {address} is not ready: ")
    gateway.end(signal.SIGINT)
    gone = command(*asked)
    (line,) = gone.rest()
    assert (gone.end(), line.startswith(f"no gateway answers at {address}: ")) == (1, True)
    wrong = command("health", "--role", "gateway", "--gateway", "localhost")
    assert wrong.end() == 2


def _not_ready(command: Callable[..., Any], asked: tuple[str, ...]) -> str:
    """Return what is said of a gateway once it has noticed that its server is gone."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        told = command(*asked, "--json")
        (line,) = told.rest()
        if told.end() == 1:
            return str(line)
    raise AssertionError("it is ready without a server")


def _workers(cli: CommandLine) -> tuple[str, str]:
    """Return what `doctor` says of workers."""
    (found,) = cli.run("doctor", "--json", *cli.where).lines
    return next((each["status"], each["found"]) for each in found["checks"] if each["check"] == "workers")
