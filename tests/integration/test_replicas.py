"""A ledger of three replicas: what is read is never older than what was acknowledged, and what is made later is as safe."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import SIZE, Cluster, cluster
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.proxy import Proxy, is_append_answer
from tests.support.wired import wired_cluster

from jobledger.admin.diagnoses import Diagnosis, diagnose
from jobledger.admin.replicas import (
    StreamAway,
    StreamCopies,
    change_replicas,
    list_copies,
    plan_replicas,
)
from jobledger.admin.rows import Rows
from jobledger.audit.verify import verify
from jobledger.ledger import JobHandle, JobState, Ledger, connect, task
from jobledger.ledger.model.errors import (
    InvalidInputError,
    JobNotFoundError,
    RefusedError,
    ServerUnreachableError,
    UnreachableError,
)
from jobledger.ledger.nats import server_use
from jobledger.ledger.nats.api import create_reader
from jobledger.ledger.nats.infos import StreamInfo, StreamState
from jobledger.ledger.nats.read_index import is_proven
from jobledger.projections.metrics.facts import FACTS_S

pytestmark = pytest.mark.anyio

JOBS = 150
_SECOND_NS = 1_000_000_000


@task(queue="mail")
async def send(number: int) -> int:
    return number


@pytest.fixture(scope="module")
async def servers(
    anyio_backend: object, nats_server_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    async with cluster(nats_server_binary, tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
async def ledger(servers: Cluster, environment: str) -> AsyncIterator[Ledger]:
    async with connect(servers.url, environment=environment, replicas=3, ledger_bytes_max=64 << 20) as made:
        yield made
        await _sound(made)


async def _older(ledger: Ledger, other: Ledger) -> Counter[str]:
    """Return how many answers were older than what was acknowledged before, by what was asked."""
    found: Counter[str] = Counter()

    async def one(number: int) -> None:
        job = await ledger.enqueue(send.options(id=f"j-{number}"), number)
        for name, reader in (("same client", ledger), ("other client", other)):
            try:
                await reader.job(job.id)
            except JobNotFoundError:
                found[name] += 1
        try:
            await job.cancel()
        except JobNotFoundError:
            found["cancel"] += 1
            return
        if await other.handle_of(job.ref).state() is not JobState.CANCELLED:
            found["state"] += 1

    for start in range(0, JOBS, 10):
        await asyncio.gather(*(one(number) for number in range(start, start + 10)))
    return found


async def test_what_was_acknowledged_is_read_at_once_by_everybody(
    servers: Cluster, ledger: Ledger, environment: str
) -> None:
    """Replicas lag only by chance here; tests/contract/test_replicas.py makes one lag, and fails without the proof."""
    async with connect(servers.url, environment=environment) as other:
        assert await _older(ledger, other) == {}


async def test_a_replica_that_is_silent_delays_reads_by_less_than_a_second(
    servers: Cluster, ledger: Ledger
) -> None:
    jobs = [await ledger.enqueue(send, number) for number in range(30)]
    frozen = list(servers.servers.values())[await _follower(servers, ledger)].pid
    os.kill(frozen, signal.SIGSTOP)
    try:
        for job in jobs:
            began = time.monotonic()
            assert await job.state() is JobState.QUEUED
            assert time.monotonic() - began < 2.0
    finally:
        os.kill(frozen, signal.SIGCONT)


async def test_what_is_made_later_has_the_replicas_of_the_ledger(
    servers: Cluster, ledger: Ledger, environment: str
) -> None:
    async with connect(servers.url, environment=environment) as other:
        assert other.config.replicas == 3
    names: list[str] = (await api(ledger.inbox, "STREAM.NAMES", {}))["streams"]
    ours = [each for each in names if environment.upper() in each]
    copies = {each: (await _info(ledger, each))["config"]["num_replicas"] for each in ours}
    assert len(copies) > 3
    assert set(copies.values()) == {3}


async def test_the_first_command_on_three_servers_makes_three_copies_and_a_variable_says_otherwise(
    servers: Cluster, environment: str
) -> None:
    where = ("--url", servers.url, "--environment", environment, "--ledger-bytes-max", "16777216")
    code, said = await _command("init", *where)
    assert (code, "3, each on a server of its own" in said) == (0, True), said
    code, said = await _command("cluster", "show", *where[:4], "--json")
    shown = [json.loads(line) for line in said.splitlines()]
    assert (code, {each["replicas"] for each in shown}) == (0, {3}), said
    assert {each["stream"].removeprefix(f"{environment.upper()}_") for each in shown} >= {"LEDGER", "TIMERS"}
    code, said = await _command("doctor", *where[:4], "--json")
    checks = [each for line in said.splitlines() for each in json.loads(line).get("checks", [])]
    streams = [each for each in checks if each["check"].startswith("stream")]
    assert len(streams) == 7
    assert {(each["status"], "3 copies" in each["found"]) for each in streams} == {("ok", True)}, said
    other = ("--url", servers.url, "--environment", f"{environment}b", "--ledger-bytes-max", "16777216")
    assert (await _command("init", *other, JOBLEDGER_REPLICAS="1"))[0] == 0
    code, said = await _command("cluster", "show", *other[:4], "--json")
    assert (code, {json.loads(line)["replicas"] for line in said.splitlines()}) == (0, {1}), said
    code, said = await _command("init", *other, JOBLEDGER_REPLICAS="2")
    assert (code, "JOBLEDGER_REPLICAS" in said) == (2, True), said


async def test_a_ledger_grows_to_three_copies_under_load_and_its_clients_read_the_newest(
    servers: Cluster, environment: str
) -> None:
    """Nobody connects again: who was there before reads what was acknowledged after, too."""
    async with (
        connect(servers.url, environment=environment, replicas=1, ledger_bytes_max=64 << 20) as ledger,
        connect(servers.url, environment=environment) as other,
    ):
        assert {each.replicas for each in await _copies(ledger)} == {1}
        stopping, added = asyncio.Event(), 0

        async def load() -> None:
            nonlocal added
            while not stopping.is_set():
                job = await ledger.enqueue(send, added)
                assert await other.handle_of(job.ref).state() is JobState.QUEUED
                added += 1

        loading = asyncio.create_task(load())
        try:
            planned = await plan_replicas(other, 3)
            heard: list[str] = []
            changed = await change_replicas(
                other, 3, limit_s=LIMIT_S, on_stream=lambda each, _done, _total: heard.append(each.stream)
            )
        finally:
            stopping.set()
        await loading
        assert [each.stream for each in planned] == [each.stream for each in changed] == heard
        await _sound(ledger)
        assert all(each.replicas == 3 and each.is_whole for each in await _copies(other))
        assert await change_replicas(other, 3, limit_s=LIMIT_S) == []
        assert added > 0
        assert await _older(ledger, other) == {}
        with pytest.raises(InvalidInputError, match="replicas must be 1, 3 or 5, got 2"):
            await change_replicas(other, 2, limit_s=LIMIT_S)
        with pytest.raises(RefusedError, match="needs 5 servers of the cluster"):
            await change_replicas(other, 5, limit_s=LIMIT_S)
        assert all(each.replicas == 3 for each in await _copies(other))


async def test_a_server_that_is_away_is_told_with_the_streams_that_lack_a_copy(
    servers: Cluster, ledger: Ledger, tmp_path: Path
) -> None:
    """`doctor`, the overview, the API and the metric have this list, also while a reader lies on the server that is gone."""
    await ledger.enqueue(send, 1)
    assert await _missing(ledger, tmp_path) == []
    reader = {"ack_policy": "none", "num_replicas": 1, "inactive_threshold": 60 * _SECOND_NS}
    for _ in range(9):
        await create_reader(ledger.inbox, ledger.names.ledger_stream, reader)
    number = await _follower(servers, ledger)
    server = list(servers.servers.values())[number]
    server.kill()
    await asyncio.to_thread(server.wait)
    try:
        told: list[Diagnosis] = []
        async with asyncio.timeout(2 * LIMIT_S):  # an election of what it led, and 10 s of silence
            while [(each.level, each.object) for each in told] != [("warn", f"server n{number}")]:
                await asyncio.sleep(0.2)
                told = await _missing(ledger, tmp_path)
        prefix = re.escape(ledger.names.environment.upper())
        words = rf"it is away, or behind, with copies of (\w*{prefix}_\w+(, )?)+( and \d+ more streams?)?"
        assert re.fullmatch(words + "; the loss of one more server stops them", told[0].found), told[0].found
        assert told[0].count > 0
        assert told[0].since is not None
    finally:
        servers.restart(number)
        await servers.whole(ledger)
    async with asyncio.timeout(LIMIT_S):
        while await _missing(ledger, tmp_path):
            await asyncio.sleep(0.2)


async def test_copies_that_no_server_takes_are_refused_in_a_sentence(
    servers: Cluster, environment: str
) -> None:
    with pytest.raises(ServerUnreachableError, match="needs 5 servers of the cluster"):
        async with connect(servers.url, environment=environment, replicas=5, connect_timeout_s=2.0):
            pytest.fail("it connected")


async def test_the_commands_of_the_page_do_what_it_says(servers: Cluster, environment: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("jobledger ")]
    assert len(commands) == 5
    place = {"JOBLEDGER_URL": servers.url, "JOBLEDGER_ENVIRONMENT": environment}
    place["JOBLEDGER_LEDGER_BYTES_MAX"] = "16777216"
    said = ""
    for command in commands:
        code, said = await _command(*shlex.split(command)[1:], **place)
        assert code == 0, (command, said)
        assert "Traceback" not in said
    assert said.strip() == "every stream has 3 copies already"


async def test_the_loss_of_any_one_server_stops_nothing(servers: Cluster, ledger: Ledger) -> None:
    """Each call may last an election; none fails, and what was acknowledged is there."""
    jobs: list[JobHandle[Any]] = []
    for number in range(SIZE):
        port = list(servers.servers)[number]
        servers.servers[port].kill()
        await asyncio.to_thread(servers.servers[port].wait)
        async with connect(servers.url, environment=ledger.names.environment) as other:
            jobs += [await ledger.enqueue(send, number), await other.enqueue(send, number)]
            for job in jobs:
                assert await other.handle_of(job.ref).state() is JobState.QUEUED
                assert await ledger.handle_of(job.ref).state() is JobState.QUEUED
        servers.restart(number)
        await servers.whole(ledger)


async def test_a_server_that_takes_no_write_is_left_though_it_answers(
    servers: Cluster, ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is cut off from the other two keeps its clients. Here appends to it get lost, and nothing else does."""
    monkeypatch.setattr(server_use, "LEFT_AFTER_S", 3.0)  # instead of 8
    async with (
        Proxy(next(iter(servers.servers))) as proxy,
        connect(proxy.url, environment=ledger.names.environment) as other,
    ):
        proxy.drop_share = {b"HPUB ": 1.0}
        job = await other.enqueue(send, 1)  # within the 20 s that a call has
        assert await job.state() is JobState.QUEUED
        url = other.connection.connected_url
        assert url is not None
        assert url.port != proxy.port
        assert proxy.dropped > 1
        left, found = proxy.url, url.geturl()
    told = [each.getMessage() for each in caplog.records if each.name == "jobledger.connection"]
    assert f"{left} took no write, though it answers: another server is tried" in told
    assert re.fullmatch(rf"the server is back after [0-9.]+ s: connected to {re.escape(found)}", told[-1]), (
        told
    )


async def test_a_server_is_not_left_by_a_client_that_lost_one_answer_and_writes_no_more(
    servers: Cluster, ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_use, "LEFT_AFTER_S", 3.5)  # instead of 8; beyond two tries of 1.5 s
    monkeypatch.setattr(server_use, "MORE_S", 0.0)
    async with (
        Proxy(next(iter(servers.servers))) as proxy,
        connect(proxy.url, environment=ledger.names.environment) as other,
    ):
        proxy.to_steal[is_append_answer] = 1
        job = await other.enqueue(send, 1)  # its outcome was read
        assert proxy.stolen == 1
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            assert await job.state() is JobState.QUEUED
            await asyncio.sleep(0.1)
        url = other.connection.connected_url
        assert url is not None
        assert url.port == proxy.port
    assert "took no write" not in caplog.text


async def test_a_question_that_a_replica_does_not_answer_is_soon_put_to_another(
    servers: Cluster, ledger: Ledger
) -> None:
    """The first one gets lost here, as with a replica that is frozen: of a read, and of the look for an append."""
    async with (
        Proxy(next(iter(servers.servers))) as proxy,
        connect(proxy.url, environment=ledger.names.environment) as other,
    ):
        job = await other.enqueue(send, 1)
        for steal, ask, limit_s in (
            (0, job.state, 1.0),
            (1, lambda: other.enqueue(send, 2), 3.0),
        ):
            proxy.drop_share = {b"DIRECT.GET": 1.0}
            proxy.to_steal[is_append_answer] = steal
            dropped, began = proxy.dropped, time.monotonic()
            asking = asyncio.ensure_future(ask())
            while proxy.dropped == dropped:
                await asyncio.sleep(0.01)
            proxy.drop_share = {}
            await asking
            assert time.monotonic() - began < limit_s


async def test_a_server_that_is_cut_off_is_left_by_who_reads_before_the_call_gives_up(
    nats_server_binary: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers pings, and if it led the ledger, questions from its past: no leader can be proven there."""
    async with (
        wired_cluster(nats_server_binary, tmp_path) as wired,
        connect(wired.url, replicas=3, ledger_bytes_max=64 << 20) as reader,
    ):
        job = await reader.enqueue(send, 1)
        url = reader.connection.connected_url
        assert url is not None
        assert url.port is not None
        with wired.cut_off(wired.number_at(url.port), clients=False):
            await asyncio.sleep(3.0)  # it knows by then that it has heard nobody for 2 s
            assert await job.state() is JobState.QUEUED
    assert "showed no leader of the ledger, though it answers: another server is tried" in caplog.text


async def test_who_needs_only_the_ledger_connects_while_another_stream_is_away(
    servers: Cluster, environment: str
) -> None:
    """One copy of each stream, some of them on a server that is gone."""
    async with connect(servers.url, environment=environment, replicas=1, ledger_bytes_max=64 << 20) as ledger:
        copies = await _copies(ledger)
        home = copies[0].leader
        lost = next(each for each in ("n0", "n1", "n2") if each != home)
        await _move(ledger, copies[-1].stream, lost)
        expected = {each.stream for each in await _copies(ledger) if each.leader == lost}
        number = int(lost.removeprefix("n"))
        port = list(servers.servers)[number]
        servers.servers[port].kill()
        await asyncio.to_thread(servers.servers[port].wait)
        try:
            async with connect(servers.url, environment=environment) as other:
                job = await other.enqueue(send, 1)
                assert await job.state() is JobState.QUEUED
                async with asyncio.timeout(LIMIT_S):  # while servers elect, streams never made count as away
                    while await _away(other) != expected:
                        await asyncio.sleep(0.1)
                with pytest.raises(ServerUnreachableError, match="has no leader"):
                    await plan_replicas(other, 3)
        finally:
            servers.restart(number)
        async with asyncio.timeout(LIMIT_S):
            while not all(
                isinstance(each, StreamCopies) and each.is_whole for each in await list_copies(ledger)
            ):
                await asyncio.sleep(0.1)
        await _sound(ledger)


@pytest.mark.parametrize(
    ("heard_s", "proven"),
    [
        ([], True),
        ([0.1, 0.1], True),
        ([0.1, 30.0], True),
        ([2.5, 2.5], False),
        ([0.1, 3, 3, 3], False),
        ([0.1, 0.0], True),
        ([0.0, 0.0], False),  # it has heard of neither since it leads
    ],
)
def test_a_leader_is_believed_that_heard_of_a_majority_lately(heard_s: list[float], *, proven: bool) -> None:
    replicas = [{"name": f"n{n}", "active": int(each * _SECOND_NS)} for n, each in enumerate(heard_s)]
    info = StreamInfo(config={}, state=StreamState(), cluster={"leader": "n9", "replicas": replicas})
    assert is_proven(info) == proven


def test_a_replica_without_a_leader_is_not_believed() -> None:
    """What nats-server 2.15.1 says where it is cut off: the others with 0, itself as one of the replicas."""
    replicas = [
        {"name": "n0", "active": 0},
        {"name": "n1", "active": _SECOND_NS},
        {"name": "n2", "active": 0},
    ]
    info = StreamInfo(config={}, state=StreamState(), cluster={"name": "c", "replicas": replicas})
    assert not is_proven(info)


async def _sound(ledger: Ledger) -> None:
    """Verify the ledger that a test leaves."""
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def _missing(ledger: Ledger, folder: Path) -> list[Diagnosis]:
    """Return what is told of copies within the time that the exporter gives it; nothing during an election."""
    with contextlib.suppress(UnreachableError, TimeoutError):
        async with Rows(ledger, folder / "rows.db").opened() as view, asyncio.timeout(FACTS_S):
            return [each for each in await diagnose(ledger, view) if each.kind == "copies_missing"]
    return []


async def _command(*words: str, **variables: str) -> tuple[int, str]:
    """Run a command in a process of its own; return its exit code and all that it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "jobledger.cli", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **variables},
    )
    said, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode is not None
    return process.returncode, said.decode()


async def _copies(ledger: Ledger) -> list[StreamCopies]:
    """Return every stream, none of which is away."""
    found = await list_copies(ledger)
    assert not [each for each in found if isinstance(each, StreamAway)]
    return [each for each in found if isinstance(each, StreamCopies)]


async def _away(ledger: Ledger) -> set[str]:
    return {each.stream for each in await list_copies(ledger) if isinstance(each, StreamAway)}


async def _info(ledger: Ledger, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = await api(ledger.inbox, f"STREAM.INFO.{stream}", {})
    return found


async def _follower(servers: Cluster, ledger: Ledger) -> int:
    """Return the number of a server that neither leads the ledger nor has our connection."""
    leader = (await _info(ledger, ledger.names.ledger_stream))["cluster"]["leader"]
    url = ledger.connection.connected_url
    assert url is not None
    return next(
        number for number, port in enumerate(servers.servers) if f"n{number}" != leader and port != url.port
    )


async def _move(ledger: Ledger, stream: str, server: str) -> None:
    """Delete a stream, and create it again, empty, on the server of that name."""
    wanted = (await _info(ledger, stream))["config"] | {"placement": {"tags": [server]}}
    await api(ledger.inbox, f"STREAM.DELETE.{stream}", {})
    made = await api(ledger.inbox, f"STREAM.CREATE.{stream}", wanted)
    assert made["cluster"]["leader"] == server
