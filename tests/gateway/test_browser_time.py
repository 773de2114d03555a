"""Time in a real browser: the moment that sticks to every link, words for moments, playing, what changed."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
import pytest
from playwright.async_api import Browser, expect
from tests.support.browsers import LIMIT_MS, browsing, looking
from tests.support.limits import LIMIT_S
from tests.support.shops import Shop, import_row, shop_of
from tests.support.working import working

from jobledger.gateway.pages.table import PAGES
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


async def test_the_moment_sticks_to_every_link_and_key(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto(f"/?at={quote(shop.died.isoformat())}")
        for name in ("Jobs", "Runs", "Queues", "Schedules", "Tenants"):
            hrefs = await page.eval_on_selector_all(
                ".side nav a, main a", "each => each.map(a => a.getAttribute('href'))"
            )
            assert [href for href in hrefs if href.startswith("/") and "at=" not in href] == []
            await page.locator(".side > nav a", has_text=name).click()
            await expect(page.locator("h1")).to_have_text(name)
            await expect(page.locator(".past-bar b").first).to_contain_text(f"{shop.died:%H:%M:%S}")
        for name in ("Schedules", "Queues", "Runs", "Jobs", "Overview"):
            await page.go_back()
            await expect(page.locator("h1")).to_have_text(name)
            await expect(page.locator(".past-bar b").first).to_contain_text(f"{shop.died:%H:%M:%S}")
        await page.keyboard.press("g")
        await page.keyboard.press("d")
        await page.wait_for_url(re.compile(r"/dead-letters\?.*at="))
        await page.locator(".past-bar [data-now]").click()
        await page.wait_for_url(lambda url: "at=" not in url)


async def test_range_and_moment_are_in_every_link_of_every_page(shop: Shop) -> None:
    """Links, what is fetched and what forms send: all but the ways to another moment or range."""
    words = {"queue": "orders", "id": "order-acme-1", "task": "charge"}
    shown = [
        page.path.format(**words) for page in PAGES if not page.path.endswith("/rows")
    ]  # it has no table
    more = {"/plan": "state=dead_lettered", "/jobs": "q=state:dead", "/clock": "path=/jobs"}
    more["/jobs/orders/order-acme-1/rerun"] = "step=charge"
    async with httpx.AsyncClient(base_url=shop.url, timeout=LIMIT_S) as http:
        for path in shown:
            past = (
                [] if path == "/plan" else [f"at={quote(shop.died.isoformat())}&range=6h"]
            )  # no plan has one
            for named in ("range=6h", *past):
                answer = await http.get(f"{path}?{more.get(path, '')}&{named}")
                assert answer.status_code == 200, (path, named)
                addresses = re.findall(r"""\b(href|action|hx-get|data-peek)=["'](/[^"']*)""", answer.text)
                for kind, each in addresses:
                    link = urlsplit(html.unescape(each))
                    said = dict(parse_qsl(link.query))
                    if link.path.startswith("/static/") or (kind == "action" and not link.query):
                        continue  # a form that only looks says it in hidden fields
                    is_range = 'class="ranges"' in answer.text.partition(each)[0][-900:]
                    assert said.get("range") == "6h" or is_range, (path, named, each)


async def test_an_act_leads_back_to_the_range_that_was_chosen(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs/payments/charge-acme-i0?range=6h")
        await page.locator(".acts summary", has_text="note").click()
        form = page.locator(".acts details[open] form")
        await form.locator("[name=text]").fill("seen")
        async with page.expect_navigation():
            await form.locator("button").click()
        assert "range=6h" in page.url
        async with page.expect_request("**/suggest?*range=6h*"):
            await page.locator(".find input[name=q]").type("ten")


async def test_a_moment_is_typed_in_words(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/")
        await page.keyboard.press("t")
        await expect(page.locator("#density .plot")).to_be_visible()
        await expect(page.locator("#density .legend")).to_contain_text("somebody acted")
        changed = page.locator(".clock").get_by_role("link", name="What changed in 1h")
        assert await changed.get_attribute("href") == "/changes?since=1h"
        await page.locator(".goto input[name=at]").fill("5m")
        await page.locator(".goto button").click()
        await page.wait_for_url(re.compile(r"at=20\d\d-"))
        await expect(page.locator(".past-bar")).to_contain_text("5 min ago")


async def test_a_first_look_at_a_moment_says_that_it_works(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/")
        is_hidden, text = await page.evaluate(
            "at => { const link = document.createElement('a'); link.href = '/?at=' + at;"
            " document.body.append(link); link.click();"
            " const bar = document.querySelector('#loading'); return [bar.hidden, bar.textContent.trim()] }",
            f"{shop.died:%Y-%m-%dT%H:%M:%SZ}",
        )
        assert not is_hidden
        assert text == f"Folding the ledger up to {shop.died:%H:%M:%S} …"
        await page.wait_for_url(re.compile("at="))


async def test_the_past_plays(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/?at=20m")
        moment = page.locator(".past-bar b").first
        first = await moment.inner_text()
        await page.locator("[data-play]").click()
        await expect(moment).not_to_have_text(first)
        await page.locator("[data-play][aria-pressed=true]").click()


@task(queue="import")
async def count_stock(sku: int) -> int:
    return sku


async def test_what_changed_names_a_deploy_and_a_burst(
    browser: Browser, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = shop.ledger.clock.now()
    stocked = count_stock.options(tenant="umbrella", delay_s=86_400)
    await shop.ledger.enqueue_many(stocked, ({"sku": n} for n in range(60)))
    monkeypatch.setenv("JOBLEDGER_RELEASE", "shop-2.4.1")
    async with working(shop.ledger, import_row, count_stock), looking(browser, shop.url) as page:
        await page.goto(f"/changes?since={quote(since.isoformat())}")
        main = page.locator("main")
        for told in (
            "1 worker on ",
            ": release shop-2.4.1; new: count_stock",
            "count_stock had 60 jobs enqueued, none in the time before",
            "umbrella had 60 jobs enqueued, none in the time before",
        ):
            await expect(main).to_contain_text(told)
        await page.goto("/workers")
        await expect(main).to_contain_text("release shop-2.4.1")


async def test_what_changed_is_told(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/changes?since=60m")
        main = page.locator("main")
        for told in (
            "What killed jobs",
            "Jobs by state",
            "Tasks that moved most",
            "paused queue reports: printer is broken",
        ):
            await expect(main).to_contain_text(told)
