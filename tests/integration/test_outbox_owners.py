"""Jobs of an outbox that have an owner: their values wait as they are in the application's database, and the relay seals them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_owners import Connect, found_in, master_file
from tests.support.limits import LIMIT_S
from tests.support.outboxes import SQLITE_WAYS, make_table
from tests.support.working import until, working

from jobledger.admin.erasure import keys_of
from jobledger.ledger import (
    InvalidInputError,
    JobRef,
    Ledger,
    Limit,
    Queue,
    Run,
    RunEnd,
    Unique,
    task,
    workflow,
)
from jobledger.ledger.outbox.addresses import open_database
from jobledger.ledger.outbox.relay import Relay, RelayCounts
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.written_orders import WrittenOrder

pytestmark = pytest.mark.anyio
WORD = "Canary-Jane-5150"
Add = Callable[..., Any]


@task(owner="person:{person}")
async def greet(person: int, text: str) -> str:
    return f"hello {text}"


@task(max_attempts=1)
async def plain(text: str) -> str:
    return text


@task(max_attempts=1)
async def hears(end: RunEnd) -> str:
    return f"{end.state}: {end.result}"


@workflow(on_success=hears, max_attempts=1)
async def whole(run: Run, text: str) -> str:
    return text


TASKS = (greet, plain, hears, whole)


@pytest.fixture
async def address(tmp_path: Path) -> str:
    found = f"sqlite:{tmp_path / 'app.db'}"
    await make_table(found)
    return found


@pytest.fixture
def add(address: str) -> Add:
    """Commit one row."""
    transact = SQLITE_WAYS["sqlite3"](address)

    async def one(what: Any, **values: Any) -> JobRef:
        [ref] = await transact([(what, values)], True)
        return ref

    return one


async def relayed(ledger: Ledger, address: str) -> RelayCounts:
    async with open_database(address) as database:
        return await Relay(ledger, database).once()


async def in_clear(ledger: Ledger) -> list[str]:
    found: list[str] = []
    async for portion in ledger.log.read_messages():
        found += [each.subject for each in portion if WORD.encode() in each.data]
    return found


async def test_the_relay_seals_what_waited_as_it_was(
    connected: Connect, nats_server: EmbeddedServer, address: str, add: Add, tmp_path: Path
) -> None:
    owned: dict[str, Any] = {"owner": "person:17"}
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        small = await add(greet.options(metadata={"who": WORD, "empty": ""}), person=17, text=WORD)
        large = await add(greet.options(id="large"), person=17, text=WORD * 6_000)
        run = await add(whole.options(id="run", **owned), text=WORD)
        named = await add(plain.options(id="named", **owned), text=WORD)
        assert WORD in (tmp_path / "app.db").read_bytes().decode("latin-1"), "the row has it as it is"
        assert await relayed(ledger, address) == RelayCounts(created=4)
        again = await add(plain.options(id="named", **owned), text=WORD)
        other = await add(plain.options(id="named", **owned), text="other")
        assert (named, again) == (other, other)
        assert await relayed(ledger, address) == RelayCounts(existing=1, refused=1)
        jobs = [ledger.handle_of(each) for each in (small, large, run, named)]
        async with working(ledger, *TASKS):
            assert await jobs[0].result(timeout_s=LIMIT_S) == f"hello {WORD}"
            assert await jobs[1].result(timeout_s=LIMIT_S) == f"hello {WORD * 6_000}"
            assert [await each.result(timeout_s=LIMIT_S) for each in jobs[2:]] == [WORD, WORD]
            end = await ledger.job("run-end")
            assert await end.result(timeout_s=LIMIT_S) == f"completed: {WORD}"
        assert {(await each.snapshot()).order.key for each in jobs} == {"person:17/1"}
        assert await in_clear(ledger) == []
        assert found_in(nats_server.directory, WORD) == {}


async def test_a_unique_job_of_an_owner_is_one_whichever_way_it_comes(
    connected: Connect, address: str, add: Add, tmp_path: Path
) -> None:
    unique, others = (plain.options(owner=f"person:{each}", unique=Unique()) for each in (17, 18))
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        for text in (WORD, WORD * 200):
            direct = await ledger.enqueue(unique, text=text)
            await add(unique, text=text)
            assert await relayed(ledger, address) == RelayCounts(existing=1)
            await add(others, text=text)
            assert await relayed(ledger, address) == RelayCounts(created=1)
            assert (await direct.snapshot()).order.key == "person:17/1"
        assert await in_clear(ledger) == []


async def test_what_the_relay_cannot_make_of_sealed_values_is_refused_before_a_row_is_written(
    add: Add, address: str
) -> None:
    options: tuple[tuple[dict[str, Any], str], ...] = (
        ({"limits": (Limit("customer", slots=1, key="text"),)}, "a limit takes its key"),
        ({"queue": Queue("turns", fair="text")}, "its queue takes turns by a value"),
        ({"unique": Unique(for_s=60)}, "its id follows from its input"),
    )
    for each, why in options:
        with pytest.raises(InvalidInputError, match=f"has an owner, and {why}"):
            await add(plain.options(owner="person:17", **each), text=WORD)
        await add(plain.options(**each), text="x")
    with sqlite3.connect(address.removeprefix("sqlite:")) as connection:
        assert connection.execute("SELECT count(*) FROM jobledger_outbox").fetchone() == (3,)


async def test_where_all_is_sealed_jobs_of_the_outbox_are_too(
    connected: Connect, address: str, add: Add, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1"), seal="all") as ledger:
        ref = await add(plain, text=WORD)
        await add(plain.options(unique=Unique()), text=WORD)
        await add(plain.options(limits=(Limit("customer", slots=1, key="text"),)), text=WORD)
        assert await relayed(ledger, address) == RelayCounts(created=2, refused=1)
        assert (await ledger.handle_of(ref).snapshot()).order.key == "ledger:default/1"
        assert await in_clear(ledger) == []


async def test_a_relay_without_the_master_key_leaves_rows_where_they_are(
    connected: Connect, address: str, add: Add, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, connected() as poor:
        ref = await add(greet, person=17, text=WORD)
        other = await add(plain, text="x")
        async with open_database(address) as database:
            running = asyncio.create_task(Relay(poor, database).run())
            await until(lambda: "outbox main waits: owner person:17 needs a key" in caplog.text)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert (await poor.handle_of(other).snapshot()).task == "plain", "those that need no key go on"
        assert await relayed(ledger, address) == RelayCounts(created=1)
        assert (await ledger.handle_of(ref).snapshot()).order.key == "person:17/1"


async def test_a_row_of_an_owner_who_is_erased_is_put_aside(
    connected: Connect, address: str, add: Add, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        keys = keys_of(ledger)
        await keys.key_for("person:17")
        await keys.close("person:17", 1)
        keys.forget("person:17")
        await add(greet, person=17, text=WORD)
        assert await relayed(ledger, address) == RelayCounts(refused=1)
        with sqlite3.connect(address.removeprefix("sqlite:")) as connection:
            (said,) = connection.execute("SELECT refusal FROM jobledger_outbox").fetchone()
        assert "the data of owner person:17 is being erased" in said


async def test_an_order_that_was_altered_is_refused_as_a_row(
    connected: Connect, address: str, add: Add, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        await add(plain.options(owner="person:17", unique=Unique()), text=WORD)
        with sqlite3.connect(address.removeprefix("sqlite:")) as connection:
            ((text,),) = connection.execute("SELECT written_order FROM jobledger_outbox").fetchall()
            assert WrittenOrder.read(text).owner == "person:17"
            connection.execute(
                "UPDATE jobledger_outbox SET written_order = ?", (text.replace('"person:17"', '"Jane Doe"'),)
            )
        assert await relayed(ledger, address) == RelayCounts(refused=1)
        assert await in_clear(ledger) == []
