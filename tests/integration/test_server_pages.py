"""What `doctor` learns from the monitoring pages of several servers."""

from __future__ import annotations

import time

import pytest
from tests.conftest import ServerFactory

from jobledger.admin.server_pages import Monitor, check_pages
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def servers(server_factory: ServerFactory) -> tuple[EmbeddedServer, EmbeddedServer]:
    """One that syncs each write, and one that does not; neither has a ledger."""
    made = server_factory(durability="power"), server_factory(durability="process")
    for each in made:
        await each.start()
    return made


def page(server: EmbeddedServer) -> str:
    assert server.monitor_url is not None
    return server.monitor_url


async def test_each_server_tells_its_durability_and_its_clock(
    servers: tuple[EmbeddedServer, EmbeddedServer],
) -> None:
    found = await check_pages([Monitor(page(each)) for each in servers])
    assert [each.check.split()[0] for each in found] == ["durability", "clock", "durability", "clock"]
    assert [each.status for each in found] == ["ok", "ok", "warn", "ok"]
    assert len({each.check for each in found}) == 4  # each names its server


async def test_a_clock_that_is_apart_is_told_with_its_server(
    servers: tuple[EmbeddedServer, EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 90.0)
    found = await check_pages([Monitor(page(each)) for each in servers])
    clocks = [each for each in found if each.check.startswith("clock ")]
    assert [(each.status, "ahead of this machine" in each.found) for each in clocks] == [("fail", True)] * 2


async def test_a_page_that_nobody_serves_is_named_and_one_that_was_guessed_is_told_once(
    servers: tuple[EmbeddedServer, EmbeddedServer],
) -> None:
    (first, _, third) = await check_pages([Monitor(page(servers[0])), Monitor("http://127.0.0.1:9")])
    assert first.status == "ok"
    assert (third.check, third.status) == ("durability 127.0.0.1:9", "warn")
    assert "http://127.0.0.1:9" in third.advice
    guessed = [Monitor("http://10.255.255.1:8222", 4222), Monitor("http://10.255.255.2:8222", 4222)]
    (only,) = await check_pages(guessed)  # no machine but this one is asked unless somebody names it
    assert (only.check, only.found) == ("durability", "unknown")


async def test_the_page_of_another_server_says_nothing(
    servers: tuple[EmbeddedServer, EmbeddedServer],
) -> None:
    one, other = servers
    (found,) = await check_pages([Monitor(page(one), other.port)])
    assert found.found == "unknown"


@pytest.mark.parametrize("url", ["http://host:abc", "http://", "http://[::1", "http://127.0.0.1:99999"])
async def test_an_address_that_is_none_is_named_and_ends_nothing(url: str) -> None:
    (found,) = await check_pages([Monitor(url)])
    assert (found.status, found.found) == ("warn", "unknown")
    assert url in found.advice
