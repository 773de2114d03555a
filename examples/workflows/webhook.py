"""Webhooks begin runs and send them signals, whichever of them a shop delivers twice.

A small HTTP server on loopback checks the signature of each delivery. An order begins a run whose id follows from its
number; a payment is a signal whose id is that of the delivery. So a repeat changes nothing.
"""

import asyncio
import hashlib
import hmac
import http.client
import tempfile
from pathlib import Path

import msgspec

from jobledger.ledger import (
    InvalidInputError,
    JobNotFoundError,
    Ledger,
    Run,
    Signal,
    TaskRegistry,
    UnknownSignalError,
    connect,
    step,
    workflow,
)
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

SECRET = b"that only the shop and this program know"
BODY_BYTES_MAX = 64 << 10
LIMIT_S = 30


class Order(msgspec.Struct):
    """What the shop posts to /orders."""

    number: str
    cents: int


class Payment(msgspec.Struct):
    """What the shop posts to /payments; an order may be paid in parts."""

    order: str
    cents: int


paid = Signal("paid", Payment)


@step
async def ship(number: str) -> str:
    return f"order {number} is on its way"


@workflow(queue="orders")
async def fulfil(run: Run, order: Order) -> str:
    missing = order.cents
    while missing > 0:
        missing -= (await run.wait(paid, timeout_s=30 * 86_400)).cents
    return await run.step(ship, order.number)


class Receiver:
    """Answers deliveries: 202 for what is new, 200 for what came before, and what else is to be said."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def take(self, path: str, delivery: str, body: bytes) -> tuple[int, str]:
        """Act on a delivery whose signature was right."""
        try:
            if path == "/orders":
                order = msgspec.json.decode(body, type=Order)
                job = await self._ledger.enqueue(fulfil.options(id=f"order-{order.number}"), order)
                return (
                    (202, f"run {job.id} begins") if job.created else (200, f"run {job.id} is there already")
                )
            if path == "/payments":
                payment = msgspec.json.decode(body, type=Payment)
                is_new = await self._ledger.signal(f"order-{payment.order}", paid, payment, id=delivery)
                return (202, "noted") if is_new else (200, "noted before")
        except (msgspec.DecodeError, InvalidInputError) as error:
            return 400, str(error)
        except JobNotFoundError:
            return 404, "no run waits for this payment"
        except UnknownSignalError:
            return 409, "the run has ended"
        return 404, f"nothing is at {path}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and answer it. What fails unforeseen gets no answer, and the shop delivers again."""
        try:
            async with asyncio.timeout(LIMIT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:])
                }
                size = int(headers["content-length"])
                if size > BODY_BYTES_MAX:
                    code, said = 413, "too large"
                else:
                    body = await reader.readexactly(size)
                    if hmac.compare_digest(headers["signature"].encode(), signature(body).encode()):
                        code, said = await self.take(head[0].split()[1], headers["delivery"], body)
                    else:
                        code, said = 401, "the signature is wrong"
                text = said.encode()
                writer.write(f"HTTP/1.1 {code} .\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
                await writer.drain()
        finally:
            writer.close()


def signature(body: bytes) -> str:
    """Return what proves that a body comes from somebody who knows the secret."""
    return hmac.new(SECRET, body, hashlib.sha256).hexdigest()


def deliver(port: int, path: str, delivery: str, what: object, *, signed: bool = True) -> None:
    """Be the shop: post a delivery and print what is answered."""
    body = msgspec.json.encode(what)
    headers = {"Delivery": delivery, "Signature": signature(body if signed else b"")}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    print(f"{delivery} to {path}: {response.status} {response.read().decode()}")
    connection.close()


def shop(port: int) -> None:
    """Deliver an order and its payment in two parts, some of it twice, and what has to be refused."""
    deliver(port, "/orders", "d-1", Order("77", 1_500))
    deliver(port, "/orders", "d-1", Order("77", 1_500))
    deliver(port, "/payments", "d-2", Payment("77", 500))
    deliver(port, "/payments", "d-2", Payment("77", 500))
    deliver(port, "/payments", "d-3", Payment("77", 1_000), signed=False)
    deliver(port, "/payments", "d-4", Payment("78", 1_000))
    deliver(port, "/payments", "d-5", {"order": "77"})
    deliver(port, "/payments", "d-3", Payment("77", 1_000))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            http_server = await asyncio.start_server(Receiver(ledger).answer, "127.0.0.1", 0)
            port = http_server.sockets[0].getsockname()[1]
            worker = Worker(ledger, TaskRegistry([fulfil]))
            async with http_server, asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                await asyncio.to_thread(shop, port)
                job = await ledger.job("order-77", task=fulfil)
                print(await job.result(timeout_s=LIMIT_S))
                await asyncio.to_thread(deliver, port, "/payments", "d-6", Payment("77", 1))
                worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
