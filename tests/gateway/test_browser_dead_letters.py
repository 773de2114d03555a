"""Dead letters in a real browser: causes, several of them at once, a plan at a rate."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect
from tests.support.browsers import LIMIT_MS, browsing, looking
from tests.support.limits import LIMIT_S
from tests.support.shops import Shop, shop_of
from tests.support.working import working

from jobledger.ledger import task
from jobledger.ledger.server import EmbeddedServer

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


async def test_several_causes_become_one_plan_at_a_rate(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/dead-letters")
        boxes = page.locator(".issues input[name=fingerprint]")
        wanted = sum([int(await boxes.nth(place).get_attribute("data-jobs") or 0) for place in (0, 1)])
        for place in (0, 1):
            await boxes.nth(place).check()
        await expect(page.locator("[data-count]")).to_contain_text(f"2 causes, {wanted:,} jobs")
        await page.locator("input[name=per_minute]").fill("6000")
        await page.locator("button[value=requeue]").click()
        await page.wait_for_url(re.compile("/plan"))
        await expect(
            page.get_by_role("heading", name=re.compile(f"{wanted} of {wanted} jobs"))
        ).to_be_visible()
        await expect(page.locator("main input[type=number][name=per_minute]")).to_have_value("6000")
        await page.get_by_label("Reason").fill("the bank is open")
        await page.get_by_role("button", name=f"Requeue {wanted} jobs").click()
        await expect(page.locator(".name .badge")).to_have_text("Completed")
        await expect(page.locator(".facts")).to_contain_text("by local:")


async def test_messages_are_told_without_what_differs(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/dead-letters")
        text = await page.locator(".issues").inner_text()
        assert "CardDeclinedError" in text
        assert re.search(r"@|i\d{2}|sku-\d", text) is None


async def test_the_row_of_the_keys_stays_when_the_page_is_read_anew(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/dead-letters")
        for key in "jj":
            await page.keyboard.press(key)
        marked = await page.locator("li.here").get_attribute("id")
        await page.evaluate("refresh(document.getElementById('region'))")
        assert await page.locator("li.here").get_attribute("id") == marked
        await page.keyboard.press("x")
        await expect(page.locator("li.here input")).to_be_checked()


@task(queue="parcels", max_attempts=1, id="parcel-{parcel}")
async def ship(parcel: int, *, broken: bool) -> int:
    """Ship a parcel; two things may be wrong."""
    if broken:
        raise ConnectionError("the carrier does not answer") if parcel % 2 else ValueError("no label")
    return parcel


async def test_three_hundred_of_two_causes_are_requeued_at_a_rate_in_one_plan(
    browser: Browser, shop: Shop
) -> None:
    """By keys alone. They go in two chunks: the plan pauses between them, and holds no worker meanwhile."""
    await shop.ledger.enqueue_many(ship, ({"parcel": n, "broken": True} for n in range(300)))
    async with working(shop.ledger, ship), asyncio.timeout(LIMIT_S):
        for number in range(300):
            await (await shop.ledger.job(f"parcel-{number}")).wait()
    async with looking(browser, shop.url) as page:
        await page.goto("/dead-letters?task=ship")
        for key in "jxjx":
            await page.keyboard.press(key)
        await expect(page.locator("[data-count]")).to_contain_text("2 causes, 300 jobs")
        await reach(page, "input[name=per_minute]")
        await page.keyboard.type("6000")
        await reach(page, "button[value=requeue]")
        await page.keyboard.press("Enter")
        await page.wait_for_url(re.compile("/plan"))
        await expect(page.get_by_role("heading", name=re.compile("of 300 in all"))).to_be_visible()
        await reach(page, "main input[name=reason]")
        await page.keyboard.type("the carrier is back")
        await page.keyboard.press("Enter")
        await expect(page.locator(".name .badge")).to_have_text("Completed")
        await expect(page.locator("#events, main")).to_contain_text("snoozed")
        await page.goto("/jobs?q=task:ship+state:queued")
        await expect(page.locator(".listhead")).to_contain_text("300 jobs")


async def reach(page: Page, selector: str) -> None:
    """Press Tab until a field or a button has the focus."""
    for _ in range(80):
        if await page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"no Tab leads to {selector}")
