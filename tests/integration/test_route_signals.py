"""Rules of routes that send signals to runs: which run, what is said, and what is recorded where that cannot be."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.command_line import CommandLine
from tests.support.working import LIMIT_S, working

from jobledger.audit.verify import verify
from jobledger.ledger import (
    InvalidInputError,
    JobNotFoundError,
    Ledger,
    RouteDefinition,
    RouteRule,
    Run,
    Signal,
    workflow,
)
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks

pytestmark = pytest.mark.anyio


class Payment(msgspec.Struct):
    by: str
    cents: int


paid = Signal("paid", Payment)
TO_RUN: dict[str, Any] = {"signal": "paid", "id": "/order", "queue": "orders"}
BODY = {"order": "o-7", "by": "ann", "cents": 500}


@workflow(queue="orders", signals=[paid])
async def order(run: Run, customer: str = "") -> list[Any]:
    said = await run.wait(paid)
    return [customer, said.by, said.cents]


def internal(**rule: Any) -> RouteDefinition:
    return RouteDefinition(scheme="internal", rules=(RouteRule(name="r", **rule),))


async def announce(ledger: Ledger) -> None:
    entries = [entry_of(order, worker="w", at=datetime(2026, 1, 1, tzinfo=UTC))]
    await write_tasks(ledger.inbox, ledger.names, entries, replicas=1)


async def test_a_rule_sends_the_run_that_the_body_names_a_signal(ledger: Ledger) -> None:
    await announce(ledger)
    await ledger.routes.set("pay", internal(**TO_RUN))
    run = await ledger.enqueue(order.options(id="o-7"), customer="bea")
    async with working(ledger, order):
        made = await ledger.emit("pay", BODY, id="d1", by="shop")
        assert await run.result(timeout_s=LIMIT_S) == ["bea", "ann", 500]
        again = await ledger.emit("pay", BODY, id="d1")
    (said,) = made.matched
    assert (said.queue, said.job, said.signal, said.refused) == ("orders", "o-7", "paid", "")
    assert (again.repeated, again.matched) == (True, made.matched)
    assert (await verify(ledger.log)).violations == ()


async def test_a_rule_begins_the_run_unless_it_is_there(ledger: Ledger) -> None:
    rule = {**TO_RUN, "task": "order", "queue": "", "input": {"customer": "/customer"}, "tenant": "/by"}
    await announce(ledger)
    await ledger.routes.set("pay", internal(**rule))
    made = await ledger.emit("pay", {**BODY, "customer": "bea"}, id="d1")
    second = await ledger.emit("pay", {**BODY, "customer": "carl", "cents": 1}, id="d2")
    assert [each.matched[0].refused for each in (made, second)] == ["", ""]
    run = await ledger.job("o-7")
    before = await run.snapshot()
    assert (before.order.tenant, len(before.signals)) == ("ann", 2)
    async with working(ledger, order):
        assert await run.result(timeout_s=LIMIT_S) == ["bea", "ann", 500]
    assert (await verify(ledger.log)).violations == ()


async def test_a_signal_of_one_id_counts_once_whichever_delivery_brings_it(ledger: Ledger) -> None:
    value = {"object": {"by": "/by", "cents": {"value": 3}}}
    await ledger.routes.set("pay", internal(**TO_RUN, signal_id="/payment", value=value))
    run = await ledger.enqueue(order.options(id="o-7"))
    for delivery, payment in (("d1", "p1"), ("d2", "p1"), ("d3", "p2")):
        made = await ledger.emit("pay", {**BODY, "payment": payment}, id=delivery)
        assert made.matched[0].refused == ""
    signals = (await run.snapshot()).signals
    assert [each.id for each in signals] == ["p1", "p2"]
    async with working(ledger, order):
        assert await run.result(timeout_s=LIMIT_S) == ["", "ann", 3]
    assert (await verify(ledger.log)).violations == ()


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"by": "ann"}, "it has no id of a run where the rule looks"),
    ({}, {"order": "a b"}, "it has no id of a run where the rule looks"),
    ({"value": "/said"}, BODY, "it has no value where the rule looks"),
    ({}, {**BODY, "cents": "many"}, "the value of signal paid is not what workflow order waits for"),
    ({}, {**BODY, "order": "none"}, "there is no such run"),
    ({"queue": ""}, {**BODY, "order": "none"}, "none"),
    ({}, {**BODY, "order": "ended"}, "run ended has ended (cancelled): signal 'paid' was not recorded"),
    ({"task": "order"}, {**BODY, "order": "new", "cents": "many"}, "is not what workflow order waits for"),
]


async def test_what_cannot_be_sent_is_recorded_and_breaks_neither_delivery_nor_run(ledger: Ledger) -> None:
    await announce(ledger)
    waiting = await ledger.enqueue(order.options(id="o-7"))
    await (await ledger.enqueue(order.options(id="ended"))).cancel()
    for number, (changes, body, reason) in enumerate(REFUSED):
        rules = (RouteRule(name="r", **{**TO_RUN, **changes}), RouteRule(name="job", task="keep", queue="q"))
        await ledger.routes.set("pay", RouteDefinition(scheme="internal", rules=rules))
        made = await ledger.emit("pay", body, id=f"d{number}")
        said, job = made.matched
        assert (said.signal, reason in said.refused) == ("paid", True), said
        assert await (await ledger.job(job.job)).state() == "queued"
        assert (await ledger.emit("pay", body, id=f"d{number}")).matched == made.matched
    assert (await waiting.snapshot()).signals == ()
    with pytest.raises(JobNotFoundError):
        await ledger.job("new")
    assert (await verify(ledger.log)).violations == ()


async def test_many_deliveries_at_once_all_reach_one_run(ledger: Ledger) -> None:
    await ledger.routes.set("pay", internal(**TO_RUN, task="order"))
    async with asyncio.timeout(LIMIT_S):
        made = await asyncio.gather(*(ledger.emit("pay", BODY, id=f"d{n}") for n in range(20)))
    assert {each.matched[0].refused for each in made} == {""}
    assert len((await (await ledger.job("o-7")).snapshot()).signals) == 20
    assert (await verify(ledger.log)).violations == ()


async def test_rules_of_one_delivery_go_together(ledger: Ledger) -> None:
    rules = (
        RouteRule(name="begin", task="order", queue="orders", id="/order"),
        RouteRule(name="first", **TO_RUN),
        RouteRule(name="second", **TO_RUN),
    )
    await ledger.routes.set("pay", RouteDefinition(scheme="internal", rules=rules))
    await ledger.emit("pay", BODY, id="d1")
    await ledger.emit("pay", BODY, id="d2")
    job = await (await ledger.job("o-7")).snapshot()
    assert (job.task, len(job.signals)) == ("order", 4)
    assert (await verify(ledger.log)).violations == ()


async def test_a_constant_that_no_wait_can_read_is_refused_when_it_is_set(ledger: Ledger) -> None:
    await announce(ledger)
    wrong = internal(**{**TO_RUN, "task": "order"}, value={"value": {"by": 1}})
    with pytest.raises(InvalidInputError, match="rule r: the value of signal paid is not what"):
        await ledger.routes.set("pay", wrong)
    assert await ledger.routes.find("pay") is None


def test_a_person_sets_it_from_the_command_line(cli: CommandLine) -> None:
    where = cli.where
    words = ("routes", "set", "pay", "--scheme", "internal", "--signal", "paid", "--run", "/order")
    assert "paid -> signal paid to order" in cli.run(*words, "--task", "order", *where).out
    body = ("--data", '{"order": "o-7", "by": "ann"}')
    made = cli.run("routes", "emit", "pay", *body, "--id", "d1", *where).out
    assert "delivery d1 made 1 signal\n" in made
    assert "signal paid to default/o-7" in made
    lost = cli.run("routes", "emit", "pay", "--data", "{}", "--id", "d2", *where).out
    assert "delivery d2 made 1 signal not sent\n" in lost
    assert "signal paid to no run" in lost
    tried = cli.run("routes", "test", "pay", "--id", "d1", *where).out
    assert "signal paid to o-7" in tried
    shown = cli.run("routes", "deliveries", "pay", "--id", "d1", *where).out
    assert "signal paid to default/o-7" in shown
    for more, sentence in (
        (("--signal", "paid"), "say which run is sent signal paid"),
        (("--run", "/order"), "--run and --value are about a signal"),
        (("--signal", "paid", "--run", "/o", "--graph", "g"), "a run of a graph waits for no signals"),
    ):
        found = cli.run("routes", "set", "x", "--scheme", "internal", *more, *where)
        assert (found.code, sentence in found.err) == (2, True), found
    assert cli.run("audit", "verify", *where).code == 0
