"""What is shown of an address never holds a secret; what comes out of a stored event never ends a connection."""

from __future__ import annotations

import anyio
import pytest

from jobledger.ledger.model.errors import ServerUnreachableError
from jobledger.ledger.nats.connection import open_connection

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://user:s3cr3t@127.0.0.1:1", "nats://***@127.0.0.1:1"),
        ("nats://user:s3cr3t,pass@127.0.0.1:1", "nats://***@127.0.0.1:1"),
        (
            "nats://a:s3cr3t@127.0.0.1:1,nats://b:s3cr3t@127.0.0.1:2",
            "nats://***@127.0.0.1:1, nats://***@127.0.0.1:2",
        ),
        ("127.0.0.1:1,127.0.0.1:2", "127.0.0.1:1,127.0.0.1:2"),
    ],
)
async def test_no_secret_is_shown_of_an_address(url: str, shown: str) -> None:
    with pytest.raises(ServerUnreachableError) as caught:
        await open_connection(url, name="test", timeout_s=5)
    assert shown in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nats://",
        "http://localhost",
        "unix:///tmp/x",
        "nats://[::1",
        "nats://h:99999",
        "nats://h:-1",
        "nats://h:1,,",
    ],
)
async def test_what_is_no_address_is_told_as_that(url: str) -> None:
    with pytest.raises(ServerUnreachableError, match="is not the address of a server: nats://host:port"):
        await open_connection(url, name="test", timeout_s=5)


@pytest.mark.parametrize("url", [f"nats://{'x' * 300}:1", "ws://127.0.0.1:1", "nats://nohost.invalid"])
async def test_what_cannot_be_connected_to_is_told_at_once(url: str) -> None:
    with (
        pytest.raises(ServerUnreachableError, match=r"cannot connect to|is not known") as caught,
        anyio.fail_after(4),
    ):
        await open_connection(url, name="test", timeout_s=5)
    assert "in time" not in str(caught.value)
