"""A real browser: Debian's Chromium, driven by Playwright, which downloads nothing. Without one its tests are skipped."""

from __future__ import annotations

import contextlib
import importlib.resources
import shutil
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright
from tests.support.limits import LIMIT_S

LIMIT_MS = LIMIT_S * 1000
_EXAMINE = """async () => {
  const theme = document.documentElement.dataset, found = [];
  for (const [name, rules] of [["light", {}], ["dark", {runOnly: ["color-contrast"]}]]) {
    theme.theme = name;
    const {violations} = await axe.run({resultTypes: ["violations"], preload: false, ...rules});
    found.push(...violations.map((each) => ({theme: name, ...each})));
  }
  delete theme.theme;
  return found;
}"""
AXE = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def chromium() -> str:
    """Return the path of Chromium; skip the test without one."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    return found


@contextlib.asynccontextmanager
async def browsing() -> AsyncGenerator[Browser, None]:
    """Run a browser for the length of the block."""
    path = chromium()
    async with async_playwright() as playwright:
        # The sandbox needs rights that containers have not; the pages are our own.
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        await browser.close()


@contextlib.asynccontextmanager
async def looking(
    browser: Browser, url: str, *, status: int = 0, **options: Any
) -> AsyncGenerator[Page, None]:
    """Open a tab of its own; at the end the console must have said nothing.

    `status`: of an answer that is expected and that the browser itself notes on the console.
    """
    settings: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "base_url": url, **options}
    context = await browser.new_context(**settings)
    page = await context.new_page()
    page.set_default_timeout(LIMIT_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    try:
        yield page
    finally:
        await context.close()
    own = f"error: Failed to load resource: the server responded with a status of {status} "
    assert [each for each in said if not each.startswith(own)] == []


@contextlib.asynccontextmanager
async def examining(browser: Browser, url: str, **options: Any) -> AsyncGenerator[Page, None]:
    """Open a tab as `looking` does, whose pages `barriers` can examine."""
    # The policy of the pages refuses any script that is not their own, axe's as well.
    async with looking(browser, url, bypass_csp=True, **options) as page:
        await page.context.add_init_script(AXE)  # sent once for all pages
        yield page


async def barriers(page: Page) -> list[str]:
    """Return what axe-core finds on a page of `examining` that keeps somebody from using it, each on one line.

    The page is examined in the light; in the dark only its colours are others.
    """
    found: list[dict[str, Any]] = await page.evaluate(_EXAMINE)
    return [f"{each['theme']}, {each['id']}: {each['nodes'][0]['html'][:160]}" for each in found]


async def too_wide(page: Page) -> int:
    """Return by how many pixels a page is wider than what it is shown on, 0 where it fits."""
    return max(0, int(await page.evaluate("document.documentElement.scrollWidth - innerWidth")))


@contextlib.asynccontextmanager
async def on_a_phone(page: Page) -> AsyncGenerator[None, None]:
    """Show a page on a phone for the length of the block; its size is then as before."""
    before = page.viewport_size
    await page.set_viewport_size({"width": 420, "height": 800})
    yield
    if before is not None:
        await page.set_viewport_size(before)
