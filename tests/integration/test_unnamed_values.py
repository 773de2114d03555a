"""Large values that no event names any more are marked and then deleted; whatever is named, or about to be, stays."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.support.jetstream import api
from tests.support.schedules import declare
from tests.support.working import Connect, bury, ended, working

from jobledger.admin.keeper import Keeper, clear_once
from jobledger.admin.objects.move_outcome import MoveOutcome
from jobledger.admin.verbs.retention import SetRetention, ShowRetention
from jobledger.audit.archive import Archiver, archive_deps, open_archive, unnamed
from jobledger.audit.archive.plan import unread
from jobledger.audit.archive.unnamed import ClearedValues, clear_values
from jobledger.audit.errors import ArchiveIncompleteError
from jobledger.audit.export.payloads import PayloadFiles
from jobledger.audit.verify import verify
from jobledger.cli.main import run
from jobledger.gateway.process.children import KeeperChild
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import LedgerError, PayloadMissingError
from jobledger.ledger.model.events import Order, PayloadRef
from jobledger.ledger.nats.stored_values import StoredValue, StoredValues

pytestmark = pytest.mark.anyio

HOURS_13 = timedelta(hours=13)


@task(queue="work", max_attempts=1)
async def work(text: str) -> int:
    return len(text)


def some() -> str:
    """Return a text that is stored as a large value, another one each time."""
    return secrets.token_hex(50_000)


def _ignore(*_: object) -> None:
    """Take progress, and say nothing."""


class Shifted:
    """A clock that is ahead of another one."""

    def __init__(self, clock: Clock, ahead: timedelta) -> None:
        self._clock = clock
        self._ahead = ahead
        self.monotonic = clock.monotonic

    def now(self) -> datetime:
        return self._clock.now() + self._ahead


class Rig:
    """A ledger, its archive, and time that passes when told so."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.archive = folder / "archive"
        self.stored = StoredValues(ledger.inbox, ledger.names, ledger.inputs)

    async def clear(self, hours: float = 0.0) -> ClearedValues:
        """Make a pass as if so many hours had gone by. Its marks have the time of the server, which is now."""
        now = self.ledger.clock.now() + timedelta(hours=hours)
        return await clear_values(self.ledger.log, self.stored, self.archive, now)

    async def put(self, text: str | None = None) -> PayloadRef:
        """Store a large value as a client does that dies before it appends an event."""
        data = msgspec.json.encode({"text": text or some()})
        _, reference = await self.ledger.inputs.put(data, what="input", key="")
        assert reference is not None
        return reference

    async def get(self, reference: PayloadRef) -> bytes:
        return await self.ledger.inputs.get(NO_VALUE, reference, key="")

    async def is_there(self, reference: PayloadRef) -> bool:
        try:
            await self.get(reference)
        except PayloadMissingError:
            return False
        return True

    async def values(self) -> dict[str, StoredValue]:
        return {value.name: value async for value in self.stored.all()}

    async def messages(self) -> int:
        info = await api(self.ledger.inbox, f"STREAM.INFO.OBJ_{self.ledger.names.payloads_bucket}", {})
        return int(info["state"]["messages"])

    async def run_large(self, text: str | None = None) -> PayloadRef:
        """Run a job with a large input to its end."""
        async with working(self.ledger, work):
            job = await self.ledger.enqueue(work, text=text or some())
            reference = (await ended(job)).order.input_ref
            assert reference is not None
            last = (await self.ledger.log.head()).last_sequence
            async with asyncio.timeout(20):
                while await unread(self.ledger.log, self.ledger.inbox, last):
                    await asyncio.sleep(0.02)
        return reference

    async def move(self, *, with_payloads: bool = True) -> None:
        """Archive all that has ended."""
        deps = archive_deps(self.ledger, by="t", on_progress=_ignore, with_payloads=with_payloads)
        await Archiver(self.ledger.log, self.archive, deps).run(self.ledger.clock.now())


@pytest.fixture
def rig(ledger: Ledger, tmp_path: Path) -> Rig:
    return Rig(ledger, tmp_path)


async def test_a_value_goes_a_day_after_its_jobs_were_moved_and_the_archive_has_it(rig: Rig) -> None:
    gone, waiting = await rig.run_large(), await rig.ledger.enqueue(work, text=some())
    stays = (await waiting.snapshot()).order.input_ref
    assert stays is not None
    assert await rig.clear(13) == ClearedValues()  # both are named
    await rig.move()
    assert await rig.clear(11) == ClearedValues()  # too young
    assert (await rig.clear(13)).marked == 1
    assert await rig.is_there(gone)
    assert await rig.clear(11) == ClearedValues()
    done = await rig.clear(25)
    assert (done.deleted, done.bytes, done.places) == (1, gone.size_bytes, 1)
    assert not await rig.is_there(gone)
    assert set(await rig.values()) == {stays.sha256}
    assert await rig.messages() == 2  # the info and the chunk of the one that stays
    folders = [each for each in rig.archive.iterdir() if each.is_dir()]
    assert hashlib.sha256(await PayloadFiles(*folders).get(None, gone)).hexdigest() == gone.sha256
    report = await verify(await open_archive(rig.ledger.log, rig.archive))
    assert report.sound, report.violations


async def test_what_a_job_a_dead_letter_or_a_schedule_names_stays_for_ever(rig: Rig) -> None:
    """The jobs were carried on; the schedule has no job yet."""
    named: list[PayloadRef] = []
    waits, buried = [await rig.ledger.enqueue(work.options(queue="elsewhere"), text=some()) for _ in range(2)]
    await bury(rig.ledger, buried)
    for job in (waits, buried):
        reference = (await job.snapshot()).order.input_ref
        assert reference is not None
        named.append(reference)
    named.append(await rig.put())
    await declare(rig.ledger, every_s=86_400, order=Order(input=NO_VALUE, input_ref=named[-1]))
    await rig.run_large()
    await rig.move()
    assert (await rig.clear(13)).marked == 1
    assert (await rig.clear(50)).deleted == 1
    assert set(await rig.values()) == {each.sha256 for each in named}


async def test_a_value_that_is_referred_to_again_is_stored_again(rig: Rig) -> None:
    text = some()
    old = await rig.put(text)
    assert (await rig.clear(13)).marked == 1
    marked = (await rig.values())[old.sha256]
    job = await rig.ledger.enqueue(work, text=text)
    again = (await rig.values())[old.sha256]
    assert (marked.is_marked, again.is_marked) == (True, False)
    assert again.place != marked.place
    assert not await rig.stored.delete(marked)  # by a keeper that read it before
    assert not await rig.stored.mark(marked, is_unnamed=True)
    done = await rig.clear(50)
    assert (done.deleted, done.places) == (0, 1)  # the chunks of the one before
    async with working(rig.ledger, work):
        assert await job.result(timeout_s=20) == len(text)


async def test_a_reference_at_the_moment_of_deletion_loses_nothing(rig: Rig) -> None:
    """Each value is deleted and referred to at once, many times: whoever was first, the event's value is there."""
    texts = [some() for _ in range(20)]
    for text in texts:
        await rig.put(text)
    assert (await rig.clear(13)).marked == len(texts)
    jobs, _ = await asyncio.gather(
        asyncio.gather(*(rig.ledger.enqueue(work, text=text) for text in texts)), rig.clear(26)
    )
    await rig.clear(60)
    for job in jobs:
        reference = (await job.snapshot()).order.input_ref
        assert reference is not None
        assert await rig.is_there(reference)


async def test_a_value_that_is_deleted_while_it_is_stored_again_is_stored_all_the_same(rig: Rig) -> None:
    """The keeper deletes it after the client saw that it is marked, before the client's info is there."""
    text = some()
    await rig.put(text)
    assert (await rig.clear(13)).marked == 1
    store, deletions = rig.ledger.inputs._store_behind, 0

    async def overtaken(*args: Any) -> None:
        nonlocal deletions
        deletions += (await rig.clear(26)).deleted
        await store(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.ledger.inputs, "_store_behind", overtaken)
        job = await rig.ledger.enqueue(work, text=text)
    assert deletions == 1
    async with working(rig.ledger, work):
        assert await job.result(timeout_s=20) == len(text)


async def test_an_event_that_names_a_marked_value_takes_its_mark_away(rig: Rig) -> None:
    """It was decided before the value was marked, and appended after that."""
    text = some()
    old = await rig.put(text)
    stored = rig.ledger.inputs.store_once

    async def late(name: str, *args: Any, **given: Any) -> None:
        await stored(name, *args, **given)
        assert (await rig.clear(13)).marked == 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.ledger.inputs, "store_once", late)
        await rig.ledger.enqueue(work, text=text)
    done = await rig.clear(50)
    assert (done.kept, done.deleted) == (1, 0)
    assert not (await rig.values())[old.sha256].is_marked


async def test_a_pass_that_is_cut_off_at_any_request_is_made_good_by_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = (await (await rig.ledger.enqueue(work, text=some())).snapshot()).order.input_ref
    assert named is not None
    acts: list[str] = ["mark", "delete", "delete_chunks"]

    async def twice() -> None:
        for hours in (13, 50):
            await rig.clear(hours)

    class KilledError(Exception):
        """The process dies here."""

    for act in acts:
        for before in (True, False):
            await rig.put()
            real: Callable[..., Any] = getattr(rig.stored, act)

            async def fatal(
                *args: Any, before: bool = before, real: Callable[..., Any] = real, **given: Any
            ) -> bool:
                if not before:
                    await real(*args, **given)
                raise KilledError

            with monkeypatch.context() as patch:
                patch.setattr(rig.stored, act, fatal)
                with pytest.raises(KilledError):
                    await twice()
            assert await rig.is_there(named)
    await twice()
    assert set(await rig.values()) == {named.sha256}
    assert await rig.messages() == 2
    assert await rig.is_there(named)


async def test_what_a_killed_client_left_without_an_info_goes_after_a_day(rig: Rig) -> None:
    """And what a reactor let go of; chunks of a client that still stores stay."""
    bucket = rig.ledger.names.payloads_bucket
    publish = rig.ledger.connection.jetstream().publish
    await publish(f"$O.{bucket}.C.abandoned", b"x" * 1000)
    await publish(f"$O.{bucket}.C.abandoned", b"x" * 1000)
    removed = await rig.put()
    await rig.ledger.inputs.remove(removed)
    assert await rig.messages() == 4
    assert await rig.clear(23) == ClearedValues()
    assert (await rig.clear(25)).places == 2
    assert await rig.messages() == 0


async def test_a_forged_place_deletes_no_chunks_of_others(rig: Rig) -> None:
    """An info may say anything of its place: a wildcard, or where the chunks of another value lie."""
    named = (await (await rig.ledger.enqueue(work, text=some())).snapshot()).order.input_ref
    assert named is not None
    place = (await rig.values())[named.sha256].place
    for number, forged in enumerate((">", "*", place)):
        reference = await rig.put()
        value = (await rig.values())[reference.sha256]
        info = {**msgspec.json.decode(value.info), "nuid": forged}
        subject = rig.stored._subject(reference.sha256)
        await rig.ledger.connection.jetstream().publish(
            subject, msgspec.json.encode(info), headers={"Nats-Rollup": "sub"}
        )
        await rig.clear(13)
        await rig.clear(50)
        assert set(await rig.values()) == {named.sha256}, number
        assert await rig.is_there(named)


async def test_values_that_an_archive_left_in_the_bucket_stay(rig: Rig) -> None:
    left = await rig.run_large()
    await rig.move(with_payloads=False)
    copied = await rig.run_large()
    await rig.move()
    assert (await rig.clear(13)).marked == 1
    assert (await rig.clear(50)).deleted == 1
    assert await rig.is_there(left)
    assert not await rig.is_there(copied)


async def test_without_the_archive_nothing_is_deleted(rig: Rig) -> None:
    value = await rig.run_large()
    await rig.move()
    rig.archive.rename(rig.archive.with_name("elsewhere"))
    rig.archive.mkdir()
    with pytest.raises(ArchiveIncompleteError):
        await rig.clear(50)
    assert not (await rig.values())[value.sha256].is_marked


async def test_nothing_is_deleted_after_a_look_that_a_purge_ran_into(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnamed = await rig.put()
    await rig.clear(13)
    await rig.run_large()
    read = rig.ledger.log.read_messages

    def reading(**given: Any) -> Any:
        patch.undo()

        async def batches() -> AsyncIterator[Any]:
            async for batch in read(**given):
                yield batch
            await rig.move()

        return batches()

    with monkeypatch.context() as patch:
        patch.setattr(rig.ledger.log, "read_messages", reading)
        assert (await rig.clear(50)).is_late
    assert await rig.is_there(unnamed)


async def test_a_ledger_that_earlier_programs_write_to_keeps_its_values(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.put()
    head = await rig.ledger.log.head()

    async def earlier() -> Any:
        return msgspec.structs.replace(head, form=1)

    monkeypatch.setattr(rig.ledger.log, "head", earlier)
    for hours in (13, 50):
        assert await rig.clear(hours) == ClearedValues()


async def test_an_info_that_cannot_be_read_is_told_and_nothing_is_deleted(rig: Rig) -> None:
    reference = await rig.put()
    bucket = rig.ledger.names.payloads_bucket
    await rig.ledger.connection.jetstream().publish(f"$O.{bucket}.M.rubbish", b"{")
    with pytest.raises(LedgerError, match=r"message 3 of OBJ_.* is no info of a large value"):
        await rig.clear(50)
    assert await rig.is_there(reference)


async def test_the_keeper_deletes_in_a_process_of_its_own_and_tells_what_keeps_it_from_that(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.archive.mkdir()
    await rig.ledger.do(SetRetention(keep_s=0.0, to=str(rig.archive)))
    child = KeeperChild(rig.ledger, tmp_path / "jobs.db")
    assert await child.clear() == MoveOutcome()
    reference = await rig.put()
    monkeypatch.setattr(rig.ledger, "clock", Shifted(rig.ledger.clock, HOURS_13))
    assert await clear_once(rig.ledger) == MoveOutcome()
    assert (await rig.values())[reference.sha256].is_marked
    monkeypatch.setattr(rig.ledger, "clock", Shifted(rig.ledger.clock, HOURS_13))
    assert await clear_once(rig.ledger) == MoveOutcome(values=1, values_bytes=reference.size_bytes)


async def test_a_keeper_at_rest_looks_at_large_values_and_tells_what_keeps_it_from_that(rig: Rig) -> None:
    rig.archive.mkdir()
    await rig.ledger.do(SetRetention(keep_s=0.0, every_s=1.0, to=str(rig.archive)))
    looks = 0

    async def move() -> MoveOutcome:
        return MoveOutcome()

    async def clear() -> MoveOutcome:
        nonlocal looks
        looks += 1
        return await clear_once(rig.ledger)

    await rig.put()
    bucket = rig.ledger.names.payloads_bucket
    await rig.ledger.connection.jetstream().publish(f"$O.{bucket}.M.rubbish", b"{")
    running = asyncio.create_task(Keeper(rig.ledger, move, clear=clear).run())
    async with asyncio.timeout(20):
        while not (await rig.ledger.do(ShowRetention())).trouble:
            await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait({running})
    assert looks == 1  # though it looked at the ledger each second
    trouble = (await rig.ledger.do(ShowRetention())).trouble
    assert not trouble or trouble.startswith("no large value is deleted: message 3 of OBJ_")


def test_retention_run_once_deletes_and_says_so(
    connected: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(unnamed, "GRACE", timedelta(0))
    words: list[str] = ["retention", "run", "--once", "--projection", str(tmp_path / "jobs.db")]

    async def begin() -> None:
        async with connected() as ledger:
            rig = Rig(ledger, tmp_path)
            rig.archive.mkdir()
            await ledger.do(SetRetention(keep_s=0.0, to=str(rig.archive)))
            await rig.put()
            words.extend(("--url", ledger.config.url, "--environment", ledger.names.environment))

    async def left() -> int:
        async with connected() as ledger:
            return len(await Rig(ledger, tmp_path).values())

    anyio.run(begin)
    assert [run(words) for _ in range(2)] == [0, 0]  # the first one marks it
    assert "deleted large values that no event names any more: 1, " in capsys.readouterr().out
    assert anyio.run(left) == 0
