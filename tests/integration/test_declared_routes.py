"""Routes that code declares: by workers and gateways at their start, and what a person set stays."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest
from tests.support.working import LIMIT_S, until, working

from jobledger.admin.hooks.routes import show_route
from jobledger.audit.verify import verify
from jobledger.gateway.process.gateway_process import LoadedCode
from jobledger.ledger import (
    ConfigurationError,
    InvalidInputError,
    Ledger,
    Route,
    RouteDefinition,
    RouteNotFoundError,
    RouteRule,
    TaskRegistry,
    task,
)

pytestmark = pytest.mark.anyio


@task(queue="warehouse")
async def ship(order: str) -> str:
    return f"shipped {order}"


def internal(name: str) -> RouteDefinition:
    rule = RouteRule(name=name, task="ship", input={"order": "/order"})
    return RouteDefinition(scheme="internal", rules=(rule,))


def code(definition: RouteDefinition) -> TaskRegistry:
    found = TaskRegistry([ship])
    found.add_route(Route("orders", definition))
    return found


async def settled(ledger: Ledger, definition: RouteDefinition) -> None:
    """Wait until the route is as a definition says."""
    async with asyncio.timeout(LIMIT_S):
        while not await _is(ledger, definition):
            await asyncio.sleep(0.02)


async def _is(ledger: Ledger, definition: RouteDefinition) -> bool:
    with contextlib.suppress(RouteNotFoundError):
        return (await ledger.routes.get("orders")).definition == definition
    return False


async def test_a_worker_declares_the_routes_of_its_code_and_a_delivery_makes_its_job(ledger: Ledger) -> None:
    async with working(ledger, registry=code(internal("first"))):
        await settled(ledger, internal("first"))
        made = await ledger.emit("orders", {"order": "o-1"}, id="d1")
        job = await ledger.job(made.matched[0].job)
        assert await job.result(timeout_s=LIMIT_S) == "shipped o-1"
    shown = await show_route(ledger, "orders")
    assert (shown.source, len(shown.history)) == ("code", 1)
    async with working(ledger, registry=code(internal("second"))):
        await settled(ledger, internal("second"))
        assert not (await ledger.routes.declare("orders", internal("second"))).changed
    assert len((await show_route(ledger, "orders")).history) == 2
    assert (await verify(ledger.log)).violations == ()


async def test_what_a_person_set_stays_until_it_is_removed(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    await ledger.routes.set("orders", internal("persons"), by="ann")
    with caplog.at_level(logging.WARNING, "jobledger.workers.routes"):
        async with working(ledger, registry=code(internal("code"))):
            await until(lambda: bool(caplog.records))
    assert "route orders is as ann set it, not as the code says" in caplog.text
    assert (await ledger.routes.get("orders")).definition == internal("persons")
    await ledger.routes.remove("orders", by="ann")
    async with working(ledger, registry=code(internal("code"))):
        await settled(ledger, internal("code"))
    changed = await ledger.routes.set(
        "orders", internal("code"), by="ann"
    )  # a person says the same: it is theirs
    assert (changed.changed, changed.state.source) == (True, "operator")
    assert (await ledger.routes.declare("orders", internal("other"))).changed is False
    assert (await verify(ledger.log)).violations == ()


async def test_a_gateway_declares_them_too_and_nobody_with_no_schedules(ledger: Ledger) -> None:
    async with working(ledger, registry=code(internal("worker")), schedules=False):
        async with asyncio.timeout(LIMIT_S):
            while await ledger.find_task("ship") is None:  # by then the worker has said what it says
                await asyncio.sleep(0.02)
    keeping = asyncio.create_task(LoadedCode(ledger, code(internal("gateway")), schedules=True).keep())
    try:
        await settled(ledger, internal("gateway"))
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert len((await show_route(ledger, "orders")).history) == 1


def test_routes_are_found_in_modules_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    head = (
        "from jobledger.ledger import Route, RouteDefinition\nINTERNAL = RouteDefinition(scheme='internal')\n"
    )
    module = tmp_path / "routes_of_module.py"
    module.write_text(f"{head}ORDERS = Route('orders', INTERNAL)\n")
    assert list(TaskRegistry.load([str(module)]).routes) == ["orders"]
    twice = tmp_path / "routes_of_module_twice.py"
    twice.write_text(f"{head}A, B = Route('orders', INTERNAL), Route('orders', INTERNAL)\n")
    with pytest.raises(ConfigurationError, match="two routes are called 'orders'"):
        TaskRegistry.load([str(twice)])
    with pytest.raises(InvalidInputError, match="there is no scheme"):
        Route("orders", RouteDefinition(scheme="pigeon"))
