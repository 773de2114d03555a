"""The supervisor itself, with child processes that do as the test says."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.processes import LIMIT_S, exists, until

from jobledger.workers.supervision.supervisor import Supervisor, SupervisorConfig

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


# The supervisor itself, with processes that do as the test says.


#: What a program needs to speak over its line as `Parent` does.
SPEAKING = """
import json, os, signal, socket, subprocess, sys, time

line = socket.socket(fileno=int(sys.argv[-1].rpartition(':')[2]))

def say(kind, **fields):
    body = json.dumps({"type": kind, **fields}).encode()
    line.sendall(len(body).to_bytes(4, "big") + body)

def heard():
    length = int.from_bytes(line.recv(4, socket.MSG_WAITALL), "big")
    return json.loads(line.recv(length, socket.MSG_WAITALL)) if length else None

"""


class Register:
    """A lease store that notes who was said to be gone, and which of some processes were left then."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.pids: list[int] = []
        self.left: list[int] = []

    async def end(self, worker: str) -> bool:
        self.ended.append(worker)
        self.left += [pid for pid in self.pids if exists(pid)]
        return True


def child(body: str) -> list[str]:
    """A program that speaks to its supervisor through `line`."""
    return [sys.executable, "-S", "-c", SPEAKING + body]


def supervisor_of(body: str, leases: Register, **options: Any) -> Supervisor:
    chosen: dict[str, Any] = {"grace_s": 0.2, "farewell_s": 0.3, **options}
    config = SupervisorConfig(**chosen)
    return Supervisor(leases.end, child(body), config, environment=dict(os.environ))


async def test_a_lease_is_ended_only_after_everything_of_its_process_is_gone(tmp_path: Path) -> None:
    leases = Register()
    supervisor = supervisor_of(
        "helper = subprocess.Popen(['sleep', '1000'])\n"
        "say('identity', name=f'one-{os.getpid()}')\n"
        "say('identity', name=f'two-{os.getpid()}')\n"
        "say('ready')\n"
        f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} {{helper.pid}}\\n')\n"
        "heard()\n",
        leases,
        restart_s_first=30.0,
    )
    codes: list[int] = []

    async def keep() -> None:
        codes.append(await supervisor.run())

    async with anyio.create_task_group() as group:
        group.start_soon(keep)
        await until(lambda: (tmp_path / "pids").exists() and bool((tmp_path / "pids").read_text()))
        leases.pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        os.kill(leases.pids[0], signal.SIGKILL)
        await until(lambda: len(leases.ended) == 2)
        supervisor.stop()
    assert leases.left == []
    assert leases.ended == [f"one-{leases.pids[0]}", f"two-{leases.pids[0]}"]
    assert codes == [0]


async def test_a_process_that_does_not_stop_is_killed_and_the_code_tells(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leases = Register()
    supervisor = supervisor_of(
        "say('identity', name='stuck'); say('ready')\nwhile True: time.sleep(1)\n", leases
    )
    codes: list[int] = []

    async def keep() -> None:
        codes.append(await supervisor.run())

    async with anyio.create_task_group() as group:
        group.start_soon(keep)
        await until(supervisor._begun.is_set)
        supervisor.stop()
    assert codes == [1]
    assert "did not stop in time: it is killed" in caplog.text
    assert leases.ended == ["stuck"]


@pytest.mark.parametrize(
    ("first", "later", "code", "starts"),
    [
        (7, 0, 7, 1),  # nobody was ever ready: as that worker would have ended alone
        (2, 0, 2, 1),
        (None, 2, 2, 3),  # one is ready and dies, its successor cannot start: another could not either
    ],
)
async def test_a_process_that_cannot_start_ends_everything_with_its_code(
    tmp_path: Path, first: int | None, later: int, code: int, starts: int
) -> None:
    """The first child, then the second slot's, then the first one's successor."""
    count = tmp_path / "count"
    supervisor = supervisor_of(
        f"open({str(count)!r}, 'a').write('x')\n"
        f"number = os.path.getsize({str(count)!r})\n"
        f"if number == 1 and {first} is not None: os._exit({first})\n"
        "if number <= 2: say('ready')\n"
        f"if number > 2: os._exit({later})\n"
        "if number == 1:\n"
        f"    while os.path.getsize({str(count)!r}) < 2: time.sleep(0.01)\n"
        "    time.sleep(0.3); os._exit(9)\n"
        "assert heard() == {'type': 'stop'}\n",
        Register(),
        processes=2,
        grace_s=5.0,
    )
    with anyio.fail_after(LIMIT_S):
        assert await supervisor.run() == code
    assert count.stat().st_size == starts


async def test_a_cancelled_supervisor_leaves_nobody_behind(tmp_path: Path) -> None:
    supervisor = supervisor_of(
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "say('ready')\n"
        "assert heard() == {'type': 'stop'}\n"
        f"open({str(tmp_path / 'stopped')!r}, 'w')\n",
        Register(),
        grace_s=5.0,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        await until(supervisor._begun.is_set)
        group.cancel_scope.cancel()
    assert (tmp_path / "stopped").exists()
    assert not exists(int((tmp_path / "pid").read_text()))


async def test_pauses_grow_to_their_limit_and_begin_anew_after_a_healthy_life(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The fourth child of those that die at once lives for a while."""
    count = tmp_path / "count"
    supervisor = supervisor_of(
        f"open({str(count)!r}, 'a').write('x')\n"
        "say('ready')\n"
        f"time.sleep(2.5 if os.path.getsize({str(count)!r}) == 4 else 0.06)\n"
        "os._exit(9)\n",
        Register(),
        restart_s_first=0.01,
        restart_s_max=0.03,
        healthy_s=2.0,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        await until(lambda: caplog.text.count("ended with code 9") >= 4)
        supervisor.stop()
    deaths = [record for record in caplog.records if "another starts" in record.message]
    assert all("ended with code 9: another starts" in record.message for record in deaths)
    pauses = [record.args[3] for record in deaths[:4] if isinstance(record.args, tuple)]
    assert pauses == [0.01, 0.02, 0.03, 0.01]
