"""The overview in a real browser: what needs a person, ranges, charts, the queues of users apart."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect
from tests.support.browsers import LIMIT_MS, browsing, looking
from tests.support.shops import Shop, shop_of

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


async def test_what_hurts_names_things_that_open_and_has_an_act(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/")
        first = page.locator(".finding").first
        await expect(first).to_contain_text("queue gpu")
        await expect(first).to_contain_text("no worker serves the queue")
        jobs = first.get_by_role("link", name="5 jobs")
        assert (await jobs.get_attribute("href") or "").startswith("/jobs?q=queue%3Agpu")
        await first.locator("summary").click()
        await expect(first.locator(".advice")).to_contain_text("jobledger worker --app MODULE --queue gpu")
        await page.keyboard.press("Escape")
        paused = page.locator(".finding", has_text="paused by root")
        await expect(paused).to_contain_text("paused by root: printer is broken; 1 job waits")
        jobs = paused.get_by_role("link", name="1 job")
        assert (await jobs.get_attribute("href") or "").startswith("/jobs?q=queue%3Areports")
        await paused.locator("summary").click()
        await paused.get_by_label("Reason").fill("it prints")
        await paused.locator("form button").click()
        await page.goto("/")
        await expect(page.locator(".finding", has_text="paused by root")).to_have_count(0)
        await shop.ledger.pause_queue("reports", reason="printer is broken", by="root")


async def test_a_range_is_kept_by_every_link_and_a_chart_can_be_narrowed(
    browser: Browser, shop: Shop
) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/?range=6h")
        hrefs = await page.eval_on_selector_all(
            ".side nav a, main a", "each => each.map(a => a.getAttribute('href'))"
        )
        assert [href for href in hrefs if href.startswith("/") and "range=6h" not in href] == []
        await page.goto("/")
        hits = page.locator(".plot").first.locator(".hit[data-from]")
        count = await hits.count()
        await hits.nth(count - 8).scroll_into_view_if_needed()
        one, other = [await hits.nth(count - each).bounding_box() for each in (14, 8)]
        assert one is not None
        assert other is not None
        await page.mouse.move(one["x"] + 3, one["y"] + 40)
        await page.mouse.down()
        await page.mouse.move(other["x"] + 3, other["y"] + 40, steps=8)
        await page.mouse.up()
        await page.wait_for_url(re.compile("(?=.*[?&]at=)(?=.*range=15m)"))
        await expect(page.locator("body.past")).to_have_count(1)


async def test_the_ledgers_own_queues_stand_apart(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/")
        await expect(page.locator("main table").first).to_contain_text("payments")
        await expect(page.locator("main table").first).not_to_contain_text("jobledger")
        await page.goto("/jobs")
        await expect(page.locator("table.jobs tbody")).not_to_contain_text("jobledger")


async def test_tenants_and_bars_of_a_limit_lead_to_jobs(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/limits")
        assert await page.locator(".limit .key svg.share").count() >= 1
        await expect(
            page.locator(".limit", has_text="their invoice is open").or_(page.locator(".key.shut")).first
        ).to_be_visible()
        await page.goto("/tenants")
        await page.locator("tbody th a").first.click()
        await page.wait_for_url(re.compile("tenant%3A"))


async def test_a_wrong_address_is_a_page_for_people(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url, status=404) as page:
        answer = await page.goto("/nope/charge-acme")
        assert answer is not None
        assert answer.status == 404
        await expect(page.get_by_label("Find jobs").last).to_have_value("charge-acme")
        asked = await page.request.get("/nope/charge-acme", headers={"accept": "application/json"})
        assert asked.headers["content-type"].startswith("application/problem+json")
