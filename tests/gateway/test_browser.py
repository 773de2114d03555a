"""The dashboard in a real browser: live, in the past, by keys, without script, in both themes, on a phone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import Browser, expect
from tests.support.browsers import LIMIT_MS, browsing, examining, looking
from tests.support.gateways import gateway_of, listening
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.gateway.pages.table import PAGES
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.events import Queued
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio
THEMES = ("light", "dark")
HOSTILE = "<script>document.title = 'planted'</script><img src=x onerror=\"document.title='planted'\">"


@task(queue="mail", max_attempts=1)
async def send(to: str) -> str:
    return f"sent to {to}"


@task(queue="billing", max_attempts=1)
async def charge(order: str) -> None:
    raise ValueError(f"card declined for {order}")


class Shop(NamedTuple):
    """A gateway that listens, and what is in its ledger."""

    url: str
    ledger: Ledger
    sent: str
    dead: str


@pytest.fixture(scope="module")
async def browser(anyio_backend: object) -> AsyncIterator[Browser]:
    async with browsing() as made:
        yield made


@pytest.fixture(scope="module")
async def shop(nats_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """Give a gateway on a ledger where some jobs have ended, one badly, and some wait."""
    folder: Path = tmp_path_factory.mktemp("shop")
    async with (
        connect(nats_server.url, environment="browser", ledger_bytes_max=16 << 20) as ledger,
        gateway_of(ledger, folder) as gateway,
        listening(gateway) as url,
    ):
        async with working(ledger, send, charge), asyncio.timeout(LIMIT_S):
            sent = await ledger.enqueue(send, to=HOSTILE)
            dead = await ledger.enqueue(charge, order="A-1")
            await sent.wait()
            await dead.wait()
        await ledger.enqueue_many(send, ({"to": f"person{n}"} for n in range(120)))
        yield Shop(url, ledger, sent.id, dead.id)


def addresses(shop: Shop) -> list[str]:
    """Return an address of every page."""
    words = {"queue": "billing", "id": shop.dead, "task": "charge"}
    return [page.path.format(**words) + ("?state=queued" if page.path == "/plan" else "") for page in PAGES]


async def test_the_overview_changes_by_itself(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/")
        tile = page.locator(".tile", has_text="waiting for a worker").locator("b, strong").first
        before = int((await tile.inner_text()).replace(",", ""))
        await shop.ledger.enqueue(send, to="somebody else")
        await expect(tile).to_have_text(str(before + 1), timeout=LIMIT_MS)


async def test_a_job_is_shown_as_of_each_of_its_events(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto(f"/jobs/billing/{shop.dead}")
        badge = page.locator(".name .badge")
        await expect(badge).to_have_text("Dead letter")
        await page.locator("input[type=range]").focus()
        await page.keyboard.press("Home")
        await expect(badge).to_have_text("Queued")
        assert "sequence=" in page.url
        await expect(page.get_by_text("This is the past: nothing can be done here.")).to_be_visible()
        await page.reload()
        await expect(badge).to_have_text("Queued")


async def test_a_list_is_filtered_and_paged(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs")
        await page.locator(".facets a", has_text="Dead letter").click()
        rows = page.locator("table.jobs tbody tr")
        await expect(rows).to_have_count(1)
        await page.goto("/jobs?queue=mail")
        first = await rows.first.get_attribute("id")
        await page.locator("a[rel=next]").click()
        await expect(page.get_by_role("link", name="Newest")).to_be_visible()
        assert await rows.first.get_attribute("id") != first
        assert "queue=mail" in page.url


async def test_a_list_holds_still_and_announces_what_is_newer(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs?queue=mail")
        first = page.locator("table.jobs tbody tr").first
        before = await first.get_attribute("id")
        await shop.ledger.enqueue(send, to="somebody newer")
        await expect(page.locator("[data-newer]")).to_be_visible(timeout=LIMIT_MS)
        assert await first.get_attribute("id") == before
        await page.keyboard.press("n")
        await expect(first).to_contain_text("somebody newer")


async def test_rows_are_chosen_and_opened_by_keys(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs?state=dead_lettered")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator(".name .badge")).to_have_text("Dead letter")


async def test_a_list_of_the_past_shows_it_and_acts_on_nothing(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/jobs")
        await page.locator(".machine input[type=range]").focus()
        await page.keyboard.press("Home")
        await expect(page.get_by_role("link", name="Back to now")).to_be_visible()
        assert "at=" in page.url
        await expect(page.locator("form button", has_text="Plan for")).to_have_count(0)


async def test_a_dead_letter_is_requeued_with_another_input(browser: Browser, shop: Shop) -> None:
    async with working(shop.ledger, charge):
        dead = await shop.ledger.enqueue(charge, order="B-1")
        await dead.wait()
    async with looking(browser, shop.url) as page:
        await page.goto(f"/jobs/billing/{dead.id}")
        await page.get_by_label("Reason").fill("the customer has another card")
        await page.get_by_label("Input").fill('{"order": "B-2"}')
        await page.get_by_role("button", name="Requeue").click()
        await expect(page.locator(".name .badge")).to_have_text("Queued")
    requeued = (await dead.history())[-1].event
    assert isinstance(requeued, Queued)
    assert requeued.by.startswith("local:")
    assert bytes((await dead.snapshot()).order.input) == b'{"order":"B-2"}'


async def test_the_keys_are_listed(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto("/")
        await page.keyboard.press("?")
        await expect(page.locator("#keys")).to_be_visible()


async def test_pages_work_without_script(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url, java_script_enabled=False) as page:
        await page.goto(f"/jobs/billing/{shop.dead}")
        await page.locator(".seq").first.click()
        await expect(page.locator(".name .badge")).to_have_text("Queued")


@pytest.mark.parametrize("theme", THEMES)
async def test_nothing_on_any_page_keeps_anybody_out(browser: Browser, shop: Shop, theme: str) -> None:
    async with examining(browser, shop.url, color_scheme=theme) as barriers:
        for address in addresses(shop):
            found = await barriers(address)
            assert found == [], f"{address}: {found}"


async def test_the_theme_can_be_switched_and_stays(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url, color_scheme="light") as page:
        await page.goto("/")
        await page.locator("[data-theme-switch]").click()
        await page.reload()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_a_phone_scrolls_no_page_sideways(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url, viewport={"width": 420, "height": 800}) as page:
        for address in addresses(shop):
            await page.goto(address)
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{address} is {wide} pixels too wide"


async def test_what_jobs_carry_is_text_and_never_script(browser: Browser, shop: Shop) -> None:
    async with looking(browser, shop.url) as page:
        await page.goto(f"/jobs/mail/{shop.sent}")
        assert "planted" not in await page.title()
        await expect(page.locator("pre", has_text="document.title").first).to_be_visible()


async def test_the_policy_refuses_a_planted_script(browser: Browser, shop: Shop) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    await page.goto(shop.url)
    await page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.owned = 1';"
        " document.body.append(s); }"
    )
    assert await page.evaluate("window.owned") is None
    assert any(re.search("Content Security Policy", each) for each in said)
    await context.close()
