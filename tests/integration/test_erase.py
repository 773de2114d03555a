"""Erasing what an owner's key sealed: step by step, also after a death at each step, and by two at once."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.support.limits import LIMIT_S

from jobledger.admin import erasure
from jobledger.admin.backup import back_up
from jobledger.admin.erasure import SETTLE_S, Erasure, keys_of
from jobledger.admin.owner_export import export_owner
from jobledger.admin.owner_keys_file import bring_keys, keep_keys
from jobledger.admin.owners import unfinished_erasures
from jobledger.admin.rows import Rows
from jobledger.admin.verbs.owners import EraseOwner, HoldOwnersData, ListOwners, ShowOwner, UnholdOwnersData
from jobledger.audit.verify import verify
from jobledger.audit.verify.checker import Checker
from jobledger.ledger import (
    Context,
    ErasedError,
    InvalidInputError,
    JobState,
    KeyUnavailableError,
    Ledger,
    OwnerErasingError,
    OwnerNotFoundError,
    ScheduleNotFoundError,
    TaskRegistry,
    task,
)
from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.owner import GRACE_S, OWNER, HoldOwner, decide
from jobledger.ledger.named_values import change
from jobledger.ledger.nats.owner_keys import FoundEntry, OwnerKeys
from jobledger.ledger.nats.snapshots import delete_streams
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

pytestmark = pytest.mark.anyio

Connect = Callable[..., AbstractAsyncContextManager[Ledger]]
OWNED: Final[dict[str, Any]] = {"owner": "person:17"}
WISH: Final = EraseOwner(owner="person:17", request="4711", reason="asked by letter")
SHOW: Final = ShowOwner(owner="person:17")


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


def master(folder: Path, *names: str) -> str:
    """Return where the master keys of these names are, each made when it is first asked for."""
    keys = [folder / f"{each}.key" for each in names or ("m1",)]
    for key in keys:
        if not key.exists():
            key.write_text(f"{key.stem} {base64.b64encode(os.urandom(32)).decode()}\n")
    together = folder / f"{'-'.join(names or ('m1',))}.keys"
    together.write_text("".join(key.read_text() for key in keys))
    return f"file:{together}"


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
            assert (found[0].state, found[0].sequence) == (found[1].state, found[1].sequence)
        assert await events(one) == ["erasing", "erased"]


async def test_schedules_of_an_owner_are_removed(connected: Connect, tmp_path: Path) -> None:
    rows = tmp_path / "jobs.db"
    async with connected(master_key=master(tmp_path)) as ledger:
        for name, owner in (("nightly", "person:17"), ("other", "person:18")):
            await ledger.schedules.add(
                name, greet.options(owner=owner), input={"text": "Jane"}, every_s=86_400
            )
        planned = await erase(ledger, rows, EraseOwner(owner="person:17", plan=True))
        assert planned.schedules == 1
        assert (await erase(ledger, rows)).schedules == 0
        with pytest.raises(ScheduleNotFoundError):
            await ledger.schedules.get("nightly")
        assert (await ledger.schedules.get("other")).number == 0


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


async def test_owners_are_listed_shown_and_held(connected: Connect, tmp_path: Path) -> None:
    rows = tmp_path / "jobs.db"
    async with connected(master_key=master(tmp_path)) as ledger:
        for person in (17, 18, 19):
            await ledger.enqueue(greet.options(owner=f"person:{person}", delay_s=3600), text="x")
        held = await ledger.do(HoldOwnersData(owner="person:18", reason="a lawsuit"), by="dpo")
        assert (held.state, held.changed_by, held.key, held.master) == ("held", "dpo", "person:18/1", "m1")
        await erase(ledger, rows)
        listed = (await ledger.do(ListOwners(), projection=rows)).items
        assert [(each.owner, each.state, each.jobs) for each in listed] == [
            ("person:17", "erasing", 1),
            ("person:18", "held", 1),
            ("person:19", "open", 1),
        ]
        page = await ledger.do(ListOwners(after="person:17", limit=1), projection=rows)
        assert [each.owner for each in page.items] == ["person:18"]
        chosen = await ledger.do(ListOwners(state="held"), projection=rows)
        assert [each.owner for each in chosen.items] == ["person:18"]
        shown = await ledger.do(ShowOwner(owner="person:17"))
        assert shown.is_closed
        assert "`jobledger erase person:17` goes on" in shown.words
        lifted = await ledger.do(UnholdOwnersData(owner="person:18"), by="dpo")
        assert lifted.state == "open"
        with pytest.raises(OwnerNotFoundError):
            await ledger.do(ShowOwner(owner="person:99"))


async def test_an_erasure_that_nobody_ends_is_named(connected: Connect, tmp_path: Path) -> None:
    clock, rows = Moved(), tmp_path / "jobs.db"
    async with connected(master_key=master(tmp_path), clock=clock) as ledger:
        await ledger.enqueue(greet.options(**OWNED), text="x")
        assert await unfinished_erasures(ledger) == []
        await erase(ledger, rows)
        assert await unfinished_erasures(ledger) == []  # it has its time
        clock.move(GRACE_S + SETTLE_S + 1)
        assert await unfinished_erasures(ledger) == ["person:17"]
        await erase(ledger, rows)
        clock.move(SETTLE_S)
        await erase(ledger, rows)
        assert await unfinished_erasures(ledger) == []
        keys = ledger.keys
        assert isinstance(keys, OwnerKeys)
        await keys.close("person:17", 1)  # as one that died before it opened the entry again
        assert await unfinished_erasures(ledger) == ["person:17"]
        assert "no job of the owner begins yet" in (await ledger.do(ShowOwner(owner="person:17"))).words
        await erase(ledger, rows)
        assert await unfinished_erasures(ledger) == []


async def test_the_master_key_is_changed_and_the_old_one_forgotten(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    first, both, second = [master(tmp_path, *each) for each in (("m1",), ("m2", "m1"), ("m2",))]
    async with connected(master_key=first) as ledger:
        jobs = [
            await ledger.enqueue(greet.options(owner=f"person:{each}"), text=f"{each}") for each in (17, 18)
        ]
        await work(ledger, *jobs)
        old = await wrapped_key(ledger)
    async with connected(master_key=both) as ledger:
        keys = ledger.keys
        assert isinstance(keys, OwnerKeys)
        with pytest.raises(RefusedError, match="m1 wraps the keys of 2 owners"):
            await keys.forget_master("m1")
        assert await keys.rewrap(lambda _: None) == ("m2", 2)
        assert await keys.rewrap(lambda _: None) == ("m2", 0)
        assert await keys.forget_master("m1") == 2
        assert count_on_disk(nats_server, old) == 0
        assert (await ledger.do(ShowOwner(owner="person:17"))).masters == ("m1", "m2")
    async with connected(master_key=second) as ledger:
        assert await (await ledger.job(jobs[0].id)).result() == "hello 17"
    async with connected(master_key=first) as ledger:
        with pytest.raises(KeyUnavailableError, match="the master key m2 is not here"):
            await (await ledger.job(jobs[0].id)).result()


async def test_all_that_is_held_of_an_owner_is_written_unsealed(connected: Connect, tmp_path: Path) -> None:
    large = "Jane" * 50_000
    async with connected(master_key=master(tmp_path)) as ledger:
        jobs = [
            await ledger.enqueue(
                each.options(id=name, metadata={"who": "Jane"}, **OWNED),
                text=text,
            )
            for name, each, text in (
                ("small", greet, "Jane"),
                ("large", greet, large),
                ("dead", fails, "Jane"),
            )
        ]
        other = await ledger.enqueue(greet.options(id="other", owner="person:18"), text="Joe")
        await work(ledger, *jobs, other)
        rows = Rows(ledger, tmp_path / "jobs.db")
        found = await export_owner(ledger, rows, "person:17", tmp_path / "jane")
        assert (found.jobs, found.missing) == (3, 0)
        files = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "jane").rglob("*.json")}
        assert files.keys() == {"small", "large", "dead"}
        assert files["small"][0]["input"] == {"text": "Jane"}
        assert files["small"][0]["metadata"] == {"who": "Jane"}
        assert files["small"][-1]["result"] == "hello Jane"
        assert files["large"][-1]["result_ref"] == f"hello {large}"
        assert files["dead"][2]["error"]["sealed"][0] == "Jane"
        assert "sealed:" not in json.dumps(files)
        with pytest.raises(InvalidInputError, match="exists"):
            await export_owner(ledger, rows, "person:17", tmp_path / "jane")
        with pytest.raises(OwnerNotFoundError):
            await export_owner(ledger, rows, "person:99", tmp_path / "nobody")
        assert not (tmp_path / "nobody").exists()


async def test_a_check_tells_of_values_in_the_clear_and_of_late_events(
    connected: Connect, tmp_path: Path
) -> None:
    clock, key = Moved(), master(tmp_path)
    async with connected(master_key=key, clock=clock) as ledger, connected(master_key=key) as frozen:
        await frozen.enqueue(greet.options(id="a", **OWNED), text="x")
        for seconds in (0.0, GRACE_S, SETTLE_S):
            clock.move(seconds)
            await erase(ledger, tmp_path / "jobs.db")
        await frozen.enqueue(greet.options(id="late", **OWNED), text="x")  # it stood still for so long
        report = await verify(ledger.log)
        assert (report.sound, report.sealed_late) == (True, 1)
        assert "1 event names a key that was destroyed before" in report.text()
        worker = asyncio.create_task(work(ledger, await ledger.job("late")))
        await worker
        late = await (await ledger.job("late")).snapshot()
        assert (late.state, late.cancel_reason) == (JobState.CANCELLED, "erased")
        checker = Checker(ledger.names)
        async for batch in ledger.log.read_messages():
            for message in batch:
                checker.feed(_in_the_clear(message))
        opened = checker.finish()
        assert opened.broken["owner"] == 1


def _in_the_clear(message: Message) -> Message:
    """Return the first event of job `a` with a value that somebody put in the place of the sealed one."""
    if (
        not isinstance(message, StoredEvent)
        or not isinstance(message.event, Queued)
        or message.event.job != "a"
    ):
        return message
    event = msgspec.structs.replace(message.event, input=msgspec.Raw(b'{"text":"x"}'))
    return StoredEvent(
        event=event,
        data=message.data,
        stream_sequence=message.stream_sequence,
        stored_at=message.stored_at,
        subject=message.subject,
    )


async def test_keys_are_kept_apart_and_brought_back_but_for_erased_ones(
    connected: Connect, tmp_path: Path
) -> None:
    clock, key, file = Moved(), master(tmp_path), tmp_path / "keys"
    async with connected(master_key=key, clock=clock) as ledger:
        kept = await ledger.enqueue(greet.options(owner="person:18"), text="Joe")
        gone = await ledger.enqueue(greet.options(**OWNED), text="Jane")
        await work(ledger, kept, gone)
        assert await keep_keys(ledger, file) == 2
        with pytest.raises(InvalidInputError, match="exists"):
            await keep_keys(ledger, file)
        for seconds in (0.0, GRACE_S, SETTLE_S):
            clock.move(seconds)
            await erase(ledger, tmp_path / "jobs.db")
        backup = await back_up(ledger, tmp_path / "backups")
        assert f"KV_{ledger.names.keys_bucket}" not in {each.stream for each in backup.backup.streams}
        await delete_streams(ledger.inbox, [f"KV_{ledger.names.keys_bucket}"])
        for owner in ("person:17", "person:18"):
            ledger.keys.forget(owner)  # type: ignore[attr-defined]
        with pytest.raises(KeyUnavailableError, match="restore it"):
            await kept.result()
    async with connected(master_key=key, clock=clock) as ledger:
        found = await bring_keys(ledger, file)
        assert (found.owners, found.brought, found.erased) == (2, 2, 1)
        again = await bring_keys(ledger, file)
        assert (again.brought, again.unchanged) == (0, 1)
        assert again.passed_over == [
            "person:17 was passed over: person:17/1 was destroyed here, and stays so"
        ]
        assert await (await ledger.job(kept.id)).result() == "hello Joe"
        with pytest.raises(ErasedError):
            await (await ledger.job(gone.id)).result()
        (tmp_path / "other").write_text("{}\n")
        with pytest.raises(InvalidInputError, match=r"line 1 of .* is no entry of a file of keys"):
            await bring_keys(ledger, tmp_path / "other")


@pytest.mark.parametrize("then", ["held", "erasing"])
async def test_keys_come_back_as_the_newest_event_of_their_owner_says(
    connected: Connect, tmp_path: Path, then: str
) -> None:
    clock, key, file = Moved(), master(tmp_path), tmp_path / "keys"
    async with connected(master_key=key, clock=clock) as ledger:
        job = await ledger.enqueue(greet.options(**OWNED), text="Jane")
        await keep_keys(ledger, file)
        for seconds in (0.0, GRACE_S, SETTLE_S) if then == "held" else (0.0,):
            clock.move(seconds)
            await erase(ledger, tmp_path / "jobs.db")
        if then == "held":
            await ledger.do(HoldOwnersData(owner="person:17", reason="a lawsuit"), by="dpo")
        await delete_streams(ledger.inbox, [f"KV_{ledger.names.keys_bucket}"])
    async with connected(master_key=key, clock=clock) as ledger:
        found = await bring_keys(ledger, file)
        assert (found.brought, found.erased) == (1, 1 if then == "held" else 0)
        job = await ledger.job(job.id)
        if then == "held":
            assert await wrapped_key(ledger) == b""
            with pytest.raises(ErasedError):
                await ledger.inputs.get((await job.snapshot()).order.input, None, key="person:17/1")
        else:
            with pytest.raises(OwnerErasingError):
                await ledger.enqueue(greet.options(**OWNED), text="Jane")


async def test_who_is_late_with_an_erasure_closes_no_later_key(connected: Connect, tmp_path: Path) -> None:
    async with connected(master_key=master(tmp_path)) as ledger:
        keys = ledger.keys
        assert isinstance(keys, OwnerKeys)
        await keys.key_for("person:17")
        await keys.close("person:17", 1)
        await keys.destroy("person:17", 1, ledger.clock.now())
        await keys.open("person:17", 1)
        assert (await keys.key_for("person:17")).id == "person:17/2"
        await keys.close("person:17", 1)  # as one that read the entry before all that
        keys.forget("person:17")
        assert (await keys.key_for("person:17")).id == "person:17/2"


async def test_a_key_that_is_made_after_the_keys_were_lost_has_the_next_number(
    connected: Connect, tmp_path: Path
) -> None:
    clock, key, rows, file = Moved(), master(tmp_path), tmp_path / "jobs.db", tmp_path / "keys"
    async with connected(master_key=key, clock=clock) as ledger:
        await ledger.enqueue(greet.options(**OWNED), text="Jane")
        await keep_keys(ledger, file)
        for seconds in (0.0, GRACE_S, SETTLE_S):
            clock.move(seconds)
            await erase(ledger, rows)
        await delete_streams(ledger.inbox, [f"KV_{ledger.names.keys_bucket}"])
    async with connected(master_key=key, clock=clock) as ledger:  # nobody brought the keys back
        back = await ledger.enqueue(greet.options(**OWNED), text="Jane")
        assert (await back.snapshot()).order.key == "person:17/2"
        with pytest.raises(ErasedError):
            await keys_of(ledger).key("person:17/1")
        found = await bring_keys(ledger, file)
        assert (found.brought, found.unchanged) == (0, 0)
        assert found.passed_over == [
            "person:17 was passed over: it has the key person:17/2 here, so what was sealed under person:17/1 cannot be read"
        ]
        states = list[str]()
        for seconds in (0.0, GRACE_S, SETTLE_S):
            clock.move(seconds)
            states.append((await erase(ledger, rows)).state)
        assert states == ["erasing", "erasing", "erased"]
        assert (await back.snapshot()).state is JobState.CANCELLED
        assert await wrapped_key(ledger) == b""
        assert await events(ledger) == ["erasing", "erased"] * 2


async def test_an_erasure_ends_though_the_keys_were_lost_meanwhile(
    connected: Connect, tmp_path: Path
) -> None:
    clock, key, rows = Moved(), master(tmp_path), tmp_path / "jobs.db"
    async with connected(master_key=key, clock=clock) as ledger:
        await ledger.enqueue(greet.options(**OWNED), text="Jane")
        await erase(ledger, rows)
        await delete_streams(ledger.inbox, [f"KV_{ledger.names.keys_bucket}"])
    async with connected(master_key=key, clock=clock) as ledger:
        with pytest.raises(OwnerErasingError):
            await ledger.enqueue(greet.options(**OWNED), text="Jane")
        planned = await erase(ledger, rows, msgspec.structs.replace(WISH, plan=True))
        assert (planned.state, planned.key, planned.masters) == ("erasing", "person:17/1", ())
        assert await keys_of(ledger).entry("person:17") is None, "a plan changes nothing"
        assert (await erase(ledger, rows)).state == "erasing"
        clock.move(SETTLE_S)
        erased = await erase(ledger, rows)
        assert (erased.state, erased.masters) == ("erased", ())
        said = [str(each) for each in WISH.say(erased)]
        assert "such as a file of `jobledger owners backup`, still opens with the master key" in said[-1]
        shown = str(list(SHOW.say(await ledger.do(SHOW, by="dpo"))))
        assert "master keys of their time" in shown
        assert await events(ledger) == ["erasing", "erased"]
        back = await ledger.enqueue(greet.options(**OWNED), text="Jane")
        assert (await back.snapshot()).order.key == "person:17/2"


async def test_an_erasure_that_is_done_is_told_of_though_the_keys_were_lost_since(
    connected: Connect, tmp_path: Path
) -> None:
    clock, key, rows = Moved(), master(tmp_path), tmp_path / "jobs.db"
    async with connected(master_key=key, clock=clock) as ledger:
        await ledger.enqueue(greet.options(**OWNED), text="Jane")
        for seconds in (0.0, GRACE_S):
            clock.move(seconds)
            await erase(ledger, rows)
        clock.move(SETTLE_S)
        done = await erase(ledger, rows)
        await delete_streams(ledger.inbox, [f"KV_{ledger.names.keys_bucket}"])
    async with connected(master_key=key, clock=clock) as ledger:
        assert (done.state, done.masters) == ("erased", ("m1",))
        for wish in (msgspec.structs.replace(WISH, plan=True), WISH):
            assert await erase(ledger, rows, wish) == done
        assert await events(ledger) == ["erasing", "erased"]


async def test_a_key_of_the_same_number_that_was_made_since_is_told_of(
    connected: Connect, tmp_path: Path
) -> None:
    key, file = master(tmp_path), tmp_path / "keys"
    async with connected(master_key=key) as ledger:
        await ledger.enqueue(greet.options(**OWNED), text="Jane")
        await keep_keys(ledger, file)
        await delete_streams(ledger.inbox, [f"KV_{ledger.names.keys_bucket}"])
    async with connected(master_key=key) as ledger:  # the ledger says nothing of an owner who was not erased
        await ledger.enqueue(greet.options(**OWNED), text="Jane")
        (sentence,) = (await bring_keys(ledger, file)).passed_over
        assert "person:17/1 is wrapped otherwise here, by m1" in sentence


async def test_two_who_rotate_to_different_master_keys_come_to_an_end(
    connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        connected(master_key=master(tmp_path, "m1", "m2")) as one,
        connected(master_key=master(tmp_path, "m2", "m1")) as two,
    ):
        keys, others = one.keys, two.keys
        assert isinstance(keys, OwnerKeys)
        assert isinstance(others, OwnerKeys)
        await keys.key_for("person:17")
        rewrap = others._rewrap

        async def undone(owner: str, found: FoundEntry, newest: str) -> bool:
            changed = await rewrap(owner, found, newest)
            await keys.rewrap(lambda _: None)
            return changed

        with monkeypatch.context() as patched:
            patched.setattr(others, "_rewrap", undone)
            async with asyncio.timeout(LIMIT_S):
                with pytest.raises(RefusedError, match="put the same master key first in every process"):
                    await others.rewrap(lambda _: None)
        assert await others.rewrap(lambda _: None) == ("m2", 1)
