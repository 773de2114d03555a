"""Schedules that code declares: by which worker, against whom, and the hooks that they may have."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.schedules import declare, facts
from tests.support.timing import LIMIT_S, until
from tests.support.working import Connect, working

from jobledger.ledger import (
    ConfigurationError,
    InvalidInputError,
    JobHandle,
    Ledger,
    Limit,
    Schedule,
    Skip,
    TaskRegistry,
    Tick,
    task,
)
from jobledger.ledger.model.schedules.decisions import Pause, Reset, Trigger
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.model.schedules.events import Declared
from jobledger.ledger.schedules.in_code import Before
from jobledger.workers.reactors.schedules.declarations import ScheduleDeclarer

pytestmark = pytest.mark.anyio


@task(queue="cron")
async def add(n: int) -> int:
    return n + 1


@task(queue="elsewhere", schedule=Schedule(every_s=3600))
async def elsewhere() -> None:
    return None


def _nightly(**fields: Any) -> Schedule:
    given: dict[str, Any] = {"cron": "30 2 * * *", "input": {"n": 1}, **fields}
    return Schedule("nightly", task=add, **given)


def _registry(*schedules: Schedule) -> TaskRegistry:
    registry = TaskRegistry([add, elsewhere])
    for each in schedules:
        registry.add_schedule(each)
    return registry


async def _definition(ledger: Ledger, name: str = "nightly") -> Definition | None:
    schedule = (await ledger.schedules.read(name)).schedule
    return None if schedule is None else schedule.definition


async def test_a_worker_declares_what_its_code_says_of_the_queues_that_it_serves(ledger: Ledger) -> None:
    nightly = _nightly(timezone="Europe/Berlin", overlap="allow")
    async with working(ledger, registry=_registry(nightly), queues=("cron",)):

        async def declared() -> bool:
            return await _definition(ledger) is not None

        await until(declared)
        definition = await _definition(ledger)
        assert definition is not None
        assert (definition.task, definition.queue, definition.source) == ("add", "cron", "code")
        assert (definition.spec.cron, definition.spec.timezone) == ("30 2 * * *", "Europe/Berlin")
        assert bytes(definition.order.input) == b'{"n":1}'
        assert definition.order.max_attempts == add.defaults.max_attempts
        assert await _definition(ledger, "elsewhere") is None
        (worker,) = await ledger.leases.all()
        assert set(worker.schedules or ()) == {"nightly", "elsewhere"}
        assert (worker.schedules or {})["nightly"] == definition.code_version == nightly.fingerprint
    async with working(ledger, registry=_registry(nightly), queues=("cron",)):  # again: nothing new
        pass
    assert len(await facts(ledger)) == 1


async def test_a_worker_that_is_told_so_declares_nothing(connected: Connect, ledger: Ledger) -> None:
    """A second worker, which declares, starts later: once its schedule is there, the first one's would be too."""
    told = TaskRegistry([add])
    told.add_schedule(_nightly())
    async with working(ledger, registry=told, schedules=False) as worker:
        await worker.taking.wait()
        async with connected() as another, working(another, elsewhere):

            async def declared() -> bool:
                return await _definition(ledger, "elsewhere") is not None

            await until(declared)
    assert await _definition(ledger) is None


async def test_versions_of_code_side_by_side_do_not_take_turns(connected: Connect, ledger: Ledger) -> None:
    """A deploy, an old worker that restarts in it, and a rollback."""
    old, new = _nightly(), _nightly(cron="0 3 * * *")

    async def declare_from(schedule: Schedule) -> bool:
        return not await ScheduleDeclarer(ledger, [schedule], ("cron",)).declare([schedule])

    assert await declare_from(old)
    async with (
        connected() as another,
        working(another, registry=_registry(new), queues=("cron",), reactors=False),
    ):

        async def is_new() -> bool:
            definition = await _definition(ledger)
            return definition is not None and definition.code_version == new.fingerprint

        await until(is_new)
        assert not await declare_from(old)  # one that restarts waits
        assert await is_new()
        assert await declare_from(new)
        assert len(await facts(ledger)) == 2
    assert await declare_from(old)  # the last worker of the newer version is gone
    assert not await is_new()
    assert len(await facts(ledger)) == 3


async def test_an_operators_word_and_pause_win_until_they_are_taken_back(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    nightly = _nightly()
    declaring = ScheduleDeclarer(ledger, [nightly], ("cron",))
    assert await declaring.declare([nightly]) == []
    await ledger.schedules.act("nightly", Pause(reason="no"))
    later = _nightly(cron="0 4 * * *")
    assert await ScheduleDeclarer(ledger, [later], ("cron",)).declare([later]) == []
    schedule = (await ledger.schedules.read("nightly")).schedule
    assert schedule is not None
    assert (schedule.paused, schedule.next_at, schedule.definition.spec.cron) == (True, None, "0 4 * * *")
    await declare(ledger, every_s=60)
    assert await declaring.declare([nightly]) == [nightly]
    assert isinstance((await facts(ledger))[-1], Declared)
    assert (await facts(ledger))[-1].definition.source == "operator"
    await ledger.schedules.act("nightly", Reset())
    assert await declaring.declare([nightly]) == []
    definition = await _definition(ledger)
    assert definition is not None
    assert (definition.source, definition.spec.cron) == ("code", "30 2 * * *")
    await declare(ledger, every_s=90)
    for _ in range(2):
        assert await declaring.declare([nightly]) == [nightly]
    assert caplog.text.count("is as an operator declared it") == 2  # once each time


async def test_what_is_no_schedule_is_refused_where_it_is_loaded() -> None:
    with pytest.raises(InvalidInputError, match="schedule nightly: task add"):
        _registry(_nightly(input={"m": 1}))
    with pytest.raises(ConfigurationError, match="needs a name and a task"):
        _registry(Schedule("nightly", every_s=5))
    with pytest.raises(ConfigurationError, match="a run_at, a delay_s or a by"):
        _registry(Schedule("nightly", every_s=5, task=add.options(delay_s=1), input={"n": 1}))
    with pytest.raises(ConfigurationError, match="two schedules are called 'nightly'"):
        _registry(_nightly(), _nightly())
    with pytest.raises(ConfigurationError, match="leave out task="):
        task(schedule=_nightly())(_nothing)


def _nothing() -> None:
    return None


TOLD: list[tuple[str, str]] = []


def before(tick: Tick) -> dict[str, int] | Skip | None:
    TOLD.append(("before", tick.job_id))
    return {"n": 41}


async def after(tick: Tick, job: JobHandle[Any]) -> None:
    TOLD.append(("after", job.id))
    if len(TOLD) == 2:
        raise RuntimeError("the first time")


async def test_hooks_run_in_a_job_of_their_own_and_the_ticks_job_is_made_once(ledger: Ledger) -> None:
    TOLD.clear()
    nightly = _nightly(before=before, after=after)
    async with working(ledger, registry=_registry(nightly), queues=("cron",)):

        async def declared() -> bool:
            return await _definition(ledger) is not None

        await until(declared)
        known = await ledger.schedules.act("nightly", Trigger())
        job_id = f"nightly-manual-{known.sequence}"
        calling = await ledger.job(f"{job_id}-hooks")
        assert (await calling.snapshot()).task == "hooks_of_nightly"

        async def made() -> bool:
            return ("after", job_id) in TOLD

        await until(made)
        job = await ledger.job(job_id, task=add)
        assert await job.result(timeout_s=LIMIT_S) == 42
        assert (await job.snapshot()).order.tick == job_id
        await calling.wait(timeout_s=LIMIT_S)
    assert len(await job.history()) == 3


def chooses(_: Tick) -> dict[str, int]:
    return {"n": 7}


async def test_a_limit_by_an_argument_has_the_key_that_before_chose(ledger: Ledger) -> None:
    limited = task(queue="cron", name="limited", limits=(Limit("customer", key="n", slots=1),))(_customer)
    each = Schedule("each", task=limited, input={"n": 1}, every_s=3600, before=chooses)
    registry = TaskRegistry([limited])
    registry.add_schedule(each)
    async with working(ledger, registry=registry, queues=("cron",)):

        async def declared() -> bool:
            return await _definition(ledger, "each") is not None

        await until(declared)
        ref = await ledger.schedules.trigger("each")
        await (await ledger.job(ref)).wait(timeout_s=LIMIT_S)
        made = await ledger.job(ref.job_id.removesuffix("-hooks"))
        await made.wait(timeout_s=LIMIT_S)
        assert (await made.snapshot()).order.limits == ("customer:7",)


def dated(tick: Tick) -> dict[str, int] | None:
    return {"n": 7} if tick.schedule == "dated" else None


async def test_a_schedule_whose_before_gives_the_input_needs_none_of_its_own(ledger: Ledger) -> None:
    """Also where the tenant and a limit's key are arguments: only the hooks' answer has them."""
    limits = (Limit("customer", key="n", slots=1), Limit("rest", slots=5))
    limited = task(queue="cron", name="limited", tenant="t{n}", limits=limits)(_customer)
    registry = TaskRegistry([limited])
    for name in ("dated", "undated"):
        registry.add_schedule(
            Schedule(name, task=limited.options(max_attempts=1), every_s=3600, before=dated)
        )
    async with working(ledger, registry=registry, queues=("cron",)):

        async def declared() -> bool:
            return None not in [await _definition(ledger, name) for name in ("dated", "undated")]

        await until(declared)
        ref = await ledger.schedules.trigger("dated")
        await (await ledger.job(ref)).wait(timeout_s=LIMIT_S)
        made = await ledger.job(ref.job_id.removesuffix("-hooks"), task=limited)
        assert await made.result(timeout_s=LIMIT_S) == 7
        order = (await made.snapshot()).order
        assert (order.limits, order.tenant) == (("customer:7", "rest"), "t7")
        failing = await ledger.job(await ledger.schedules.trigger("undated"))
        assert (await failing.wait(timeout_s=LIMIT_S)).state == "dead_lettered"
        error = (await failing.snapshot()).error
        assert error is not None
        assert "`before` of schedule undated returned None, and the schedule has no input" in error.message


async def _customer(n: int) -> int:
    return n


def skips(_: Tick) -> Skip:
    return Skip("a holiday")


def keeps(_: Tick) -> None:
    return None


def misspells(_: Tick) -> dict[str, int]:
    return {"m": 5}


def errs(_: Tick) -> Any:
    return 5


@pytest.mark.parametrize(
    ("hook", "state", "exists"),
    [
        (skips, "completed", False),
        (keeps, "completed", True),
        (errs, "dead_lettered", False),
        (misspells, "dead_lettered", False),
    ],
)
async def test_before_decides_what_is_made(ledger: Ledger, hook: Before, state: str, exists: bool) -> None:
    once = Schedule("once", task=add.options(max_attempts=1), input={"n": 1}, every_s=3600, before=hook)
    async with working(ledger, registry=_registry(once), queues=("cron",)):

        async def declared() -> bool:
            return await _definition(ledger, "once") is not None

        await until(declared)
        known = await ledger.schedules.act("once", Trigger())
        job_id = f"once-manual-{known.sequence}"
        ended = await (await ledger.job(f"{job_id}-hooks")).wait(timeout_s=LIMIT_S)
        assert ended.state == state
        chain = await ledger.log.read_chain(ledger.names.chains_of_id(job_id))
        assert bool(chain) is exists
