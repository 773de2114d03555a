"""Enqueueing one job and many, and handles that tell what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.counting import everything
from tests.support.orders import COMMITS, LIMIT_S, add, finish, shout
from tests.support.tables import each_row
from tests.support.working import Connect, until

from jobledger.ledger import JobState, Ledger, connect, sync
from jobledger.ledger.config import LedgerConfig, with_variables
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import CancelJob, Claim, Discard, Fail, Requeue
from jobledger.ledger.model.errors import (
    AmbiguousIdError,
    IllegalTransitionError,
    InputMismatchError,
    InvalidError,
    InvalidInputError,
    InvalidTokenError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    ResultTimeoutError,
)
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


# Enqueueing.


async def test_enqueue_stores_one_event_with_the_whole_order(ledger: Ledger) -> None:
    job = await ledger.enqueue(shout.options(priority="high", timeout_s=3, max_attempts=2), "hi")
    (stored,) = await job.history()
    assert (job.created, job.queue, stored.stream_sequence) == (True, "mail", job.sequence)
    written = msgspec.json.decode(stored.data)
    assert written["type"] == "queued"
    assert written["input"] == {"text": "hi"}
    assert (written["priority"], written["timeout_s"], written["max_attempts"]) == ("high", 3.0, 2)
    assert await job.state() is JobState.QUEUED


async def test_the_same_id_twice_gives_the_first_job_back(ledger: Ledger) -> None:
    first = await ledger.enqueue(add.options(id="once"), 1)
    second = await ledger.enqueue(add.options(id="once"), 1)
    with pytest.raises(InputMismatchError, match=r"job once in queue .* with another input \(a\) and stays"):
        await ledger.enqueue(add.options(id="once"), 2)
    assert (first.created, second.created) == (True, False)
    assert second.sequence == first.sequence
    assert len(await everything(ledger)) == 1
    assert msgspec.json.decode((await second.snapshot()).order.input) == {"a": 1}


async def test_the_same_id_after_the_job_ended_still_names_the_event_that_made_it(ledger: Ledger) -> None:
    other = await ledger.enqueue(add, 0)
    first = await ledger.enqueue(add.options(id="once"), 1)
    await finish(ledger, first.ref, 2)
    again = await ledger.enqueue(add.options(id="once"), 1)
    assert not again.created
    assert again.sequence == first.sequence == other.sequence + 1
    assert await again.result(timeout_s=LIMIT_S) == 2
    assert (await ledger.job("once")).sequence == first.sequence


@pytest.mark.parametrize("commit", COMMITS)
async def test_of_a_hundred_concurrent_enqueues_of_one_id_one_creates(
    connected: Connect, commit: str
) -> None:
    async with connected(commit=commit) as one, connected(commit=commit) as two:
        async with asyncio.timeout(LIMIT_S):
            jobs = await asyncio.gather(
                *((one, two)[n % 2].enqueue(add.options(id="same"), n // 2) for n in range(100)),
                return_exceptions=True,
            )
        same = [job for job in jobs if not isinstance(job, BaseException)]
        assert [job.created for job in same].count(True) == 1
        assert len(same) == 2  # each other one has another input
        assert len({job.sequence for job in same}) == 1
        assert all(isinstance(job, InputMismatchError) for job in jobs if job not in same)
        assert len(await everything(one)) == 1
        winner = next(n // 2 for n, job in enumerate(jobs) if job in same)
        assert msgspec.json.decode((await same[0].snapshot()).order.input) == {"a": winner}


class StoppedClock:
    """A wall clock that does not move, as one of low resolution looks for a while."""

    def now(self) -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize("commit", COMMITS)
async def test_two_equal_enqueues_in_one_tick_of_the_clock_create_one_job(
    connected: Connect, commit: str
) -> None:
    # Equal bytes must not let a loser take the winner's event for its own.
    async with connected(commit=commit, clock=StoppedClock()) as ledger, asyncio.timeout(LIMIT_S):
        jobs = await asyncio.gather(*(ledger.enqueue(add.options(id="same"), 1) for _ in range(20)))
        assert sum(job.created for job in jobs) == 1


async def test_one_id_may_exist_in_two_queues_and_then_needs_its_queue(ledger: Ledger) -> None:
    await ledger.enqueue(add.options(id="both", queue="a"), 1)
    await ledger.enqueue(add.options(id="both", queue="b"), 2)
    with pytest.raises(AmbiguousIdError, match="a/both, b/both"):
        await ledger.job("both")
    assert (await ledger.job("both", queue="b")).queue == "b"
    with pytest.raises(JobNotFoundError):
        await ledger.job("both", queue="c")


async def test_an_id_is_no_prefix_and_no_pattern(ledger: Ledger) -> None:
    await ledger.enqueue(add.options(id="abc"), 1)
    with pytest.raises(JobNotFoundError):
        await ledger.job("ab")
    with pytest.raises(InvalidTokenError):
        await ledger.job("*")
    with pytest.raises(InvalidTokenError):
        await ledger.job("abc", queue=">")


# Enqueueing many.


async def test_enqueue_many_takes_lists_generators_and_async_generators(ledger: Ledger) -> None:
    async def asynchronous() -> AsyncIterator[dict[str, int]]:
        for number in range(50):
            await asyncio.sleep(0)
            yield {"a": number}

    for inputs in ([{"a": n} for n in range(50)], ({"a": n} for n in range(50)), asynchronous()):
        result = await ledger.enqueue_many(add, inputs)
        assert (result.created, result.existing) == (50, 0)
        assert result.last_sequence == (await ledger.log.head()).last_sequence
    assert (await ledger.enqueue_many(add, [])).created == 0
    stored = await everything(ledger)
    assert [msgspec.json.decode(each.data)["input"]["a"] for each in stored] == [*range(50)] * 3
    assert len({each.event.job for each in stored}) == 150


@pytest.mark.parametrize("commit", COMMITS)
async def test_enqueue_many_keeps_no_more_than_its_limit_in_flight(connected: Connect, commit: str) -> None:
    async with connected(enqueue_in_flight_max=16, commit=commit) as ledger:
        taken = most = 0
        done = 0

        def inputs() -> Iterator[dict[str, int]]:
            nonlocal taken, most
            for number in range(500):
                taken += 1
                most = max(most, taken - done)
                yield {"a": number}

        def on_progress(count: int) -> None:
            nonlocal done
            assert count >= done
            done = count

        result = await ledger.enqueue_many(add, inputs(), on_progress=on_progress)
        assert (result.created, done) == (500, 500)
        assert most <= 16 + 1


async def test_enqueue_many_again_with_ids_adds_only_what_was_missing(ledger: Ledger) -> None:
    def name(values: Any) -> str:
        return f"n-{values['a']}"

    first = await ledger.enqueue_many(add, ({"a": n} for n in range(0, 100, 2)), ids=name)
    second = await ledger.enqueue_many(add, ({"a": n} for n in range(100)), ids=name)
    third = await ledger.enqueue_many(add, ({"a": n} for n in range(100)), ids=name)
    assert (first.created, first.existing) == (50, 0)
    assert (second.created, second.existing) == (50, 50)
    assert (third.created, third.existing, third.last_sequence) == (0, 100, 0)
    assert len(await everything(ledger)) == 100


async def test_the_same_id_within_one_enqueue_many_is_one_job(ledger: Ledger) -> None:
    result = await ledger.enqueue_many(add, ({"a": 7} for _ in range(100)), ids=lambda _: "all-the-same")
    assert (result.created, result.existing) == (1, 99)
    assert len(await everything(ledger)) == 1


_BAD_ITEMS: list[tuple[Any, Callable[[Any], str] | None, str]] = [
    ({"a": "one"}, None, "int"),
    ({}, None, "a"),
    ({"a": 1, "c": 2}, None, "c"),
    ([1], None, "object"),
    ({"a": 1}, lambda _: "not.a.token", "job id"),
]


@pytest.mark.parametrize(("bad", "ids", "words"), _BAD_ITEMS)
async def test_a_bad_input_names_its_index_and_nothing_after_it_is_sent(
    ledger: Ledger, bad: Any, ids: Any, words: str
) -> None:
    taken = 0
    ended = False

    async def inputs() -> AsyncIterator[Any]:
        nonlocal taken, ended
        try:
            for number in range(20):
                taken += 1
                yield bad if number == 7 else {"a": number}
        finally:
            ended = True

    def choose(values: Any) -> str:
        return str(ids(values)) if values is bad else f"n-{values['a']}"

    with pytest.raises(InvalidError) as caught:
        await ledger.enqueue_many(add, inputs(), ids=None if ids is None else choose)
    assert str(caught.value).startswith("input 7: ")
    assert words in str(caught.value)
    assert taken == 8
    assert ended, "the caller's generator was left open"
    assert len(await everything(ledger)) == 7  # those before it, all stored when the error is raised


async def test_an_error_of_the_inputs_themselves_comes_through_and_what_was_sent_is_stored(
    ledger: Ledger,
) -> None:
    def inputs() -> Iterator[dict[str, int]]:
        yield from ({"a": n} for n in range(5))
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        await ledger.enqueue_many(add, inputs())
    assert len(await everything(ledger)) == 5


async def test_enqueue_many_refuses_one_id_for_many_jobs(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match="ids="):
        await ledger.enqueue_many(add.options(id="x"), [{"a": 1}])
    assert await everything(ledger) == []


# Handles.


async def test_a_result_is_found_with_a_hint_and_without(connected: Connect) -> None:
    async with connected() as enqueuer, connected() as elsewhere:
        job = await enqueuer.enqueue(add, 1)
        waiting = [
            asyncio.create_task(job.result(timeout_s=LIMIT_S)),
            asyncio.create_task((await elsewhere.job(job.id)).result(timeout_s=LIMIT_S)),
        ]
        await finish(elsewhere, job.ref, 2)  # tells nobody
        assert await asyncio.gather(*waiting) == [2, 2]


async def test_a_hint_ends_a_wait_at_once(connected: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobledger.ledger.handle._LOOK_AGAIN_FIRST_S", 10 * LIMIT_S)
    async with connected() as enqueuer, connected() as elsewhere, asyncio.timeout(LIMIT_S):
        job = await enqueuer.enqueue(add, 1)
        async with contextlib.aclosing(job.transitions()) as seen:
            assert (await anext(seen)).stream_sequence == job.sequence
            await finish(elsewhere, job.ref, 2)
            elsewhere.hints.tell(enqueuer.hints.inbox, job.ref)
            assert len([stored async for stored in seen]) == 2


async def test_a_false_hint_ends_nothing(connected: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobledger.ledger.handle._LOOK_AGAIN_FIRST_S", 10 * LIMIT_S)
    async with connected() as enqueuer, connected() as elsewhere:
        job = await enqueuer.enqueue(add, 1)
        looks, read_on = list[int](), enqueuer.log.read_on

        async def counted(chain: str, after: int) -> list[StoredEvent]:
            found = await read_on(chain, after)
            looks.append(len(found))
            return found

        monkeypatch.setattr(enqueuer.log, "read_on", counted)
        waiting = asyncio.create_task(job.result(timeout_s=2 * LIMIT_S))
        await asyncio.sleep(0)  # it listens
        for count in range(1, 6):
            elsewhere.hints.tell(enqueuer.hints.inbox, job.ref)
            await until(lambda count=count: len(looks) == count)  # type: ignore[misc]
        assert looks == [0] * 5, "only a hint lets it look, and it waits on"
        await finish(elsewhere, job.ref, 2)
        elsewhere.hints.tell(enqueuer.hints.inbox, job.ref)
        assert await waiting == 2
        assert looks[:5] == [0] * 5


@each_row("value", [None, 0, "", [], {}, "ä\u0000\U0001f600", {"a": [1.5, None, True]}, 2**53 + 1])
async def test_results_come_back_as_they_were(ledger: Ledger, value: object) -> None:
    job = await ledger.enqueue(add, 1)
    await finish(ledger, job.ref, value)
    assert await (await ledger.job(job)).result(timeout_s=LIMIT_S) == value


async def test_a_dead_letter_has_no_result_but_an_error(ledger: Ledger) -> None:
    job = await ledger.enqueue(shout, "x")
    running = await ledger.execute(job.ref, Claim(worker="w", lease_s=15.0))
    error = ErrorInfo(kind="exception", type="ValueError", message="no such user")
    await ledger.execute(job.ref, Fail(epoch=running.claim_epoch, error=error))
    with pytest.raises(JobFailedError, match="ValueError: no such user") as caught:
        await job.result(timeout_s=LIMIT_S)
    assert caught.value.error == error
    assert await job.state() is JobState.DEAD_LETTERED
    await ledger.execute(job.ref, Discard())
    with pytest.raises(JobCancelledError, match="discarded"):
        await job.result(timeout_s=LIMIT_S)


async def test_a_requeued_dead_letter_can_still_have_a_result(ledger: Ledger) -> None:
    job = await ledger.enqueue(shout, "x")
    running = await ledger.execute(job.ref, Claim(worker="w", lease_s=15.0))
    error = ErrorInfo(kind="exception", type="ValueError", message="first")
    await ledger.execute(job.ref, Fail(epoch=running.claim_epoch, error=error))
    await ledger.execute(job.ref, Requeue())
    with pytest.raises(ResultTimeoutError):
        await job.result(timeout_s=0.1)
    await finish(ledger, job.ref, "X")
    assert await job.result(timeout_s=LIMIT_S) == "X"


async def test_a_cancelled_job_says_why(ledger: Ledger) -> None:
    job = await ledger.enqueue(add, 1)
    await ledger.execute(job.ref, CancelJob(reason="ordered twice"))
    with pytest.raises(JobCancelledError, match="ordered twice"):
        await job.result(timeout_s=LIMIT_S)
    with pytest.raises(IllegalTransitionError):
        await ledger.execute(job.ref, CancelJob())


async def test_waiting_for_a_result_ends_in_time_and_harms_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.ledger.handle._LOOK_AGAIN_FIRST_S", 10 * LIMIT_S)
    job = await ledger.enqueue(add, 1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ResultTimeoutError, match=job.id):
        await job.result(timeout_s=0.3)
    assert 0.25 < loop.time() - began < LIMIT_S  # not when it would have looked again
    with pytest.raises(ResultTimeoutError):
        await job.result(timeout_s=0)
    await finish(ledger, job.ref, 2)
    assert await job.result(timeout_s=0) == 2


async def test_transitions_are_told_once_each_as_they_come(ledger: Ledger) -> None:
    job = await ledger.enqueue(add, 1)
    seen: list[str] = []
    started = asyncio.Event()

    async def watch() -> None:
        async for stored in job.transitions(timeout_s=LIMIT_S):
            seen.append(msgspec.json.decode(stored.data)["type"])
            started.set()

    watching = asyncio.create_task(watch())
    await started.wait()
    await finish(ledger, job.ref, 2)
    await watching
    assert seen == ["queued", "started", "completed"]


async def test_a_job_that_does_not_exist(ledger: Ledger) -> None:
    with pytest.raises(JobNotFoundError, match="nothing"):
        await ledger.job("nothing")
    with pytest.raises(JobNotFoundError, match="nothing"):
        await ledger.execute(JobRef(queue="default", job_id="nothing"), CancelJob())


async def test_connect_takes_url_and_environment_from_the_variables_of_the_commands(
    nats_server: EmbeddedServer, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBLEDGER_URL", nats_server.url)
    monkeypatch.setenv("JOBLEDGER_ENVIRONMENT", environment)
    async with connect(ledger_bytes_max=64 << 20) as ledger:
        assert (ledger.config.url, ledger.names.environment) == (nats_server.url, environment)
        job = await ledger.enqueue(add, 1)
    with sync.connect(ledger_bytes_max=64 << 20) as blocking:
        assert blocking.job(job.id).ref == job.ref
    async with connect(nats_server.url, environment=environment + "b", ledger_bytes_max=64 << 20) as other:
        assert other.names.environment == environment + "b"
    monkeypatch.setenv("JOBLEDGER_URL", "")
    assert with_variables({}, os.environ) == {"environment": environment}
    assert with_variables({"url": "nats://here", "environment": ""}, os.environ) == {
        "url": "nats://here",
        "environment": "",
    }


def test_settings_for_another_process_are_whole_or_none(tmp_path: Path) -> None:
    config = LedgerConfig(environment="a", creds=tmp_path, nats_options={"ping_interval": 3})
    given = config.for_another_process()
    assert given is not None
    assert LedgerConfig(**given) == LedgerConfig(
        environment="a", creds=str(tmp_path), nats_options={"ping_interval": 3}, create=False
    )
    assert LedgerConfig(nats_options={"tls": ssl.create_default_context()}).for_another_process() is None
    assert LedgerConfig(nats_options={"user_jwt_cb": b"bytes"}).for_another_process() is None
