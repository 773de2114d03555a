"""Streams that exist already, and servers that cannot hold them: refused with a sentence, never changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from nats.js.api import ConsumerConfig, StreamConfig
from tests.support.full_ledgers import unthrottled
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.tables import each_row

from jobledger.admin.checks import check_consumers
from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    LedgerError,
    LedgerFullError,
    ServerUnreachableError,
    StreamMismatchError,
)
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.addresses import redact
from jobledger.ledger.nats.durables import ensure_consumer, list_consumers, reactor_consumer
from jobledger.workers import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nats.aio.client import Client

    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

SMALL = 1 << 20


@task
async def add(a: int, b: str = "") -> int:
    return a


async def ask(raw: Client, subject: str, body: bytes = b"") -> bytes:
    return (await raw.request(f"$JS.API.{subject}", body, timeout=LIMIT_S)).data


_RIGHT: dict[str, Any] = {"allow_direct": True, "deny_delete": True, "discard": "new", "allow_atomic": True}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"discard": "old"}, ["discard"]),
        ({"deny_delete": False}, ["deny_delete"]),
        ({"allow_direct": False}, ["allow_direct"]),
        ({"allow_atomic": False}, ["allow_atomic"]),
        ({"retention": "workqueue"}, ["retention"]),
        ({"storage": "memory"}, ["storage"]),
        ({"max_age": 3_600_000_000_000}, ["max_age"]),
        ({"max_msgs": 1_000}, ["max_msgs"]),
        ({"max_msgs_per_subject": 1}, ["max_msgs_per_subject"]),
        ({"no_ack": True}, ["no_ack"]),
        ({"discard": "old", "max_age": 3_600_000_000_000}, ["discard", "max_age"]),
    ],
)
async def test_a_ledger_with_wrong_settings_is_refused_and_left_as_it_is(
    nats_server: EmbeddedServer, raw: Client, environment: str, settings: dict[str, Any], named: list[str]
) -> None:
    name = f"{environment.upper()}_LEDGER"
    config = {"name": name, "subjects": [f"{environment}_ledger.>"], "max_bytes": SMALL, **_RIGHT, **settings}
    created = msgspec.json.decode(await ask(raw, f"STREAM.CREATE.{name}", msgspec.json.encode(config)))
    assert "error" not in created
    with pytest.raises(StreamMismatchError) as caught:
        async with connect(nats_server.url, environment=environment, ledger_bytes_max=SMALL):
            pass
    assert caught.value.name == name
    assert [difference.partition(" ")[0] for difference in caught.value.differences] == named
    assert all(each in str(caught.value) for each in named)
    after = msgspec.json.decode(await ask(raw, f"STREAM.INFO.{name}"))
    assert after["config"] == created["config"]


async def test_a_ledger_of_other_subjects_is_refused(
    nats_server: EmbeddedServer, raw: Client, environment: str
) -> None:
    await raw.jetstream().add_stream(
        StreamConfig(name=f"{environment.upper()}_LEDGER", subjects=[f"{environment}.x"])
    )
    with pytest.raises(StreamMismatchError, match="subjects"):
        async with connect(nats_server.url, environment=environment, ledger_bytes_max=SMALL):
            pass


async def test_subjects_that_another_stream_holds_are_refused_with_a_sentence(
    nats_server: EmbeddedServer, raw: Client, environment: str
) -> None:
    await raw.jetstream().add_stream(
        StreamConfig(name=f"{environment}_other", subjects=[f"{environment}_ledger.>"])
    )
    with pytest.raises(LedgerError, match=r"LEDGER: .*overlap"):
        async with connect(nats_server.url, environment=environment, ledger_bytes_max=SMALL):
            pass


async def test_many_clients_that_connect_at_once_make_one_set_of_streams(
    nats_server: EmbeddedServer, environment: str
) -> None:
    async def use() -> int:
        async with connect(nats_server.url, environment=environment, ledger_bytes_max=SMALL) as ledger:
            return (await ledger.enqueue(add, 1)).sequence

    async with asyncio.timeout(LIMIT_S):
        assert sorted(await asyncio.gather(*(use() for _ in range(10)))) == list(range(1, 11))


async def test_a_client_with_other_limits_takes_the_streams_as_they_are(
    nats_server: EmbeddedServer, environment: str
) -> None:
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=SMALL, lease_s=3) as ledger:
        await ledger.enqueue(add, 1)
    async with connect(
        nats_server.url, environment=environment, ledger_bytes_max=2 * SMALL, lease_s=9
    ) as ledger:
        assert await ledger.leases.duration_s() == 3
        config = (await api(ledger.inbox, f"STREAM.INFO.{ledger.names.ledger_stream}", {}))["config"]
        assert config["max_bytes"] == SMALL


async def test_a_consumer_with_another_filter_is_refused_by_the_worker(
    nats_server: EmbeddedServer, raw: Client, environment: str
) -> None:
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=SMALL) as ledger:
        await raw.jetstream().add_consumer(
            ledger.names.ledger_stream,
            ConsumerConfig(
                durable_name="work_default_high", filter_subject=f"{environment}_ledger.job.other.>"
            ),
        )
        with pytest.raises(StreamMismatchError, match=r"work_default_high.*filter_subject"):
            await Worker(ledger, TaskRegistry([add])).run()


async def test_a_full_ledger_refuses_and_holds_exactly_what_it_accepted(
    nats_server: EmbeddedServer, environment: str
) -> None:
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 16) as ledger:
        unthrottled(ledger)
        accepted = refused = 0
        for results in [
            await asyncio.gather(
                *(ledger.enqueue(add, n, "x" * 500) for n in range(50)), return_exceptions=True
            )
            for _ in range(4)
        ]:
            for result in results:
                if isinstance(result, LedgerFullError):
                    refused += 1
                else:
                    assert not isinstance(result, BaseException), result
                    accepted += 1
        assert refused > 0
        with pytest.raises(LedgerFullError, match="jobledger ledger resize"):
            await ledger.enqueue_many(add, ({"a": n, "b": "x" * 500} for n in range(200)))
        events = [stored async for stored in ledger.events(follow=False)]
        assert len(events) == (await ledger.log.head()).last_sequence >= accepted > 0
        assert (await ledger.log.head()).stored_bytes <= 1 << 16


async def test_no_room_for_the_ledger_at_all_is_a_sentence(
    nats_server: EmbeddedServer, environment: str
) -> None:
    with pytest.raises(LedgerFullError, match="max_file_store"):
        async with connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 44):
            pass


async def test_a_server_without_jetstream_is_a_sentence(tmp_path: Path, nats_server_binary: str) -> None:
    async with _plain_server(nats_server_binary, tmp_path, "") as url:
        with pytest.raises(JetStreamDisabledError, match="JetStream"):
            async with connect(url):
                pass


@pytest.fixture
async def guarded(tmp_path: Path, nats_server_binary: str) -> AsyncGenerator[str]:
    """Host and port of a server that asks for a password."""
    accounts = "authorization { user: me, password: right }"
    async with _plain_server(nats_server_binary, tmp_path, accounts) as url:
        yield url.removeprefix("nats://")


@each_row("form", ["nats://me:{word}@{host}", "me:{word}@{host}", "{word}@{host}", "nats://{word}@{host}"])
@each_row("word", ["s3cret", "s3/cret", "s3#cret", "s3?cret"])
async def test_a_wrong_password_is_told_without_it(
    guarded: str, caplog: pytest.LogCaptureFixture, form: str, word: str
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ServerUnreachableError) as caught:
        async with connect(form.format(word=word, host=guarded), connect_timeout_s=LIMIT_S):
            pass
    assert "s3" not in str(caught.value)
    assert "cret" not in str(caught.value)
    assert "cret" not in caplog.text
    if word == "s3cret":
        assert "refused the credentials" in str(caught.value)


@pytest.mark.parametrize(
    ("accounts", "credentials"),
    [
        ('user: "m@e", password: "p/w%:"', "m%40e:p%2Fw%25%3A"),
        ('user: me, password: "a+b"', "me:a+b"),
        ('token: "t/k#"', "t%2Fk%23"),
    ],
)
async def test_special_characters_of_credentials_are_written_as_in_any_url(
    tmp_path: Path, nats_server_binary: str, accounts: str, credentials: str
) -> None:
    settings = f'authorization {{ {accounts} }}\njetstream {{ store_dir: "{tmp_path}" }}'
    async with _plain_server(nats_server_binary, tmp_path, settings) as url:
        address = url.replace("nats://", f"nats://{credentials}@")
        async with connect(address, ledger_bytes_max=1 << 20) as ledger:
            assert (await ledger.log.head()).last_sequence == 0


@each_row(
    ("url", "shown"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("nats://a:b@host:4222", "nats://***@host:4222"),
        ("a:b@host:4222", "***@host:4222"),
        ("nats://a:b/c@host", "nats://***@host"),
        ("nats://a:b@c@host", "nats://***@host"),
        ("tls://token@host", "tls://***@host"),
    ],
)
def test_an_address_is_shown_without_credentials(url: str, shown: str) -> None:
    assert redact(url) == shown


@contextlib.asynccontextmanager
async def _plain_server(binary: str, directory: Path, more: str) -> AsyncGenerator[str, None]:
    """Run nats-server with a configuration of the test's own; gives its address."""
    configuration = directory / "plain.conf"
    configuration.write_text(f'listen: "127.0.0.1:-1"\n{more}\n', encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        binary, "-c", str(configuration), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while b"Listening for client connections on " not in (line := await process.stderr.readline()):
                assert line
        yield f"nats://{line.rsplit(b' ', 1)[1].strip().decode()}"
    finally:
        process.kill()
        await process.wait()


async def test_consumers_are_listed_beyond_the_servers_page_of_256(
    nats_server: EmbeddedServer, environment: str
) -> None:
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=SMALL) as ledger:
        await _list_many(ledger)


async def _list_many(ledger: Ledger) -> None:
    stream = ledger.names.ledger_stream
    config = reactor_consumer((), ack_wait_s=1.0)
    names = [f"other_{number:03}" for number in range(300)]

    async def make(some: list[str]) -> None:
        for name in some:
            await ensure_consumer(ledger.inbox, stream, name, config)

    await asyncio.gather(
        *(make(names[start::20]) for start in range(20)), make(["work_z_z_normal", "work_z_z_high"])
    )
    assert {info.name for info in await list_consumers(ledger.inbox, stream)} >= {*names, "work_z_z_normal"}
    assert [each.check for each in await check_consumers(ledger.inbox, stream)] == ["queue z_z"]


async def test_two_environments_of_the_default_size_fit_on_one_server(server_factory: Any) -> None:
    server: EmbeddedServer = server_factory()
    async with server, connect(server.url), connect(server.url, environment="second") as second:
        assert (await load(second.log, JobRef(queue="q", job_id="j"))).job is None
