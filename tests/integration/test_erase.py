"""Erasing what an owner's key sealed: step by step, also after a death at each step, and by two at once."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.limits import LIMIT_S

from jobledger.admin import erasure
from jobledger.admin.erasure import SETTLE_S, Erasure
from jobledger.admin.verbs.owners import EraseOwner
from jobledger.audit.verify import verify
from jobledger.ledger import (
    Context,
    ErasedError,
    JobState,
    Ledger,
    OwnerErasingError,
    OwnerNotFoundError,
    TaskRegistry,
    task,
)
from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.owner import GRACE_S, OWNER, HoldOwner, decide
from jobledger.ledger.named_values import change
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

pytestmark = pytest.mark.anyio

Connect = Callable[..., AbstractAsyncContextManager[Ledger]]
OWNED: Final[dict[str, Any]] = {"owner": "person:17"}
WISH: Final = EraseOwner(owner="person:17", request="4711", reason="asked by letter")


class Moved:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.by = timedelta()

    def now(self) -> datetime:
        return SYSTEM_CLOCK.now() + self.by

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.by.total_seconds()

    def move(self, seconds: float) -> None:
        self.by += timedelta(seconds=seconds)


@task(max_attempts=1)
async def greet(text: str) -> str:
    return f"hello {text}"


@task(max_attempts=1)
async def fails(text: str) -> str:
    raise ValueError(text)


STARTED = asyncio.Event()


@task(max_attempts=1)
async def lasts(context: Context, text: str) -> None:
    STARTED.set()
    await asyncio.sleep(LIMIT_S)


TASKS: Final = (greet, fails, lasts)


def master(folder: Path) -> str:
    path = folder / "m1.key"
    if not path.exists():
        path.write_text(f"m1 {base64.b64encode(os.urandom(32)).decode()}\n")
    return f"file:{path}"


async def work(ledger: Ledger, *jobs: Any) -> None:
    worker = Worker(ledger, TaskRegistry(TASKS), WorkerConfig(grace_s=2.0))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(LIMIT_S):
        for job in jobs:
            await job.wait()
    worker.stop()
    await running


async def wrapped_key(ledger: Ledger) -> bytes:
    keys = ledger.keys
    assert isinstance(keys, OwnerKeys)
    found = await keys.entry("person:17")
    assert found is not None
    return base64.b64encode(found.entry.wrapped)


def count_on_disk(server: EmbeddedServer, word: bytes) -> int:
    return sum(path.read_bytes().count(word) for path in server.directory.rglob("*") if path.is_file())


async def erase(ledger: Ledger, rows: Path, wish: EraseOwner = WISH) -> Erasure:
    return await ledger.do(wish, by="dpo", projection=rows)


async def events(ledger: Ledger) -> list[str]:
    batches = ledger.log.read_messages(subject=OWNER.chain(ledger.names, "person", "17"))
    return [OWNER.type_of(OWNER.decode(each)) async for batch in batches for each in batch]


async def test_an_owner_is_erased_and_comes_back_with_another_key(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    clock, rows = Moved(), tmp_path / "jobs.db"
    async with connected(master_key=master(tmp_path), clock=clock) as ledger:
        done = await ledger.enqueue(greet.options(**OWNED), text="Jane")
        dead = await ledger.enqueue(fails.options(**OWNED), text="Jane")
        other = await ledger.enqueue(greet.options(owner="person:18"), text="Joe")
        await work(ledger, done, dead, other)
        waits = await ledger.enqueue(greet.options(delay_s=3600, **OWNED), text="Jane")
        wrapped = await wrapped_key(ledger)
        assert count_on_disk(nats_server, wrapped) == 1

        planned = await erase(ledger, rows, EraseOwner(owner="person:17", plan=True))
        assert (planned.state, planned.key, planned.jobs) == ("planned", "person:17/1", 3)
        assert (planned.living, planned.dead_letters, planned.next_at) == (1, 1, None)
        assert await events(ledger) == []

        begun = await erase(ledger, rows)
        assert (begun.state, begun.living, begun.dead_letters, begun.destroyed_at) == ("erasing", 0, 0, None)
        assert (await waits.snapshot()).state is JobState.CANCELLED
        assert (await dead.snapshot()).state is JobState.DISCARDED
        assert await done.result() == "hello Jane"  # what undoes it may read it until the grace is over
        ledger.keys.forget("person:17")  # type: ignore[attr-defined]
        with pytest.raises(OwnerErasingError):
            await ledger.enqueue(greet.options(**OWNED), text="Jane")

        clock.move(GRACE_S)
        destroyed = await erase(ledger, rows)
        assert destroyed.state == "erasing"
        assert destroyed.destroyed_at is not None
        assert count_on_disk(nats_server, wrapped) == 0
        clock.move(SETTLE_S)
        ended = await erase(ledger, rows)
        assert (ended.state, ended.jobs, ended.cancelled, ended.masters) == ("erased", 3, 2, ("m1",))
        assert await events(ledger) == ["erasing", "erased"]
        assert await erase(ledger, rows) == ended
        assert await events(ledger) == ["erasing", "erased"]

        with pytest.raises(ErasedError):
            await done.result()
        assert await other.result() == "hello Joe"
        back = await ledger.enqueue(greet.options(**OWNED), text="again")
        await work(ledger, back)
        assert (await back.snapshot()).order.key == "person:17/2"
        assert await back.result() == "hello again"
        assert (await verify(ledger.log)).sound


STEPS: Final = (
    (OwnerKeys, "close", 1),
    (erasure, "_end_jobs", 1),
    (OwnerKeys, "destroy", 1),
    (OwnerKeys, "_erase", 1),  # before the entry without the key
    (OwnerKeys, "_erase", 2),  # after it
    (erasure, "_cancelled", 1),
    (OwnerKeys, "open", 1),
)


@pytest.mark.parametrize("place", STEPS, ids=lambda place: f"{place[1]}-{place[2]}")
async def test_an_erasure_that_died_at_a_step_is_done_by_the_same_wish(
    connected: Connect,
    nats_server: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[Any, str, int],
) -> None:
    clock, rows, calls, deaths = Moved(), tmp_path / "jobs.db", 0, 0
    target, name, which = place
    real = getattr(target, name)

    async def dies(*given: Any, **options: Any) -> Any:
        nonlocal calls, deaths
        calls += 1
        if calls < which:
            return await real(*given, **options)
        deaths += 1
        raise RuntimeError("killed")

    async with connected(master_key=master(tmp_path), clock=clock) as ledger:
        waits = await ledger.enqueue(greet.options(delay_s=3600, **OWNED), text="Jane")
        wrapped = await wrapped_key(ledger)
        with monkeypatch.context() as patched:
            patched.setattr(target, name, dies)
            while not deaths:
                try:
                    found = await erase(ledger, rows)
                except RuntimeError:
                    break
                assert found.next_at is not None
                clock.move((found.next_at - clock.now()).total_seconds() + 1)
        assert deaths == 1
        found = await erase(ledger, rows)
        while found.next_at is not None:
            clock.move(max(0.0, (found.next_at - clock.now()).total_seconds()) + 1)
            found = await erase(ledger, rows)
        assert (found.state, found.jobs, found.cancelled) == ("erased", 1, 1)
        assert count_on_disk(nats_server, wrapped) == 0
        assert await events(ledger) == ["erasing", "erased"]
        assert (await waits.snapshot()).state is JobState.CANCELLED
        await ledger.enqueue(greet.options(**OWNED), text="again")
        assert (await verify(ledger.log)).sound


async def test_two_erasures_at_once_are_one(connected: Connect, tmp_path: Path) -> None:
    clock, key = Moved(), master(tmp_path)
    async with connected(master_key=key, clock=clock) as one, connected(clock=clock) as two:
        await one.enqueue(greet.options(delay_s=3600, **OWNED), text="Jane")
        for seconds in (0.0, GRACE_S, SETTLE_S):
            clock.move(seconds)
            found = await asyncio.gather(erase(one, tmp_path / "one.db"), erase(two, tmp_path / "two.db"))
            assert found[0].state == found[1].state
        assert found[0].sequence == found[1].sequence
        assert await events(one) == ["erasing", "erased"]


async def test_a_job_that_runs_is_asked_to_end(connected: Connect, tmp_path: Path) -> None:
    clock = Moved()
    async with connected(master_key=master(tmp_path), clock=clock) as ledger:
        job = await ledger.enqueue(lasts.options(**OWNED), text="Jane")
        worker = Worker(ledger, TaskRegistry(TASKS), WorkerConfig(grace_s=2.0))
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(LIMIT_S):
            await STARTED.wait()
            await erase(ledger, tmp_path / "jobs.db")
            await job.wait()
        worker.stop()
        await running
        job_now = await job.snapshot()
        assert (job_now.state, job_now.cancel_reason) == (JobState.CANCELLED, "erased")


async def test_what_slips_in_after_the_beginning_is_cancelled(connected: Connect, tmp_path: Path) -> None:
    clock, key = Moved(), master(tmp_path)
    async with connected(master_key=key, clock=clock) as ledger, connected(master_key=key) as other:
        await other.enqueue(greet.options(**OWNED), text="Jane")  # it has the key in memory now
        await erase(ledger, tmp_path / "jobs.db")
        late = await other.enqueue(greet.options(**OWNED), text="Jane")
        clock.move(GRACE_S)
        await erase(ledger, tmp_path / "jobs.db")
        assert (await late.snapshot()).state is JobState.CANCELLED
        later = await other.enqueue(greet.options(**OWNED), text="Jane")
        clock.move(SETTLE_S)
        found = await erase(ledger, tmp_path / "jobs.db")
        assert (await later.snapshot()).state is JobState.CANCELLED
        assert (found.state, found.jobs, found.cancelled) == ("erased", 3, 3)


async def test_what_must_be_kept_is_not_erased(connected: Connect, tmp_path: Path) -> None:
    async with connected(master_key=master(tmp_path)) as ledger:
        await ledger.enqueue(greet.options(**OWNED), text="Jane")
        hold = HoldOwner(reason="a lawsuit", until=datetime.now(UTC) + timedelta(days=1))
        await change(ledger, OWNER, "person:17", lambda state, stamp: decide("person:17", state, hold, stamp))
        for wish in (WISH, EraseOwner(owner="person:17", plan=True)):
            with pytest.raises(RefusedError, match=r"must be kept: held by .*: a lawsuit"):
                await erase(ledger, tmp_path / "jobs.db", wish)
        assert await events(ledger) == ["held"]
        await ledger.enqueue(greet.options(**OWNED), text="Jane")


async def test_an_owner_who_has_no_key_is_not_found(connected: Connect, tmp_path: Path) -> None:
    async with connected() as ledger:
        with pytest.raises(OwnerNotFoundError, match="person:17 has no key"):
            await erase(ledger, tmp_path / "jobs.db")
        with pytest.raises(OwnerNotFoundError):
            await erase(ledger, tmp_path / "jobs.db", EraseOwner(owner="person:17", plan=True))
        assert await events(ledger) == []
