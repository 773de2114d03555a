"""Jobs enqueued by the names of their tasks: as the task's code would, from what workers announced."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.working import LIMIT_S, working

from jobledger.ledger import (
    ConfigurationError,
    InvalidInputError,
    InvalidTokenError,
    JobState,
    Ledger,
    Limit,
    NamedJob,
    Queue,
    Run,
    RunEnd,
    TaskNotFoundError,
    Unique,
    sync,
    task,
    workflow,
)
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import order_at_first
from jobledger.ledger.nats.task_book import TaskEntry, read_tasks, write_tasks
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@task(queue="mail", max_attempts=3, timeout_s=9, priority="high", limits=("smtp",))
async def send(to: str, times: int = 1) -> str:
    return f"{to} {times}"


@task(queue=Queue("shared", fair="tenant", limits=("disk",)), limits=(Limit("user", key="user", slots=1),))
async def index(user: int = 7) -> None: ...


@task(queue="mail", unique=Unique())
async def once(to: str, on: int = 1) -> None: ...


@task(queue="mail", unique=Unique())
async def ping() -> None: ...


@task(queue="mail", unique=Unique())
async def once_at(at: datetime) -> None: ...


@task(queue="mail", limits=(Limit("told", slots=2),))
async def told(end: RunEnd) -> None: ...


@workflow(queue="runs", version="2", timeout_s=600, on_success=told, on_fail=told.options(tenant="ops"))
async def order(run: Run, number: int) -> int:
    return number


TASKS = (send, index, once, ping, once_at, told, order)


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(*TASKS)


async def begun(ledger: Ledger, name: str, queue: str | None = None) -> dict[str, Any]:
    """Return all that the first event of a job says, but for what differs from one enqueue to the next."""
    first = (await (await ledger.job(name, queue=queue)).history())[0].event
    fields = {"type": type(first).__name__, **msgspec.structs.asdict(first)}
    return {key: value for key, value in fields.items() if key not in {"job", "at", "run_at"}}


async def test_a_job_by_name_begins_as_one_by_code_does(ledger: MemoryLedger) -> None:
    later = datetime.now(UTC) + timedelta(days=400)
    rows: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (send, {"to": "a"}, {}),
        (send, {"to": "a", "times": 2}, {"queue": "other", "priority": "low", "max_attempts": 7, "timeout_s": 5.0}),
        (send, {"to": "a"}, {"limits": ("api:eu",), "tenant": "acme", "correlation": "c", "metadata": {"a": "b"}}),
        (send, {"to": "a"}, {"delay_s": 60, "by": "dana"}),
        (send, {"to": "a"}, {"run_at": later}),
        (index, {}, {"tenant": "acme"}),
        (index, {"user": 9}, {"tenant": "acme", "queue": "shared"}),
        (once, {"to": "a"}, {}),
        (order, {"number": 1}, {"tenant": "acme"}),
    ]  # fmt: skip
    for number, (of, values, how) in enumerate(rows):
        named = await ledger.enqueue_named(of.name, values, id=f"named-{number}", **how)
        assert named.created
        by_name = await begun(ledger, named.id, named.queue)
        if of is once:
            assert by_name["unique"]
            continue
        coded = await ledger.enqueue(of.options(id=f"coded-{number}", **how), **values)
        assert (named.queue, by_name) == (coded.queue, await begun(ledger, coded.id, coded.queue))
    assert set((await begun(ledger, "named-6"))["limits"]) == {"disk", "queue:shared", "user:9"}


async def test_a_unique_job_is_one_whether_it_was_enqueued_by_code_or_by_name(ledger: MemoryLedger) -> None:
    first = await ledger.enqueue(once, "a")
    for given in (b'{"to":"a"}', b'{"on": 1, "to": "a"}', {"to": "a", "on": 1}):
        again = await ledger.enqueue_named("once", given)
        assert (again.ref, again.created) == (first.ref, False)
    assert (await ledger.enqueue_named("once", {"to": "b"})).created
    alone = await ledger.enqueue(ping)
    assert not (await ledger.enqueue_named("ping")).created
    with pytest.raises(InvalidInputError, match="enqueue_many adds unique jobs only with"):
        await ledger.enqueue_named_many([NamedJob(task="ping")])
    assert (await alone.snapshot()).order.unique
    with pytest.raises(
        InvalidInputError, match="task once_at is unique by its argument 'at', which only its code"
    ):
        await ledger.enqueue_named("once_at", {"at": "2026-01-01T00:00:00Z"})


async def test_the_same_id_again_is_the_same_job(ledger: MemoryLedger) -> None:
    first = await ledger.enqueue_named("send", b'{"to":"a"}', id="j1", by="dana", trace=TRACE)
    again = await ledger.enqueue_named("send", b'{"to":"b"}', id="j1", by="erin", on_other_input="keep")
    assert (first.created, again.created, again.ref, again.sequence) == (
        True,
        False,
        first.ref,
        first.sequence,
    )
    event = (await first.history())[0].event
    assert (event.by, event.trace, bytes(order_at_first(event).input)) == ("dana", TRACE, b'{"to":"a"}')
    assert (await first.snapshot()).trace == TRACE


async def test_what_is_wrong_is_told_and_changes_nothing(ledger: MemoryLedger) -> None:
    wrong: list[tuple[str, Any, dict[str, Any], type[Exception], str]] = [
        ("sned", {}, {}, TaskNotFoundError, "no worker has ever announced a task 'sned': did you mean send"),
        ("se.nd", {}, {}, InvalidTokenError, "task name"),
        ("send", {"too": "a"}, {}, InvalidInputError, r"task send \(to, times\)"),
        ("send", {}, {}, InvalidInputError, "missing required field `to`"),
        ("send", b'{"to":', {}, InvalidInputError, "input of task send is not valid JSON"),
        ("send", b"[]", {}, InvalidInputError, "Expected `object`"),
        ("send", {"to": 7}, {}, InvalidInputError, r"Expected `str`, got `int` - at `\$.to`"),
        ("send", {"to": "a"}, {"trace": "x"}, InvalidInputError, "trace must be a W3C traceparent"),
        ("send", {"to": "a"}, {"trace": "00-" + "0" * 32 + TRACE[35:]}, InvalidInputError, "traceparent"),
        ("send", {"to": "a"}, {"by": "a b"}, InvalidInputError, "by must be"),
        ("send", {"to": "a"}, {"id": "a.b"}, InvalidTokenError, "job id"),
        ("send", {"to": "a"}, {"max_attempts": 0}, ConfigurationError, "max_attempts"),
    ]  # fmt: skip
    for name, values, how, error, said in wrong:
        with pytest.raises(error, match=said):
            await ledger.enqueue_named(name, values, **how)
    assert (await ledger.log.head()).last_sequence == 0


async def test_a_task_that_nobody_announced_is_enqueued_only_on_purpose(ledger: MemoryLedger) -> None:
    job = await ledger.enqueue_named("elsewhere", {"a": [1]}, unknown_ok=True, queue="far")
    assert (await job.snapshot()).task == "elsewhere"
    assert job.queue == "far"


async def test_tasks_of_the_ledger_itself_are_enqueued_by_nobody_else() -> None:
    own = copy.copy(send)
    own.name, own.defaults = "deliver", msgspec.structs.replace(send.defaults, queue="webhooks-out")
    ledger = MemoryLedger(own)
    for queue in (None, "mail"):
        with pytest.raises(InvalidInputError, match="is for the ledger's own jobs"):
            await ledger.enqueue_named("deliver", {"to": "a"}, queue=queue)
    with pytest.raises(InvalidInputError, match="is for the ledger's own jobs"):
        await ledger.enqueue_named_many([NamedJob(task="deliver", input=msgspec.Raw(b'{"to":"a"}'))])


async def jobs(count: int) -> AsyncIterator[NamedJob]:
    for number in range(count):
        values = msgspec.Raw(msgspec.json.encode({"to": f"n{number}"}))
        yield NamedJob(task="send", input=values, id=f"m{number}", queue="other" if number == 3 else None)


async def test_many_jobs_by_name_are_one_stream(ledger: MemoryLedger) -> None:
    made = await ledger.enqueue_named_many(jobs(5), by="dana", trace=TRACE)
    again = await ledger.enqueue_named_many(jobs(7))
    assert (made.created, made.existing, again.created, again.existing) == (5, 0, 2, 5)
    first = (await (await ledger.job("m3", queue="other")).history())[0].event
    assert (first.by, first.trace, first.queue) == ("dana", TRACE, "other")
    assert order_at_first(first).max_attempts == 3
    mixed = [
        NamedJob(task="send", input=msgspec.Raw(b'{"to":"a"}')),
        NamedJob(task="nobody"),
        NamedJob(task="send"),
    ]
    with pytest.raises(TaskNotFoundError, match=r"input 1: no worker .* \(enqueued before it: 1\)"):
        await ledger.enqueue_named_many(mixed)
    with pytest.raises(InvalidInputError, match="input 0: task send"):
        await ledger.enqueue_named_many(mixed[2:])
    assert (await ledger.log.head()).last_sequence == 8


async def test_many_jobs_by_name_share_options_only_where_they_say_the_same(ledger: MemoryLedger) -> None:
    said: list[dict[str, Any]] = [
        {"queue": "other"},
        {"queue": "other", "priority": "low"},
        {},
        {"tenant": "acme"},
        {"queue": "other"},
    ]
    value = msgspec.Raw(b'{"to":"a"}')
    await ledger.enqueue_named_many([NamedJob(task="send", input=value, **each) for each in said])
    stored = [(await ledger.log.get(number + 1)) for number in range(len(said))]
    events = [each.event for each in stored if isinstance(each, StoredEvent)]
    found = [(event.queue, order_at_first(event).priority, order_at_first(event).tenant) for event in events]
    own = events[2].queue
    assert own != "other"
    assert found == [
        ("other", "high", ""),
        ("other", "low", ""),
        (own, "high", ""),
        (own, "high", "acme"),
        ("other", "high", ""),
    ]
    with pytest.raises(InvalidTokenError, match="queue"):
        await ledger.enqueue_named_many([NamedJob(task="send", input=value, queue="a b")])


async def test_jobs_by_name_share_options_only_where_they_say_the_same(ledger: MemoryLedger) -> None:
    said: list[dict[str, Any]] = [
        {"by": "ann"},
        {"by": "bob", "queue": "post"},
        {"by": "ann", "priority": "low", "trace": TRACE},
        {"by": "ann", "limits": ("disk",)},
        {"by": "ann", "queue": "post", "id": "mine"},
        {"by": "ann"},
        {"by": "ann", "queue": "post"},
    ]
    found: list[tuple[Any, ...]] = []
    for how in said:
        handle = await ledger.enqueue_named("send", {"to": "ann"}, **how)
        job = await handle.snapshot()
        limits, is_theirs = job.order.limits, job.order.trace == TRACE
        found.append((job.queue, job.created_by, job.order.priority, limits, is_theirs, job.id == "mine"))
    assert found == [
        ("mail", "ann", "high", ("smtp",), False, False),
        ("post", "bob", "high", ("smtp",), False, False),
        ("mail", "ann", "low", ("smtp",), True, False),
        ("mail", "ann", "high", ("disk", "smtp"), False, False),
        ("post", "ann", "high", ("smtp",), False, True),
        ("mail", "ann", "high", ("smtp",), False, False),
        ("post", "ann", "high", ("smtp",), False, False),
    ]


async def test_what_a_worker_announced_is_enough_for_others(connected: Any) -> None:
    async with connected() as ledger:
        with pytest.raises(TaskNotFoundError, match=r"task 'send': a worker does that when it starts"):
            await ledger.enqueue_named("send", {"to": "a"})
        assert await ledger.task_names() == []
        async with working(ledger, *TASKS):
            for each in TASKS:
                await until_announced(ledger, each.name)
            job = await ledger.enqueue_named("send", b'{"to":"a"}', limits=())
            assert await ledger.task_names() == sorted(each.name for each in TASKS)
            with pytest.raises(TaskNotFoundError, match="did you mean once_at or once"):
                await ledger.enqueue_named("once_t", {})
            run = await ledger.enqueue_named("order", {"number": 3})
            assert await run.result(timeout_s=LIMIT_S) == 3
            assert (await job.snapshot()).state is JobState.HELD  # nobody has defined its limit


async def test_more_tasks_are_listed_than_the_server_gives_at_once(connected: Any) -> None:
    async with connected() as ledger:
        names = [f"task-{number:04}" for number in range(1_100)]
        now = ledger.clock.now()
        entries = [
            TaskEntry(name=each, queue="mail", text="", input=True, worker="w", announced_at=now)
            for each in names
        ]
        await write_tasks(ledger.inbox, ledger.names, entries, replicas=1)
        assert await ledger.task_names() == names
        found = await read_tasks(ledger.connection, ledger.inbox, ledger.names)
        assert [each.name for each in found] == names


async def until_announced(ledger: Ledger, name: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await ledger.find_task(name) is None:
            await asyncio.sleep(0.01)


def test_blocking_code_has_the_same_verbs(nats_server: Any, environment: str) -> None:
    with sync.connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24) as ledger:
        made = ledger.enqueue_named("far", {"a": 1}, id="j1", by="dana", unknown_ok=True)
        assert (made.created, made.snapshot().created_by) == (True, "dana")
        with pytest.raises(TaskNotFoundError):
            ledger.enqueue_named_many([NamedJob(task="far")])
