"""Tasks that tests enqueue without a worker, and what a worker would do."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from tests.support import limits

from jobledger.ledger import Ledger, task
from jobledger.ledger.model.commands import Claim, Complete, Enqueue
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.subjects import JobRef

LIMIT_S = limits.LIMIT_S
COMMITS = ["pipeline", "group", "auto"]


def enqueue_of(ref: JobRef, *, task: str = "send", run_at: datetime | None = None, **order: Any) -> Enqueue:
    """Return the command that begins a job; `order`: the fields of its `Order`."""
    return Enqueue(ref=ref, task=task, run_at=run_at, order=Order(**order))


@task
async def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue="mail", max_attempts=1)
def shout(text: str) -> str:
    return text.upper()


async def finish(ledger: Ledger, ref: JobRef, value: object = None, *, worker: str = "w-1") -> None:
    """Do as a worker does, without one."""
    job = await ledger.execute(ref, Claim(worker=worker, lease_s=15.0), by=worker)
    await ledger.execute(ref, Complete(epoch=job.claim_epoch, result=msgspec.Raw(msgspec.json.encode(value))))
