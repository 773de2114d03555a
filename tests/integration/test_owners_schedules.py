"""Schedules with hooks whose jobs have an owner: what hooks return or raise is sealed, and nothing begins for erased data."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_owners import Connect, found_in, master_file
from tests.integration.test_owners_callbacks import found
from tests.support.limits import LIMIT_S
from tests.support.working import becomes, working

from jobledger.admin.erasure import keys_of
from jobledger.ledger import (
    JobHandle,
    JobState,
    KeyUnavailableError,
    Ledger,
    Schedule,
    ScheduleNotFoundError,
    TaskRegistry,
    Tick,
    task,
)
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio
WORD = f"Canary-Tim-{secrets.token_hex(4)}"
QUEUE = "cron"
AFTER: list[str] = []


@task(queue=QUEUE, owner="person:{person}", max_attempts=1)
async def greet(person: int, text: str) -> str:
    return f"hello {text}"


def chooses(_: Tick) -> dict[str, Any]:
    return {"person": 9, "text": WORD}


def raises(_: Tick) -> dict[str, Any]:
    raise ValueError(WORD)


def keeps(_: Tick) -> None:
    return None


async def notes(_: Tick, job: JobHandle[Any]) -> None:
    AFTER.append(job.id)


def registry(*schedules: Schedule) -> TaskRegistry:
    made = TaskRegistry([greet])
    for each in schedules:
        made.add_schedule(each)
    return made


async def declared(ledger: Ledger, name: str) -> str:
    """Wait until a schedule is declared; return the key of its definition."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return (await ledger.schedules.get(name)).definition.order.key
            except ScheduleNotFoundError:
                await asyncio.sleep(0.01)


async def test_a_job_has_the_owner_that_before_chose_and_hooks_tell_nothing(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    given = {"person": 4, "text": WORD}
    chosen = Schedule("chosen", task=greet, every_s=3600, before=chooses, after=notes)
    kept = Schedule("kept", task=greet, input=given, every_s=3600, before=keeps)
    failing = Schedule("failing", task=greet, every_s=3600, before=raises)
    AFTER.clear()
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        async with working(ledger, registry=registry(chosen, kept, failing), queues=(QUEUE,)):
            keys = [await declared(ledger, each) for each in ("chosen", "kept", "failing")]
            assert keys == ["ledger:default/1", "person:4/1", "ledger:default/1"]
            for name, key in (("chosen", "person:9/1"), ("kept", "person:4/1")):
                ref = await ledger.schedules.trigger(name)
                hooks = await ledger.job(ref)
                assert (await hooks.wait(timeout_s=LIMIT_S)).state is JobState.COMPLETED
                made = await ledger.job(ref.job_id.removesuffix("-hooks"), task=greet)
                assert await made.result(timeout_s=LIMIT_S) == f"hello {WORD}"
                assert (await made.snapshot()).order.key == key
            dead = await ledger.job(await ledger.schedules.trigger("failing"))
            await dead.wait(timeout_s=LIMIT_S)
            error = (await dead.snapshot()).error
            assert error is not None
            assert (error.type, error.message) == ("ValueError", "")
        assert len(AFTER) == 1
    assert found_in(nats_server.directory, WORD) == {}


async def test_who_has_no_key_makes_no_tick_of_hooks_and_another_one_does(
    connected: Connect, tmp_path: Path
) -> None:
    chosen = Schedule("chosen", task=greet, every_s=3600, before=chooses)
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger, connected() as poor:
        async with working(ledger, registry=registry(chosen), queues=(QUEUE,)):
            await declared(ledger, "chosen")
        before = (await ledger.log.head()).last_sequence
        with pytest.raises(KeyUnavailableError, match="JOBLEDGER_MASTER_KEY"):
            await poor.schedules.trigger("chosen")
        with pytest.raises(KeyUnavailableError):
            await poor.schedules.tick("chosen", await poor.schedules.read("chosen"))
        assert (await ledger.log.head()).last_sequence == before
        known = await ledger.schedules.read("chosen")
        (ref,) = (await ledger.schedules.tick("chosen", known)).made
        async with working(ledger, registry=registry(chosen), queues=(QUEUE,)):
            made = await found(ledger, ref.job_id.removesuffix("-hooks"))
            assert await made.result(timeout_s=LIMIT_S) == f"hello {WORD}"


async def test_hooks_of_erased_data_are_not_called(connected: Connect, tmp_path: Path) -> None:
    given = {"person": 4, "text": WORD}
    kept = Schedule("kept", task=greet, input=given, every_s=3600, before=keeps, after=notes)
    AFTER.clear()
    async with (
        connected(master_key=master_file(tmp_path, "m1")) as ledger,
        working(ledger, registry=registry(kept), queues=(QUEUE,)),
    ):
        await declared(ledger, "kept")
        await keys_of(ledger).destroy("person:4", 1, ledger.clock.now())
        job = await ledger.job(await ledger.schedules.trigger("kept"))
        assert (await becomes(job, JobState.CANCELLED)).cancel_reason == "erased"
    assert AFTER == []
