"""Keys of the workers' bucket that somebody deleted or wrote over, and whatever else a service meets: nothing ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.support.command_line import CommandLine
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.working import Connect, until, working

from jobledger.ledger import Ledger, task
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.commands import Claim
from jobledger.ledger.model.errors import LockLostError
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.consumer import HeldDeliveries
from jobledger.ledger.nats.durables import delete_consumer, make_consumer, reactor_consumer
from jobledger.ledger.nats.leases import LeaseLostError, WorkerInfo
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import services
from jobledger.workers.attempt import intake
from jobledger.workers.attempt.cancels import CancelWatch
from jobledger.workers.attempt.intake import Intake
from jobledger.workers.services import end, outlive
from jobledger.workers.watchdog import Watchdog

pytestmark = pytest.mark.anyio
GARBAGE = (b"", b"no JSON", b"{}", b"[1,2]", b'{"worker":7}', b"\xff\x00", b'"text"')


@task(queue="leases")
async def double(n: int) -> int:
    return 2 * n


@task(queue="leases")
async def wait() -> None:
    await asyncio.sleep(LIMIT_S)


async def write(ledger: Ledger, worker: str, data: bytes, headers: bytes = b"") -> None:
    """Put something under a worker's key, whatever it is."""
    stored = asyncio.Event()
    subject = f"$KV.{ledger.names.workers_bucket}.{worker}"
    reply = ledger.inbox.expect(subject, lambda _data, _headers: stored.set(), once=True)
    ledger.connection.send(subject, reply, headers, data)
    async with asyncio.timeout(LIMIT_S):
        await stored.wait()


async def remove(ledger: Ledger, worker: str) -> None:
    """Delete a key as `nats kv del` does."""
    await write(ledger, worker, b"", b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n")


async def purge(ledger: Ledger, worker: str) -> None:
    """Take the key out of the stream, with nothing in its place."""
    bucket = ledger.names.workers_bucket
    answer = await api(ledger.inbox, f"STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.{worker}"})
    assert answer["purged"] == 1


async def garble(ledger: Ledger, worker: str) -> None:
    await write(ledger, worker, b'{"worker": ')


async def test_a_lease_under_another_name_than_its_own_is_nobodys(ledger: Ledger) -> None:
    """A user can write keys that begin with its name; what they hold must not speak for others' workers."""
    at = ledger.clock.now()
    info = WorkerInfo(worker="ann.host-1-00000000", host="h", pid=1, queues=(), started_at=at, renewed_at=at)
    await write(ledger, info.worker, msgspec.json.encode(info))
    await write(ledger, "bob.host-1-00000000", msgspec.json.encode(info))
    assert [each.worker for each in await ledger.leases.all()] == [info.worker]


@pytest.mark.parametrize("damage", [remove, purge, garble])
async def test_a_worker_whose_own_key_is_damaged_goes_on_under_another_name(
    connected: Connect, damage: Callable[[Ledger, str], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(lease_s=1.5) as ledger, working(ledger, double, wait) as worker:
        await worker.taking.wait()
        was = worker.identity
        running = await ledger.enqueue(wait)
        await until(lambda: worker.running == 1)
        await damage(ledger, was)
        await until(lambda: worker.identity != was)
        assert f"lease of {was} expired: what it held is given up" in caplog.text
        job = await ledger.enqueue(double, 21)
        assert await job.result(timeout_s=LIMIT_S) == 42
        # What ran is run again, by this very worker.
        await until(lambda: worker.running == 1)
        assert [each.state for each in (await running.snapshot()).attempts] in (
            ["interrupted", "running"],
            ["lost", "running"],
        )
        worker.stop()


async def test_keys_of_others_that_cannot_be_read_are_left_out_and_told(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    for number, data in enumerate(GARBAGE):
        await write(ledger, f"odd-{number}", data)
    await garble(ledger, "evil\x1b[2J")
    async with working(ledger, double) as worker:
        await worker.taking.wait()
        assert [info.worker for info in await ledger.leases.all()] == [worker.identity]
        assert await (await ledger.enqueue(double, 1)).result(timeout_s=LIMIT_S) == 2
    for number, data in enumerate(GARBAGE):
        name = f"odd-{number}"
        # A key that is there lives, whatever it says: its worker may run jobs until it expires. A deleted one does not.
        assert (await ledger.leases.find(name) is not None) == bool(data)
        assert not await ledger.leases.end(name)
        assert caplog.text.count(f"key {name} of the workers' bucket does not hold a lease") == bool(data)


async def test_a_job_whose_worker_cannot_be_read_is_taken_over_when_the_key_expires(
    connected: Connect,
) -> None:
    async with connected(lease_s=2.0) as ledger:
        job = await ledger.enqueue(double, 4)
        await ledger.execute(JobRef(queue="leases", job_id=job.id), Claim(worker="gone-1", lease_s=2.0))
        await garble(ledger, "gone-1")
        async with working(ledger, double, ack_wait_s=1.0):
            assert await job.result(timeout_s=LIMIT_S) == 8


def test_workers_are_listed_beside_a_key_that_cannot_be_read(
    nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = CommandLine(nats_server.url, capsys)

    async def damage(ledger: Ledger) -> None:
        await garble(ledger, "odd-1")

    cli.with_ledger(damage)
    answer = cli.run("workers", "list", *cli.where)
    assert answer.code == 0
    assert "no worker runs" in answer.out
    assert answer.err == (
        "WARNING: key odd-1 of the workers' bucket does not hold a lease that this version can read: the worker "
        "counts as living until the key expires\n"
    )


async def test_a_holder_of_locks_whose_key_is_damaged_is_told_and_takes_others(connected: Connect) -> None:
    async with connected(lease_s=1.5) as ledger:

        async def hold() -> None:
            async with ledger.lock("scope", "one") as held:
                await garble(ledger, held.holder)
                await asyncio.sleep(LIMIT_S)

        with pytest.raises(LockLostError):
            await hold()
        async with ledger.lock("scope", "two", wait_s=LIMIT_S):
            pass


# Whatever a service meets.


class Once:
    """Makes a method fail once for each owner: its next call is as it was."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._failed: set[int] = set()
        self._went_on: set[int] = set()

    @property
    def is_over(self) -> bool:
        return bool(self._failed) and self._failed == self._went_on

    @property
    def count(self) -> int:
        return len(self._failed)

    def wrapped(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(owner: Any, *given: Any, **options: Any) -> Any:
            if id(owner) not in self._failed:
                self._failed.add(id(owner))
                raise self._error
            self._went_on.add(id(owner))
            return await method(owner, *given, **options)

        return run


ERRORS = (ValueError("odd"), msgspec.DecodeError("odd"), asyncio.CancelledError(), LeaseLostError("odd"))
SERVICES = (
    (Intake, "_serve"),
    (HeldDeliveries, "keep_alive"),
    (CancelWatch, "run"),
    (Watchdog, "run"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_service_that_fails_begins_again_and_takes_no_worker_along(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    failures = {name: Once(error) for _, name in SERVICES}
    for owner, name in SERVICES:
        monkeypatch.setattr(owner, name, failures[name].wrapped(getattr(owner, name)))
    async with working(ledger, double) as worker:
        await worker.taking.wait()
        await until(lambda: all(each.is_over for each in failures.values()))
        assert failures["keep_alive"].count > 1, "those of the reactors too"
        assert await (await ledger.enqueue(double, 21)).result(timeout_s=LIMIT_S) == 42


async def test_a_renewal_that_fails_oddly_is_tried_again(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(lease_s=3.0) as ledger, working(ledger, double) as worker:
        await worker.taking.wait()
        was, failure = worker.identity, Once(ValueError("odd"))
        monkeypatch.setattr(LeaseKeeper, "_renew", failure.wrapped(LeaseKeeper._renew))
        await until(lambda: failure.is_over)
        assert await (await ledger.enqueue(double, 21)).result(timeout_s=LIMIT_S) == 42
        assert worker.identity == was


async def test_a_service_ends_when_it_is_cancelled_and_when_the_connection_is_closed(
    connected: Connect,
) -> None:
    async with connected() as ledger:
        begun = asyncio.Event()

        async def serve() -> None:
            begun.set()
            await asyncio.sleep(LIMIT_S)

        task = asyncio.create_task(outlive(ledger.connection, "a service", serve))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def fail() -> None:
        raise ValueError("odd")

    async with asyncio.timeout(LIMIT_S):
        await outlive(ledger.connection, "a service", fail)


async def test_what_forgets_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_CANCEL_AGAIN_S", 0.01)
    forgotten = 0

    async def forget() -> None:
        nonlocal forgotten
        while forgotten < 3:
            try:
                await asyncio.sleep(LIMIT_S)
            except asyncio.CancelledError:
                forgotten += 1

    async def fail() -> None:
        raise ValueError("odd")

    tasks = [asyncio.create_task(forget()), asyncio.create_task(fail())]
    await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S):
        await end(*tasks)
    assert forgotten == 3
    assert all(each.done() for each in tasks)
    await end()


async def test_a_queue_whose_consumer_is_another_keeps_nobody_from_the_others(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(intake, "_LOOK_AGAIN_S", 0.2)
    names, stream = ledger.names, ledger.names.ledger_stream
    high = names.consumer("leases", "high")
    async with working(ledger, double) as worker:
        await worker.taking.wait()
        await delete_consumer(ledger.inbox, stream, high)
        wrong = reactor_consumer((names.dispatches("leases", "low"),), ack_wait_s=5.0)
        await make_consumer(ledger.inbox, stream, high, wrong)
        await until(lambda: "no jobs of queue leases (high) are taken" in caplog.text)
        assert await (await ledger.enqueue(double, 21)).result(timeout_s=LIMIT_S) == 42
        urgent = await ledger.enqueue(double.options(priority="high"), 4)
        await delete_consumer(ledger.inbox, stream, high)
        assert await urgent.result(timeout_s=LIMIT_S) == 8
