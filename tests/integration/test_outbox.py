"""The outbox: rows in an application's own transactions, and what the relay makes of them."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
from sqlalchemy import create_engine
from tests.support.counting import everything
from tests.support.outboxes import POSTGRESQL_WAYS, SQLITE_WAYS, Transaction, django_connection, make_table
from tests.support.postgres import Postgres
from tests.support.tables import each_row
from tests.support.working import Connect, until, working

from jobledger.ledger import (
    ConfigurationError,
    InvalidInputError,
    JobRef,
    Ledger,
    Limit,
    LockTimeoutError,
    PayloadTooLargeError,
    Run,
    RunEnd,
    Unique,
    connect,
    outbox,
    task,
    throttle,
    workflow,
)
from jobledger.ledger.outbox import OutboxNotFoundError, OutboxUnreachableError
from jobledger.ledger.outbox import relay as relays
from jobledger.ledger.outbox.addresses import open_database
from jobledger.ledger.outbox.database import OutboxDatabase
from jobledger.ledger.outbox.relay import Relay, RelayCounts
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def send(user_id: int, text: str = "") -> int:
    return user_id


@pytest.fixture
async def address(tmp_path: Path) -> str:
    found = f"sqlite:{tmp_path / 'app.db'}"
    await make_table(found)
    return found


@pytest.fixture
async def database(address: str) -> AsyncIterator[OutboxDatabase]:
    async with open_database(address) as opened:
        yield opened


@pytest.fixture
def add(address: str) -> Callable[..., Any]:
    """Commit one row."""
    transact = SQLITE_WAYS["sqlite3"](address)

    async def one(what: Any, **values: Any) -> JobRef:
        [ref] = await transact([(what, values)], True)
        return ref

    return one


async def jobs_of(ledger: Ledger) -> list[JobRef]:
    """The jobs that began, one for each first event."""
    events = [each.event for each in await everything(ledger)]
    return [
        JobRef(queue=each.queue, job_id=each.job)
        for each in events
        if type(each).__name__ in ("Queued", "Scheduled", "Held")
    ]


async def _rows_become_jobs(ledger: Ledger, address: str, transact: Transaction) -> None:
    await make_table(address)
    await make_table(address)  # once more changes nothing
    lost = await transact([(send, {"user_id": 1}), (send, {"user_id": 2})], False)
    kept = await transact(
        [(send, {"user_id": 3}), (send.options(queue="other", id="four"), {"user_id": 4})], True
    )
    async with open_database(address) as database:
        assert (await database.counts()).waiting == 2
        assert await Relay(ledger, database).once() == RelayCounts(created=2)
        assert (await database.counts()).waiting == 0
    assert sorted(await jobs_of(ledger), key=lambda each: each.queue) == kept
    assert kept[1] == JobRef(queue="other", job_id="four")
    assert not set(lost) & set(kept)


@pytest.mark.parametrize("way", list(SQLITE_WAYS))
async def test_a_committed_row_in_sqlite_is_a_job_and_a_rolled_back_one_none(
    ledger: Ledger, tmp_path: Path, way: str
) -> None:
    address = f"sqlite:{tmp_path / 'app.db'}"
    await _rows_become_jobs(ledger, address, SQLITE_WAYS[way](address))


@pytest.mark.parametrize("way", list(POSTGRESQL_WAYS))
async def test_a_committed_row_in_postgresql_is_a_job_and_a_rolled_back_one_none(
    ledger: Ledger, postgres: Postgres, way: str
) -> None:
    address = postgres.new_database()
    await _rows_become_jobs(ledger, address, POSTGRESQL_WAYS[way](address))


# What is refused before a row is written.


def _enqueue_by_django(address: str) -> None:
    outbox.enqueue(django_connection(address), send, 1)


async def test_what_would_commit_by_itself_or_is_no_connection_is_refused(address: str) -> None:
    path = address.removeprefix("sqlite:")
    alone = sqlite3.connect(path, isolation_level=None)
    given: tuple[tuple[Any, str], ...] = (
        (alone, "begin a transaction"),
        (alone.cursor(), "not a cursor"),
        (create_engine(f"sqlite:///{path}"), "a connection or a session|through a"),
        (object(), "cannot write through a builtins.object"),
        (None, "cannot write through"),
    )
    for connection, why in given:
        with pytest.raises(InvalidInputError, match=why):
            outbox.enqueue(connection, send, 1)
    with pytest.raises(InvalidInputError, match="begin a transaction"):
        await asyncio.to_thread(_enqueue_by_django, address)
    alone.execute("BEGIN")
    outbox.enqueue(alone, send, 1)
    alone.execute("COMMIT")
    assert alone.execute("SELECT count(*) FROM jobledger_outbox").fetchone() == (1,)
    alone.close()


async def test_postgresql_connections_that_would_commit_by_themselves_are_refused(postgres: Postgres) -> None:
    address = postgres.new_database()
    await make_table(address)
    with psycopg.connect(address, autocommit=True) as connection:
        with pytest.raises(InvalidInputError, match="begin a transaction"):
            outbox.enqueue(connection, send, 1)
        with connection.transaction():
            outbox.enqueue(connection, send, 1)
    made: Any = asyncpg.create_pool(address, min_size=1, max_size=1)
    async with made as pool:
        with pytest.raises(InvalidInputError, match="not the pool"):
            await outbox.enqueue(pool, send, 2)
        async with pool.acquire() as connection:
            with pytest.raises(InvalidInputError, match="begin a transaction"):
                await outbox.enqueue(connection, send, 2)
            async with connection.transaction():
                await outbox.enqueue(connection, send, 2)
    async with open_database(address) as database:
        assert (await database.counts()).waiting == 2


@each_row(
    ("what", "values", "error", "why"),
    [
        (send, {"user_id": "x"}, InvalidInputError, "user_id"),
        (send, {}, InvalidInputError, "user_id"),
        (send, {"user_id": 1, "text": "x" * (9 << 20)}, PayloadTooLargeError, "input of task send"),
        (send.options(debounce_s=5), {"user_id": 1}, InvalidInputError, "debounce_s"),
        (send.options(unique=Unique(on_conflict="reject")), {"user_id": 1}, InvalidInputError, "reject"),
        (send.options(name="step"), {"user_id": 1}, InvalidInputError, "name='step'"),
        (len, {"user_id": 1}, InvalidInputError, "not a task"),
    ],
)
async def test_what_cannot_become_a_job_is_refused_before_a_row_is_written(
    address: str, what: Any, values: dict[str, Any], error: type[Exception], why: str
) -> None:
    with sqlite3.connect(address.removeprefix("sqlite:")) as connection:
        with pytest.raises(error, match=why):
            outbox.enqueue(connection, what, **values)
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM jobledger_outbox").fetchone() == (0,)
    connection.close()


# What the relay does.


async def test_a_row_that_comes_again_makes_no_second_job(
    ledger: Ledger, database: OutboxDatabase, address: str, add: Callable[..., Any]
) -> None:
    await add(send, user_id=1)
    await add(send.options(id="mine"), user_id=2)
    rows = await database.waiting(10)
    assert await Relay(ledger, database).once() == RelayCounts(created=2)
    with sqlite3.connect(address.removeprefix("sqlite:")) as connection:
        for row in rows:  # as after a kill between the append and the delete
            connection.execute("INSERT INTO jobledger_outbox (written_order) VALUES (?)", (row.text,))
    connection.close()
    assert await Relay(ledger, database).once() == RelayCounts(existing=2)
    assert len(await jobs_of(ledger)) == 2


async def test_a_refused_row_is_seen_and_holds_up_none_behind_it(
    ledger: Ledger, database: OutboxDatabase, address: str, add: Callable[..., Any]
) -> None:
    await ledger.enqueue(send.options(id="taken"), 1)
    await add(send.options(id="taken"), user_id=2)
    with sqlite3.connect(address.removeprefix("sqlite:")) as connection:
        for text in (
            "no JSON",
            '{"queue":"q","id":"i","task":"t","order":{"not_yet":1}}',
            '{"queue":"a.b","id":"i","task":"t","order":{}}',
        ):
            connection.execute("INSERT INTO jobledger_outbox (written_order) VALUES (?)", (text,))
    connection.close()
    kept = await add(send.options(id="taken", on_other_input="keep"), user_id=2)
    behind = await add(send, user_id=3)
    assert await Relay(ledger, database).once() == RelayCounts(created=1, existing=1, refused=4)
    assert await jobs_of(ledger) == [kept, behind]
    rows = await database.rows(10, refused_only=True)
    assert [each.number for each in rows] == [1, 2, 3, 4]
    for row, why in zip(rows, ("user_id", "a later release wrote it", "not_yet", "a.b"), strict=True):
        assert why in (row.refusal or "")
        assert row.refused_at is not None
    assert await Relay(ledger, database).once() == RelayCounts()  # they are not tried again by themselves
    assert await database.retry([1, 2]) == 2
    assert await Relay(ledger, database).once() == RelayCounts(refused=2)
    assert await database.discard([1, 2, 99]) == 2
    assert (await database.counts()).refused == 2
    await add(send, user_id=4)  # it waits, and is not touched
    assert (await database.retry([]), await database.discard([])) == (0, 0)
    assert await database.retry(None) == 2
    assert await Relay(ledger, database).once() == RelayCounts(created=1, refused=2)
    await add(send, user_id=5)
    assert await database.discard(None) == 2
    counts = await database.counts()
    assert (counts.waiting, counts.refused) == (1, 0)


@pytest.mark.parametrize("stored", ["CAST(x'fffe41' AS TEXT)", "x'fffe41'", "x'7b'"])
async def test_a_row_of_bytes_that_are_no_text_is_seen_and_holds_up_none_behind_it(
    ledger: Ledger, database: OutboxDatabase, address: str, add: Callable[..., Any], stored: str
) -> None:
    with sqlite3.connect(address.removeprefix("sqlite:")) as connection:
        connection.execute(f"INSERT INTO jobledger_outbox (written_order) VALUES ({stored})")
    connection.close()
    behind = await add(send, user_id=3)
    assert len(await database.rows(10, refused_only=False)) == 2
    assert await Relay(ledger, database).once() == RelayCounts(created=1, refused=1)
    assert await jobs_of(ledger) == [behind]
    [row] = await database.rows(10, refused_only=True)
    assert row.number == 1
    assert "no order that this release reads" in (row.refusal or "")


async def test_the_whole_order_reaches_the_ledger(
    ledger: Ledger, database: OutboxDatabase, add: Callable[..., Any]
) -> None:
    chosen = send.options(
        priority="high",
        max_attempts=7,
        timeout_s=9,
        tenant="acme",
        correlation="c-1",
        metadata={"a": "b"},
        by="alice",
        delay_s=3600,
    )
    ref = await add(chosen, user_id=7, text="x" * 100_000)
    assert await Relay(ledger, database).once() == RelayCounts(created=1)
    job = await (await ledger.job(ref)).snapshot()
    order = job.order
    assert (order.priority, order.max_attempts, order.timeout_s) == ("high", 7, 9)
    assert (order.tenant, order.correlation, order.metadata) == ("acme", "c-1", {"a": "b"})
    assert (job.created_by, job.state) == ("alice", "scheduled")
    assert order.input_ref is not None, "an input of 100 KB lies in the object store"
    assert msgspec.json.decode(await ledger.inputs.get(order.input, order.input_ref, key=""))["user_id"] == 7


async def test_an_input_that_this_ledger_does_not_take_is_refused_as_a_row(
    connected: Connect, database: OutboxDatabase, add: Callable[..., Any]
) -> None:
    await add(send, user_id=1, text="x" * 200_000)
    await add(send, user_id=2)
    async with connected(payload_bytes_max=100_000) as ledger:
        assert await Relay(ledger, database).once() == RelayCounts(created=1, refused=1)


async def test_limits_of_the_code_are_defined_by_the_relay_and_unique_jobs_are_one(
    ledger: Ledger, database: OutboxDatabase, add: Callable[..., Any]
) -> None:
    @task(queue="mail", limits=(Limit("account", key="user_id", slots=2),))
    async def charge(user_id: int) -> None: ...

    @task(queue="mail", unique=Unique(args=("user_id",)))
    async def greet(user_id: int, text: str = "") -> None: ...

    @task(queue="mail", unique=Unique(for_s=3600))
    async def hourly(user_id: int) -> None: ...

    ref = await add(charge, user_id=5)
    for number in range(3):
        await add(greet, user_id=1, text=str(number))
        await add(hourly, user_id=1)
    assert await Relay(ledger, database).once() == RelayCounts(created=3, existing=4)
    job = await (await ledger.job(ref)).snapshot()
    assert (job.state, job.order.limits) == ("held", ("account:5",))
    async with working(ledger, charge, greet, hourly):
        assert await (await ledger.job(ref)).result(timeout_s=10) is None


async def test_a_workflow_with_its_callback_comes_from_an_outbox(
    ledger: Ledger, database: OutboxDatabase, add: Callable[..., Any]
) -> None:
    ended: list[str] = []

    @task(queue="mail")
    async def tell(end: RunEnd) -> None:
        ended.append(str(end))

    @workflow(queue="mail", on_success=tell)
    async def order(run: Run, number: int) -> int:
        return number + 1

    ref = await add(order, number=1)
    assert await Relay(ledger, database).once() == RelayCounts(created=1)
    async with working(ledger, order, tell):
        assert await (await ledger.job(ref)).result(timeout_s=10) == 2
        await until(lambda: len(ended) == 1)


async def test_postgresql_wakes_the_relay_at_a_commit(ledger: Ledger, postgres: Postgres) -> None:
    address = postgres.new_database()
    await make_table(address)
    transact = POSTGRESQL_WAYS["asyncpg"](address)
    async with open_database(address) as database:
        relay = Relay(ledger, database, poll_s=3600)
        running = asyncio.create_task(relay.run())
        for count in (1, 2):
            await transact([(send, {"user_id": count})], True)
            await until(lambda count=count: relay.done.created == count)  # type: ignore[misc]
        running.cancel()
        await asyncio.wait([running])


async def test_a_batch_has_as_many_rows_as_may_be_in_memory(postgres: Postgres, tmp_path: Path) -> None:
    """Large orders are read a few at a time, and one alone is always read."""
    for address, ways in (
        (postgres.new_database(), POSTGRESQL_WAYS["psycopg"]),
        (f"sqlite:{tmp_path / 'b.db'}", SQLITE_WAYS["sqlite3"]),
    ):
        await make_table(address)
        await ways(address)([(send, {"user_id": n, "text": "x" * (7 << 20)}) for n in range(5)], True)
        async with open_database(address) as database:
            assert [row.number for row in await database.waiting(10)] == [1, 2, 3]
            assert [row.number for row in await database.waiting(2)] == [1, 2]


async def test_relays_take_turns_and_two_at_once_would_do_no_harm(
    connected: Connect, database: OutboxDatabase, address: str, add: Callable[..., Any]
) -> None:
    for number in range(100):
        await add(send, user_id=number)
    async with connected() as one, connected() as two, open_database(address) as other:
        async with one.lock("outbox", "main"):
            with pytest.raises(LockTimeoutError):
                async with two.lock("outbox", "main", wait_s=0):
                    pass
        # Without turns, as if one were frozen in the middle: the same rows, at the same time.
        relays = Relay(one, database, batch_max=30), Relay(two, other, batch_max=50)

        async def all_of(relay: Relay) -> None:
            while await relay._batch():
                pass

        await asyncio.gather(*map(all_of, relays))
        assert sum(each.done.created for each in relays) == 100
        assert len(await jobs_of(one)) == 100
        assert (await database.counts()).waiting == 0


async def test_a_relay_that_had_to_wait_is_well_again_once_another_one_has_the_turn(
    connected: Connect, database: OutboxDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_TURN_S", 0.05)
    async with connected() as one, connected() as two, one.lock("outbox", "main"):
        relay = Relay(two, database)
        await relay._pause(OutboxUnreachableError("as it was before it stood by"))
        assert relay.is_waiting
        running = asyncio.create_task(relay.run())
        await until(lambda: not relay.is_waiting)
        running.cancel()
        await asyncio.wait([running])


async def test_the_relay_waits_for_a_database_and_a_server_that_are_away(
    nats_server_binary: str, tmp_path: Path, postgres: Postgres
) -> None:
    address = postgres.new_database()
    transact = POSTGRESQL_WAYS["psycopg"](address)
    async with (
        EmbeddedServer(tmp_path / "nats", port=0, durability="process", binary=nats_server_binary) as server,
        connect(server.url, ledger_bytes_max=16 << 20, request_timeout_s=1.0) as ledger,
        open_database(address) as database,
    ):
        with pytest.raises(OutboxNotFoundError):
            await database.counts()
        await make_table(address)
        relay = Relay(ledger, database, poll_s=0.05)
        running = asyncio.create_task(relay.run())
        await transact([(send, {"user_id": 1})], True)
        await until(lambda: relay.done.created == 1)
        postgres.kill()
        with pytest.raises(OutboxUnreachableError):
            async with open_database(address) as other:
                await other.counts()
        postgres.start()
        await transact([(send, {"user_id": 2})], True)
        await until(lambda: relay.done.created == 2)
        await server.stop()
        await transact([(send, {"user_id": 3})], True)
        await asyncio.sleep(0)
        assert relay.done.created == 2
        await server.start()
        await until(lambda: relay.done.created == 3, 30)
        running.cancel()
        await asyncio.wait([running])


async def test_a_throttled_ledger_makes_the_relay_wait(
    connected: Connect, database: OutboxDatabase, add: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(send, user_id=1)
    monkeypatch.setattr(throttle, "ENQUEUE_UP_TO", 0.0)  # a ledger that has no room for new jobs
    async with connected(room_timeout_s=0.1) as ledger:
        relay = Relay(ledger, database, poll_s=0.05)
        running = asyncio.create_task(relay.run())
        await until(lambda: relay._pause_s > 0)
        assert (await database.counts()).waiting == 1
        monkeypatch.setattr(throttle, "ENQUEUE_UP_TO", 0.9)
        await until(lambda: relay.done.created == 1)
        running.cancel()
        await asyncio.wait([running])


def test_nothing_of_a_driver_is_imported_for_an_application() -> None:
    """Whoever has no psycopg, asyncpg or SQLAlchemy can import the outbox."""
    code = (
        "import sys; from jobledger.ledger import outbox; from jobledger.ledger.outbox import relay, addresses; "
        "print(sorted({'psycopg', 'asyncpg', 'sqlalchemy', 'django', 'sqlite3'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_an_address_is_told_without_its_password() -> None:
    for address in ("postgresql://u:topsecret@h/d?nonsense=1", "mysql://u:topsecret@h", "sqlite:"):
        with pytest.raises(ConfigurationError) as refused:
            open_database(address)
        assert "topsecret" not in str(refused.value)
