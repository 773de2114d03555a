"""Servers that cannot hold a ledger: without JetStream, or too old. Each is refused in a sentence."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S

TASKS = """
from jobledger.ledger import task

@task
async def add(a: int) -> int:
    return a
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "tasks_of_test_other_servers.py"
    path.write_text(TASKS, encoding="utf-8")
    return path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine("", capsys)


@pytest.fixture
def plain_server(nats_server_binary: str, tmp_path: Path) -> Iterator[str]:
    """A nats-server without JetStream."""
    log = tmp_path / "nats.log"
    child = subprocess.Popen([nats_server_binary, "-a", "127.0.0.1", "-p", "-1", "-l", str(log)])
    try:
        deadline = time.monotonic() + LIMIT_S
        while "Server is ready" not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.01)
        line = next(
            line for line in log.read_text().splitlines() if "Listening for client connections" in line
        )
        yield f"nats://127.0.0.1:{line.rpartition(':')[2]}"
    finally:
        child.kill()
        child.wait(LIMIT_S)


def test_a_server_without_jetstream_is_refused(command: CommandLine, app: Path, plain_server: str) -> None:
    for words in (["enqueue", "add", "a=1", "--app", str(app)], ["jobs", "list"]):
        answer = command.run(*words, "--url", plain_server)
        assert (answer.code, answer.out) == (4, "")
        assert "without JetStream" in answer.err


@pytest.fixture
def old_server() -> Iterator[str]:
    """Speaks just enough of the protocol to be taken for nats-server 2.9.0."""
    listener = socket.create_server(("127.0.0.1", 0))
    info = {
        "server_id": "OLD",
        "version": "2.9.0",
        "proto": 1,
        "headers": True,
        "max_payload": 1 << 20,
        "jetstream": True,
    }

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.settimeout(LIMIT_S)
                client.sendall(b"INFO " + json.dumps(info).encode() + b"\r\n")
                while chunk := client.recv(65536):
                    if b"PING\r\n" in chunk:
                        client.sendall(b"PONG\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_server_that_is_too_old_is_refused(command: CommandLine, app: Path, old_server: str) -> None:
    answer = command.run("enqueue", "add", "a=1", "--app", str(app), "--url", old_server)
    assert (answer.code, answer.out) == (4, "")
    assert "2.9.0" in answer.err
    assert "2.12" in answer.err
