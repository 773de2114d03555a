"""Reading without a consumer: what a consumer's reader is told of, of a ledger that somebody meddled with, is told here too."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.conftest import ServerFactory
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.log_entries import chain_of, entry, event, fill

from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.errors import LedgerNotFoundError, SequenceGapError
from jobledger.ledger.nats import api as jetstream
from jobledger.ledger.nats.api import right_to_read
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


def without_consumer(ledger: Ledger) -> Ledger:
    """Let a client know that it may not make one."""
    ledger.connection.optional_rights[right_to_read(ledger.names.ledger_stream)] = False
    return ledger


@pytest.fixture
async def ledger(nats_server: EmbeddedServer) -> AsyncIterator[Ledger]:
    settings: dict[str, Any] = {"environment": f"t_{secrets.token_hex(6)}", "ledger_bytes_max": 64 << 20}
    async with connect(nats_server.url, **settings) as opened:
        yield without_consumer(opened)


async def read(ledger: Ledger, seen: list[int], **chosen: Any) -> None:
    async with asyncio.timeout(LIMIT_S), aclosing(ledger.log.read_messages(**chosen)) as batches:
        async for batch in batches:
            seen.extend(each.stream_sequence for each in batch)


async def test_what_comes_before_a_gap_is_handed_out(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(ledger.log, 10)
    seen: list[int] = []

    async def cut(*given: Any, **named: Any) -> Any:
        found = await asked(*given, **named)
        del found[6:7]
        return found

    asked = jetstream.direct_get
    monkeypatch.setattr(jetstream, "direct_get", cut)
    with pytest.raises(SequenceGapError, match="stream sequence 7 is missing"):
        await read(ledger, seen)
    assert seen == list(range(1, 7))


@pytest.mark.unsound_ledger("what is no event is stored")
async def test_a_header_that_somebody_stored_says_nothing_of_its_place(ledger: Ledger) -> None:
    """The server puts its own behind it."""
    await fill(ledger.log, 3)
    subject = f"{chain_of(ledger.log).rpartition('.')[0]}.started"
    stored = asyncio.Event()
    reply = ledger.inbox.expect(subject, lambda _data, _headers: stored.set(), once=True)
    forged = b"NATS/1.0\r\nNats-Sequence: 9999\r\nNats-Subject: ledger.job.other.j.started\r\n\r\n"
    ledger.connection.send(subject, reply, forged, b"no event")
    async with asyncio.timeout(LIMIT_S):
        await stored.wait()
    async with aclosing(ledger.log.read_messages()) as batches:
        found = [(each.stream_sequence, each.subject) async for batch in batches for each in batch]
    assert [sequence for sequence, _ in found] == [1, 2, 3, 4]
    assert found[3][1] == subject


async def test_a_ledger_that_is_deleted_meanwhile_is_told(ledger: Ledger) -> None:
    await fill(ledger.log, 3)
    seen: list[int] = []
    following = asyncio.create_task(read(ledger, seen, follow=True))
    async with asyncio.timeout(LIMIT_S):
        while len(seen) < 3:
            await asyncio.sleep(0.01)
    await api(ledger.inbox, f"STREAM.DELETE.{ledger.names.ledger_stream}", {})
    with pytest.raises(LedgerNotFoundError):
        await following


async def test_a_ledger_that_was_rewound_while_the_connection_was_lost_is_told(
    server_factory: ServerFactory,
) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, ledger_bytes_max=16 << 20) as ledger:
        await fill(without_consumer(ledger).log, 20)
        seen: list[int] = []
        following = asyncio.create_task(read(ledger, seen, follow=True))
        async with asyncio.timeout(LIMIT_S):
            while len(seen) < 20:
                await asyncio.sleep(0.01)
        async with connect(server.url) as other:
            await api(other.inbox, f"STREAM.DELETE.{other.names.ledger_stream}", {})
            await server.stop()
            await server.start()
            await other.connection.wait_connected(LIMIT_S)
        async with connect(server.url, ledger_bytes_max=16 << 20) as again:
            await again.log.append([entry(again.log, 0, event("new"))])
        with pytest.raises((SequenceGapError, LedgerNotFoundError)):
            await following
