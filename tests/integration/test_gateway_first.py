"""A gateway before any worker: it makes the ledger, and what its code says counts from the start."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.audit_command import AuditCommand
from tests.support.command_line import CommandLine
from tests.support.gateways import as_account
from tests.support.limits import LIMIT_S

from jobledger.ledger import Ledger
from jobledger.ledger.nats.api import stream_names
from jobledger.ledger.server import EmbeddedServer

Start = Callable[..., Any]  # of a `Process`, see conftest.py

APP = """
from jobledger.ledger import Schedule, task

@task(queue="mail", schedule=Schedule(every_s=3600, input={"to": "all"}))
async def send(to: str) -> str:
    return to
"""


@pytest.fixture
def line(nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on a place without a ledger, with an application beside it."""
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    return CommandLine(nats_server.url, capsys)


@pytest.fixture
def gateway(command: Start, line: CommandLine, tmp_path: Path) -> Start:
    """Start a gateway with small streams; return it with its first line."""

    def begin(*words: str) -> tuple[Any, dict[str, Any]]:
        made = command(
            *("gateway", "--port", "0", "--json", "--ledger-bytes-max", str(16 << 20), *line.where),
            *("--projection", str(tmp_path / "p.db"), *words),
        )
        return made, made.line()

    return begin


def post(ready: dict[str, Any], path: str, body: Any) -> tuple[int, Any]:
    headers = {"content-type": "application/json", **as_account(ready)}
    request = urllib.request.Request(f"{ready['gateway']}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def declared(ready: dict[str, Any]) -> dict[str, Any]:
    """Wait until the schedule is there."""
    until = time.monotonic() + LIMIT_S
    while True:
        request = urllib.request.Request(f"{ready['gateway']}/v1/schedules", headers=as_account(ready))
        with urllib.request.urlopen(request) as answer:
            items: list[dict[str, Any]] = json.load(answer)["items"]
        if items:
            return items[0]
        assert time.monotonic() < until, "the schedule is not declared"
        time.sleep(0.05)


def test_a_gateway_on_an_empty_server_takes_jobs_of_its_tasks_and_declares_their_schedules(
    gateway: Start, line: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, ready = gateway("--app", "shop")
    # The first request, at once: the announcement was made before the gateway said that it is ready.
    status, job = post(ready, "/v1/jobs", {"task": "send", "input": {"to": "ann"}})
    assert (status, job["queue"]) == (202, "mail")
    status, refused = post(ready, "/v1/jobs", {"task": "send", "input": {"to": 7}})
    assert (status, "$.to" in refused["detail"]) == (400, True), refused
    assert declared(ready)["source"] == "code"
    assert post(ready, "/v1/run", {})[1] == {"ran": 1, "left": 0}
    assert process.end(signal.SIGTERM) == 0
    audit = AuditCommand(line.url, tmp_path, capsys)
    audit.environment, audit.where = line.environment, line.where
    assert audit("verify").code == 0


def test_a_gateway_that_is_to_declare_none_declares_none(gateway: Start, line: CommandLine) -> None:
    _process, ready = gateway("--app", "shop", "--no-schedules")
    assert post(ready, "/v1/jobs", {"task": "send", "input": {"to": "ann"}})[0] == 202
    assert line.run("schedules", "list", "--json", *line.where).lines == []


def test_init_makes_the_ledger_says_what_is_next_and_changes_nothing_that_is_there(line: CommandLine) -> None:
    room = ("--ledger-bytes-max", str(16 << 20))
    made = line.run("init", *line.where, *room)
    assert (made.code, made.err) == (0, "")
    assert f"the ledger of environment {line.environment} is made at {line.url}" in made.out
    assert f"jobledger worker --app MODULE --url {line.url} --environment {line.environment}" in made.out
    again = line.run("init", "--json", *line.where, "--ledger-bytes-max", str(32 << 20))
    there = {"url": line.url, "environment": line.environment, "ledger_bytes_max": 16 << 20}
    assert again.lines == [{**there, "last_sequence": 0, "replicas": 1, "created": False, "first_key": None}]

    async def streams(ledger: Ledger) -> set[str]:
        prefix = f"{ledger.names.environment.upper()}_"
        names = await stream_names(ledger.inbox, names_max=1_000)
        return {name.replace(prefix, "") for name in names if prefix in name}

    assert {"LEDGER", "KV_TASKS", "KV_ACCESS", "KV_WORKERS", "OBJ_PAYLOADS"} <= line.with_ledger(streams)
