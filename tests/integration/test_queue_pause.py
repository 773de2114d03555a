"""Pausing a queue: the server hands out nothing, whoever makes a consumer or loses one, and workers hear at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.jetstream import api
from tests.support.limited import define
from tests.support.limited import enqueue as limited
from tests.support.working import LIMIT_S, Connect, attempts, ended, types, until, working

from jobledger.admin.queues import RunningJobs, drained
from jobledger.admin.rows import Rows
from jobledger.audit.archive.plan import bound
from jobledger.audit.verify import verify
from jobledger.audit.why import explain, find_facts
from jobledger.ledger import (
    InvalidInputError,
    InvalidTokenError,
    JobHandle,
    JobState,
    Ledger,
    RefusedError,
    connect,
    sync,
    task,
)
from jobledger.ledger.model.commands import Claim
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.queue_pause import QUEUE, PauseQueue, decide
from jobledger.ledger.nats import api as api_of_nats
from jobledger.ledger.nats.durables import consumer_config, ensure_consumer, find_consumer, make_consumer
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker
from jobledger.workers.attempt.pause_watch import PauseWatch
from jobledger.workers.idle import until_idle
from jobledger.workers.reactors.reconciler import Reconciler
from jobledger.workers.services import end

pytestmark = pytest.mark.anyio

#: How long a paused queue is watched to see that nothing of it is started.
WATCHED_S = 0.2
HOUR = timedelta(hours=1)
#: The end of a pause is seen within 50 ms (benchmarks/queues.py), and without a hint after a second. These tests share
#: two CPUs with others, so they try some times.
SEEN_S = 0.8
TRIES = 4
#: A lost hint is found out after ten seconds.
HINTED_S = 5.0


@task(queue="mail")
async def send(number: int) -> int:
    return number


@task(queue="notes")
async def note() -> None:
    pass


@task(queue="mail")
async def linger(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def consumers(ledger: Ledger) -> list[ConsumerInfo]:
    names = ledger.names
    found = [
        await find_consumer(ledger.inbox, names.ledger_stream, names.consumer("mail", each))
        for each in PRIORITIES
    ]
    return [info for info in found if info is not None]


async def are_paused(ledger: Ledger) -> list[bool]:
    return [info.paused for info in await consumers(ledger)]


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await holds():
            await asyncio.sleep(0.01)


async def running(job: JobHandle[Any]) -> bool:
    return await job.state() is JobState.RUNNING


@asynccontextmanager
async def taking(ledger: Ledger, **config: Any) -> AsyncGenerator[Worker, None]:
    async with working(ledger, send, linger, **config) as worker:
        await worker.taking.wait()
        yield worker


async def waits(ledger: Ledger, count: int = 3) -> list[JobHandle[int]]:
    """Enqueue some jobs of a paused queue, and see that none is started."""
    jobs = [await ledger.enqueue(send, number) for number in range(count)]
    await asyncio.sleep(WATCHED_S)
    assert [await job.state() for job in jobs] == [JobState.QUEUED] * count
    return jobs


async def test_nothing_of_a_paused_queue_is_started_and_all_of_it_when_it_is_resumed(ledger: Ledger) -> None:
    async with taking(ledger):
        before = await ledger.queue_state("mail")
        state = await ledger.pause_queue("mail", reason="the provider is down", by="ann")
        assert (before.paused, state.paused, state.by, state.reason) == (
            False,
            True,
            "ann",
            "the provider is down",
        )
        assert state == await ledger.queue_state("mail")
        assert await are_paused(ledger) == [True] * 3
        jobs = await waits(ledger)
        resumed = await ledger.resume_queue("mail", by="bob")
        assert (resumed.paused, resumed.by) == (False, "bob")
        for job in jobs:
            await ended(job)
        assert await are_paused(ledger) == [False] * 3
    assert (await verify(ledger.log)).sound


async def test_the_end_of_a_pause_is_seen_before_the_server_looks_by_itself(ledger: Ledger) -> None:
    async def resumed_s() -> float:
        await ledger.pause_queue("mail")
        (job,) = await waits(ledger, 1)
        await ledger.resume_queue("mail")
        began = time.monotonic()
        await ended(job)
        return time.monotonic() - began

    async with taking(ledger):
        took_s = await resumed_s()
        for _ in range(TRIES - 1):
            if took_s < SEEN_S:
                break
            took_s = await resumed_s()
        assert took_s < SEEN_S


async def test_a_deleted_consumer_comes_back_paused(ledger: Ledger) -> None:
    async with taking(ledger):
        await ledger.pause_queue("mail")
        stream = ledger.names.ledger_stream
        created = {info.name: info.created for info in await consumers(ledger)}
        for priority in PRIORITIES:
            await api(ledger.inbox, f"CONSUMER.DELETE.{stream}.{ledger.names.consumer('mail', priority)}", {})

        async def are_back() -> bool:
            found = await consumers(ledger)
            return len(found) == 3 and all(info.created != created[info.name] for info in found)

        jobs = [await ledger.enqueue(send, number) for number in range(3)]
        await eventually(are_back)
        assert await are_paused(ledger) == [True] * 3
        jobs += await waits(ledger)
        await ledger.resume_queue("mail")
        for job in jobs:
            await ended(job)


async def test_a_queue_paused_before_its_first_worker_has_paused_consumers(ledger: Ledger) -> None:
    until_then = datetime.now(UTC) + timedelta(hours=1)
    await ledger.pause_queue("mail", until=until_then)
    assert await consumers(ledger) == []
    async with taking(ledger):
        assert await are_paused(ledger) == [True] * 3
        (job,) = await waits(ledger, 1)
        await ledger.resume_queue("mail")
        await ended(job)


async def test_another_worker_and_a_changed_setting_keep_the_pause(
    ledger: Ledger, connected: Connect
) -> None:
    async with taking(ledger), connected() as other:
        await ledger.pause_queue("mail")
        names = ledger.names
        async with taking(other):
            config = {
                **consumer_config(names.dispatches("mail", "normal"), ack_wait_s=30, ack_pending_max=1_000),
                "max_deliver": 7,
            }
            name = names.consumer("mail", "normal")
            await ensure_consumer(ledger.inbox, names.ledger_stream, name, config)
            changed = await find_consumer(ledger.inbox, names.ledger_stream, name)
            assert changed is not None
            assert changed.config["max_deliver"] == 7
            assert await are_paused(ledger) == [True] * 3
            jobs = await waits(ledger)
            await ledger.resume_queue("mail")
            for job in jobs:
                await ended(job)


async def test_who_tells_consumers_late_does_not_undo_what_came_after(
    ledger: Ledger, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client resumes the queue after the event of a pause and before its consumers are told."""
    tell = api_of_nats.pause_consumer
    async with connected() as other, taking(ledger, reactors=False):

        async def tell_late(inbox: Inbox, *given: str) -> None:
            if inbox is ledger.inbox and (await other.queue_state("mail")).paused:
                await other.resume_queue("mail")
            await tell(inbox, *given)

        monkeypatch.setattr(api_of_nats, "pause_consumer", tell_late)
        assert not (await ledger.pause_queue("mail")).paused
        assert await are_paused(ledger) == [False] * 3


async def test_a_consumer_that_is_made_while_its_queue_is_resumed_is_not_paused(
    ledger: Ledger, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.pause_queue("mail")
    resuming = asyncio.Lock()  # the three consumers are made at once
    async with connected() as other:

        async def make_late(*given: Any) -> ConsumerInfo:
            async with resuming:
                if (await other.queue_state("mail")).paused:
                    await other.resume_queue("mail")
            return await make_consumer(*given)

        monkeypatch.setattr("jobledger.ledger.nats.pauses.make_consumer", make_late)
        async with taking(ledger, reactors=False):
            assert await are_paused(ledger) == [False] * 3


async def test_a_pause_of_which_no_hint_came_is_found_at_the_next_look(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.workers.attempt.pause_watch._LOOK_EVERY_S", 0.05)
    told: list[tuple[str, bool]] = []
    watch = PauseWatch(  # it is not opened, so it listens for no hints
        ledger, ("sms", "mail"), on_change=lambda queue, state: told.append((queue, state.paused))
    )
    running = asyncio.create_task(watch.run())
    try:
        await ledger.pause_queue("mail")
        await until(lambda: told == [("mail", True)])
        await ledger.resume_queue("mail")
        await until(lambda: told == [("mail", True), ("mail", False)])
    finally:
        await end(running)


async def test_a_pause_with_a_time_ends_by_itself(ledger: Ledger) -> None:
    async with taking(ledger):
        end = datetime.now(UTC) + timedelta(seconds=0.3)
        state = await ledger.pause_queue("mail", until=end)
        job = await ledger.enqueue(send, 1)
        await ended(job)
        assert datetime.now(UTC) >= end
        assert not state.is_paused(datetime.now(UTC))
        assert (await ledger.queue_state("mail")).paused  # by its newest event, whose time is over


async def test_running_attempts_go_on_unless_they_are_to_be_interrupted(ledger: Ledger) -> None:
    async with taking(ledger):
        short, long = await ledger.enqueue(linger, 0.5), await ledger.enqueue(linger, LIMIT_S)
        for job in (short, long):
            await eventually(lambda job=job: running(job))  # type: ignore[misc]
        await ledger.pause_queue("mail")
        await ended(short)
        assert await running(long)
        await ledger.pause_queue("mail", interrupt=True, reason="now")
        began = time.monotonic()
        await eventually(lambda: _is(long, JobState.QUEUED))
        assert time.monotonic() - began < HINTED_S
        assert await attempts(long) == ["interrupted"]
        assert (await long.snapshot()).attempts_left == (await short.snapshot()).order.max_attempts
        await ledger.cancel(long)


async def _is(job: JobHandle[Any], state: JobState) -> bool:
    return await job.state() is state


async def test_what_was_delivered_and_not_started_is_given_back(ledger: Ledger) -> None:
    """A consumer that was not told, as when its pauser died: the worker starts nothing of what it is given."""
    async with taking(ledger) as worker:
        await _record(ledger, PauseQueue(reason="died in between"))
        ledger.hints.tell_queue("mail")
        await until(lambda: "mail" in worker._pauses.states)
        job = await ledger.enqueue(send, 1)
        await until(
            lambda: worker.counts().deliveries > 2
        )  # the worker gave it back twice, and the server delivered it again
        assert await types(job) == ["queued"]
        await ledger.resume_queue("mail")
        await ended(job)


async def _record(ledger: Ledger, command: PauseQueue) -> None:
    """Append the event of a pause, and tell nobody."""
    chain = QUEUE.chain(ledger.names, "mail")
    view = QUEUE.view(await ledger.log.last(chain))
    event = decide("mail", view.state, command, ledger.stamp("ann"))
    await ledger.log.append(QUEUE.link(ledger.names, [event], view))


async def test_the_reconciler_brings_consumers_in_line_with_the_ledger(ledger: Ledger) -> None:
    pause = f"CONSUMER.PAUSE.{ledger.names.ledger_stream}.{ledger.names.consumer('mail', 'high')}"
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    reconciler = Reconciler(ledger, grace_s=0.1)
    async with taking(ledger, reactors=False):
        await api(ledger.inbox, pause, {"pause_until": later})
        await reconciler._look()
        assert await are_paused(ledger) == [
            True,
            False,
            False,
        ]  # by hand, of a queue without events: let alone
        await _record(ledger, PauseQueue())
        await reconciler._look()
        assert await are_paused(ledger) == [True] * 3
        await ledger.resume_queue("mail")
        assert await are_paused(ledger) == [False] * 3
        await api(ledger.inbox, pause, {"pause_until": later})
        await reconciler._look()
        assert await are_paused(ledger) == [False] * 3
        job = await ledger.enqueue(send, 1)
        await ended(job)


async def test_a_worker_that_runs_until_it_is_idle_leaves_the_jobs_of_a_paused_queue(ledger: Ledger) -> None:
    await ledger.pause_queue("mail")
    async with taking(ledger) as worker, asyncio.timeout(LIMIT_S):
        job = await ledger.enqueue(send, 1)
        await until_idle(ledger, worker)
        assert await job.state() is JobState.QUEUED
        await ledger.resume_queue("mail")
        await until_idle(ledger, worker)
        assert await job.state() is JobState.COMPLETED


async def test_a_pause_outlives_the_kill_of_its_server_and_workers_hear_of_its_end(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "store", port=0)
    async with server, connect(server.url, ledger_bytes_max=16 << 20) as ledger, taking(ledger):
        await ledger.pause_queue("mail")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        await server.stop()
        await until(lambda: not ledger.connection.is_connected)
        await server.start()
        await ledger.connection.wait_connected(LIMIT_S)
        # The server has forgotten the consumers, and the worker makes them again.
        async with asyncio.timeout(LIMIT_S):
            while len(paused := await are_paused(ledger)) < len(PRIORITIES):
                assert all(paused), "one handed out work meanwhile"
        assert paused == [True] * 3
        (job,) = await waits(ledger, 1)
        await ledger.resume_queue("mail")
        await ended(job)


def test_blocking_code_has_the_same_verbs(nats_server: EmbeddedServer, environment: str) -> None:
    with sync.connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20) as ledger:
        assert not ledger.queue_state("mail").paused
        assert ledger.pause_queue("mail", reason="r", by="ann").words().startswith("paused by ann since ")
        assert ledger.queue_state("mail").reason == "r"
        assert not ledger.resume_queue("mail", by="ann").paused


async def test_what_cannot_be_done_changes_nothing(ledger: Ledger) -> None:
    with pytest.raises(RefusedError, match="queue mail is not paused: there is nothing to resume"):
        await ledger.resume_queue("mail")
    with pytest.raises(InvalidInputError, match="is past: give a later time, or none"):
        await ledger.pause_queue("mail", until=datetime.now(UTC) - timedelta(seconds=1))
    for wrong in (ledger.pause_queue("a.b"), ledger.resume_queue("a b"), ledger.queue_state("")):
        with pytest.raises(InvalidTokenError, match="queue"):
            await wrong
    assert (await ledger.log.head()).last_sequence == 0


async def test_jobs_why_says_who_paused_the_queue_and_how_to_go_on(ledger: Ledger) -> None:
    job = await ledger.enqueue(send, 1)
    await ledger.pause_queue("mail", reason="maintenance", by="ann")
    snapshot = await job.snapshot()
    said = explain(snapshot, await find_facts(ledger, snapshot))
    assert said.sentence.startswith("queue mail is paused by ann since ")
    assert said.sentence.endswith(": maintenance; no worker is given a job of it before that ends")
    assert said.hint == "jobledger queues resume mail"


async def test_a_job_with_limits_stays_held_while_its_queue_is_paused(ledger: Ledger) -> None:
    await define(ledger, "api", slots=1)
    await define(ledger, "other", slots=1)
    async with working(ledger, send, note) as worker:
        await worker.taking.wait()
        await ledger.pause_queue("mail", by="ann")
        job = await limited(ledger, send, "api", given={"number": 1})
        await ended(await limited(ledger, note, "other"))  # both are looked at together, or this one later
        snapshot = await job.snapshot()
        assert snapshot.state is JobState.HELD
        assert "queue mail is paused by ann" in explain(snapshot, await find_facts(ledger, snapshot)).sentence
        await ledger.resume_queue("mail")
        await ended(job)


async def test_draining_waits_for_what_runs_but_not_for_workers_that_are_gone(
    ledger: Ledger, connected: Connect, tmp_path: Path
) -> None:
    rows, told, ends = Rows(ledger, tmp_path / "p.db"), list[RunningJobs](), list[asyncio.Task[Any]]()
    async with taking(ledger):
        jobs = [await ledger.enqueue(linger, LIMIT_S) for _ in range(2)]
        for job in jobs:
            await eventually(lambda job=job: running(job))  # type: ignore[misc]
        await ledger.pause_queue("mail")

        def tell(running: RunningJobs) -> None:
            told.append(running)
            if running.jobs == 2:
                ends.append(asyncio.create_task(ledger.cancel(jobs[0].ref)))
            else:
                ends.append(asyncio.create_task(ledger.pause_queue("mail", interrupt=True)))

        still = await drained(rows, "mail", limit_s=0.0, on_change=lambda _: None)
        assert (still, still.words()) == (RunningJobs(2, 1, 0), "2 jobs run on 1 worker")
        lost = await ledger.enqueue(send, 1)
        await ledger.execute(lost.ref, Claim(worker="gone-1-ab", lease_s=15.0))
        assert await drained(rows, "mail", limit_s=LIMIT_S, on_change=tell) == RunningJobs(0, 0, 1)
        assert told == [RunningJobs(2, 1, 1), RunningJobs(1, 1, 1)]
        await asyncio.gather(*ends)
        await ledger.cancel(jobs[1])


async def test_an_archive_run_leaves_a_pause_as_long_as_it_lasts(ledger: Ledger) -> None:
    end = datetime.now(UTC) + timedelta(seconds=0.2)
    await ledger.pause_queue("mail", until=end)
    await ledger.pause_queue("other")
    assert await bound(ledger.log, end - timedelta(seconds=0.01), ledger.leases) == (0, "queue mail, which is paused since stream sequence 1")  # fmt: skip
    await ledger.resume_queue("other")
    assert await bound(ledger.log, end + timedelta(hours=1), ledger.leases) == (3, "")
