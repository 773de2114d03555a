"""A shop whose ledger has something of everything that the dashboard tells of, and a gateway on it that listens."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tests.support.gateways import gateway_of, listening
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.admin.limits import set_limit
from jobledger.gateway.acts.bulk_act import bulk_act
from jobledger.gateway.gateway import Gateway
from jobledger.ledger import JobHandle, Ledger, Limit, Run, Signal, connect, step, task, workflow
from jobledger.ledger.server import EmbeddedServer

TENANTS = ("acme", "globex", "initech")
ROWS = 120
_DECLINED_BELOW = 50


class CardDeclinedError(Exception):
    """What a bank answers."""


class Approval(msgspec.Struct):
    """Who lets a payout go on."""

    by: str
    yes: bool


per_tenant = Limit("tenant", key="tenant", slots=3)
approved = Signal("approved", Approval)


@task(queue="payments", max_attempts=1, give_up_on=(CardDeclinedError,))
async def charge(tenant: str, invoice: str, cents: int) -> str:
    """Charge a card for an invoice."""
    if cents < _DECLINED_BELOW:
        raise CardDeclinedError(f"{invoice}: card declined, code expired_card")
    return f"ch_{tenant}"


@task(queue="render", max_attempts=1)
async def render_pdf(tenant: str, invoice: str, pages: int) -> str:
    """Draw an invoice."""
    if pages >= 6:
        raise MemoryError(f"page {pages} of {invoice}: 2.1 GiB asked for")
    return f"/pdf/{tenant}/{invoice}.pdf"


@task(queue="email", max_attempts=1)
async def send_mail(to: str) -> str:
    """Send a mail."""
    raise TimeoutError(f"no answer from smtp-2.mail.example.com:587 while sending to {to}")


@task(queue="gpu")
async def classify(document: int) -> str:
    """Tell what a document is; no worker serves it."""
    return f"invoice {document}"


@task(queue="reports")
async def nightly_report(day: str) -> str:
    """Add up a day; its queue is paused."""
    return day


@task(queue="export", limits=(per_tenant,))
async def export_ledger(tenant: str) -> str:
    """Write a tenant's bookings to a file."""
    return tenant


@task(queue="import", max_attempts=1)
async def import_row(row: int) -> int:
    """Import a row of a catalogue."""
    if row % 61 == 7:
        raise ValueError(f"row {row}: price of sku-{row:05d} is not a number")
    return row


@step
async def load_catalog(file: str) -> int:
    """Return how many rows a file has."""
    return len(file)


@step
async def write_summary(done: int) -> str:
    """Write how many rows came in."""
    return f"{done} imported"


@step
async def reserve(order: str) -> str:
    """Reserve what was ordered."""
    return f"rsv_{order}"


@workflow(queue="import", max_attempts=1)
async def import_catalog(run: Run, file: str, rows: int) -> str:
    """Import a catalogue, a job a row."""
    await run.step(load_catalog, file)
    done = await run.map_settled(import_row, list(range(rows)), limit=40)
    return await run.step(write_summary, len(done))


@workflow(queue="orders", max_attempts=1)
async def checkout(run: Run, tenant: str, order: str, cents: int) -> str:
    """From a basket to a parcel."""
    reservation = await run.step(reserve, order)
    await run.options(on_dead_letter="fail").call(charge, tenant, f"inv-{order}", cents)
    return reservation


@workflow(queue="approvals", max_attempts=1)
async def payout(run: Run, tenant: str) -> str:
    """Pay a supplier once somebody approved it."""
    answer = await run.wait(approved)
    return f"{tenant} by {answer.by}"


SERVED = (
    charge,
    render_pdf,
    send_mail,
    import_row,
    import_catalog,
    checkout,
    payout,
    export_ledger,
    bulk_act,
)


class Shop(NamedTuple):
    """A gateway that listens, and what is in its ledger."""

    url: str
    ledger: Ledger
    gateway: Gateway
    begun: datetime  #: when its first job had been enqueued
    died: datetime  #: when its jobs had died, and nobody had acted yet


@contextlib.asynccontextmanager
async def shop_of(server: EmbeddedServer, folder: Path) -> AsyncGenerator[Shop, None]:
    """Give a shop with a queue that nobody serves, one that is paused, a closed limit, causes of dead letters, and runs."""
    environment = f"b_{secrets.token_hex(6)}"
    async with (
        connect(server.url, environment=environment, ledger_bytes_max=64 << 20) as ledger,
        gateway_of(ledger, folder) as gateway,
    ):
        begun, died = await _fill(ledger)
        async with listening(gateway) as url, working(ledger, *SERVED):
            yield Shop(url, ledger, gateway, begun, died)


async def _fill(ledger: Ledger) -> tuple[datetime, datetime]:
    await ledger.enqueue_many(classify, ({"document": n} for n in range(5)))
    begun = datetime.now(UTC)
    ended: list[JobHandle[Any]] = [
        await ledger.enqueue(import_catalog.options(id="import-acme-autumn"), "autumn.csv", ROWS)
    ]
    for n in range(30):
        tenant = TENANTS[n % 3]
        meta = {"region": "eu" if n % 2 else "us"}
        paid = charge.options(id=f"charge-{tenant}-i{n}", tenant=tenant, metadata=meta)
        drawn = render_pdf.options(id=f"pdf-{tenant}-i{n}", tenant=tenant, metadata=meta)
        ended += [
            await ledger.enqueue(paid, tenant, f"i{n}", 1 if n % 3 == 1 else 900),
            await ledger.enqueue(drawn, tenant, f"i{n}", 6 if n % 5 == 0 else 1),
        ]
    ended += [await ledger.enqueue(send_mail, f"user{n}@acme.example.com") for n in range(4)]
    ended += [
        await ledger.enqueue(checkout.options(id=f"order-acme-{n}", tenant="acme"), "acme", f"{n}", cents)
        for n, cents in enumerate((900, 1))
    ]
    waiting = await ledger.enqueue(payout.options(id="payout-acme-p1", tenant="acme"), "acme")
    async with working(ledger, *SERVED), asyncio.timeout(LIMIT_S):
        for job in ended:
            await job.wait()
        while (await waiting.state()).value != "waiting":
            await asyncio.sleep(0.02)
    died = datetime.now(UTC)
    await ledger.enqueue(nightly_report, "2026-11-10")
    await ledger.pause_queue("reports", reason="printer is broken", by="root")
    await set_limit(ledger, "tenant", {"slots": 3}, by="root")
    await set_limit(ledger, "tenant:initech", {"slots": 0}, reason="their invoice is open", by="root")
    for n, tenant in enumerate(TENANTS):
        await ledger.enqueue(export_ledger.options(id=f"export-{tenant}-{2012 + n}", tenant=tenant), tenant)
    return begun, died
