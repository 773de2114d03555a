"""Finding jobs in a real browser: ids and parts of them, conditions as chips, suggestions, rows to look into."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import urlencode

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


def asking(question: str) -> str:
    return "/jobs?" + urlencode({"q": question})


async def test_a_whole_id_opens_its_job(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/")
        await page.keyboard.press("/")
        await page.keyboard.type("charge-acme-i12")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/jobs/payments/charge-acme-i12")


@pytest.mark.parametrize(
    "text",
    [
        "charge-globex-i2",
        "\u2026bex-i22",
        "charge-g\u2026bex-i22",
        "*bex-i22",
        "tenant:globex error:CardDeclinedError",
    ],
)
async def test_a_part_of_an_id_a_tenant_or_an_error_finds_a_job(
    browser: Browser, shop: Shop, text: str
) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto(asking(text))
        await expect(page.locator("table.jobs a.open[href$='charge-globex-i22']")).to_have_count(1)


@pytest.mark.parametrize(
    "question",
    [
        "tenant:globex state:dead",
        "error:CardDeclinedError",
        "task:charge since:2h",
        "run:import-acme-autumn",
        "meta.region=eu task:charge",
        "limit:tenant state:held",
        "awaits:signal",
        "cents=1 task:charge",
        "id:order-acme\u2026",
    ],
)
async def test_conditions_are_chips_and_each_can_be_taken_away(
    browser: Browser, shop: Shop, question: str
) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto(asking(question))
        chips = page.locator(".listhead .chip")
        await expect(chips).to_have_count(len(question.split()))
        await expect(page.locator(".notice.warn")).to_have_count(0)
        await expect(page.locator("table.jobs a.open").first).to_be_visible()
        await chips.first.click()
        await expect(chips).to_have_count(len(question.split()) - 1)


async def test_words_are_suggested_and_taken_by_keys(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/")
        field = page.locator(".find input[name=q]")
        await field.click()
        await page.keyboard.type("state:dead ten", delay=20)
        await page.locator("#suggest [data-for='state:dead ten']", has_text="tenant:").wait_for()
        await page.keyboard.press("Tab")
        await page.locator("#suggest [data-for='state:dead tenant:']", has_text="tenant:acme").wait_for()
        await page.keyboard.type("glo", delay=20)
        await page.locator("#suggest [data-for='state:dead tenant:glo']", has_text="tenant:globex").wait_for()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(field).to_have_value("state:dead tenant:globex ")
        await page.keyboard.press("Escape")
        await page.keyboard.press("Enter")
        await page.wait_for_url(re.compile("/jobs"))
        assert set(await page.locator("td[data-label=tenant]").all_inner_texts()) == {"globex"}


async def test_what_is_not_known_is_told(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs?q=tennant:acme+tenant:acmee+state:broken")
        said = " ".join(await page.locator(".notice.warn").all_inner_texts())
        for told in ("did you mean tenant:?", "did you mean tenant:acme?", "no state is called broken"):
            assert told.lower() in said.lower()


async def test_rows_are_dense_and_can_be_looked_into(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto(asking("task:charge state:dead"))
        rows = "rows => rows.map(row => row.offsetHeight)"
        assert max(await page.eval_on_selector_all("table.jobs tbody tr", rows)) <= 34
        await page.keyboard.press("j")
        await page.keyboard.press("o")
        await expect(page.locator(".peek .frame-own").first).to_be_visible()
        await page.keyboard.press("o")
        await expect(page.locator(".peek")).to_have_count(0)


async def test_columns_are_in_the_address(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs?cols=id&cols=tenant&cols=meta")
        heads = await page.locator("table.jobs thead th").all_inner_texts()
        assert [text for text in heads if text.strip()][:4] == ["state", "id", "tenant", "metadata"]


async def test_what_jobs_share_is_told(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto(asking("task:render_pdf state:dead") + "&share=true")
        await expect(page.locator(".traits")).to_contain_text("pages=6")
