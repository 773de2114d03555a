"""Blocking clients across processes: forked children connect for themselves, and no interpreter's end is held up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import pytest
from tests.conftest import ServerFactory
from tests.support.limits import LIMIT_S

from jobledger.ledger.server import EmbeddedServer

APP = Path(__file__).parent / "apps" / "blocking.py"


def _begin(scenario: str, url: str, environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore::DeprecationWarning",
            str(APP),
            scenario,
            url,
            environment,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _said(scenario: str, url: str, environment: str) -> list[str]:
    """Run a scenario to its end, which must be in order and without a word on stderr."""
    child = _begin(scenario, url, environment)
    try:
        said, errors = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
    assert (child.returncode, errors) == (0, "")
    return said.splitlines()


def test_a_forked_child_connects_for_itself_and_leaves_its_parents_connection_alone(
    nats_server: EmbeddedServer, environment: str
) -> None:
    said = _said("fork", nats_server.url, environment)
    reading = said.pop(2)
    assert reading.startswith("reading this reading of events belongs to process ")
    assert reading.endswith("from which this one was forked: begin another one here")
    assert said == [
        "shared 1 0",
        "child queued True",
        "grandchild True",
        "child ended 0",
        "child ended 0",
        "child ended 0",
        "child ended 0",
        "parent queued of-child True",
    ]


def test_a_lock_is_not_a_forked_childs(nats_server: EmbeddedServer, environment: str) -> None:
    said = _said("fork_in_lock", nats_server.url, environment)
    assert said[0] == "held in child False"
    assert "it belongs to process" in said[1]
    assert "from which this one was forked" in said[1]
    assert said[2] == "enqueued True"
    assert said[3] == said[1].replace("check ", "left by child ")
    assert said[4] == "parent True"


def test_children_that_are_forked_amid_calls_of_other_threads_can_call(
    nats_server: EmbeddedServer, environment: str
) -> None:
    assert _said("fork_amid_calls", nats_server.url, environment) == ["child 0"] * 12 + ["parent True"]


def test_an_asynchronous_ledger_says_that_it_is_its_parents(
    nats_server: EmbeddedServer, environment: str
) -> None:
    sentence = (
        "child this ledger was connected in process PARENT, from which this one was forked: "
        "connect in this process"
    )
    said = _said("fork_asynchronous", nats_server.url, environment)
    assert said == [sentence, sentence, "parent queued True"]


def test_a_pool_of_forked_processes_shares_what_its_module_connected(
    nats_server: EmbeddedServer, environment: str
) -> None:
    said = _said("multiprocess", nats_server.url, environment)
    assert said == ["pool-0 pool-1 pool-2 pool-3 pool-4 pool-5", "parent True"]


def test_a_child_without_pythons_fork_hooks_is_told_by_its_pid(
    nats_server: EmbeddedServer, environment: str
) -> None:
    assert _said("without_hooks", nats_server.url, environment) == ["child True 1 0", "parent True"]


def test_what_nobody_holds_is_closed(nats_server: EmbeddedServer, environment: str) -> None:
    assert _said("forgotten", nats_server.url, environment) == ["none left"]


@pytest.mark.parametrize("state", ["well", "frozen", "killed"])
async def test_an_unclosed_ledger_does_not_keep_its_process(
    server_factory: ServerFactory, environment: str, state: str
) -> None:
    server = server_factory()
    await server.start()
    child = _begin("unclosed", server.url, environment)
    try:
        assert child.stdout is not None
        assert server.pid is not None
        assert await anyio.to_thread.run_sync(child.stdout.readline) == "connected\n"
        if state == "frozen":
            os.kill(server.pid, signal.SIGSTOP)
        elif state == "killed":
            os.kill(server.pid, signal.SIGKILL)
        _, errors = await anyio.to_thread.run_sync(lambda: child.communicate("end\n", timeout=LIMIT_S))
    finally:
        child.kill()
    assert child.returncode == 0
    assert state != "well" or errors == ""
