"""A real browser: Debian's Chromium, driven by Playwright, which downloads nothing. Without one its tests are skipped."""

from __future__ import annotations

import contextlib
import importlib.resources
import shutil
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

_LIMIT_MS = 20_000
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
    page.set_default_timeout(_LIMIT_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    try:
        yield page
    finally:
        await context.close()
    assert said == [], said


async def barriers(browser: Browser, address: str, **options: Any) -> list[str]:
    """Return what axe-core finds that keeps somebody from using a page, each on one line."""
    # The policy of the page refuses any script that is not its own, axe's as well.
    context = await browser.new_context(bypass_csp=True, **options)
    page = await context.new_page()
    await page.goto(address)
    await page.evaluate(AXE)
    found: dict[str, Any] = await page.evaluate("axe.run()")
    await context.close()
    return [f"{each['id']}: {each['nodes'][0]['html'][:160]}" for each in found["violations"]]
