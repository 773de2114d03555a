"""Unique and debounced jobs, in memory and on a server: who gets a job, who the one that exists, and who an error."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.working import bury

from jobledger.ledger import (
    ConfigurationError,
    InvalidInputError,
    JobHandle,
    JobRef,
    JobState,
    Ledger,
    Unique,
    UniqueKeyTakenError,
    connect,
    sync,
    task,
)
from jobledger.ledger.children import Parent
from jobledger.ledger.model.commands import Claim, Complete
from jobledger.ledger.model.job import Job
from jobledger.ledger.unique.jobs import UniqueJobs
from jobledger.ledger.unique.queries import find_keys
from jobledger.testing import MemoryLedger, MovableClock

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)


@task(queue="unique", unique=Unique(args=("user",)), max_attempts=1)
async def report(user: int, page: int = 1) -> int:
    return user


@task(queue="unique", unique=Unique(args=("document",)))
async def index(document: str, text: str) -> str:
    return text


SETTLED = index.options(unique=Unique(args=("document",)), debounce_s=5, max_wait_s=12)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(START)


@pytest.fixture(params=["memory", "server"])
def url(request: pytest.FixtureRequest) -> str | None:
    if request.param == "memory":
        return None
    server: EmbeddedServer = request.getfixturevalue("nats_server")
    return server.url


@pytest.fixture
async def ledger(url: str | None, clock: MovableClock) -> AsyncIterator[Ledger]:
    if url is None:
        yield MemoryLedger(clock=clock)
        return
    environment = f"t_{secrets.token_hex(6)}"
    async with connect(url, environment=environment, ledger_bytes_max=64 << 20, clock=clock) as ledger:
        yield ledger


async def start(ledger: Ledger, handle: JobHandle[Any]) -> Job:
    return await ledger.execute(handle.ref, Claim(worker="w", lease_s=15))


async def complete(ledger: Ledger, handle: JobHandle[Any]) -> None:
    await ledger.execute(handle.ref, Complete(epoch=(await start(ledger, handle)).claim_epoch))


async def input_of(handle: JobHandle[Any]) -> Any:
    return msgspec.json.decode((await handle.snapshot()).order.input)


async def test_one_job_of_a_kind_until_it_has_ended(ledger: Ledger) -> None:
    first = await ledger.enqueue(report, 7)
    again = await ledger.enqueue(report, user=7, page=2)
    assert (first.created, again.created, again.ref, again.sequence) == (
        True,
        False,
        first.ref,
        first.sequence,
    )
    assert (await ledger.enqueue(report, 8)).created
    await start(ledger, first)
    assert not (await ledger.enqueue(report, 7)).created
    job = await first.snapshot()
    await ledger.execute(first.ref, Complete(epoch=job.claim_epoch))
    next_one = await ledger.enqueue(report, 7)
    assert next_one.created
    assert next_one.id != first.id
    newest, *others = await find_keys(ledger.log, "report", now=ledger.clock.now(), limit=10)
    assert (newest.taken.number, newest.taken.job, newest.is_held) == (2, next_one.id, True)
    assert job.order.unique == newest.taken.key
    assert (newest.taken.arguments, len(others)) == (msgspec.Raw(b'{"user":7}'), 1)


async def test_an_argument_that_is_left_out_is_the_same_as_its_default(ledger: Ledger) -> None:
    whole = report.options(unique=Unique())
    first = await ledger.enqueue(whole, 7)
    assert (await ledger.enqueue(whole, page=1, user=7)).ref == first.ref
    assert (await ledger.enqueue(whole, 7, 2)).ref != first.ref


async def test_without_arguments_the_task_itself_is_the_key(ledger: Ledger) -> None:
    alone = report.options(unique=Unique(args=()))
    first = await ledger.enqueue(alone, 7)
    assert (await ledger.enqueue(alone, 8)).ref == first.ref


async def test_an_argument_that_the_task_has_not_is_named(ledger: Ledger) -> None:
    with pytest.raises(
        InvalidInputError, match="report has no argument 'usr' for its key; its arguments: user, page"
    ):
        await ledger.enqueue(report.options(unique=Unique(args=("usr",))), 7)


async def test_until_it_is_started(ledger: Ledger) -> None:
    waiting = report.options(unique=Unique(args=("user",), until="started"))
    first = await ledger.enqueue(waiting, 7)
    assert (await ledger.enqueue(waiting, 7)).ref == first.ref
    await start(ledger, first)
    second = await ledger.enqueue(waiting, 7)
    assert second.created
    assert (await ledger.enqueue(waiting, 7)).ref == second.ref


async def test_one_job_in_each_period_by_its_id_alone(ledger: Ledger, clock: MovableClock) -> None:
    hourly = report.options(unique=Unique(args=("user",), for_s=3600))
    first = await ledger.enqueue(hourly, 7)
    head = (await ledger.log.head()).last_sequence
    again = await ledger.enqueue(hourly, 7, page=2)
    assert (again.ref, again.created, again.sequence) == (first.ref, False, first.sequence)
    by_another_type = report.options(unique=Unique(args=("user",), for_s=3600.0))
    assert (await ledger.enqueue(by_another_type, 7)).ref == first.ref
    assert (await ledger.log.head()).last_sequence == head == 1
    with pytest.raises(UniqueKeyTakenError, match=first.id):
        await ledger.enqueue(
            report.options(unique=Unique(args=("user",), for_s=3600, on_conflict="reject")), 7
        )
    clock.advance(3600)
    assert (await ledger.enqueue(hourly, 7)).ref != first.ref


async def test_a_period_that_begins_with_the_job(ledger: Ledger, clock: MovableClock) -> None:
    sliding = report.options(unique=Unique(args=("user",), for_s=60, sliding=True))
    clock.advance(59)
    first = await ledger.enqueue(sliding, 7)
    await complete(ledger, first)
    clock.advance(59)
    assert (await ledger.enqueue(sliding, 7)).ref == first.ref
    clock.advance(2)
    assert (await ledger.enqueue(sliding, 7)).created


async def test_a_conflict_may_be_an_error_that_names_the_job(ledger: Ledger) -> None:
    first = await ledger.enqueue(report, 7)
    strict = report.options(unique=Unique(args=("user",), on_conflict="reject"))
    head = (await ledger.log.head()).last_sequence
    with pytest.raises(UniqueKeyTakenError, match=f"job {first.id} in queue unique") as refused:
        await ledger.enqueue(strict, 7)
    assert (refused.value.job_id, refused.value.queue, refused.value.task) == (first.id, "unique", "report")
    assert (await ledger.log.head()).last_sequence == head


@pytest.mark.parametrize("sliding", [False, True])
async def test_a_job_that_waits_is_replaced_in_one_append_and_one_that_runs_is_not(
    ledger: Ledger, *, sliding: bool
) -> None:
    rule = Unique(args=("user",), for_s=60 if sliding else None, sliding=sliding, on_conflict="replace")
    newest = report.options(unique=rule)
    first = await ledger.enqueue(newest, 7, page=1)
    second = await ledger.enqueue(newest, 7, page=2)
    assert second.created
    old = await first.snapshot()
    assert (old.state, old.cancel_reason) == (JobState.CANCELLED, f"superseded by job {second.id}")
    assert second.sequence == old.last_sequence + 2  # with the key between them
    await start(ledger, second)
    third = await ledger.enqueue(newest, 7, page=3)
    assert (third.ref, third.created) == (second.ref, False)


class CrashError(Exception):
    """The process ends between the two appends."""


async def crash(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an enqueue end after it took the key."""

    async def dies(*_: object) -> tuple[int, bool]:
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(ledger._enqueuer._unique, "_begin", dies)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(CrashError):
            await ledger.enqueue(report, 7)


@pytest.mark.parametrize("on_conflict", ["return", "reject", "replace"])
async def test_a_job_that_was_never_made_is_made_by_whoever_comes_next(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, on_conflict: Any
) -> None:
    await crash(ledger, monkeypatch)
    (taken,) = await find_keys(ledger.log, "report", now=ledger.clock.now(), limit=10)
    assert (taken.job, taken.is_held) == (None, True)
    healed = await ledger.enqueue(report.options(unique=Unique(args=("user",), on_conflict=on_conflict)), 7)
    assert (healed.id, healed.created) == (taken.taken.job, True)
    assert not (await ledger.enqueue(report, 7)).created


async def test_who_took_the_key_and_comes_late_finds_its_job_made(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    unique: UniqueJobs = ledger._enqueuer._unique  # pyright: ignore[reportPrivateUsage]
    begin = unique._begin  # pyright: ignore[reportPrivateUsage]
    between: list[JobHandle[Any]] = []

    async def late(command: Any, by: str) -> tuple[int, bool]:
        monkeypatch.setattr(unique, "_begin", begin)
        between.append(await ledger.enqueue(report, 7, page=2))
        return await begin(command, by)

    with monkeypatch.context() as patched:
        patched.setattr(unique, "_begin", late)
        first = await ledger.enqueue(report, 7, page=1)
    assert (first.ref, first.created, between[0].created) == (between[0].ref, False, True)


async def test_a_debounced_job_waits_for_calm_and_takes_the_newest_input(
    ledger: Ledger, clock: MovableClock
) -> None:
    first = await ledger.enqueue(SETTLED, "a", text="one")
    clock.advance(4)
    second = await ledger.enqueue(SETTLED, "a", text="two")
    assert (second.ref, second.created) == (first.ref, False)
    job = await first.snapshot()
    assert job.due_at is not None
    assert timedelta(seconds=9) <= job.due_at - START < timedelta(seconds=9.1)
    assert await input_of(first) == {"document": "a", "text": "two"}
    clock.advance(4)
    await ledger.enqueue(SETTLED, "a", text="three")
    due_at = (await first.snapshot()).due_at
    assert due_at is not None
    assert timedelta(seconds=12) <= due_at - START < timedelta(seconds=12.1)  # max_wait_s is reached


async def test_calls_without_end_do_not_hold_a_debounced_job_back(
    ledger: Ledger, clock: MovableClock
) -> None:
    first = await ledger.enqueue(SETTLED, "a", text="one")
    clock.advance(13)
    second = await ledger.enqueue(SETTLED, "a", text="two")
    assert second.created
    job = await first.snapshot()
    assert (job.state, await input_of(first)) == (JobState.QUEUED, {"document": "a", "text": "one"})
    assert (await second.snapshot()).state is JobState.SCHEDULED


async def test_a_debounced_job_is_not_read_whole_however_often_it_was_moved(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await ledger.enqueue(SETTLED, "a", text="one")

    async def whole(_: str) -> Any:
        raise AssertionError("it read the whole chain")

    with monkeypatch.context() as patched:
        patched.setattr(ledger.log, "read_chain", whole)
        assert (await ledger.enqueue(SETTLED, "a", text="two")).ref == first.ref
    assert await input_of(first) == {"document": "a", "text": "two"}


async def test_a_debounced_job_with_limits_waits_for_them_when_it_waited_long_enough(
    ledger: Ledger, clock: MovableClock
) -> None:
    limited = index.options(unique=Unique(args=("document",)), debounce_s=5, max_wait_s=12, limits=("api",))
    first = await ledger.enqueue(limited, "a", text="one")
    await ledger.enqueue(limited, "a", text="two")
    clock.advance(13)
    assert (await ledger.enqueue(limited, "a", text="three")).created
    assert await first.state() is JobState.HELD


async def test_a_debounced_job_that_is_queued_is_left_alone(ledger: Ledger) -> None:
    first = await ledger.enqueue(SETTLED, "a", text="one")
    await first.retry()
    second = await ledger.enqueue(SETTLED, "a", text="two")
    assert second.created
    assert await input_of(first) == {"document": "a", "text": "one"}


async def test_a_dead_letter_gets_its_key_back_with_new_attempts(ledger: Ledger) -> None:
    first = await ledger.enqueue(report, 7)
    await bury(ledger, first)
    await ledger.requeue(first.ref)
    assert (await ledger.enqueue(report, 7)).ref == first.ref
    (key,) = await find_keys(ledger.log, "report", now=ledger.clock.now(), limit=10)
    assert (key.taken.number, key.taken.arguments) == (2, msgspec.Raw(b'{"user":7}'))


@pytest.mark.parametrize("way", ["requeue", "retry"])
async def test_a_dead_letter_whose_key_another_job_got_stays_one(ledger: Ledger, way: str) -> None:
    first = await ledger.enqueue(report, 7)
    await bury(ledger, first)
    second = await ledger.enqueue(report, 7)
    assert second.created
    with pytest.raises(UniqueKeyTakenError, match=second.id):
        await (ledger.requeue(first.ref) if way == "requeue" else ledger.retry(first.ref))
    assert await first.state() is JobState.DEAD_LETTERED
    await complete(ledger, second)
    await ledger.retry(first.ref)
    assert await first.state() is JobState.QUEUED


async def test_many_at_once_are_unique_by_their_period(ledger: Ledger) -> None:
    hourly = report.options(unique=Unique(args=("user",), for_s=3600))
    done = await ledger.enqueue_many(hourly, [{"user": 1}, {"user": 2}, {"user": 1, "page": 2}])
    assert (done.created, done.existing) == (2, 1)
    for rule in (Unique(), Unique(for_s=60, sliding=True), Unique(for_s=60, on_conflict="reject")):
        with pytest.raises(InvalidInputError, match="enqueue_many adds unique jobs only with"):
            await ledger.enqueue_many(report.options(unique=rule), [{"user": 3}])
    with pytest.raises(InvalidInputError, match="not both"):
        await ledger.enqueue_many(hourly, [{"user": 3}], ids=lambda _: "x")
    with pytest.raises(InvalidInputError, match=r"input 0: .*no argument 'usr'"):
        await ledger.enqueue_many(report.options(unique=Unique(args=("usr",), for_s=60)), [{"user": 3}])


async def test_another_attempt_of_a_job_finds_the_unique_job_that_it_made(ledger: Ledger) -> None:
    parent = Parent(job_id="p1", worker="w")
    newest = report.options(unique=Unique(args=("user",), on_conflict="replace"))
    made = await ledger.on_behalf_of(parent).enqueue(newest, 7)
    again = await ledger.on_behalf_of(parent).enqueue(newest, 7)
    assert (made.id, again.ref, again.created) == ("p1-report-1", made.ref, False)
    other = await ledger.enqueue(newest, 7)
    assert other.created
    late = await ledger.on_behalf_of(parent).enqueue(newest, 7)
    assert (late.ref, late.created) == (made.ref, False)
    assert (await other.state(), await made.state()) == (JobState.QUEUED, JobState.CANCELLED)


@pytest.mark.parametrize("sliding", [False, True])
async def test_another_attempt_is_not_refused_the_job_that_it_made_in_the_period(
    ledger: Ledger, *, sliding: bool
) -> None:
    rule = Unique(args=("user",), for_s=3600, sliding=sliding, on_conflict="reject")
    strict = report.options(unique=rule)
    parent = Parent(job_id="p1", worker="w")
    made = await ledger.on_behalf_of(parent).enqueue(strict, 7)
    again = await ledger.on_behalf_of(parent).enqueue(strict, 7)
    assert (again.ref, made.created, again.created) == (made.ref, True, False)
    for other in (ledger, ledger.on_behalf_of(Parent(job_id="p2", worker="w"))):
        with pytest.raises(UniqueKeyTakenError, match=made.id):
            await other.enqueue(strict, 7)


def test_blocking_code_has_the_same_verbs(nats_server: EmbeddedServer) -> None:
    environment = f"t_{secrets.token_hex(6)}"
    with sync.connect(nats_server.url, environment=environment, ledger_bytes_max=64 << 20) as ledger:
        first = ledger.enqueue(SETTLED, "a", text="one")
        assert ledger.enqueue(SETTLED, "a", text="two").ref == first.ref
        moved = first.reschedule(delay_s=3600)
        assert ledger.reschedule(first.id, run_at=START).due_at == START
        assert moved.state is JobState.SCHEDULED
        ledger.enqueue(report, 1)
        with pytest.raises(UniqueKeyTakenError):
            ledger.enqueue(report.options(unique=Unique(args=("user",), on_conflict="reject")), 1)


async def test_a_job_that_waits_for_a_time_is_given_another(ledger: Ledger, clock: MovableClock) -> None:
    handle = await ledger.enqueue(report.options(unique=None, delay_s=60), 1)
    job = await handle.reschedule(run_at=START + timedelta(hours=1), reason="later", by="ann")
    assert (job.state, job.due_at) == (JobState.SCHEDULED, START + timedelta(hours=1))
    event = (await handle.history())[-1].event
    assert (event.by, getattr(event, "reason", "")) == ("ann", "later")
    job = await ledger.reschedule(JobRef(queue=handle.queue, job_id=handle.id), delay_s=5)
    assert job.due_at is not None
    assert job.due_at - clock.now() < timedelta(seconds=5.1)
    wrong: list[dict[str, Any]] = [{}, {"run_at": START, "delay_s": 1}, {"delay_s": -1}, {"run_at": "now"}]
    for given in wrong:
        with pytest.raises(ConfigurationError):
            await handle.reschedule(**given)
    with pytest.raises(InvalidInputError, match="run_at has no time zone"):
        await handle.reschedule(run_at=datetime(2026, 1, 1))  # noqa: DTZ001 - on purpose
