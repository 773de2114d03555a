"""An archive run on a real server, while workers work: every job goes on, nothing is done twice, a killed run is finished."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.integration.conftest import SOURCES
from tests.support.jetstream import api
from tests.support.working import LIMIT_S, Connect, ended, until, working

from jobledger.audit.archive import Archiver, Done, archive_deps, open_archive
from jobledger.audit.errors import ArchiveRefusedError
from jobledger.audit.verify import leftovers, verify
from jobledger.ledger import Backoff, Context, JobHandle, JobState, Ledger, Snooze, task
from jobledger.ledger.model.commands import Claim
from jobledger.ledger.model.events import Carried, Queued, Started
from jobledger.ledger.model.subjects import CHILDREN_CONSUMER
from jobledger.ledger.nats.durables import ensure_consumer, find_consumer, reactor_consumer
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.timer_upkeep import rebuild_timers
from jobledger.ledger.timers import Timers
from jobledger.workers.reactors.dead_letters import DeadLetterReactor

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

RAN: Counter[str] = Counter()
GATE = asyncio.Event()


@task(queue="work", max_attempts=3, backoff=Backoff(kind="fixed", base_s=3.0, jitter=0.0))
async def work(ctx: Context, kind: str) -> str | Snooze:
    RAN[f"{kind}:{ctx.attempt}"] += 1
    if kind == "waits":
        await GATE.wait()
    if kind == "retries" and ctx.attempt == 1:
        raise ValueError("not yet")
    if kind == "snoozes" and ctx.attempt == 1:
        return Snooze(3.0)
    if kind == "dies":
        raise TypeError("never")
    return kind


@task(queue="idle", max_attempts=2)
async def idle(kind: str) -> str:
    RAN[kind] += 1
    return kind


async def archive(ledger: Ledger, folder: Path, *, force: bool = False) -> Done:
    """Archive everything there is."""
    deps = archive_deps(ledger, by="alice", on_progress=lambda _step, _done, _total: None)
    return await Archiver(ledger.log, folder, deps).run(datetime.now(UTC), force=force)


async def check(ledger: Ledger, folder: Path) -> None:
    for log in (ledger.log, await open_archive(ledger.log, folder)):
        report = await verify(log)
        assert report.sound, report.text()


async def state(job: JobHandle[Any], *wanted: JobState) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await job.snapshot()).state not in wanted:
            await asyncio.sleep(0.02)


async def causes(job: JobHandle[Any]) -> list[str]:
    return [each.event.cause for each in await job.history() if isinstance(each.event, Queued)]


async def _populate(ledger: Ledger) -> dict[str, JobHandle[Any]]:
    """Bring jobs into every state that a worker can leave them in."""
    over = [await ledger.enqueue(work, f"over{n}") for n in range(5)]
    await asyncio.gather(*map(ended, over))
    kinds = {"waits": JobState.RUNNING, "retries": JobState.RETRY_WAIT, "snoozes": JobState.RETRY_WAIT}
    jobs: dict[str, JobHandle[Any]] = {kind: await ledger.enqueue(work, kind) for kind in kinds}
    jobs["dies"] = await ledger.enqueue(work.options(max_attempts=1), "dies")
    jobs["later"] = await ledger.enqueue(work.options(delay_s=3.0), "later")
    for n in range(3):
        jobs[f"idle{n}"] = await ledger.enqueue(idle, f"idle{n}")
    for kind, wanted in (kinds | {"dies": JobState.DEAD_LETTERED}).items():
        await state(jobs[kind], wanted, JobState.COMPLETED)  # so far already where the machine is slow
    return jobs


async def test_jobs_in_every_state_go_on_while_workers_work(connected: Connect, tmp_path: Path) -> None:
    RAN.clear()
    GATE.clear()
    async with connected() as ledger, connected() as other:
        async with working(other, work, ack_wait_s=1.0):
            jobs = await _populate(ledger)
            stop = asyncio.Event()
            stream = asyncio.create_task(_enqueue_until(ledger, stop))
            done = await archive(ledger, tmp_path)
            assert done.events >= 25
            assert (await ledger.log.head()).first_sequence == done.first_sequence > 1
            GATE.set()
            assert (await ended(jobs["waits"])).attempts[0].state == "completed"
            stop.set()
            for job in (jobs["retries"], jobs["snoozes"], jobs["later"], *await stream):
                assert (await ended(job)).state is JobState.COMPLETED, job.id
        async with working(other, idle):
            for n in range(3):
                assert (await ended(jobs[f"idle{n}"])).state is JobState.COMPLETED
                assert await causes(jobs[f"idle{n}"]) == ["carried"]
        assert await causes(jobs["waits"]) == ["carried"]
        await check(ledger, tmp_path)
        await ledger.requeue(jobs["dies"].id, by="alice")
        async with working(other, work, ack_wait_s=1.0):
            await state(jobs["dies"], JobState.DEAD_LETTERED)
            assert await leftovers(ledger.inbox, ledger.names, within_s=LIMIT_S) == []
        assert RAN.keys() >= {"waits:1", "retries:1", "retries:2", "snoozes:2", "later:1", "dies:2", "idle2"}
        assert set(RAN.values()) == {1}, RAN
        # All is over by now: the next run takes everything that the first one left.
        assert (await archive(ledger, tmp_path)).jobs_carried == 1  # the dead letter
        await check(ledger, tmp_path)


async def test_the_fresh_work_item_of_a_job_that_runs_is_held_and_settled_with_it(
    connected: Connect, tmp_path: Path
) -> None:
    """Let go, it would come again after every ack wait, with a delay that doubles where no slot is free."""
    RAN.clear()
    GATE.clear()
    async with connected() as ledger, connected() as other, working(other, work, ack_wait_s=2.0):
        job = await ledger.enqueue(work.options(id="held"), "waits")
        await state(job, JobState.RUNNING)
        for _ in range(2):
            await archive(ledger, tmp_path)
        info = await _consumer(ledger, lambda info: info["delivered"]["consumer_seq"] >= 3)
        deadline = asyncio.get_running_loop().time() + 4.3  # two ack waits
        while asyncio.get_running_loop().time() < deadline:
            info = await _consumer(ledger, lambda _: True)
            assert (info["num_redelivered"], info["delivered"]["consumer_seq"]) == (0, 3)
            await asyncio.sleep(0.1)
        GATE.set()
        assert (await ended(job)).attempts[0].state == "completed"
        found = await _consumer(ledger, lambda info: not info["num_ack_pending"])
        # Settled with it: none was handed out again after an ack wait.
        assert (found["num_redelivered"], found["delivered"]["consumer_seq"]) == (0, 3)
        assert RAN == {"waits:1": 1}
        await check(ledger, tmp_path)


async def _consumer(ledger: Ledger, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return what the server says of the consumer of `work`, once it is as it should be."""
    name = ledger.names.consumer("work", "normal")
    async with asyncio.timeout(LIMIT_S):
        while True:
            info = await api(ledger.inbox, f"CONSUMER.INFO.{ledger.names.ledger_stream}.{name}", {})
            if holds(info):
                return info
            await asyncio.sleep(0.02)


async def _enqueue_until(ledger: Ledger, stop: asyncio.Event) -> list[JobHandle[Any]]:
    found: list[JobHandle[Any]] = []
    while not stop.is_set():
        found.append(await ledger.enqueue(work.options(id=f"new-{len(found)}"), f"new{len(found)}"))
        await asyncio.sleep(0.005)
    return found


async def test_a_carried_job_whose_worker_dies_is_taken_over(connected: Connect, tmp_path: Path) -> None:
    RAN.clear()
    async with connected() as ledger, connected() as other:
        job = await ledger.enqueue(idle.options(id="taken"), "taken")
        await ledger.execute(job.ref, Claim(worker="gone", lease_s=1.0), by="gone")
        await archive(ledger, tmp_path)
        assert [type(each.event) for each in await job.history()] == [Carried, Queued]
        async with working(other, idle):
            done = await ended(job)
        assert [(each.state, each.number) for each in done.attempts] == [("lost", 1), ("completed", 2)]
        assert RAN == {"taken": 1}
        await check(ledger, tmp_path)


async def test_an_advisory_about_a_work_item_that_went_away_makes_no_dead_letter(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected() as ledger:
        job = await ledger.enqueue(idle.options(id="advised"), "advised")
        for _ in range(4):  # archive runs do not count as dispatches without a verdict
            await archive(ledger, tmp_path)
        stored = (await job.history())[-1]
        assert (await job.snapshot()).dispatches == 1
        advisory = {"consumer": ledger.names.consumer("idle", "normal"), "stream_seq": 1, "deliveries": 20}
        reactor = DeadLetterReactor(ledger)
        await reactor.find()
        for sequence in (1, stored.stream_sequence):
            await reactor.react(_advisory(advisory | {"stream_seq": sequence}))
        assert (await job.snapshot()).state is JobState.QUEUED
        assert await causes(job) == ["carried", "redispatched"]
        await check(ledger, tmp_path)


def _advisory(body: dict[str, Any]) -> Delivery:
    data = msgspec.json.encode(body)
    return Delivery(data=data, reply="", stream_sequence=1, delivered=9, stored_ns=0, pending=0)


async def test_timers_are_made_anew_from_carried_jobs(connected: Connect, tmp_path: Path) -> None:
    RAN.clear()
    async with connected() as ledger, connected() as other:
        names = ledger.names
        job = await ledger.enqueue(idle.options(id="later", delay_s=4.0), "later")
        await archive(ledger, tmp_path)  # no worker ever heard of it
        info = await api(ledger.inbox, f"STREAM.INFO.{names.timers_stream}", {})
        assert info["state"]["messages"] == 1
        await api(ledger.inbox, f"STREAM.DELETE.{names.timers_stream}", {})
        assert await rebuild_timers(ledger) == await rebuild_timers(ledger)
        assert (await rebuild_timers(ledger)).set == 1
        await api(ledger.inbox, f"STREAM.DELETE.{names.timers_stream}", {})
        async with working(other, idle):
            done = await ended(job)
        assert (done.state, RAN) == (JobState.COMPLETED, {"later": 1})
        assert done.attempts[0].started_at >= done.created_at
        await check(ledger, tmp_path)


async def test_a_consumer_of_timers_gets_the_filter_that_it_lacks_and_keeps_its_position(
    connected: Connect,
) -> None:
    async with connected() as ledger:
        names = ledger.names
        timers_id = await Timers(ledger.connection, ledger.inbox, names, ledger.config).ensure()
        name, stream = names.timers_consumer(timers_id), names.ledger_stream
        older = tuple(each for each in names.timed_waits if not each.endswith(".carried"))
        await ensure_consumer(ledger.inbox, stream, name, reactor_consumer(older, ack_wait_s=30.0))
        created = (await api(ledger.inbox, f"CONSUMER.INFO.{stream}.{name}", {}))["created"]
        for _ in range(2):
            await ensure_consumer(
                ledger.inbox, stream, name, reactor_consumer(names.timed_waits, ack_wait_s=30.0)
            )
        info = await api(ledger.inbox, f"CONSUMER.INFO.{stream}.{name}", {})
        assert set(info["config"]["filter_subjects"]) == set(names.timed_waits)
        assert info["created"] == created


async def test_waits_are_timed_though_a_later_version_asked_for_more(connected: Connect) -> None:
    RAN.clear()
    async with connected() as ledger, connected() as other:
        names = ledger.names
        timers_id = await Timers(ledger.connection, ledger.inbox, names, ledger.config).ensure()
        name, stream = names.timers_consumer(timers_id), names.ledger_stream
        later = (*names.timed_waits, names.all_of_type("noted"))
        await ensure_consumer(ledger.inbox, stream, name, reactor_consumer(later, ack_wait_s=30.0))
        async with working(other, idle):
            job = await ledger.enqueue(idle.options(delay_s=1.2), "timed")
            noted = await ledger.enqueue(idle, "noted")
            await ended(noted)
            await ledger.note(noted, "seen", by="alice")
            assert (await ended(job)).state is JobState.COMPLETED
        info = await api(ledger.inbox, f"CONSUMER.INFO.{stream}.{name}", {})
        assert set(info["config"]["filter_subjects"]) == set(later), "whoever needs more still has it"
        assert info["num_ack_pending"] == 1, "the note waits for somebody who asked for it"


async def test_a_lane_whose_consumer_was_deleted_begins_where_a_job_needs_a_worker(
    connected: Connect,
) -> None:
    RAN.clear()
    async with connected() as ledger, connected() as other:
        stream, name = ledger.names.ledger_stream, ledger.names.consumer(idle.defaults.queue, "normal")
        async with working(other, idle):
            for job in [await ledger.enqueue(idle, f"k{number}") for number in range(20)]:
                await ended(job)
        new = await ledger.enqueue(idle, "new")
        await api(ledger.inbox, f"CONSUMER.DELETE.{stream}.{name}", {})
        info: dict[str, Any] = {}
        for _ in range(2):  # the second worker finds what the first one made
            async with working(other, idle):
                await ended(new)
                info = await api(ledger.inbox, f"CONSUMER.INFO.{stream}.{name}", {})
        assert info["config"]["opt_start_seq"] == (await new.snapshot()).dispatch_sequence
        assert info["delivered"]["consumer_seq"] == 1


async def test_a_subscriber_that_is_behind_is_named_and_one_that_is_not_is_no_hindrance(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected() as ledger, connected() as other:
        async with working(other, idle):
            await ended(await ledger.enqueue(idle, "a"))
        async with ledger.subscription("billing", types=["completed"], from_sequence=1):
            pass
        async with ledger.subscription("failures", types=["failed"], from_sequence=1):
            pass
        with pytest.raises(ArchiveRefusedError, match=r"events_billing \(from stream sequence 3 on\);"):
            await archive(ledger, tmp_path)
        async with ledger.subscription("billing", types=["completed"]) as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
                break
        assert (await archive(ledger, tmp_path)).events == 3
        await check(ledger, tmp_path)


async def test_an_archive_run_waits_for_the_workers_that_tell_runs_of_their_children(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected() as ledger, connected() as other:
        async with working(other, idle):
            await ended(await ledger.enqueue(idle, "a"))
        cancelled = await ledger.enqueue(idle, "b")
        await cancelled.cancel()
        for force in (False, True):
            with pytest.raises(ArchiveRefusedError, match="start a worker") as refused:
                await archive(ledger, tmp_path, force=force)
            assert "delete" not in str(refused.value)
        async with working(other, idle):
            await _dealt_with(ledger, CHILDREN_CONSUMER)
        assert (await archive(ledger, tmp_path)).jobs_archived == 2
        await check(ledger, tmp_path)


async def _dealt_with(ledger: Ledger, consumer: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            info = await find_consumer(ledger.inbox, ledger.names.ledger_stream, consumer)
            if info is not None and not info.unsettled:
                return
            await asyncio.sleep(0.02)


_KILLED = """
import asyncio, os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from jobledger.ledger import connect
from jobledger.audit.archive import Archiver, archive_deps

url, environment, folder, fatal = sys.argv[1:]

def die(step, done, total):
    print(step, done, total, flush=True)
    if f"{step}:{'begun' if not done else 'going'}" == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with connect(url, environment=environment) as ledger:
        deps = archive_deps(ledger, by="alice", on_progress=die)
        await Archiver(ledger.log, Path(folder), deps).run(datetime.now(UTC))

asyncio.run(main())
"""


async def test_a_run_that_is_killed_is_finished_by_the_next(
    nats_server: EmbeddedServer, connected: Connect, tmp_path: Path
) -> None:
    RAN.clear()
    async with connected() as ledger, connected() as other:
        jobs = await ledger.enqueue_many(idle, ({"kind": f"k{n}"} for n in range(100)))
        assert jobs.created == 100
        killed: list[int] = []
        for fatal in (
            "export:going",
            "check:going",
            "carry:going",
            "record:begun",
            "purge:begun",
            "end:going",
        ):
            words = [
                sys.executable,
                "-c",
                _KILLED,
                nats_server.url,
                ledger.names.environment,
                str(tmp_path),
                fatal,
            ]
            ran = await asyncio.to_thread(
                subprocess.run,
                words,
                env=os.environ | {"PYTHONPATH": SOURCES},
                capture_output=True,
                timeout=LIMIT_S,
            )
            killed.append(ran.returncode)
            assert ran.returncode == -signal.SIGKILL, (fatal, ran.stdout, ran.stderr)
            await check(ledger, tmp_path)
        done = await archive(ledger, tmp_path)
        assert done.first_sequence > 100
        await check(ledger, tmp_path)
        async with working(other, idle):
            await until(lambda: sum(RAN.values()) >= 100)
        assert await leftovers(ledger.inbox, ledger.names, within_s=LIMIT_S) == []
        assert set(RAN.values()) == {1}
        await check(ledger, tmp_path)


async def test_what_is_known_by_a_whole_chain_is_known_by_a_carried_one(
    connected: Connect, tmp_path: Path
) -> None:
    """A chain of which the beginning is gone is read as one request or page by page, and comes out the same."""
    async with connected() as ledger:
        jobs = [await ledger.enqueue(idle.options(id=f"j{n}", max_attempts=9), f"j{n}") for n in range(8)]
        for job in jobs[1::2]:
            await ledger.execute(job.ref, Claim(worker="w", lease_s=1.0), by="w")
        before = [await job.snapshot() for job in jobs]
        await archive(ledger, tmp_path)
        for job in jobs[2::3]:
            await ledger.cancel(job.ref, by="alice")
        for job, known in zip(jobs, before, strict=True):
            history = await job.history()
            assert isinstance(history[0].event, Carried)
            joined = await open_archive(ledger.log, tmp_path)
            whole = await joined.read_chain(ledger.names.chain(job.ref))
            assert whole[-len(history) :] == history
            assert isinstance(whole[0].event, Queued)
            assert (await job.snapshot()).created_at == known.created_at
            assert [each.epoch for each in (await job.snapshot()).attempts] == [
                each.stream_sequence for each in whole if isinstance(each.event, Started)
            ]


async def test_of_two_runs_at_once_on_a_server_nothing_is_lost(connected: Connect, tmp_path: Path) -> None:
    async with connected() as ledger, connected() as other:
        for n in range(20):
            await ledger.enqueue(idle.options(id=f"j{n}"), f"j{n}")
        outcomes = await asyncio.gather(
            archive(ledger, tmp_path), archive(other, tmp_path), return_exceptions=True
        )
        assert any(isinstance(each, Done) for each in outcomes), outcomes
        await archive(ledger, tmp_path)
        await check(ledger, tmp_path)
        for n in range(20):
            assert (await (await ledger.job(f"j{n}")).snapshot()).state is JobState.QUEUED
