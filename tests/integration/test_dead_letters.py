"""Jobs that no consumer hands out any more, on a real server: advisories, lost advisories, the DLQ stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Self

import pytest
from tests.support.jetstream import api
from tests.support.working import LIMIT_S, Connect, types, working

from jobledger.ledger import Hooks, Job, JobHandle, JobState, Ledger, Notice, connect, task
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import Claim, Dispatch
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.durables import DELIVERIES_MAX, consumer_config, ensure_consumer
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.pull import Delivery, PullConsumer
from jobledger.workers.reactors.dead_letters import CONSUMER, DeadLetterReactor
from jobledger.workers.reactors.reactor import Reactor, host
from jobledger.workers.reactors.reconciler import Reconciler

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

TOLD: list[Notice] = []


@task(queue="post", max_attempts=2, hooks=Hooks(on_dead_letter=TOLD.append))
async def send(n: int) -> int:
    return n


def reconciler(ledger: Ledger, grace_s: float = 0.2, suspect_s: float = 600.0, **more: Any) -> Reconciler:
    return Reconciler(ledger, grace_s=grace_s, suspect_s=suspect_s, **more)


@contextlib.asynccontextmanager
async def reacting(*reactors: Reactor, ledger: Ledger) -> AsyncGenerator[None, None]:
    tasks = [asyncio.create_task(host(ledger, each)) for each in reactors]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def make_consumer(ledger: Ledger, deliveries_max: int, queue: str = "post") -> None:
    """Make a work consumer as a worker does, but one that gives up sooner."""
    names = ledger.names
    config = consumer_config(names.dispatches(queue, "normal"), ack_wait_s=1.0, ack_pending_max=1_000)
    config["max_deliver"] = deliveries_max
    await ensure_consumer(ledger.inbox, names.ledger_stream, names.consumer(queue, "normal"), config)


class Puller:
    """Takes what a queue hands out and gives it back at once, as often as it is handed out."""

    def __init__(self, ledger: Ledger, queue: str = "post") -> None:
        self._ledger = ledger
        self.seen: list[tuple[int, int]] = []
        self._consumer = PullConsumer(
            ledger.connection,
            ledger.names.ledger_stream,
            ledger.names.consumer(queue, "normal"),
            on_delivery=self._on_delivery,
            on_ended=lambda _: None,
        )
        self.keeps = False

    def _on_delivery(self, delivery: Delivery) -> None:
        self.seen.append((delivery.stream_sequence, delivery.delivered))
        if not self.keeps:
            self._ledger.connection.send(delivery.reply, "", b"", b"-NAK")

    async def __aenter__(self) -> Self:
        await self._consumer.open()
        self._consumer.wait_for(1_000)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()


async def dispatches(job: JobHandle[Any]) -> list[str]:
    return [each.event.cause for each in await job.history() if isinstance(each.event, Queued)]


async def becomes(job: JobHandle[Any], state: JobState) -> Job:
    async with asyncio.timeout(LIMIT_S):
        while (found := await job.snapshot()).state is not state:
            await asyncio.sleep(0.02)
    return found


async def has_dispatches(job: JobHandle[Any], count: int) -> list[str]:
    async with asyncio.timeout(LIMIT_S):
        while len(found := await dispatches(job)) < count:
            await asyncio.sleep(0.02)
    return found


async def messages(ledger: Ledger, stream: str) -> int:
    return int((await api(ledger.inbox, f"STREAM.INFO.{stream}", {}))["state"]["messages"])


async def until_advised(ledger: Ledger, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await messages(ledger, ledger.names.advisories_stream) < count:
            await asyncio.sleep(0.02)


async def start(ledger: Ledger, ref: JobRef, worker: str) -> Job:
    """Claim a job as a worker does."""
    return await ledger.execute(ref, Claim(worker=worker, lease_s=2.0), by=worker)


async def take_lease(ledger: Ledger, worker: str) -> int:
    now = ledger.clock.now()
    info = WorkerInfo(worker=worker, host="h", pid=1, queues=("post",), started_at=now, renewed_at=now)
    return await ledger.leases.renew(info, 0)


# Advisories.


async def test_a_dispatch_that_is_handed_out_in_vain_is_made_anew_three_times_then_the_job_is_a_dead_letter(
    ledger: Ledger,
) -> None:
    gone: list[Job] = []
    await make_consumer(ledger, 2)
    job = await ledger.enqueue(send, 1)
    async with (
        Puller(ledger) as puller,
        reacting(DeadLetterReactor(ledger, on_dead_letter=gone.append), ledger=ledger),
    ):
        dead = await becomes(job, JobState.DEAD_LETTERED)
    assert await types(job) == ["queued", "queued", "queued", "dead_lettered"]
    assert await dispatches(job) == ["new", "redispatched", "redispatched"]
    assert sorted(puller.seen) == [(sequence, count) for sequence in (1, 2, 3) for count in (1, 2)]
    assert (dead.dead_reason, dead.attempts) == ("max_deliver", ())
    assert dead.error is not None
    assert dead.error.kind == "undeliverable"
    assert dead.error.message.startswith(
        "3 dispatches came to no verdict (the last one was delivered 2 times)"
    )
    assert [each.id for each in gone] == [job.id]
    assert dead.attempts_left == 2


async def test_a_job_that_was_dispatched_anew_is_run_by_the_next_worker(ledger: Ledger) -> None:
    await make_consumer(ledger, 1)
    job = await ledger.enqueue(send, 7)
    async with Puller(ledger):
        await until_advised(ledger, 1)
    async with working(ledger, send):
        assert await job.result(timeout_s=LIMIT_S) == 7
    assert await dispatches(job) == ["new", "redispatched"]


async def test_advisories_that_come_while_nobody_listens_are_seen_to_later(ledger: Ledger) -> None:
    await make_consumer(ledger, 1)
    jobs = [await ledger.enqueue(send, n) for n in range(50)]
    async with Puller(ledger):
        await until_advised(ledger, 50)
    assert [await dispatches(job) for job in jobs] == [["new"]] * 50
    async with working(ledger, send):
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == list(range(50))
    assert await messages(ledger, ledger.names.dlq_stream) == 0


async def test_hooks_hear_of_a_dead_letter_that_the_worker_made(ledger: Ledger) -> None:
    TOLD.clear()
    await make_consumer(ledger, 1)
    job = await ledger.enqueue(send, 1)
    for _ in range(2):
        await ledger.execute(job.ref, Dispatch(cause="redispatched"))
    async with Puller(ledger):
        await until_advised(ledger, 3)
    async with working(ledger, send):
        await becomes(job, JobState.DEAD_LETTERED)
        async with asyncio.timeout(LIMIT_S):
            while not TOLD:
                await asyncio.sleep(0.02)
    assert [(notice.job_id, notice.attempt, notice.reason) for notice in TOLD] == [(job.id, 0, "max_deliver")]


async def test_hooks_hear_of_a_job_whose_worker_died_over_its_last_attempt(ledger: Ledger) -> None:
    TOLD.clear()
    job = await ledger.enqueue(send.options(max_attempts=1), 1)
    await start(ledger, job.ref, "w-1-abc")  # which has no lease
    async with working(ledger, send, reactors=False):
        await becomes(job, JobState.DEAD_LETTERED)
        async with asyncio.timeout(LIMIT_S):
            while not TOLD:
                await asyncio.sleep(0.02)
    assert [(notice.job_id, notice.attempt, notice.reason) for notice in TOLD] == [(job.id, 1, "exhausted")]
    assert TOLD[0].error is not None
    assert TOLD[0].error.message == "worker w-1-abc died while running the last attempt"


async def test_what_other_consumers_give_up_is_their_own_business(ledger: Ledger) -> None:
    names = ledger.names
    config = consumer_config(names.dispatches("post", "normal"), ack_wait_s=1.0, ack_pending_max=10)
    await ensure_consumer(ledger.inbox, names.ledger_stream, "theirs", {**config, "max_deliver": 1})
    job = await ledger.enqueue(send, 1)
    puller = Puller(ledger)
    puller._consumer._subject = f"$JS.API.CONSUMER.MSG.NEXT.{names.ledger_stream}.theirs"
    async with puller, reacting(DeadLetterReactor(ledger), ledger=ledger):
        await until_advised(ledger, 1)
        await _settled(ledger)
    assert await dispatches(job) == ["new"]


async def _settled(ledger: Ledger) -> None:
    """Wait until the reactor has dealt with every advisory."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            call = f"CONSUMER.INFO.{ledger.names.advisories_stream}.{CONSUMER}"
            info = await api(ledger.inbox, call, {})
            if "error" not in info and info["num_pending"] == info["num_ack_pending"] == 0:
                return
            await asyncio.sleep(0.02)


async def test_a_job_whose_worker_died_over_its_last_delivery_goes_on(connected: Connect) -> None:
    async with connected(lease_s=3.0) as ledger:
        await make_consumer(ledger, 1)
        job = await ledger.enqueue(send, 1)
        async with Puller(ledger) as puller, reacting(DeadLetterReactor(ledger), ledger=ledger):
            puller.keeps = True
            await take_lease(ledger, "w-1-abc")
            await start(ledger, job.ref, "w-1-abc")
            await until_advised(ledger, 1)
            assert await dispatches(job) == ["new"]  # its worker lives
            await has_dispatches(job, 2)  # and is judged dead once its lease is over
            after = await job.snapshot()
            assert [attempt.state for attempt in after.attempts] == ["lost"]
            await start(ledger, job.ref, "w-2-abc")  # which has no lease at all
            dead = await becomes(job, JobState.DEAD_LETTERED)
    assert (dead.dead_reason, len(dead.attempts)) == ("max_deliver", 2)
    assert dead.error is not None
    assert "worker w-2-abc died while running attempt 2, the last one" in dead.error.message


async def test_the_reactor_makes_a_lost_stream_of_advisories_anew_and_goes_on(ledger: Ledger) -> None:
    await make_consumer(ledger, 1)
    stream = ledger.names.advisories_stream
    async with Puller(ledger) as puller, reacting(DeadLetterReactor(ledger), ledger=ledger):
        first = await ledger.enqueue(send, 1)
        await becomes(first, JobState.DEAD_LETTERED)
        await api(ledger.inbox, f"STREAM.DELETE.{stream}", {})
        async with asyncio.timeout(LIMIT_S):
            while "error" in await api(ledger.inbox, f"STREAM.INFO.{stream}", {}):
                await asyncio.sleep(0.02)
        puller.seen.clear()
        second = await ledger.enqueue(send, 2)
        await becomes(second, JobState.DEAD_LETTERED)


async def test_a_finished_job_is_left_alone_by_a_late_advisory(ledger: Ledger) -> None:
    job = await ledger.enqueue(send, 3)
    async with working(ledger, send):
        assert await job.result(timeout_s=LIMIT_S) == 3
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{ledger.names.ledger_stream}.work_post_normal"
        body = b'{"type":"io.nats.jetstream.advisory.v1.max_deliver","consumer":"work_post_normal","stream_seq":1,"deliveries":20}'
        for each in (body, b"not even JSON", b'{"consumer":"work_post_normal","stream_seq":999}'):
            ledger.connection.send(subject, "", b"", each)
        await until_advised(ledger, 3)
        await _settled(ledger)
    assert await types(job) == ["queued", "started", "completed"]


# The reconciler.


async def test_a_job_whose_advisory_was_lost_is_found(ledger: Ledger) -> None:
    await make_consumer(ledger, 2)
    jobs = [await ledger.enqueue(send, n) for n in range(20)]
    async with Puller(ledger):
        await until_advised(ledger, 20)
    await api(ledger.inbox, f"STREAM.PURGE.{ledger.names.advisories_stream}", {})
    async with working(ledger, send, reactors=False), reacting(reconciler(ledger), ledger=ledger):
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == list(range(20))
    assert [await dispatches(job) for job in jobs] == [["new", "redispatched"]] * 20


async def test_several_reconcilers_dispatch_each_stranded_job_anew_once(connected: Connect) -> None:
    async with connected() as one, connected() as two, connected() as three:
        await make_consumer(one, 1)
        jobs = [await one.enqueue(send, n) for n in range(300)]
        async with Puller(one):
            await until_advised(one, 300)
        ledgers = (one, two, three)
        async with contextlib.AsyncExitStack() as stack:
            for each in ledgers:
                await stack.enter_async_context(reacting(reconciler(each), ledger=each))
            for job in jobs:
                await has_dispatches(job, 2)
        assert [await dispatches(job) for job in jobs] == [["new", "redispatched"]] * 300


async def test_a_backlog_in_one_queue_keeps_nobody_from_finding_the_jobs_of_another(ledger: Ledger) -> None:
    await make_consumer(ledger, 1)
    await make_consumer(ledger, 1, queue="crowded")
    for n in range(50):
        await ledger.enqueue(send.options(queue="crowded"), n)
    job = await ledger.enqueue(send, 1)
    async with Puller(ledger):
        await until_advised(ledger, 1)
    looks = _Looks(ledger)
    async with reacting(looks, ledger=ledger):
        await has_dispatches(job, 2)
    assert {ref.queue for ref in looks.seen} == {"post"}
    assert not any(lane.own for lane in await looks.lanes() if "crowded" in lane.worker)


async def test_where_consumers_are_many_the_reconciler_makes_no_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jobledger.workers.reactors.reconciler._CONSUMERS_MAX", 1)
    await make_consumer(ledger, 1)
    job = await ledger.enqueue(send, 1)
    async with Puller(ledger):
        await until_advised(ledger, 1)
    looks = _Looks(ledger)
    assert await looks.lanes() == await looks.lanes() == []
    assert caplog.text.count("the reconciler makes none for further queues") == 1
    assert await dispatches(job) == ["new"]


async def test_without_any_advisory_three_dispatches_in_vain_make_a_dead_letter_too(ledger: Ledger) -> None:
    gone: list[Job] = []
    await make_consumer(ledger, 1)
    job = await ledger.enqueue(send, 1)
    async with Puller(ledger), reacting(reconciler(ledger, on_dead_letter=gone.append), ledger=ledger):
        dead = await becomes(job, JobState.DEAD_LETTERED)
    assert await dispatches(job) == ["new", "redispatched", "redispatched"]
    assert (dead.dead_reason, [each.id for each in gone]) == ("max_deliver", [job.id])


async def test_a_job_stranded_while_it_ran_is_found(connected: Connect) -> None:
    async with connected(lease_s=3.0) as ledger:
        await make_consumer(ledger, 1)
        job = await ledger.enqueue(send, 1)
        async with Puller(ledger) as puller:
            puller.keeps = True
            await take_lease(ledger, "w-1-abc")
            await start(ledger, job.ref, "w-1-abc")
            await until_advised(ledger, 1)
        await api(ledger.inbox, f"STREAM.PURGE.{ledger.names.advisories_stream}", {})
        async with reacting(reconciler(ledger), ledger=ledger):
            await has_dispatches(job, 2)
        assert [attempt.state for attempt in (await job.snapshot()).attempts] == ["lost"]


async def test_what_waits_or_runs_or_is_held_by_somebody_is_not_dispatched_anew(ledger: Ledger) -> None:
    await make_consumer(ledger, DELIVERIES_MAX)
    held = await ledger.enqueue(send, 1)
    running = await ledger.enqueue(send, 2)
    looked = _Looks(ledger)
    async with Puller(ledger) as puller:
        puller.keeps = True
        async with asyncio.timeout(LIMIT_S):
            while len(puller.seen) < 2:
                await asyncio.sleep(0.01)
        await take_lease(ledger, "w-1-abc")
        await start(ledger, running.ref, "w-1-abc")
    waiting = await ledger.enqueue(send, 3)  # nobody asks any more
    async with reacting(looked, ledger=ledger):
        await looked.at(held.ref, running.ref)
        await looked.at(held.ref, running.ref)
    assert [await dispatches(job) for job in (held, running, waiting)] == [["new"]] * 3
    assert waiting.ref not in looked.seen


async def test_a_dispatch_that_is_held_for_far_too_long_counts_as_given_up(ledger: Ledger) -> None:
    await make_consumer(ledger, DELIVERIES_MAX)
    held = await ledger.enqueue(send, 1)
    async with Puller(ledger) as puller:
        puller.keeps = True
        async with asyncio.timeout(LIMIT_S):
            while not puller.seen:
                await asyncio.sleep(0.01)
    async with reacting(reconciler(ledger, suspect_s=0.5), ledger=ledger):
        await has_dispatches(held, 2)


class _Looks(Reconciler):
    """Tells which jobs were looked at one by one."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, grace_s=0.1, suspect_s=600.0)
        self.seen: list[JobRef] = []
        self._rescue = self._stranded.rescue
        self._stranded.rescue = self._note  # type: ignore[method-assign]

    async def _note(self, ref: JobRef, *args: Any, **options: Any) -> Any:
        settled = await self._rescue(ref, *args, **options)
        self.seen.append(ref)
        return settled

    async def at(self, *refs: JobRef) -> None:
        """Wait until each was looked at once more."""
        self.seen.clear()
        async with asyncio.timeout(LIMIT_S):
            while not set(refs) <= set(self.seen):
                await asyncio.sleep(0.02)


async def test_finished_jobs_are_passed_over_without_reading_them(ledger: Ledger) -> None:
    async with working(ledger, send, reactors=False):
        jobs = [await ledger.enqueue(send, n) for n in range(600)]
        for job in jobs:
            await job.result(timeout_s=LIMIT_S)
    looks = _Looks(ledger)
    async with reacting(looks, ledger=ledger):
        name = f"CONSUMER.INFO.{ledger.names.ledger_stream}.reconcile_post_normal"
        async with asyncio.timeout(LIMIT_S):
            while (
                "error" in (info := await api(ledger.inbox, name, {}))
                or info["num_pending"] + info["num_ack_pending"]
            ):
                await asyncio.sleep(0.02)
    assert looks.seen == []
    assert info["config"]["headers_only"]


async def test_a_quiet_ledger_costs_two_requests_a_look(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(ledger, send, reactors=False):
        await (await ledger.enqueue(send, 1)).result(timeout_s=LIMIT_S)
    looks = reconciler(ledger, grace_s=0.1)
    async with reacting(looks, ledger=ledger):
        async with asyncio.timeout(LIMIT_S):
            while not all(lane.is_quiet for lane in await looks.lanes()) or not any(
                lane.own for lane in await looks.lanes()
            ):
                await asyncio.sleep(0.02)
        asked: list[str] = []
        send_as_ever = ledger.connection.send

        def count(subject: str, reply: str, headers: bytes, data: bytes) -> None:
            asked.append(subject)
            send_as_ever(subject, reply, headers, data)

        monkeypatch.setattr(ledger.connection, "send", count)
        async with asyncio.timeout(LIMIT_S):
            while len(asked) < 5:
                await asyncio.sleep(0.01)
    kinds = {
        ".".join(subject.split(".")[:4]) for subject in asked
    }  # the second: the newest event of any queue
    assert kinds == {"$JS.API.CONSUMER.LIST", "$JS.API.DIRECT.GET"}


# The DLQ stream, and old consumers.


@task(queue="post", max_attempts=1)
async def fail(n: int) -> None:
    raise ValueError(f"number {n}")


async def test_the_dlq_stream_carries_each_dead_letter(ledger: Ledger) -> None:
    async with working(ledger, fail):
        jobs = [await ledger.enqueue(fail, n) for n in range(3)]
        for job in jobs:
            await job.wait(timeout_s=LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        while await messages(ledger, ledger.names.dlq_stream) < 3:
            await asyncio.sleep(0.02)
    found = [
        (await ledger.connection.jetstream().get_msg(ledger.names.dlq_stream, number)) for number in (1, 2, 3)
    ]
    for job, message in zip(jobs, found, strict=True):
        last = (await job.history())[-1]
        assert (message.subject, message.data) == (last.subject, last.data)


async def test_a_consumer_of_an_earlier_version_gets_the_limit_and_keeps_its_position(ledger: Ledger) -> None:
    await make_consumer(ledger, -1)
    job = await ledger.enqueue(send, 1)
    name = f"CONSUMER.INFO.{ledger.names.ledger_stream}.work_post_normal"
    async with working(ledger, send, reactors=False):
        await job.result(timeout_s=LIMIT_S)
        info = await api(ledger.inbox, name, {})
        assert info["config"]["max_deliver"] == DELIVERIES_MAX
        assert info["config"]["ack_wait"] == 1_000_000_000  # what is another setting stays as it is
        assert info["delivered"]["stream_seq"] >= 1


async def test_two_environments_of_the_default_size_fit_on_one_server(server_factory: Any) -> None:
    server: EmbeddedServer = server_factory()
    async with server, connect(server.url), connect(server.url, environment="second") as second:
        assert (await load(second.log, JobRef(queue="q", job_id="j"))).job is None
