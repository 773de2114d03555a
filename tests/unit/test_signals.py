"""Which signals a workflow is known to wait for, and which values of them are let through. No server."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger import ConfigurationError, InvalidInputError, Run, Signal, task, workflow
from jobledger.ledger.additions.announced import AnnouncedTask, entry_of
from jobledger.ledger.additions.schemas import type_of
from jobledger.ledger.nats.task_book import _ENTRY_BYTES_MAX, TaskEntry, _fitting

here = sys.modules[__name__]


class Answer(msgspec.Struct):
    yes: bool


approved = Signal("approved", Answer)
paid = Signal("paid", int)
other_paid = Signal("paid", str)
never = Signal("never", int)


async def ask(run: Run) -> bool:
    return (await run.wait(approved)).yes


@workflow
async def by_a_function(run: Run) -> bool:
    return await ask(run)


@workflow
async def in_a_branch(run: Run) -> Any:
    async def one() -> int:
        return await run.wait(paid)

    async def two() -> int:
        return await run.wait(here.later)

    return await run.gather(one, two)


@workflow
async def of_two_types(run: Run) -> str:
    number = await run.wait(paid)
    return str(number) + await run.wait(other_paid)


@workflow(signals=[approved])
async def declared(run: Run) -> int:
    return await run.wait(never)


@workflow(signals=())
async def nothing(run: Run) -> int:
    return await run.wait(paid)


@task
async def plain() -> int:
    return len(paid.name)


later = Signal("later", int)


def entry(of: Any) -> TaskEntry:
    return entry_of(of, worker="w", at=datetime(2026, 1, 1, tzinfo=UTC))


@each_row(
    "of, names",
    [
        (by_a_function, {"approved"}),
        (in_a_branch, {"paid", "later"}),
        (of_two_types, set()),
        (declared, {"approved"}),
        (nothing, set()),
        (plain, set()),
    ],
)
def test_workers_announce_the_signals_that_are_declared_or_that_the_code_names(
    of: Any, names: set[str]
) -> None:
    said = msgspec.json.decode(msgspec.json.encode(entry(of)), type=TaskEntry)
    assert set(AnnouncedTask(said).signals) == names


def test_a_signal_of_the_code_around_a_workflow_is_found() -> None:
    inner = Signal("inner", int)

    @workflow
    async def around(run: Run) -> int:
        return await run.wait(inner)

    assert [each.name for each in around.signals] == ["inner"]


def test_what_no_wait_can_read_is_refused_with_the_signal_and_the_workflow() -> None:
    signal = AnnouncedTask(entry(by_a_function)).signals["approved"]
    signal.check(b'{"yes":false,"more":1}')
    wrong = "the value of signal approved is not what workflow by_a_function waits for: Object missing required field `yes`"
    with pytest.raises(InvalidInputError, match=wrong):
        signal.check(b'{"by":"x"}')


@each_row("schema", [True, {}, {"type": "made-up"}, {"allOf": []}, {"$ref": "#/$defs/x"}, "x"])
def test_a_schema_that_says_nothing_usable_lets_anything_through(schema: Any) -> None:
    msgspec.json.decode(b'{"by":["x"]}', type=type_of(schema))


def test_an_entry_that_is_too_large_leaves_its_signals_out() -> None:
    large = msgspec.structs.replace(entry(declared), signals={"s": {"enum": ["x" * _ENTRY_BYTES_MAX]}})
    assert _fitting(large).signals == {}
    assert _fitting(entry(declared)).signals


def test_an_entry_of_an_older_worker_has_no_signals() -> None:
    line = (
        b'{"name":"t","queue":"q","text":"","input":true,"worker":"w","announced_at":"2026-01-01T00:00:00Z"}'
    )
    assert AnnouncedTask(msgspec.json.decode(line, type=TaskEntry)).signals == {}


def test_a_signal_must_be_one() -> None:
    with pytest.raises(
        ConfigurationError, match=r"signals must be made by Signal\(name, type\), got 'approved'"
    ):
        workflow(signals=["approved"])  # type: ignore[list-item] # pyright: ignore[reportArgumentType, reportCallIssue]
