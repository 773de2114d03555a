"""Where deliveries may go: the public internet and what was allowed, whatever a name says now or a moment later."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from tests.support.limits import LIMIT_S
from tests.support.receivers import receiving
from tests.support.secured import Authority, Pair
from tests.support.tables import each_row

from jobledger.gateway.hooks.addresses import (
    CheckedTransport,
    TargetRefusedError,
    Targets,
    networks,
)
from jobledger.gateway.hooks.poster import Poster
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.hooks.places import is_public

pytestmark = pytest.mark.anyio

LOOPBACK = networks(["127.0.0.0/8"])

REFUSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.9",
    "192.0.0.171",
    "192.0.0.255",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
    "2606:4700::1111%eth0",
    "5f00::1",
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"]


@each_row("text", REFUSED)
def test_what_is_not_of_the_public_internet_is_refused_in_every_form(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@each_row("text", PUBLIC)
def test_addresses_of_the_public_internet_are_not(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


class Names:
    """A resolver that answers from a list, another answer at each call."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0)


class Seen(httpx.AsyncBaseTransport):
    """Stands where connections are made, and notes what for."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(204)


@each_row(
    "addresses",
    [
        ["127.0.0.1"],
        ["169.254.169.254"],
        ["8.8.8.8", "10.0.0.1"],
        ["::ffff:10.0.0.1"],
        ["fe80::1%eth0"],
        ["text"],
    ],
)
async def test_a_name_that_stands_for_a_private_address_is_refused(addresses: list[str]) -> None:
    seen = Seen()
    transport = CheckedTransport(Targets(resolve=Names(addresses)), seen)
    with pytest.raises(TargetRefusedError, match=r"hooks\.example stands for"):
        await transport.handle_async_request(httpx.Request("POST", "https://hooks.example/in"))
    assert seen.requests == []


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to() -> None:
    """A name that changes between the check and the connection (rebinding) leads nowhere else: it is asked once."""
    seen, names = Seen(), Names(["8.8.8.8", "8.8.4.4"], ["127.0.0.1"])
    transport = CheckedTransport(Targets(resolve=names), seen)
    await transport.handle_async_request(httpx.Request("POST", "https://hooks.example/in?x=1"))
    [request] = seen.requests
    assert (request.url.host, names.asked) == ("8.8.8.8", ["hooks.example"])
    assert (request.headers["host"], request.extensions["sni_hostname"]) == ("hooks.example", "hooks.example")
    assert str(request.url) == "https://8.8.8.8/in?x=1"
    with pytest.raises(TargetRefusedError):
        await transport.handle_async_request(httpx.Request("POST", "https://hooks.example/in"))
    assert len(seen.requests) == 1


async def test_a_name_in_other_letters_is_asked_for_as_it_is_written() -> None:
    """Read as letters, `ss` could stand for what another domain has."""
    seen, names = Seen(), Names(["8.8.8.8"])
    transport = CheckedTransport(Targets(resolve=names), seen)
    await transport.handle_async_request(httpx.Request("POST", "https://xn--strae-oqa.example/in"))
    assert names.asked == [seen.requests[0].extensions["sni_hostname"]] == ["xn--strae-oqa.example"]


class Certified:
    """A receiver's side of TLS, and the names that it was asked for."""

    def __init__(self, pair: Pair) -> None:
        self.asked: list[str | None] = []
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(pair.cert, pair.key)
        self.context.sni_callback = lambda _connection, name, _context: self.asked.append(name)


async def _posted(certified: Certified, name: str) -> tuple[int, str, int]:
    """Post to a receiver by a name that stands for this machine: status, why, and how many requests came."""
    async with receiving(certified.context) as receiver:
        poster = Poster(Targets(LOOPBACK, resolve=Names(["127.0.0.1"])), timeout_s=LIMIT_S)
        answered = await poster.post(f"https://{name}:{receiver.port}/hooks", b"{}", {})
        return answered.status, answered.why, len(receiver.requests)


async def test_a_receiver_is_known_by_a_certificate_for_its_name_and_not_for_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, other = Authority(tmp_path), Authority(tmp_path, "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.ca))
    good = Certified(trusted.issue("hooks.example"))
    assert await _posted(good, "hooks.example") == (204, "204 No Content", 1)
    assert good.asked == ["hooks.example"], "though the connection went to an address"
    for pair, words in (
        (trusted.issue("127.0.0.1"), "Hostname mismatch, certificate is not valid for 'hooks.example'"),
        (trusted.issue("hooks.example", days=-1), "certificate has expired"),
        (other.issue("hooks.example"), "unable to get local issuer certificate"),
        (Pair(other.ca, other.key), "self-signed certificate"),
    ):
        status, why, came = await _posted(Certified(pair), "hooks.example")
        assert (status, came) == (0, 0), words
        assert why == (
            f"the receiver's certificate is refused ({words}): SSL_CERT_FILE names a file of authorities to trust"
        )


async def test_a_receiver_without_tls_is_told_as_such() -> None:
    async def no_tls(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(no_tls, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answered = await Poster(Targets(LOOPBACK)).post(f"https://127.0.0.1:{port}/", b"{}", {})
    assert answered.why == "the receiver speaks no TLS that can be used (WRONG_VERSION_NUMBER): is it https?"


async def test_an_address_of_the_sixth_version_is_connected_to_as_such() -> None:
    seen = Seen()
    transport = CheckedTransport(Targets(resolve=Names(["2606:4700:4700::1111"])), seen)
    await transport.handle_async_request(httpx.Request("POST", "https://hooks.example:8443/in"))
    assert str(seen.requests[0].url) == "https://[2606:4700:4700::1111]:8443/in"
    assert seen.requests[0].headers["host"] == "hooks.example:8443"


async def test_posts_go_to_no_private_address_in_any_spelling() -> None:
    async with receiving() as receiver:
        poster = Poster(Targets())
        for host in (
            "127.0.0.1",
            "localhost",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "2130706433",
            "0x7f000001",
            "127.1",
            "0",
        ):
            answered = await poster.post(f"http://{host}:{receiver.port}/", b"{}", {})
            assert (answered.status, answered.is_received) == (0, False), host
        metadata = await poster.post("http://169.254.169.254/latest/meta-data/", b"{}", {})
        assert "is not an address of the public internet" in metadata.why
        assert receiver.requests == []
        allowed = await Poster(Targets(LOOPBACK)).post(receiver.url, b"{}", {})
        assert allowed.is_received


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as receiver, receiving() as other:
        receiver.says("307 Temporary Redirect", f"location: {other.url}")
        answered = await Poster(Targets(LOOPBACK)).post(receiver.url, b"{}", {})
        assert (answered.status, answered.is_received) == (307, False)
        assert "redirects are not followed" in answered.why
        assert (len(receiver.requests), other.requests) == (1, [])


async def test_an_answer_is_read_and_kept_within_bounds() -> None:
    async with receiving() as receiver:
        poster = Poster(Targets(LOOPBACK), timeout_s=LIMIT_S)
        receiver.says("200 OK", body=b"x" * 3_000_000)
        answered = await poster.post(receiver.url, b"{}", {})
        assert (answered.is_received, answered.answer) == (True, "x" * 2048)
        receiver.says("500 Oops", body=b"\xff\x00why")
        assert (await poster.post(receiver.url, b"{}", {})).answer == "\ufffd\x00why"
        receiver.slow_paths = {"/slow"}
        slow = Poster(Targets(LOOPBACK), timeout_s=0.05)
        assert (
            await slow.post(receiver.url.replace("/hooks", "/slow"), b"{}", {})
        ).why == "no answer within 0.05 s"
        receiver.answer = b"no HTTP at all\r\n\r\n"
        assert (await poster.post(receiver.url, b"{}", {})).status == 0


def test_networks_are_named_as_networks() -> None:
    assert [str(each) for each in networks(["10.1.2.3/16", "::1"])] == ["10.1.0.0/16", "::1/128"]
    with pytest.raises(ConfigurationError, match="name a network"):
        networks(["localhost"])
