"""The jobs that a kept demo leaves to look at: finished and failed runs, and jobs that wait for different reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import anyio

from jobledger.admin.limits import set_limit
from jobledger.cli.demo import shop
from jobledger.ledger import JobState, Ledger
from jobledger.ledger.model.job import FINAL_STATES
from jobledger.ledger.tasks import TaskWithOptions

APP: Final = shop.__name__
CONCURRENCY_OF_SHOP: Final = 50  # its jobs wait most of their time
_LOOK_EVERY_S: Final = 0.05
_OPERATOR: Final = "ann"
CUSTOMERS: Final = ("acme", "globex", "initech", "umbrella")

#: Things to see, and the search that finds each in the dashboard.
SIGHTS: Final = (
    ("a run with 200 jobs below it", "import-acme"),
    ("a run that failed and was undone", "order-13"),
    ("a run whose payment died", "order-17"),
    ("runs that wait for the signal approved", "task:payout"),
    ("jobs of a tenant whose limit is closed", "tenant:initech state:held"),
    ("dead letters of several causes", "state:dead"),
    ("a paused queue, to which a schedule adds", "queue:reports"),
    ("jobs in a queue that no worker serves", "queue:gpu"),
)


class _Order(NamedTuple):
    """A job to add, and the states in which it stays: it has ended, or only a person can move it on."""

    task: TaskWithOptions[..., Any]
    inputs: tuple[Any, ...] = ()
    rests: frozenset[JobState] = FINAL_STATES


def _orders() -> Iterator[_Order]:
    """Yield the jobs of the shop. A run whose payment is a dead letter waits until a person decides about that."""
    held, queued, waiting = (
        frozenset({state}) for state in (JobState.HELD, JobState.QUEUED, JobState.WAITING)
    )
    yield _Order(shop.import_catalog.options(id="import-acme", tenant="acme"), ("autumn.csv",))
    for number, customer in enumerate(CUSTOMERS * 5):
        order = shop.checkout.options(id=f"order-{number}", tenant=customer)
        cents = 1_900 + number * 2_890
        rests = waiting if cents > shop.CARD_CENTS_MAX else FINAL_STATES
        yield _Order(order, (f"{number}", customer, cents), rests)
        to = f"user{number}@{customer}.example"
        yield _Order(shop.send_mail.options(tenant=customer), (to, "welcome"))
    for number in range(5):
        to = f"user{number}@hooli.invalid"
        yield _Order(shop.send_mail.options(tenant="hooli"), (to, "receipt"))
        yield _Order(shop.export_bookings.options(tenant="initech"), (2020 + number,), held)
    for supplier in CUSTOMERS[:3]:
        payout = shop.payout.options(id=f"payout-{supplier}", tenant=supplier)
        yield _Order(payout, (supplier, 49_000), waiting)
    yield from (_Order(shop.classify.options(queue="gpu"), (number,), queued) for number in range(12))
    yield from (_Order(shop.report.options(), (), queued) for _ in range(3))


async def leave_fleet(ledger: Ledger) -> None:
    """Add the jobs of the shop, and wait until each has ended or only a person can move it on.

    A worker of `APP` has to run.
    """
    await ledger.pause_queue("reports", reason="the printer is broken", by=_OPERATOR)
    await set_limit(ledger, "tenant", {"slots": 2}, by=_OPERATOR)
    await set_limit(ledger, "tenant:initech", {"slots": 0}, reason="their invoice is open", by=_OPERATOR)
    jobs = [(await ledger.enqueue(each.task, *each.inputs), each.rests) for each in _orders()]
    for job, rests in jobs:
        while await job.state() not in rests:  # noqa: ASYNC110 - another process changes the state
            await anyio.sleep(_LOOK_EVERY_S)
