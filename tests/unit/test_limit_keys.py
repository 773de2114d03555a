"""`Limit` and `Queue` as they are declared, and the keys that a job has for them when it is enqueued."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.support.tables import each_row

from jobledger.admin.limits import remove_limit, set_limit, show_limit
from jobledger.audit.verify.verification import verify
from jobledger.ledger import JobState, Limit, Queue, Task, TaskRegistry, task
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.limits.definitions import CodeLimits
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidError,
    InvalidInputError,
    InvalidTokenError,
    PermissionRefusedError,
    TaskDefinitionError,
)
from jobledger.ledger.model.events import Held, Queued
from jobledger.ledger.model.limits.definition import LIMIT, Definition, Terms
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.options import Options
from jobledger.ledger.tasks import TaskWithOptions
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio
EMAIL = Queue("email", limits=(Limit("queue", slots=7), "smtp"), fair="tenant")


@task(
    limits=(Limit("customer", key="customer_id", slots=2), Limit("region", key="metadata.region"), "global")
)
async def bill(customer_id: int, at: str = "noon") -> None: ...


@task(queue=EMAIL, limits=(Limit("task", rate=5.0), Limit("tenant", key="tenant", slots=3)))
async def send(to: UUID, tenant: str = "acme") -> None: ...


@task(queue=EMAIL)
async def remind(to: int) -> None: ...


async def held(given: Task[Any, Any] | TaskWithOptions[Any, Any], **arguments: Any) -> Held:
    job = await MemoryLedger().enqueue(given, **arguments)
    event = (await job.history())[0].event
    assert isinstance(event, Held)
    return event


async def test_keys_come_from_the_input_the_metadata_and_the_tenant() -> None:
    event = await held(bill.options(metadata={"region": "eu"}), customer_id=7)
    assert event.limits == ("customer:7", "global", "region:eu")
    event = await held(
        bill.options(metadata={"region": "eu"}, limits=("extra:1", Limit("at", key="at"))), customer_id=7
    )
    assert event.limits == (
        "at:noon",
        "customer:7",
        "extra:1",
        "global",
        "region:eu",
    )  # a default is a value, too
    event = await held(remind.options(tenant="acme"), to=1)
    assert (event.limits, event.fair, event.tenant) == (("queue:email", "smtp"), "tenant:acme", "acme")


async def test_an_argument_comes_before_the_tenant_of_the_same_name_and_own_keys_need_no_word() -> None:
    one = UUID(int=1)
    event = await held(send.options(tenant="of_the_order"), to=one, tenant="of_the_input")
    assert event.limits == ("queue:email", "smtp", "task:send", "tenant:of_the_input")
    assert event.fair == "tenant:of_the_input"
    event = await held(send.options(limits=(Limit("to", key="to"),)), to=one)
    assert f"to:{one}" in event.limits


async def test_another_queue_has_not_the_limits_of_the_task_s_own() -> None:
    event = await held(send.options(queue="other"), to=UUID(int=1))
    assert (event.limits, event.fair, event.queue) == (("task:send", "tenant:acme"), "", "other")
    assert (await held(send.options(queue="email"), to=UUID(int=1))).fair == "tenant:acme"
    plain = await MemoryLedger().enqueue(remind.options(queue="other"), to=1)
    assert isinstance((await plain.history())[0].event, Queued)


async def test_enqueue_many_gives_each_job_its_own_keys() -> None:
    ledger = MemoryLedger()
    await ledger.enqueue_many(bill.options(metadata={"region": "eu"}), [{"customer_id": n} for n in range(3)])
    found = [stored.event async for stored in ledger.events(follow=False)]
    assert [event.limits[0] for event in found if isinstance(event, Held)] == [
        f"customer:{n}" for n in range(3)
    ]


@each_row(
    ("given", "arguments", "sentence"),
    [
        (bill, {"customer_id": 1}, r"limit region of task bill takes its key from metadata.region, and the job has none"),
        (remind, {"to": 1}, "queue email of task remind takes its key from tenant, and the job has none"),
        (bill.options(metadata={"region": "e u"}), {"customer_id": 1}, "metadata.region of task bill, the key of limit"),
        (bill.options(limits=(Limit("x", key="nothing"),), metadata={"region": "eu"}), {"customer_id": 1},
         "takes its key from 'nothing', and the task has no such argument"),
        (remind.options(tenant="t", limits=tuple(f"l{n}" for n in range(7))), {"to": 1}, "at most 8"),
    ],
)  # fmt: skip
async def test_a_job_without_its_key_is_refused_and_nothing_is_written(
    given: Any, arguments: dict[str, Any], sentence: str
) -> None:
    ledger = MemoryLedger()
    with pytest.raises(InvalidInputError, match=sentence):
        await ledger.enqueue(given, **arguments)
    assert (await ledger.log.head()).last_sequence == 0


@task
async def odd(value: str | float | list[int] | dict[str, int] | None) -> None: ...


@each_row("value", [None, True, 1.5, [], {"a": 1}, "", "a b", "x" * 129])
async def test_a_value_that_cannot_be_a_key_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="task odd"):
        await MemoryLedger().enqueue(odd.options(limits=(Limit("v", key="value"),)), value=value)


@each_row(
    ("declare", "error", "sentence"),
    [
        (lambda: Limit("a b"), InvalidTokenError, "limit 'a b' is not valid"),
        (
            lambda: Limit("l", slots=-1),
            ConfigurationError,
            "limit l: slots must be a whole number from 0 to 9,223",
        ),
        (lambda: Limit("l", mode="newest"), ConfigurationError, "give slots or rate as well"),
        (lambda: Limit("schedule", slots=1), ConfigurationError, "choose another"),
        (lambda: Limit("queue", key="x", slots=1), ConfigurationError, "its key is the job's queue"),
        (lambda: Limit("l", key=""), ConfigurationError, "key must be the name of an argument"),
        (lambda: Queue("q", fair=""), ConfigurationError, "fair must be the name of an argument"),
        (lambda: Queue("a b"), InvalidTokenError, "queue 'a b' is not valid"),
        (lambda: Queue("q", limits=("a b",)), InvalidTokenError, "name of a limit 'a b'"),
        (lambda: task(limits="global"), InvalidInputError, "limits must be several names"),  # type: ignore[call-overload]
        (lambda: task(limits=("task:x",)), InvalidInputError, "has a name that the ledger itself uses"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_declared(
    declare: Any, error: type[InvalidError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        declare()


@each_row(
    ("limits", "queue", "sentence"),
    [
        (
            (Limit("x", key="nothing"),),
            None,
            "limit x of task t takes its key from 'nothing', and the task has no such",
        ),
        ((), Queue("q", fair="nothing"), "queue q of task t takes its key from 'nothing'"),
        ((), Queue("q", limits=(Limit("y", key="no"),)), r"limit y of task t.*\(its arguments: number\)"),
        ((Limit("x", key="number"), Limit("task", slots=1)), Queue("q", fair="metadata.region"), None),
        (("a:b", Limit("x", key="tenant")), Queue("q", limits=("smtp",), fair="tenant"), None),
    ],
)
def test_a_key_that_no_job_can_have_is_refused_where_the_task_is_loaded(
    limits: tuple[Limit | str, ...], queue: Queue | None, sentence: str | None
) -> None:
    @task(name="t", queue=queue or "q", limits=limits)
    async def declared(number: int) -> None: ...

    if sentence is None:
        assert len(TaskRegistry([declared])) == 1
        return
    with pytest.raises(TaskDefinitionError, match=sentence):
        TaskRegistry([declared])


# What the code writes to the ledger.


def job_of(limit: Limit, name: str = "t") -> tuple[Options, str, tuple[str, ...]]:
    """Return the options of a job of a task with a limit, the task's name, and what it only names."""
    return Options(queue="q", declared=(limit,)), name, ()


async def written(ledger: MemoryLedger, limit: str) -> tuple[int, Any]:
    """Return how many events a limit has, and what it is."""
    count = 0
    async for batch in ledger.log.read_messages(subject=f"ledger.limit.{limit}.>"):
        count += len(batch)
    return count, (await look(ledger.log, LIMIT, limit)).state


async def test_the_first_enqueue_of_a_process_defines_the_limits_of_its_code_once() -> None:
    ledger = MemoryLedger()
    for number in range(3):
        await ledger.enqueue(bill.options(metadata={"region": "eu"}), customer_id=number)
    count, customer = await written(ledger, "customer")
    assert (count, customer.common, customer.source) == (1, Terms(slots=2), "code")
    assert (await written(ledger, "region"))[0] == (await written(ledger, "global"))[0] == 0
    await CodeLimits(ledger.log, ledger.stamp).ensure(bill.defaults, "bill", ())
    assert (await written(ledger, "customer"))[0] == 1  # another process of the same code


async def test_changed_code_defines_anew_and_a_person_is_not_overridden() -> None:
    ledger = MemoryLedger()

    async def process(limit: Limit) -> Definition:
        await CodeLimits(ledger.log, ledger.stamp).ensure(*job_of(limit))
        definition = (await look(ledger.log, LIMIT, limit.name)).state
        assert definition is not None
        return definition

    assert (await process(Limit("l", slots=1))).common == Terms(slots=1)
    assert (await process(Limit("l", slots=2))).common == Terms(slots=2)
    await set_limit(ledger, "l", {"slots": 9}, by="alice")
    kept = await process(Limit("l", slots=3))
    assert (kept.common, kept.source) == (Terms(slots=9), "operator")
    await remove_limit(ledger, "l", by="alice")  # hands it back to the code
    again = await process(Limit("l", slots=3))
    assert (again.common, again.overrides, again.source) == (Terms(slots=3), {}, "code")


async def test_a_key_that_a_person_set_leaves_the_limit_to_the_code(caplog: pytest.LogCaptureFixture) -> None:
    ledger = MemoryLedger()

    async def deploy(slots: int) -> Definition:
        await CodeLimits(ledger.log, ledger.stamp).ensure(*job_of(Limit("tenant", slots=slots)))
        definition = (await look(ledger.log, LIMIT, "tenant")).state
        assert definition is not None
        return definition

    await deploy(3)
    found = await set_limit(ledger, "tenant:initech", {"slots": 0}, reason="unpaid", by="alice")
    assert (found.source_before, found.source) == (None, "operator")
    later = await deploy(4)
    assert (later.common, later.source, later.of("initech")) == (Terms(slots=4), "code", Terms(slots=0))
    author = later.author("initech")
    assert (author.source, author.by, author.reason) == ("operator", "alice", "unpaid")
    assert not caplog.records
    assert (await remove_limit(ledger, "tenant:initech", by="alice")).after == Terms(slots=4)
    taken = await set_limit(ledger, "tenant", {"slots": 9}, by="alice")  # explicitly the whole limit
    assert (taken.source_before, taken.source) == ("code", "operator")
    assert ((await deploy(5)).common, caplog.messages) == (
        Terms(slots=9),
        ["limit tenant is slots 9, as alice set it; this code has slots 5"],
    )


async def test_a_limit_is_given_back_to_the_code_of_a_running_worker_and_keeps_its_keys() -> None:
    ledger = MemoryLedger()
    limits = {"tenant": Terms(slots=3), "task:t": Terms(slots=2)}
    keeper = LeaseKeeper(
        ledger.leases, ledger.clock, ("q",), running=lambda: 0, on_lost=lambda _: None, limits=limits
    )
    await keeper.open()
    for limit in ("tenant", "tenant:acme", "task:t"):
        await set_limit(ledger, limit, {"slots": 9}, by="alice")
    assert [each.worker for each in (await show_limit(ledger, "tenant")).in_code] == [keeper.identity]
    found = await remove_limit(ledger, "tenant", by="alice")
    assert (found.before, found.after, found.source) == (Terms(slots=9), Terms(slots=3), "code")
    shown = await show_limit(ledger, "tenant")
    assert (shown.in_code, shown.definition.author("acme").source) == ((), "operator")
    assert shown.definition.of("acme") == Terms(slots=9)
    assert (await remove_limit(ledger, "task:t", by="alice")).after == Terms(slots=2)
    verified = await verify(ledger.log)
    assert verified.sound, verified
    assert (await remove_limit(ledger, "tenant", by="alice")).after is None  # it was the code's already


async def test_a_person_s_key_of_the_own_task_stays_and_the_code_adds_the_others() -> None:
    ledger = MemoryLedger()
    await set_limit(ledger, "task:a", {"slots": 1}, by="alice")
    for name in ("a", "b"):
        await CodeLimits(ledger.log, ledger.stamp).ensure(*job_of(Limit("task", slots=5), name))
    definition = (await look(ledger.log, LIMIT, "task")).state
    assert definition is not None
    assert (definition.of("a"), definition.author("a").source) == (Terms(slots=1), "operator")
    assert (definition.of("b"), definition.author("b").source) == (Terms(slots=5), "code")


async def test_many_processes_that_begin_at_once_write_one_definition() -> None:
    ledger = MemoryLedger()
    limits = [CodeLimits(ledger.log, ledger.stamp) for _ in range(8)]
    await asyncio.gather(*(each.ensure(*job_of(Limit("l", slots=4))) for each in limits * 4))
    assert (await written(ledger, "l"))[0] == 1


async def test_one_process_cannot_define_a_limit_in_two_ways() -> None:
    ledger = MemoryLedger()
    await ledger.enqueue(odd.options(limits=(Limit("l", slots=1),)), value=1)
    with pytest.raises(
        ConfigurationError, match=r"limit l is defined twice in this process.*\(slots 1; slots 2\)"
    ):
        await ledger.enqueue(odd.options(limits=(Limit("l", slots=2),)), value=1)


async def test_a_definition_that_cannot_be_written_is_told_and_its_job_is_held(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = MemoryLedger()

    async def refused(_chain: str) -> None:
        raise PermissionRefusedError("publish", "ledger.limit.l.set")

    with monkeypatch.context() as patch:
        patch.setattr(ledger.log, "last", refused)
        for _ in range(3):
            job = await ledger.enqueue(odd.options(limits=(Limit("l", slots=1),)), value=1)
            assert await job.state() is JobState.HELD
    (record,) = caplog.records  # not one for each job
    assert "limit l could not be set as the code has it" in record.getMessage()
    assert "does not allow this user to publish to ledger.limit.l.set" in record.getMessage()


async def test_limits_of_the_own_queue_and_task_are_keys_of_one_name() -> None:
    ledger = MemoryLedger()
    await ledger.enqueue(send, to=UUID(int=1))
    _, own_task = await written(ledger, "task")
    assert (own_task.common, own_task.of("send")) == (Terms(), Terms(rate=5.0))
    _, own_queue = await written(ledger, "queue")
    assert (own_queue.of("email"), own_queue.of("other")) == (Terms(slots=7), Terms())
