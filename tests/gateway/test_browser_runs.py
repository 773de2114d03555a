"""Jobs and runs in a real browser: the timeline, what stands beside it, the error first, steps by event."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect
from tests.support.browsers import LIMIT_MS, browsing, looking
from tests.support.limits import LIMIT_S
from tests.support.shops import Shop, shop_of
from tests.support.working import working

from jobledger.ledger import Run, task, workflow
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import JobFilter, Store

pytestmark = pytest.mark.anyio
expect.set_options(timeout=LIMIT_MS)


@pytest.fixture(scope="module")
async def browser(anyio_backend: object) -> AsyncIterator[Browser]:
    async with browsing() as made:
        yield made


@pytest.fixture(scope="module")
async def shop(nats_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with shop_of(nats_server, tmp_path_factory.mktemp("shop")) as made:
        yield made


IMPORT = "/jobs/import/import-acme-autumn"


async def test_many_children_are_one_line_until_opened(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto(IMPORT)
        assert await page.locator(".timeline .line").count() < 10
        assert await page.locator(".timeline rect").count() < 500
        await page.locator(".timeline .toggle[href]").click()
        await expect(page.locator(".timeline .line", has_text="more")).to_be_visible()
        assert 20 < await page.locator(".timeline .line").count() < 60
        assert "open=" in page.url


@task(queue="stock")
async def stock_row(row: int) -> int:
    return row


@workflow(queue="stock-runs", max_attempts=1)
async def stock_everything(run: Run, rows: int) -> int:
    return len(await run.map_settled(stock_row, list(range(rows))))


async def test_a_run_of_two_thousand_children_opens_within_a_second(browser: Browser, shop: Shop) -> None:
    """Nobody serves their queue: they are made and wait, as many rows as of those that ended. A busy machine has three tries."""
    run = await shop.ledger.enqueue(stock_everything, 2_000)
    async with looking(browser, shop.url) as page:
        async with working(shop.ledger, stock_everything), asyncio.timeout(LIMIT_S):
            made = 0
            while made < 2_000:
                await asyncio.sleep(0.1)
                await shop.gateway.rows.catch_up()
                with Store.open(await shop.gateway.rows.path()) as store:
                    made = store.job_counts(JobFilter(queue="stock")).by_state["queued"]
        took: list[float] = []
        while len(took) < 3 and not any(each < 1.0 for each in took):
            began = time.monotonic()
            await page.goto(f"/jobs/stock-runs/{run.id}")
            took.append(time.monotonic() - began)
        await expect(page.locator(".timeline .aside")).to_contain_text("2,000")
        await expect(page.locator(".name .badge")).to_have_text("Waits for jobs")
        assert await page.locator(".timeline .line").count() < 10
        assert await page.locator(".timeline rect").count() < 500
    assert min(took) < 1.0, took


async def test_a_step_and_a_child_open_beside_the_timeline(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs/orders/order-acme-0")
        await page.locator(".timeline .line", has_text="reserve").locator(".head a").last.click()
        await expect(page.locator("#drawer")).to_contain_text("rsv_0")
        assert "step=reserve" in page.url
        await page.locator(".timeline .line.d1 .head a[data-drawer]").first.click()
        await expect(page.locator("#drawer .peek")).to_contain_text("inv-0")


async def test_a_job_is_stepped_through_by_keys(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs/orders/order-acme-0")
        whole = await page.locator(".timeline .line").count()
        await page.locator(".by-event input[type=range]").focus()
        await page.keyboard.press("Home")
        await page.wait_for_url(re.compile("sequence="))
        await expect(page.locator("body.past")).to_have_count(1)
        assert await page.locator(".timeline .line").count() < whole
        await expect(page.locator(".acts form")).to_have_count(0)


async def test_a_dead_job_begins_with_its_error_and_its_acts(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs/payments/charge-globex-i22")
        error = await page.locator(".error").bounding_box()
        assert error is not None
        assert error["y"] < 200
        assert await page.locator(".error .frame-own").count() >= 1
        button = page.locator(".acts summary", has_text="Requeue")
        await button.click()
        opened, above = (
            await page.locator(".acts details[open] .form").bounding_box(),
            await button.bounding_box(),
        )
        assert opened is not None
        assert above is not None
        assert abs(opened["y"] - (above["y"] + above["height"])) < 20
        field = page.locator(".acts details[open] textarea[name=input]")
        assert (await field.input_value()).startswith("{")


async def test_a_run_that_failed_shows_the_job_that_made_it_fail(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs/orders/order-acme-1")
        await expect(page.locator(".error .culprit")).to_contain_text("CardDeclinedError")
        await expect(page.locator(".error .frame-own pre").first).to_contain_text("raise CardDeclinedError")


async def test_a_signal_that_a_run_waits_for_is_a_form_of_its_type(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs/approvals/payout-acme-p1")
        form = page.locator(".ask")
        await form.get_by_label("by").fill("ann")
        await form.get_by_label("yes").select_option("yes")
        await form.get_by_role("button", name="Send approved").click()
        await expect(page.locator(".name .badge")).to_have_text("Completed")
