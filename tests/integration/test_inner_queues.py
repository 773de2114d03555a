"""Queues of the ledger's own: figures and lists of the fleet leave them out, unless somebody names what is in them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.histories import BEGIN, SteppedClock
from tests.support.orders import enqueue_of
from tests.support.projections import finish

from jobledger.admin.lists.stats import of_fleet_rows, stats
from jobledger.admin.queues import listed
from jobledger.admin.rows import View
from jobledger.ledger.model.chain import commit, load
from jobledger.ledger.model.commands import Claim, Command, Fail, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import INNER_QUEUES, JobRef
from jobledger.projections import DeadLetterFilter, JobFilter, Store

pytestmark = pytest.mark.anyio
BROKEN = ErrorInfo(kind="exception", type="ValueError", message="no")


async def die(log: MemoryLog, ref: JobRef, task: str, clock: SteppedClock) -> None:
    """Let a job be enqueued and become a dead letter."""
    for kind in ("enqueue", "claim", "fail"):
        chain = await load(log, ref)
        held = 0 if chain.job is None else chain.job.last_sequence
        commands: dict[str, Command] = {
            "enqueue": enqueue_of(ref, task=task, max_attempts=1),
            "claim": Claim(worker="w1", lease_s=15),
            "fail": Fail(epoch=held, error=BROKEN),
        }
        await commit(log, chain, decide(chain.job, commands[kind], Stamp(at=clock.now(), by="test")))


async def test_inner_queues_count_only_where_they_are_named(tmp_path: Path) -> None:
    clock = SteppedClock()
    log = MemoryLog(clock=clock)
    for number, queue in enumerate(("mail", *INNER_QUEUES)):
        await die(log, JobRef(queue=queue, job_id=f"job-{number}"), f"task-{queue}", clock)
    await finish(log, tmp_path / "p")
    with Store.open(tmp_path / "p") as store:
        view, day = View(store, clock.now(), 1), timedelta(days=1)
        assert [row.queue for row in store.jobs()] == ["mail"]
        assert store.job_counts(JobFilter()).by_state["dead_lettered"] == 1
        assert [row.queue for row in store.dead_letters()] == ["mail"]
        assert store.dead_letter_count(DeadLetterFilter(reason="exhausted")) == 1
        assert [row.queue for row in listed(store, None, view.now)[0]] == ["mail"]
        rates = await stats(view, BEGIN - day, BEGIN + day)
        assert [each.name for each in rates.queues] == ["mail"]
        assert [each.queue for each in rates.spans] == ["mail"]
        assert [row.queue for row in of_fleet_rows(store.totals(), None, None)] == ["mail"]
        for number, queue in enumerate(INNER_QUEUES, start=1):
            named = (
                JobFilter(queue=queue),
                JobFilter(task=f"task-{queue}"),
                JobFilter(id_prefix=f"job-{number}"),
            )
            for each in named:
                assert [row.queue for row in store.jobs(chosen=each)] == [queue], each
            assert store.job_counts(JobFilter(queue=queue)).by_state["dead_lettered"] == 1
            assert store.dead_letter_count(DeadLetterFilter(queue=queue)) == 1
            assert [row.queue for row in listed(store, queue, view.now)[0]] == [queue]
            assert [row.queue for row in of_fleet_rows(store.totals(queue=queue), queue, None)] == [queue]
            rates = await stats(view, BEGIN - day, BEGIN + day, queue=queue)
            assert [each.name for each in rates.queues] == [queue]
