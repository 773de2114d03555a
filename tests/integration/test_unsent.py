"""What a client has put into its connection and not sent yet: never too much, and nothing of a connection that broke."""

from __future__ import annotations

import os
import signal

import anyio
import anyio.lowlevel
import nats.errors
import pytest
from tests.conftest import ServerFactory
from tests.support.limits import LIMIT_S
from tests.support.processes import until

from jobledger.ledger import connect, task
from jobledger.ledger.nats import connection as connection_module
from jobledger.ledger.nats.connection import Connection, ConnectionLostError, open_connection
from jobledger.ledger.nats.transport import Transport

pytestmark = pytest.mark.anyio

_MESSAGE = b"x" * 100_000
_MANY = 1_000


@task(queue="unsent")
def keep(text: str) -> str:
    return text


async def _fill(connection: Connection) -> None:
    for _ in range(_MANY):  # more than the sockets hold
        connection.send("unsent.a", "", b"", _MESSAGE)
        await anyio.lowlevel.checkpoint()  # the turn in which it is written


async def test_a_server_that_reads_nothing_does_not_fill_the_memory(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    most = 1 << 20
    monkeypatch.setattr(connection_module, "UNSENT_BYTES_MAX", most)
    async with server_factory() as server:
        connection = await open_connection(server.url, name="test", timeout_s=LIMIT_S)
        transport = connection._transport
        assert isinstance(transport, Transport)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectionLostError):
                await _fill(connection)
            assert connection.is_connected
            assert most <= transport.unsent_bytes <= most + 2 * len(_MESSAGE)
            assert "reads too slowly" in caplog.text
        finally:
            os.kill(server.pid, signal.SIGCONT)
        try:
            await until(lambda: not transport.unsent_bytes)
            connection.send("unsent.a", "", b"", b"again")
        finally:
            await connection.close()


async def test_an_enqueue_that_finds_no_room_to_be_sent_is_stored_once_there_is(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        server_factory() as server,
        connect(server.url, ledger_bytes_max=1 << 20, environment="t_unsent") as ledger,
    ):
        monkeypatch.setattr(connection_module, "UNSENT_BYTES_MAX", 0)
        outcome: list[bool] = []

        async def enqueue() -> None:
            outcome.append((await ledger.enqueue(keep.options(id="j"), "a")).created)

        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as group:
                group.start_soon(enqueue)
                await anyio.sleep(0.2)  # some tries
                assert not outcome
                monkeypatch.setattr(connection_module, "UNSENT_BYTES_MAX", 1 << 20)
        assert outcome == [True]
        assert (await ledger.log.head()).last_sequence == 1


async def test_what_was_not_written_when_the_connection_broke_is_not_sent_on_the_next_one(
    server_factory: ServerFactory,
) -> None:
    async with server_factory() as server:
        sender = await open_connection(server.url, name="test", timeout_s=LIMIT_S)
        receiver = await open_connection(server.url, name="test", timeout_s=LIMIT_S)
        try:
            came: list[bytes] = []
            last = anyio.Event()

            def on_message(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
                came.append(data)
                if data == b"fresh":
                    last.set()

            await receiver.listen("unsent.b", on_message)
            await receiver.flush()
            found = anyio.Event()
            sender.found_listeners.append(found.set)
            sender.send("unsent.b", "", b"", b"stale")
            await sender._process_op_err(nats.errors.StaleConnectionError())  # before the turn ends
            with pytest.raises(ConnectionLostError):
                sender.send("unsent.b", "", b"", b"while there is none")
            with anyio.fail_after(LIMIT_S):
                await found.wait()
                sender.send("unsent.b", "", b"", b"fresh")
                await last.wait()
            assert came == [b"fresh"]
        finally:
            await sender.close()
            await receiver.close()
