"""A worker that dies with a job is told of: by an event, which subscriptions and webhooks can ask for, and by a hook."""

from __future__ import annotations

import pytest
from tests.support.working import LIMIT_S, ended, types, until, working

from jobledger.audit.verify import verify
from jobledger.ledger import Hooks, JobState, Ledger, Notice, task
from jobledger.ledger.events import Lost
from jobledger.ledger.model.commands import Claim

pytestmark = pytest.mark.anyio

TOLD: list[Notice] = []
STALLED: list[Notice] = []


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    TOLD.clear()
    STALLED.clear()


@task(queue="mail", max_attempts=2, hooks=Hooks(on_lost=TOLD.append, on_stall=STALLED.append))
async def send(number: int) -> int:
    return number


async def test_a_worker_that_died_is_told_of_by_an_event_and_by_the_hook_of_the_next(ledger: Ledger) -> None:
    job = await ledger.enqueue(send, 3)
    last = await ledger.enqueue(send.options(max_attempts=1), 4)
    epochs = {
        each.id: (await ledger.execute(each.ref, Claim(worker="dead-1-00", lease_s=2.0))).claim_epoch
        for each in (job, last)
    }  # that worker has no lease and never will
    async with working(ledger, send):
        assert await job.result(timeout_s=LIMIT_S) == 3
        await ended(last)
        await until(lambda: len(TOLD) == 2)
    assert await types(job) == ["queued", "started", "lost", "started", "completed"]
    assert await types(last) == ["queued", "started", "lost", "dead_lettered"]
    found = [each.event async for each in ledger.events(types=["lost"], queue="mail", follow=False)]
    assert {each.job: each for each in found}.keys() == epochs.keys()
    for event in found:
        assert isinstance(event, Lost)
        assert (event.attempt, event.worker, event.epoch) == (1, "dead-1-00", epochs[event.job])
    told = {each.job_id: each for each in TOLD}
    for each, goes_on in ((job, True), (last, False)):
        notice = told[each.id]
        assert (notice.kind, notice.attempt, notice.worker) == ("lost", 1, "dead-1-00")
        assert notice.will_retry is goes_on
    assert await last.state() is JobState.DEAD_LETTERED
    assert not STALLED  # the worker that is told lives, and its attempts gave signs of life
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_job_whose_attempts_end_tells_of_no_loss(ledger: Ledger) -> None:
    async with working(ledger, send):
        job = await ledger.enqueue(send, 3)
        assert await job.result(timeout_s=LIMIT_S) == 3
    assert [each async for each in ledger.events(types=["lost"], queue="mail", follow=False)] == []
    assert TOLD == []
