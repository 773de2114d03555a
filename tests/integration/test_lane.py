"""An ordinary job, claimed and recorded by callbacks, leaves the very events of one that a task claims and records."""

from __future__ import annotations

import re
import time
from typing import Any, Final

import pytest
from tests.support.working import LIMIT_S, ended, types, until, working

from jobledger.ledger import Context, JobHandle, Ledger, task
from jobledger.ledger.model.commands import Outcome
from jobledger.ledger.model.events import Queued
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.outcome import Cancel, Fail
from jobledger.workers.attempt.attempt import Attempts
from jobledger.workers.attempt.claims import Claimer
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.recorder import Recorder

pytestmark = pytest.mark.anyio

#: What no two runs have in common: times, the names of clients and workers, and so the hashes.
_OWN: Final = re.compile(rb'"(at|by|worker|prev|until|run_at|notify)":"[^"]*"')


@task
async def give(value: Any) -> Any:
    return value


@task
async def tell(context: Context, value: int) -> int:
    context.progress(value, 10)
    await context.checkpoint({"reached": value})
    return value


@task
async def say_nothing(context: Context) -> str:
    return context.queue


@task
def give_in_thread(value: int) -> int:
    return value


@task(timeout_s=30.0)
async def give_in_time(value: int) -> int:
    return value


@task(timeout_s=0.05, max_attempts=1)
def sleep_too_long() -> None:
    time.sleep(0.3)


@task
async def wish(kind: str) -> str | Cancel | Fail:
    return Cancel("enough") if kind == "cancel" else Fail("no use")


@task(max_attempts=1)
async def break_down() -> None:
    raise ValueError("broken")


@task
async def give_what_json_cannot_say() -> float:
    return float("nan")


_JOBS: Final[tuple[tuple[Any, tuple[Any, ...]], ...]] = (
    *((give, (value,)) for value in (None, 7, 1.5, "ä", [1, {"a": None}], "x" * 100_000)),
    (tell, (3,)),
    (say_nothing, ()),
    (give_in_thread, (4,)),
    (give_in_time, (5,)),
    (sleep_too_long, ()),
    (wish, ("cancel",)),
    (wish, ("fail",)),
    (break_down, ()),
    (give_what_json_cannot_say, ()),
)


def _never(*_: object) -> bool:
    return False


async def _stored(ledger: Ledger, way: str) -> list[tuple[str, bytes]]:
    """Run one job of each kind, and return what is stored of them, without what is a run's own."""
    enqueue: Any = ledger.enqueue  # of tasks of all kinds
    handles: list[JobHandle[Any]] = [
        await enqueue(each.options(id=f"{way}-{number}"), *given)
        for number, (each, given) in enumerate(_JOBS)
    ]
    async with working(ledger, *{each.name: each for each, _ in _JOBS}.values(), reactors=False):
        for handle in handles:
            await ended(handle)
    return [
        (stored.subject.replace(way, "job"), _OWN.sub(rb'"\1":""', stored.data.replace(way.encode(), b"job")))
        for handle in handles
        for stored in await handle.history()
    ]


async def test_callbacks_and_tasks_store_the_same_bytes(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, record = Claimer.begin, Recorder.begin
    claimed: list[str] = []
    recorded: list[str] = []

    def begin_claim(self: Claimer, delivery: Delivery, queued: Queued, answered: Any) -> None:
        claimed.append(queued.job)
        claim(self, delivery, queued, answered)

    def begin_record(self: Recorder, attempt: Attempt, outcome: Outcome, answered: Any) -> bool:
        began = record(self, attempt, outcome, answered)
        recorded.extend([attempt.job.id] * began)
        return began

    monkeypatch.setattr(Claimer, "begin", begin_claim)
    monkeypatch.setattr(Recorder, "begin", begin_record)
    by_callbacks = await _stored(ledger, "callback")
    assert len(claimed) == len(_JOBS)
    assert {"callback-0", "callback-5", "callback-7", "callback-8", "callback-9"} <= set(recorded)
    assert not {"callback-10", "callback-11", "callback-12", "callback-13"} & set(recorded)

    monkeypatch.setattr(Attempts, "_can_claim_at_once", _never)
    monkeypatch.setattr(Recorder, "begin", _never)
    claimed.clear()
    by_tasks = await _stored(ledger, "coroutine")
    assert not claimed
    assert by_callbacks == by_tasks
    assert len(by_tasks) > 3 * len(_JOBS)


async def test_a_job_that_was_cancelled_before_its_claim_is_not_run(ledger: Ledger) -> None:
    """Its delivery says that it is queued: only the condition of the claim shows that it is not."""
    job = await ledger.enqueue(give_in_thread, 1)
    await ledger.pause_queue("default", by="ann")
    held = await ledger.enqueue(give_in_thread, 2)
    await ledger.cancel(job.ref, by="ann")
    await ledger.resume_queue("default", by="ann")
    async with working(ledger, give_in_thread, reactors=False) as worker:
        assert await held.result(timeout_s=LIMIT_S) == 2
        await until(lambda: worker.counts().held == 0)
    assert await types(job) == ["queued", "cancelled"]
