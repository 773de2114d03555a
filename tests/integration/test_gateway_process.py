"""`jobledger gateway` as a real process: what it says of itself, its children, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.command_line import CommandLine
from tests.support.gateways import as_account
from tests.support.limits import LIMIT_S
from tests.support.processes import exists, until
from tests.support.soundness import RowEnd

from jobledger.cli.output import Output
from jobledger.cli.processes.up import gateway_beside
from jobledger.cli.session import Target
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.process.children import setup_of
from jobledger.gateway.process.listener import listen
from jobledger.gateway.process.past import PastViews
from jobledger.gateway.shares import Asker, Share, Shares
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector

pytestmark = pytest.mark.anyio
Start = Callable[..., Any]  # of a `Process`, see conftest.py


@task(queue="mail")
async def send(to: str) -> None:
    """Be enqueued only."""


@pytest.fixture
async def ledger(nats_server: EmbeddedServer, environment: str) -> AsyncIterator[Ledger]:
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20) as made:
        yield made


@pytest.fixture
def gateway(command: Start, ledger: Ledger, tmp_path: Path) -> Start:
    """Start a gateway of the test's ledger; return it with a client."""

    def begin(*words: str) -> tuple[Any, httpx.AsyncClient]:
        there = ("--url", ledger.config.url, "--environment", ledger.names.environment)
        made = command(
            *("--log-format", "json", "gateway", "--port", "0", "--json", *there),
            *("--projection", str(tmp_path / "p.db"), *words),
        )
        ready = made.line()
        return made, httpx.AsyncClient(base_url=ready["gateway"], timeout=LIMIT_S, headers=as_account(ready))

    return begin


def offspring(pid: int) -> set[int]:
    """The processes that a process has started."""
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()))


def cmdline(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def children(pid: int) -> dict[str, int]:
    """The children of a gateway by what they do."""
    found: dict[str, int] = {}
    for each in offspring(pid):
        words = cmdline(each)
        if b"jobledger.gateway.process.child" in words:
            found[words[words.index(b"jobledger.gateway.process.child") + 1].decode()] = each
    return found


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


async def answered(client: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    """Ask until the answer has this status."""
    async with asyncio.timeout(LIMIT_S):
        while (answer := await client.get(path)).status_code != status:
            await asyncio.sleep(0.02)
    return answer


async def test_a_gateway_says_how_it_is_logs_no_values_and_its_children_neither_end_nor_outlive_it(
    gateway: Start, ledger: Ledger
) -> None:
    process, client = gateway()
    async with client:
        assert (await client.get("/healthz")).text == "ok\n"
        assert (await answered(client, "/readyz", 200)).text == "ok\n"
        await ledger.enqueue(send.options(id="a"), to="ann")
        answer = await client.get("/v1/jobs/mail/a?sequence=1", headers={"cookie": "session=secret"})
        assert answer.json()["status"] == "queued"
        await client.get("/no/such/address?token=secret")
        async with asyncio.timeout(LIMIT_S):
            while 'enqueued_total{queue="mail",task="send"} 1.0' not in (
                shown := (await client.get("/metrics")).text
            ):
                await asyncio.sleep(0.02)
        route = 'route="/v1/jobs/{queue}/{id}"'
        assert f"jobledger_gateway_requests_total{{{_sorted('GET', route, '200')}}} 1.0" in shown
        assert 'jobledger_gateway_refusals_total{code="ENDPOINT_NOT_FOUND"} 1.0' in shown
        assert f"jobledger_gateway_request_seconds_count{{{route}}} 1.0" in shown
        assert 'route="(none)"' in shown
        await _projector_is_killed(client, process, ledger)
    assert "secret" not in process.errors
    lines = [json.loads(line) for line in process.errors.splitlines()]
    line = next(each for each in lines if each.get("path") == "/v1/jobs/mail/a")
    assert (line["method"], line["status"], line["request"]) == ("GET", 200, answer.headers["x-request-id"])
    assert {"key", "ms"} <= set(line)
    own = children(process.child.pid)
    assert own
    process.end(signal.SIGKILL)
    await until(lambda: not any(map(exists, own.values())))


async def _projector_is_killed(client: httpx.AsyncClient, process: Any, ledger: Ledger) -> None:
    """Requests are sent elsewhere, the log says why, and another projector goes on."""
    projector = children(process.child.pid)["projector"]
    os.kill(projector, signal.SIGKILL)
    told = (await answered(client, "/readyz", 503)).json()
    sentence = f"the projection is not followed: process {projector} was killed by SIGKILL"
    assert (told["code"], told["detail"]) == ("NOT_READY", sentence)
    process.said("the process projector of the gateway failed and begins again")
    await ledger.enqueue(send, to="bob")
    await answered(client, "/readyz", 200)
    assert 'child_ends_total{child="projector"} 1.0' in (await client.get("/metrics")).text


def _sorted(method: str, route: str, status: str) -> str:
    return f'method="{method}",{route},status="{status}"'


async def test_a_stop_ends_a_hundred_streams_at_once_lets_a_request_end_and_leaves_nothing(
    gateway: Start, tmp_path: Path, ledger: Ledger
) -> None:
    await ledger.enqueue(send.options(id="a"), to="ann")
    process, client = gateway()
    streams, opened = 100, asyncio.Event()
    begun = 0

    async def read() -> str:
        nonlocal begun
        async with client.stream("GET", "/v1/events") as answer:
            parts = aiter(answer.aiter_text())
            text = str(await anext(parts))
            begun += 1
            if begun == streams:
                opened.set()
            return text + "".join([part async for part in parts])

    client._transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=streams + 1))
    async with client, asyncio.TaskGroup() as group:
        readers = [group.create_task(read()) for _ in range(streams)]
        async with asyncio.timeout(LIMIT_S):
            await opened.wait()
        own = children(process.child.pid)
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        head = "POST /v1/jobs/mail/a/cancel HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += f"authorization: {client.headers['authorization']}\r\n"
        writer.write(f'{head}content-length: 17\r\n\r\n{{"reason":'.encode())
        assert (await client.get("/healthz")).status_code == 200
        process.child.send_signal(signal.SIGTERM)
        assert (await asyncio.wait_for(readers[0], LIMIT_S)).startswith("retry: ")
        writer.write(b'"late"}')
        assert (await reader.read()).startswith(b"HTTP/1.1 200"), "it ran, and was given its time"
        writer.close()
        await writer.wait_closed()
    assert all(reader.result().startswith("retry: ") for reader in readers)
    assert process.end() == 0
    assert '"path":"/v1/jobs/mail/a/cancel","status":200' in process.errors, "its line was not written yet"
    assert not any(map(exists, own.values()))
    assert names(tmp_path) <= {"data", "p.db", "p.db.lock"}


@pytest.mark.fault
async def test_several_processes_share_a_port_and_one_that_dies_is_replaced(gateway: Start) -> None:
    process, client = gateway("--processes", "2")
    url = client.base_url
    await client.aclose()

    async def health() -> int:
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as once:
                return (await once.get("/readyz")).status_code
        return 0

    async with asyncio.timeout(LIMIT_S):
        while len(before := offspring(process.child.pid)) < 2 or await health() != 200:
            await asyncio.sleep(0.02)
        os.kill(min(before), signal.SIGKILL)
        while not offspring(process.child.pid) - before or await health() != 200:
            await asyncio.sleep(0.02)
    assert process.end(signal.SIGTERM) == 0


async def test_views_of_the_past_beyond_a_share_are_refused_and_the_others_are_right(
    ledger: Ledger, tmp_path: Path
) -> None:
    moments = [
        (await (await ledger.enqueue(send, to=str(each))).history())[-1].stream_sequence for each in range(7)
    ]
    past = PastViews(setup_of(ledger, tmp_path / "p.db", "past"))
    running = asyncio.create_task(past.run())

    shares = Shares({"past": Share(each=6, total=12)})
    asker = Asker(shares, "ann", named="user:ann")
    asker.begin()

    async def rows(moment: int) -> int:
        async with past.opened(moment) as store:
            return len(store.jobs(100))

    assert await rows(moments[0]) == 1
    (child,) = children(os.getpid()).values()
    os.kill(child, signal.SIGSTOP)
    try:
        waiting = [asyncio.create_task(rows(each)) for each in (*moments[1:6], moments[1])]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError) as refused:
            await rows(moments[6])
        assert refused.value.code == "SHARE_USED"
    finally:
        os.kill(child, signal.SIGCONT)
    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.gather(*waiting) == [2, 3, 4, 5, 6, 2]
    folder = tmp_path / "p.db.past"
    assert len(list(folder.rglob("*.db"))) <= 4
    os.kill(child, signal.SIGKILL)
    with pytest.raises(Exception, match="SIGKILL"):
        await asyncio.wait_for(running, LIMIT_S)
    assert not list(folder.iterdir())


async def test_a_view_of_the_past_asks_the_server_for_few_events_at_a_time(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.enqueue_many(send, ({"to": str(each)} for each in range(600)))
    sequence = (await ledger.log.head()).last_sequence
    asked: list[int] = []

    def heard(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
        asked.append(json.loads(data)["batch"])

    await ledger.connection.listen(f"$JS.API.CONSUMER.MSG.NEXT.{ledger.names.ledger_stream}.>", heard)
    past = PastViews(setup_of(ledger, tmp_path / "p.db", "past"))
    running = asyncio.create_task(past.run())
    async with past.opened(sequence) as store:
        assert len(store.jobs(700)) == 600
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(asked) >= 3
    assert max(asked) == 256


def test_without_the_extra_or_without_a_key_beyond_this_machine_nothing_is_started(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed = cli.run("gateway", "--host", "0.0.0.0", "--port", "0", *cli.where)
    assert exposed.code == 2
    assert "keys create" in exposed.err
    monkeypatch.setattr("jobledger.cli.processes.gateway._NEEDED", ("no_such_module", "os"))
    lacking = cli.run("gateway")
    assert lacking.code == 2
    assert (
        "the gateway needs no_such_module: install them with pip install 'jobledger[gateway]'" in lacking.err
    )


def test_a_port_that_is_taken_and_a_certificate_that_is_none_are_said(
    cli: CommandLine, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = cli.run("gateway", "--port", port, *cli.where)
    assert (answer.code, "cannot be listened on" in answer.err) == (4, True)
    (tmp_path / "cert.pem").write_text("no certificate")
    answer = cli.run("gateway", "--port", "0", "--https-cert", str(tmp_path / "cert.pem"), *cli.where)
    assert (answer.code, "no certificate" in answer.err) == (2, True)
    os.mkfifo(tmp_path / "pipe.pem")  # its other end never comes
    answer = cli.run("gateway", "--port", "0", "--https-cert", str(tmp_path / "pipe.pem"), *cli.where)
    assert (answer.code, "it is a pipe: name a regular file" in answer.err) == (2, True)


@pytest.mark.fault
async def test_up_starts_a_gateway_that_ends_with_it_and_begins_again(
    command: Start, row_end: RowEnd
) -> None:
    up = command(
        "up", "--port", "0", "--gateway-port", "0", "--json", variables={"JOBLEDGER_NO_GATEWAY": "0"}
    )
    ready = up.line()
    own = offspring(up.child.pid)
    async with httpx.AsyncClient(
        base_url=ready["gateway"], timeout=LIMIT_S, headers=as_account(ready)
    ) as client:
        await answered(client, "/readyz", 200)
        async with connect(ready["url"]) as ledger:
            await ledger.enqueue(send.options(id="a"), to="ann")
        assert (await client.get("/v1/jobs/a")).json()["status"] == "queued"
        gateway = next(each for each in own if b"gateway" in cmdline(each))
        os.kill(gateway, signal.SIGKILL)
        up.said("the gateway failed and begins again")
        await until(lambda: len(offspring(up.child.pid)) == len(own))
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    assert (await client.get("/healthz")).status_code == 200
                    break
                await asyncio.sleep(0.05)
        own = offspring(up.child.pid)
    row_end.begins(ready["url"])
    await row_end.holds()
    up.end(signal.SIGKILL)
    await until(lambda: not any(map(exists, own)))


async def test_gateways_that_are_started_at_once_take_different_ports(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first has the usual port, and keeps it when it begins again; the others have free ones."""
    with listen("127.0.0.1", 0) as found:
        usual = found.getsockname()[1]
    monkeypatch.setattr("jobledger.cli.processes.up.DEFAULT_PORT", usual)
    target = Target(url=ledger.config.url, environment=ledger.names.environment)
    with Projector(ledger.log, tmp_path / "p.db") as projector:
        await projector.prepare()

    async def begin(stack: contextlib.AsyncExitStack) -> str:
        beside = gateway_beside(Output(as_json=False), target, tmp_path / "p.db", None)
        made = await stack.enter_async_context(beside)
        assert made is not None
        url = made.entrance.gateway
        async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
            assert (await client.get("/healthz")).text == "ok\n"
        return url

    async with contextlib.AsyncExitStack() as one, contextlib.AsyncExitStack() as two:
        urls = await asyncio.gather(begin(one), begin(two))
        assert len(set(urls)) == 2
        assert f"http://127.0.0.1:{usual}" in urls


def test_a_port_of_the_gateway_beside_up_that_is_taken_is_said(cli: CommandLine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("--projection", str(tmp_path / "p.db"), "--gateway-port", port)
        answer = cli.run("up", *cli.where, *words)
    assert (answer.code, "choose another one with --gateway-port" in answer.err) == (4, True)


async def test_without_the_extra_no_gateway_is_beside_up_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("jobledger.cli.processes.gateway._NEEDED", ("no_such_module",))
    async with gateway_beside(Output(as_json=False), Target(url="nats://x"), tmp_path / "p.db", None) as made:
        assert made is None
    assert "no gateway is started: the gateway needs no_such_module" in " ".join(
        capsys.readouterr().err.split()
    )
