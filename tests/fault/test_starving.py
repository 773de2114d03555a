"""One key and two thousand connections without one do their worst to a gateway; another key hardly notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest
from tests.support.figures import Recorder
from tests.support.gateway import send
from tests.support.limits import LIMIT_S
from tests.support.timing import Slack

from jobledger.admin.keys import Grant, create_key
from jobledger.ledger import Ledger
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(300)]

WORST_S: Final = 60.0
_BEFORE_S: Final = 15.0
_EACH_S: Final = 0.02  #: between two requests of the other key
_JOBS: Final = 200
_CPU_NOISE: Final = 0.01  #: of a core; a server that does almost nothing takes less than that
_ROUTE: Final = {
    "scheme": "github",
    "secrets": ["env:NONE"],
    "rules": [
        {"name": "r", "when": {"header": "x-a", "exists": True}, "task": "send", "input": {"to": "/to"}}
    ],
}
_ATTACK: Final = Path(__file__).parent / "apps" / "starving.py"


class Seen(NamedTuple):
    """What the other key's requests took."""

    asked: int
    refused: list[str]
    p99_s: float
    server_cpu: float  #: of the server, in cores
    slack_s: (
        float  #: what the machine adds: turns of this program's own loop, in which nothing of the gateway is
    )


@pytest.fixture
def durability() -> str:
    return "process"


@pytest.fixture
async def url(server: EmbeddedServer, ledger: Ledger, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a gateway process."""
    words = ("--port", "0", "--json", "--projection", str(tmp_path / "p.db"))
    there = ("--url", server.url, "--environment", ledger.names.environment)
    variables = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    log = tmp_path / "gateway.log"
    with log.open("wb") as errors:  # a pipe that nobody reads would stop it
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "jobledger.cli", "gateway", *words, *there),
            env=variables,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        assert process.stdout is not None
        yield json.loads(await asyncio.wait_for(process.stdout.readline(), LIMIT_S))["gateway"]
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), LIMIT_S)
    told = log.read_text(encoding="utf-8")
    assert "Traceback" not in told, told[told.index("Traceback") :][:5_000]


async def _asked(http: httpx.AsyncClient, server: EmbeddedServer, seconds: float) -> Seen:
    """Ask as an ordinary program does, for some seconds."""
    late_s: list[float] = []
    refused: list[str] = []
    began, cpu_s, slack = time.monotonic(), _cpu_s(server), Slack()
    while time.monotonic() - began < seconds:
        number = len(late_s)
        at = time.monotonic()
        if number % 2:
            answer = await http.get("/v1/jobs/mail/kept")
        else:
            answer = await http.post("/v1/jobs", json={"task": "send", "input": {"to": "ann"}})
        late_s.append(time.monotonic() - at)
        if answer.status_code not in {200, 202}:
            refused.append(f"{answer.status_code} {answer.text[:200]}")
        due = time.monotonic() + _EACH_S
        await asyncio.sleep(_EACH_S)
        slack.note(time.monotonic() - due)
    took_s = time.monotonic() - began
    late_s.sort()
    return Seen(
        len(late_s),
        refused,
        late_s[len(late_s) * 99 // 100],
        (_cpu_s(server) - cpu_s) / took_s,
        slack.usual_s,
    )


def _cpu_s(server: EmbeddedServer) -> float:
    assert server.pid is not None
    return time.clock_gettime(~server.pid << 3 | 2)  # the clock of another process: clock_getcpuclockid(3)


async def test_who_does_the_worst_hardly_slows_another_key(
    server: EmbeddedServer, ledger: Ledger, url: str, tmp_path: Path, record: Recorder
) -> None:
    """Row 40c: waits, slow bodies, streams, past views and uploads, of which each would have stopped the gateway."""
    await write_tasks(
        ledger.inbox, ledger.names, [entry_of(send, worker="web-1-0a", at=ledger.clock.now())], replicas=1
    )
    jobs = [(await ledger.enqueue(send, to=str(each))).id for each in range(_JOBS)]
    await ledger.enqueue(send.options(id="kept"), to="ann")
    viewer = await create_key(ledger, "viewer", Grant(role="viewer", queues=("mail",)), by="ann")
    other = await create_key(ledger, "other", Grant(role="admin"), by="ann")
    newest = (await ledger.log.head()).last_sequence
    given = {
        "port": int(url.rpartition(":")[2]),
        "key": viewer.secret,
        "route": "shop",
        "jobs": jobs,
        "newest": newest,
        "seconds": WORST_S + 5,
    }
    headers = {"authorization": f"Bearer {other.secret}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=LIMIT_S) as http:
        await _until_known(http)
        route = await http.put("/v1/routes/shop", json=_ROUTE)
        assert route.status_code == 200, route.text
        before = await _asked(http, server, _BEFORE_S)
        attack = await asyncio.create_subprocess_exec(
            *(sys.executable, str(_ATTACK)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert attack.stdin is not None
        attack.stdin.write(json.dumps(given).encode() + b"\n")
        try:
            during = await _asked(http, server, WORST_S)
            ready = await http.get("/readyz")
            answers, _ = await asyncio.wait_for(attack.communicate(), LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                attack.kill()
        after = await http.get("/v1/jobs/mail/kept")
    told = json.loads(answers)
    assert not during.refused, during.refused[:5]
    assert (ready.status_code, after.status_code) == (200, 200)
    assert told.get("429", 0) > 100, "they were refused"
    assert during.p99_s <= 5 * before.p99_s + during.slack_s
    assert during.server_cpu <= 2 * before.server_cpu + _CPU_NOISE
    record(
        "40c",
        "a bound viewer and 2,000 connections without a key do their worst to a gateway",
        faults=(
            f"{WORST_S:.0f} s, {told.get('429', 0):,} times 429; of {during.asked:,} requests of another key none refused, "
            f"p99 {during.p99_s * 1000:.0f} ms, {before.p99_s * 1000:.0f} without"
        ),
        jobs=_JOBS,
        events=(await ledger.log.head()).last_sequence,
        now=time.monotonic(),
    )


async def _until_known(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await http.get("/v1/jobs/mail/kept")).status_code != 200:
            await asyncio.sleep(0.02)
