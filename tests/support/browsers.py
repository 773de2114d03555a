"""A real browser: Debian's Chromium, driven by Playwright, which downloads nothing. Without one its tests are skipped."""

from __future__ import annotations

import contextlib
import importlib.resources
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright
from tests.support.limits import LIMIT_S

LIMIT_MS = LIMIT_S * 1000
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
async def looking(browser: Browser, url: str, **options: Any) -> AsyncGenerator[Page, None]:
    """Open a tab of its own; at the end the console must have said nothing."""
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
    assert said == [], said


@contextlib.asynccontextmanager
async def examining(
    browser: Browser, url: str, **options: Any
) -> AsyncGenerator[Callable[[str], Awaitable[list[str]]], None]:
    """Open one tab that examines pages; give what returns the barriers that axe-core finds on one, each on one line."""
    # The policy of the pages refuses any script that is not their own, axe's as well.
    context = await browser.new_context(bypass_csp=True, base_url=url, **options)
    await context.add_init_script(AXE)  # sent once for all pages
    page = await context.new_page()
    page.set_default_timeout(LIMIT_MS)

    async def barriers(address: str) -> list[str]:
        await page.goto(address)
        found: dict[str, Any] = await page.evaluate("axe.run({resultTypes: ['violations']})")
        return [f"{each['id']}: {each['nodes'][0]['html'][:160]}" for each in found["violations"]]

    try:
        yield barriers
    finally:
        await context.close()
