"""Processes that begin before their server: they say so once, retry, and end at once where waiting does not help."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.limits import LIMIT_S
from tests.support.ports import kept_port, kept_ports

from jobledger.cli.session import Target, opened
from jobledger.ledger.model.errors import JetStreamDisabledError, UnreachableError

Start = Callable[..., Any]  # of a `Process`, see conftest.py
Server = Callable[..., None]

APP = """
from jobledger.ledger import task

@task
async def idle() -> None: ...
"""
SMALL = ("--ledger-bytes-max", str(16 << 20))
WAIT = {"JOBLEDGER_WAIT_FOR_SERVER_S": "60"}


@pytest.fixture
def server(nats_server_binary: str, tmp_path: Path) -> Iterator[Server]:
    """Start nats-servers with these lines of configuration beside JetStream."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(port: int, *lines: str) -> None:
        path = tmp_path / f"{port}.conf"
        store = tmp_path / f"store-{port}"
        path.write_text(
            "\n".join([f'host: "127.0.0.1"\nport: {port}\njetstream {{ store_dir: "{store}" }}', *lines])
        )
        made.append(subprocess.Popen([nats_server_binary, "-c", str(path), "-l", str(path) + ".log"]))

    yield begin
    for each in made:
        each.kill()
        each.wait()


@pytest.fixture
def start(command: Start, tmp_path: Path) -> Start:
    """Start a command with an application, in an environment that waits for a minute."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")

    def begin(port: int, *words: str, **variables: str) -> Any:
        url = f"nats://127.0.0.1:{port}"
        return command(*words, "--app", "app", "--json", "--url", url, variables=WAIT | variables)

    return begin


def test_worker_supervisor_and_gateway_retry_a_server_that_starts_after_them(
    start: Start, server: Server
) -> None:
    port = kept_port()
    waiting = [
        start(port, "worker", *SMALL),
        start(port, "worker", "--processes", "1", *SMALL),
        start(port, "gateway", "--port", "0", "--processes", "1", *SMALL),
    ]
    for each in waiting:
        assert "no server answers" in each.said("retrying for 60 s (--wait-for-server)")
    server(port)
    for each in waiting:
        assert each.line()
    for each in waiting:
        assert each.end(signal.SIGTERM) == 0
        assert each.errors.count("retrying") == 1


@pytest.mark.parametrize("words", [("worker",), ("worker", "--processes", "2"), ("gateway", "--port", "0")])
def test_a_signal_ends_the_wait_at_once(words: tuple[str, ...], start: Start) -> None:
    waiting = start(kept_port(), *words)
    waiting.said("retrying for 60 s")
    began = time.monotonic()
    assert waiting.end(signal.SIGTERM) == 0
    assert time.monotonic() - began < LIMIT_S / 2


def test_after_the_wait_the_code_is_5(start: Start) -> None:
    worker = start(kept_port(), "worker", "--wait-for-server", "0.1")
    assert worker.end() == 5
    assert "retrying for 0 s" in worker.errors
    assert "no server answers" in worker.errors.splitlines()[-1]


def test_who_is_refused_does_not_wait(start: Start, server: Server) -> None:
    port = kept_port()
    server(port, "authorization { user: app, password: right }")
    worker = start(port, "worker", JOBLEDGER_USER="app", JOBLEDGER_PASSWORD="wrong")
    assert worker.end() == 5  # within a minute, whether the server was there at first or not
    assert "refused the credentials" in worker.errors.splitlines()[-1]


async def _refusal(url: str) -> str:
    with pytest.raises((UnreachableError, JetStreamDisabledError)) as caught:
        async with opened(Target(url=url, create=True, ledger_bytes_max=16 << 20)):
            pytest.fail("one of two servers has no majority")
    return str(caught.value)


@pytest.mark.anyio
async def test_jetstream_that_is_not_ready_is_waited_for(server: Server) -> None:
    """The first of two servers of a cluster takes clients, and its JetStream is ready when the second one is there."""
    first, second, *routes = kept_ports(4)
    places = ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes)

    def begin(port: int, route: int) -> None:
        server(
            port,
            f'server_name: "n{port}"',
            f'cluster {{ name: "c", host: "127.0.0.1", port: {route}, routes: [{places}] }}',
        )

    begin(first, routes[0])
    url = f"nats://127.0.0.1:{first}"
    while "no server answers" in (said := await _refusal(url)):  # it is not listening yet
        pass
    assert "no answer to $JS.API" in said or "the servers have no leader" in said

    target = Target(
        url=url,
        create=True,
        ledger_bytes_max=16 << 20,
        wait_for_server_s=LIMIT_S,
        settings={"replicas": 1},  # two servers have no place for three copies
    )

    async def wait() -> None:
        async with opened(target):
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        begin(second, routes[1])
