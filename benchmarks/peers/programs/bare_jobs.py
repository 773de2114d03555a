"""What nats-server allows: the appends of a job without jobledger, so without events, checks, leases or results.

A job is a message; its worker appends two more, each on the condition that it is the first of its subject, and
acknowledges. Appends go through the ledger's own writer, so that groups are formed where each write is fsynced.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec
from peers.programs.load import Job, run, server, starts

from jobledger.ledger.model.log import Entry
from jobledger.ledger.nats.api import create_consumer, create_stream
from jobledger.ledger.nats.connection import Connection, open_connection
from jobledger.ledger.nats.consumer import ACK, tell
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.pull import Delivery, Ended, PullConsumer
from jobledger.ledger.nats.writer import Writer
from jobledger.workers.process import tune_collector

STREAM: Final = "BARE"
_QUEUED: Final = "bare.queued"
_TIMEOUT_S: Final = 5.0
_WINDOW: Final = 2_000  #: appends on their way


async def _open() -> tuple[Connection, Writer]:
    """Connect, and make the stream and its consumer where they are missing."""
    connection = await open_connection(server(), name="bare", timeout_s=_TIMEOUT_S)
    inbox = Inbox(connection)
    await inbox.open()
    await create_stream(inbox, STREAM, {"subjects": ["bare.>"], "allow_atomic": True})
    work = {"durable_name": "work", "ack_policy": "explicit", "filter_subject": f"{_QUEUED}.>"}
    await create_consumer(inbox, STREAM, "work", {**work, "max_ack_pending": 10_000})
    writer = Writer(connection)
    await writer.open()
    return connection, writer


def _first(subject: str, data: bytes) -> tuple[Entry]:
    return (Entry(subject, data, subject, 0),)


class Program:
    """The client."""

    def __init__(self) -> None:
        self._connection: Connection
        self._writer: Writer

    async def open(self) -> None:
        self._connection, self._writer = await _open()

    async def add(self, job: Job) -> None:
        await self.add_many([job])

    async def add_many(self, jobs: list[Job]) -> None:
        room = asyncio.Semaphore(_WINDOW)
        all_answered = asyncio.get_running_loop().create_future()
        left = len(jobs)

        def answered(result: int | Exception) -> None:
            nonlocal left
            if isinstance(result, Exception) and not all_answered.done():
                all_answered.set_exception(result)
            left -= 1
            room.release()
            if not left and not all_answered.done():
                all_answered.set_result(None)

        for job in jobs:
            await room.acquire()
            self._writer.append(_first(f"{_QUEUED}.{job['number']}", msgspec.json.encode(job)), answered)
        await all_answered

    async def hang(self, job: Job) -> None:
        raise AssertionError(f"nobody rescues job {job['number']}")

    async def close(self) -> None:
        self._writer.close()
        await self._connection.close()


class _Worker:
    """Runs as many jobs at once as it may."""

    def __init__(self, connection: Connection, writer: Writer, concurrency: int) -> None:
        self._connection = connection
        self._writer = writer
        self._concurrency = concurrency
        self._running = 0
        self._consumer = PullConsumer(
            connection, STREAM, "work", on_delivery=self._start, on_ended=self._ended
        )

    async def run(self) -> None:
        """Work for ever."""
        await self._consumer.open()
        self._ask()
        await asyncio.Event().wait()

    def _ask(self) -> None:
        room = self._concurrency - self._running - self._consumer.asked
        if self._consumer.free and room >= max(1, self._concurrency // 4):
            self._consumer.wait_for(room)

    def _ended(self, _: Ended) -> None:
        self._ask()

    def _start(self, delivery: Delivery) -> None:
        self._running += 1
        job = msgspec.json.decode(delivery.data)

        def started(result: int | Exception) -> None:
            assert isinstance(result, int), result
            starts.note(job)
            self._writer.append(_first(f"bare.completed.{job['number']}", b"null"), completed)

        def completed(result: int | Exception) -> None:
            assert isinstance(result, int), result
            tell(self._connection, delivery, ACK)
            self._running -= 1
            self._ask()

        self._writer.append(_first(f"bare.started.{job['number']}", b"{}"), started)


async def _work(concurrency: int) -> None:
    tune_collector()
    connection, writer = await _open()
    with contextlib.suppress(asyncio.CancelledError):
        await _Worker(connection, writer, concurrency).run()


def work(concurrency: int) -> None:
    """Be the worker."""
    run(_work(concurrency))
