"""Attacks on what is open in a gateway: who does its worst is refused, and whoever else asks is answered as before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.support.gateway import send
from tests.support.keyholders import House, code_of, house
from tests.support.limits import LIMIT_S
from tests.support.working import until

from jobledger.admin.keys import MadeKey
from jobledger.gateway.app import app
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.endpoint import NDJSON
from jobledger.gateway.process.counters import Counters
from jobledger.gateway.process.health import ProcessHealth
from jobledger.gateway.process.listener import listen, url_of
from jobledger.gateway.process.protocol import Take
from jobledger.gateway.process.requests import Requests
from jobledger.gateway.process.server import Server, Settings
from jobledger.gateway.shares import Asker, Kind, Share, Shares, network_of
from jobledger.ledger import Ledger
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.model.commands import Claim, Complete
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.workers.services import end

pytestmark = pytest.mark.anyio

_WAITS: Final = {"prefer": "wait=60"}


class Street:
    """A gateway that listens, with its limits, and those who ask it."""

    def __init__(self, lived: House, url: str) -> None:
        self.house = lived
        self.ledger = lived.ledger
        self.url = url
        self.port = int(url.rpartition(":")[2])

    @property
    def open(self) -> dict[Kind, int]:
        return self.house.gateway.shares.open

    def set(self, **shares: Share) -> None:
        """Set shares; nothing may be open."""
        self.house.gateway.shares = Shares(shares)  # type: ignore[arg-type] # their names are kinds

    @contextlib.asynccontextmanager
    async def client(self, made: MadeKey | None = None) -> AsyncGenerator[httpx.AsyncClient, None]:
        headers = {} if made is None else {"authorization": f"Bearer {made.secret}"}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=LIMIT_S, limits=limits
        ) as one:
            yield one

    @contextlib.asynccontextmanager
    async def sent(
        self, first: str, made: MadeKey | None = None, more: str = "", body: bytes = b"", *, count: int = 1
    ) -> AsyncGenerator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]], None]:
        """Send the beginning of a request over several connections, and no more of it."""
        key = "" if made is None else f"authorization: Bearer {made.secret}\r\n"
        text = f"{first} HTTP/1.1\r\nhost: 127.0.0.1\r\n{key}{more}\r\n".encode() + body
        made_here = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", self.port) for _ in range(count))
        )
        try:
            for _, writer in made_here:
                writer.write(text)
            yield made_here
        finally:
            for _, writer in made_here:
                writer.transport.abort()


def _counting(gateway: Gateway) -> Take:
    """Return what counts connections, of the shares that the gateway has then."""

    def take(address: str) -> Callable[[], None]:
        return gateway.shares.connected(address)

    return take


@pytest.fixture
async def street(ledger: Ledger, tmp_path: Path) -> AsyncIterator[Street]:
    async with house(ledger, tmp_path) as lived:
        gateway = lived.gateway
        entry = entry_of(send, worker="web-1-0a", at=ledger.clock.now())
        await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
        requests = Requests(app(gateway), gateway.life, Counters(), body_bytes_max=1 << 20, appends=lambda: 0)
        server = Server(requests, Settings(), _counting(gateway))
        with listen("127.0.0.1", 0) as bound:
            ready = asyncio.Event()
            running = asyncio.create_task(server.run(bound, ready.set))
            await asyncio.wait_for(ready.wait(), LIMIT_S)
            try:
                yield Street(lived, url_of(bound, https=False))
            finally:
                gateway.life.stop()
                gateway.feed.close()
                server.stop()
                server.stop()
                await asyncio.wait_for(running, LIMIT_S)


async def _held_by_a_worker(ledger: Ledger, job: Any) -> None:
    now = ledger.clock.now()
    info = WorkerInfo(worker="web-1-0a", host="web", pid=1, queues=("mail",), started_at=now, renewed_at=now)
    await ledger.leases.renew(info, 0)
    await ledger.execute(job.ref, Claim(worker=info.worker, lease_s=60))


async def _finished(ledger: Ledger, job: Any) -> None:
    claimed = await ledger.execute(job.ref, Claim(worker="web-1-0a", lease_s=15))
    result, ref = await ledger.results.put(b'"sent"', what="result", key="")
    await ledger.execute(job.ref, Complete(epoch=claimed.claim_epoch, result=result, result_ref=ref))


async def test_a_wait_ends_when_its_client_leaves(street: Street) -> None:
    viewer = await street.house.key(role="viewer")
    job = await street.ledger.enqueue(send, to="ann")
    async with street.sent(f"GET /v1/jobs/mail/{job.id}", viewer, "prefer: wait=60\r\n", count=20):
        await until(lambda: street.open["waits"] == 20, limit_s=LIMIT_S)
    await until(lambda: not street.open["waits"] and not street.open["requests"], limit_s=LIMIT_S)


@pytest.mark.parametrize(
    ("first", "more", "body"),
    [
        ("POST /v1/jobs", "prefer: wait=60\r\ncontent-type: application/json\r\n", b'{"task":"send","input":{"to":"x"}}'),
        ("POST /v1/queues/mail/drain", "prefer: wait=60\r\ncontent-type: application/json\r\n", b"{}"),
        ("GET /v1/events?wait=60&type=cancelled", f"accept: {NDJSON}\r\n", b""),
    ],
)  # fmt: skip
async def test_each_kind_of_wait_ends_when_its_client_leaves(
    street: Street, first: str, more: str, body: bytes
) -> None:
    key = await street.house.key(role="admin")
    job = await street.ledger.enqueue(send, to="ann")
    await _held_by_a_worker(street.ledger, job)
    length = f"content-length: {len(body)}\r\n" if body else ""
    async with street.sent(first, key, more + length, body):
        await until(lambda: street.open["waits"] == 1, limit_s=LIMIT_S)
    await until(
        lambda: not any(street.open[kind] for kind in ("waits", "requests", "streams")), limit_s=LIMIT_S
    )


async def test_waits_of_many_cost_no_reads_and_end_with_their_job(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred waits looked each second, by themselves."""
    viewer = await street.house.key(permissions=("view", "payloads"))
    job = await street.ledger.enqueue(send, to="ann")
    looks = 0
    log = street.ledger.log
    read_on = log.read_on

    async def counted(chain: str, after: int) -> Any:
        nonlocal looks
        looks += 1
        return await read_on(chain, after)

    monkeypatch.setattr(log, "read_on", counted)
    async with street.client(viewer) as http:
        asking = [
            asyncio.create_task(http.get(f"/v1/jobs/mail/{job.id}/result", headers=_WAITS))
            for _ in range(100)
        ]
        await until(lambda: street.open["waits"] == 100, limit_s=LIMIT_S)
        await asyncio.sleep(1.2)  # what is counted is what happens while nothing does
        assert not looks, "each looks again after 5, 10, 20 and each 30 s"
        await _finished(street.ledger, job)
        async with asyncio.timeout(LIMIT_S):
            answers = await asyncio.gather(*asking)
    assert {answer.text for answer in answers} == {'"sent"'}
    assert not street.open["waits"]


async def test_who_has_a_share_of_waits_open_is_told_so_and_others_wait(street: Street) -> None:
    street.set(waits=Share(each=3, total=8))
    greedy, other = await street.house.key("greedy"), await street.house.key("other")
    job = await street.ledger.enqueue(send, to="ann")
    path = f"/v1/jobs/mail/{job.id}"
    async with street.sent(f"GET {path}", greedy, "prefer: wait=60\r\n", count=3):
        await until(lambda: street.open["waits"] == 3, limit_s=LIMIT_S)
        async with street.client(greedy) as http:
            refused = await http.get(path, headers=_WAITS)
            assert (refused.status_code, code_of(refused)) == (429, "SHARE_USED")
            assert refused.headers["retry-after"] == "2"
            assert "key:greedy/" in refused.json()["detail"]
            assert refused.json()["extra"] == {"share": "waits", "open": 3}
            assert (await http.get(path)).status_code == 200, "what does not wait"
        async with street.client(other) as http:
            asking = asyncio.create_task(http.get(path, headers=_WAITS))
            await until(lambda: street.open["waits"] == 4, limit_s=LIMIT_S)
            await _finished(street.ledger, job)
            assert (await asking).json()["status"] == "completed"


async def test_slow_bodies_without_a_key_take_a_pot_of_their_address_and_nothing_else(street: Street) -> None:
    street.set(requests=Share(each=5, total=10), anonymous=Share(each=4, total=8))
    key = await street.house.key(role="admin")
    async with street.client(key) as http:
        rule = {
            "name": "r",
            "when": {"header": "x-a", "exists": True},
            "task": "send",
            "input": {"to": "/to"},
        }
        route = {"scheme": "github", "secrets": ["env:NONE"], "rules": [rule]}
        answer = await http.put("/v1/routes/shop", json=route)
        assert answer.status_code == 200, answer.text
    slow = "content-type: application/json\r\ncontent-length: 1000\r\n"
    async with street.sent("POST /in/shop", more=slow, body=b"{", count=40) as sent:
        await until(lambda: street.open["anonymous"] == 4, limit_s=LIMIT_S)
        reading = [asyncio.create_task(reader.readline()) for reader, _ in sent]
        await until(lambda: sum(each.done() for each in reading) >= 36, limit_s=LIMIT_S)
        answered = [each for each in reading if each.done()]
        assert [each.result() for each in answered] == [b"HTTP/1.1 429 Too Many Requests\r\n"] * 36
        assert (street.open["anonymous"], street.open["requests"]) == (4, 0), "the other four wait"
        async with street.client(key) as http:
            assert (await http.get("/v1/jobs")).status_code == 200
        async with street.client() as nobody:
            assert (await nobody.get("/readyz")).status_code == 200
            assert code_of(await nobody.get("/login")) == "SHARE_USED"
        assert [each for each in reading if each.done()] == answered
        await end(*reading)
    await until(lambda: not street.open["anonymous"], limit_s=LIMIT_S)


async def test_uploads_take_a_place_when_their_key_was_read_and_each_key_has_its_own(street: Street) -> None:
    """Two connections of anybody took both places."""
    slow = f"content-type: {NDJSON}\r\ntransfer-encoding: chunked\r\n"
    line = b'{"task": "send", "input": {"to": "ann"}}\n'
    greedy, viewer = await street.house.key("greedy", role="enqueuer"), await street.house.key(role="viewer")
    other = await street.house.key("other", role="enqueuer")
    path = "POST /v1/jobs/bulk"
    async with (
        street.sent(path, more=slow, count=5),
        street.sent(path, viewer, slow, count=5),
        street.sent(path, greedy, slow, count=2),
    ):
        await until(lambda: street.open["uploads"] == 2, limit_s=LIMIT_S)
        for made, expected in ((greedy, "SHARE_USED"), (other, 202)):
            async with street.client(made) as http:
                found = await http.post("/v1/jobs/bulk", content=line, headers={"content-type": NDJSON})
                assert code_of(found) == expected


async def test_each_key_has_its_share_of_streams_and_gets_it_back(street: Street) -> None:
    street.set(streams=Share(each=2, total=6))
    greedy, other = await street.house.key("greedy"), await street.house.key("other")
    stream = {"accept": "text/event-stream"}
    async with street.client(greedy) as http, street.client(other) as others:
        async with http.stream("GET", "/v1/events", headers=stream), http.stream("GET", "/live"):
            assert street.open["streams"] == 2
            assert code_of(await http.get("/v1/events", headers=stream)) == "SHARE_USED"
            assert (await http.get("/live")).status_code == 429
            async with others.stream("GET", "/v1/events", headers=stream) as answer:
                assert answer.status_code == 200
        await until(lambda: not street.open["streams"], limit_s=LIMIT_S)


async def test_one_address_leaves_connections_for_others(street: Street) -> None:
    street.set(connections=Share(each=3, total=6))
    async with street.sent("GET /healthz", count=3) as sent:
        for reader, _ in sent:
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", street.port)
        assert await reader.readline() == b"HTTP/1.1 429 Too Many Requests\r\n"
        writer.close()
        elsewhere = await asyncio.open_connection("127.0.0.1", street.port, local_addr=("127.0.0.2", 0))
        elsewhere[1].write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert await elsewhere[0].readline() == b"HTTP/1.1 200 OK\r\n"
        elsewhere[1].close()
    await until(lambda: not street.open["connections"], limit_s=LIMIT_S)


async def test_readiness_says_what_there_is_too_much_of(street: Street, tmp_path: Path) -> None:
    shares = Shares({"requests": Share(each=10, total=20)})
    gateway = street.house.gateway
    gateway.shares = shares
    gateway.health = ProcessHealth(
        street.ledger, tmp_path / "p.db", gateway.life, lambda: "", CollectorRegistry(), overloaded=shares.overloaded
    )  # fmt: skip
    for number in range(19):
        shares.take("requests", f"key-{number}")
    async with street.client() as http:
        answer = await http.get("/readyz")
    assert (answer.status_code, code_of(answer)) == (503, "NOT_READY")
    assert "19 requests are open, of 20" in answer.json()["detail"]


def test_the_last_places_are_for_those_who_have_fewer() -> None:
    shares = Shares({"waits": Share(each=8, total=10)})
    for _ in range(5):
        shares.take("waits", "greedy")
    with pytest.raises(Exception, match=r"5 that are free are kept for others"):
        shares.take("waits", "greedy")
    taken = [who for who in "abcdef" if _taken(shares, who)]
    assert taken == list("abcde")
    assert (shares.open["waits"], shares.refused["waits"]) == (10, 2)


def _taken(shares: Shares, who: str) -> bool:
    try:
        shares.take("waits", who)
    except Exception:  # noqa: BLE001 - a refusal
        return False
    return True


def test_whoever_is_bound_to_no_share_is_held_to_the_total_and_all_is_given_back() -> None:
    shares = Shares({"requests": Share(each=1, total=3)})
    askers = [Asker(shares, "local:ann", named="local:ann", is_bound=False) for _ in range(3)]
    for each in askers:
        each.begin()
    with pytest.raises(Exception, match="of all who ask"):
        Asker(shares, "local:ann", named="local:ann", is_bound=False).begin()
    for each in reversed(askers):
        each.end()
    assert not any(shares.open.values())


def test_one_client_has_one_network_of_ipv6() -> None:
    assert network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert network_of("192.0.2.7") == "192.0.2.7"
    assert network_of("fe80::1%eth0") == "fe80::/64"


@pytest.mark.parametrize(("each", "total"), [(0, 5), (6, 5), (1, 1_000_000)])
def test_shares_that_cannot_work_are_refused(each: int, total: int) -> None:
    with pytest.raises(ConfigurationError):
        Share(each=each, total=total)
