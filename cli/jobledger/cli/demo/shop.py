"""The tasks of a small shop, as a user would write them: `jobledger demo --keep` leaves their jobs.

Jobs fail because of their input, so that each demo shows the same.
"""

from __future__ import annotations

from typing import Final

import anyio
import msgspec

from jobledger.cli.demo.tasks import index_file
from jobledger.ledger import Backoff, Limit, Run, Schedule, Signal, step, task, workflow

__all__ = ["index_file"]  # so that a worker of this module runs requeued dead letters of the demo, too

CARD_CENTS_MAX: Final = 50_000
_DAYS_S: Final = 86_400.0
_SOON: Final = Backoff(kind="fixed", base_s=0.3)
_seen: set[str] = set()  # orders that found the stock service busy, in this process


class CardDeclinedError(Exception):
    """The bank refused the card; another try is of no use."""


class Approval(msgspec.Struct, frozen=True):
    """The value of the signal."""

    by: str
    yes: bool = True


approved = Signal("approved", Approval)


@task(queue="email", max_attempts=2, backoff=_SOON)
async def send_mail(to: str, template: str) -> str:
    """Send one mail."""
    await anyio.sleep(0.05)
    if to.endswith(".invalid"):
        raise TimeoutError(f"no answer from mx.{to.partition('@')[2]} within 5 s")
    return f"{template} sent to {to}"


@task(queue="payments", max_attempts=3, give_up_on=(CardDeclinedError,))
async def charge(customer: str, cents: int) -> str:
    """Charge a customer's card."""
    await anyio.sleep(0.4)
    if cents > CARD_CENTS_MAX:
        raise CardDeclinedError(f"card declined: {cents} cents are above its limit")
    return f"charged {customer} {cents} cents"


@task(queue="import", max_attempts=2, backoff=_SOON)
async def import_row(row: int) -> int:
    """Import one row of a catalogue."""
    await anyio.sleep(0.02 + row * 7 % 13 / 100)
    if row % 61 == 7:  # noqa: PLR2004 - the same rows are wrong in each demo
        raise ValueError(f"row {row}: price of sku-{row:05} is not a number")
    return row


@task(queue="export", limits=(Limit("tenant", key="tenant", slots=2),))
async def export_bookings(year: int) -> str:
    """Write the bookings of a tenant's year to a file."""
    await anyio.sleep(0.1)
    return f"bookings-{year}.zip"


@task(queue="documents")
async def classify(document: int) -> str:
    """Say what a scanned document is."""
    return f"document {document} is an invoice"


@task(queue="reports", schedule=Schedule("nightly-report", cron="30 2 * * *", timezone="Europe/Berlin"))
async def report() -> str:
    """Add up a day."""
    await anyio.sleep(0.2)
    return "the report is sent"


@step(max_attempts=3, backoff=_SOON)
async def reserve(order: str) -> str:
    """Reserve the ordered goods; the stock service is busy at the first request."""
    await anyio.sleep(0.2)
    if order not in _seen:
        _seen.add(order)
        raise ConnectionError("stock service: 503, try again")
    return f"reservation-{order}"


@step
async def release(reservation: str) -> None:
    """Undo a reservation."""
    await anyio.sleep(0.05)
    _seen.discard(reservation.removeprefix("reservation-"))


@step
async def score_fraud(order: str) -> float:
    """Say how likely an order is a fraud."""
    await anyio.sleep(0.7)
    return len(order) / 100


@step
async def book_shipping(order: str) -> str:
    """Get a label for the parcel."""
    await anyio.sleep(0.3)
    if order == "13":
        raise RuntimeError(f"the carrier has no label for order {order}")
    return f"label-{order}"


@step
async def load_catalog(file: str) -> int:
    """Fetch a catalogue; return how many rows it has."""
    await anyio.sleep(0.3)
    return 200 if file.endswith(".csv") else 0


@workflow(queue="orders", max_attempts=1)
async def checkout(run: Run, order: str, customer: str, cents: int) -> str:
    """Bring an order from the basket to a parcel."""
    reservation = await run.step(reserve, order)
    run.on_failure(release, reservation)

    async def money() -> str:
        return await run.call(charge, customer, cents)

    async def fraud() -> float:
        return await run.step(score_fraud, order)

    await run.gather(money, fraud)
    label = await run.step(book_shipping, order)
    await run.sleep(0.5)
    await run.call(send_mail, f"{customer}@shop.example", "your parcel is on its way")
    return label


@workflow(queue="import", max_attempts=1)
async def import_catalog(run: Run, file: str) -> str:
    """Import a catalogue, one job a row."""
    rows = await run.step(load_catalog, file)
    done = await run.map_settled(import_row, range(rows), limit=24)
    failed = sum(bool(each.error) for each in done)
    return f"{len(done) - failed} rows imported, {failed} failed"


@workflow(queue="payouts", max_attempts=1)
async def payout(run: Run, supplier: str, cents: int) -> str:
    """Pay a supplier once somebody has approved it."""
    reservation = await run.step(reserve, supplier)
    run.on_failure(release, reservation)
    answer = await run.wait(approved, timeout_s=365 * _DAYS_S)
    if not answer.yes:
        raise PermissionError(f"{answer.by} said no")
    return await run.call(charge, supplier, cents)
