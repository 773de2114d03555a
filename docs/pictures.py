"""Pictures of the dashboard, from the ledger that `make demo` left: `make pictures`.

First its shop works for some minutes, so that the charts have something to show. Every page at the width of a desk and of a
phone, light and dark, is a PNG file in .cache/pictures, to be looked at. What the pages of docs/ show is written to
docs/pictures as WebP: both themes of what the README shows, the light one of the rest. It needs Chromium, as the tests in a
browser do.

    python docs/pictures.py [MINUTES]
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import anyio
from playwright.sync_api import Browser, Page, sync_playwright

from jobledger.cli.demo import shop
from jobledger.cli.demo.fleet import APP, CUSTOMERS
from jobledger.ledger import connect
from jobledger.ledger.access.account import read_account_key

ROOT: Final = Path(__file__).parents[1]
DEMO: Final = ROOT / ".jobledger" / "demo"
ALL: Final = ROOT / ".cache" / "pictures"
SHOWN: Final = ROOT / "docs" / "pictures"
WIDTHS: Final = (1280, 420)
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
_HEIGHT: Final = 800
_LIMIT_S: Final = 60.0
_QUALITY: Final = {True: 82, False: 55}  # of WebP: text stays sharp; less for the many of one theme
_SHOWN_HEIGHT: Final = 620
#: Where a page ends, or the panel that is opened over it.
_END: Final = """Math.max(340, ...[...document.querySelectorAll('main > *, #density, .clock[open] > *')]
    .map(each => each.getBoundingClientRect().bottom + 16))"""

#: Each page by the name of its pictures.
PAGES: Final = {
    "overview": "/?range=15m",
    "jobs": "/jobs",
    "search": "/jobs?q=tenant%3Aacme+state%3Adead",
    "run": "/jobs/import/import-acme",
    "checkout": "/jobs/orders/order-5",
    "undone": "/jobs/orders/order-13",
    "stuck": "/jobs/orders/order-17",
    "plan": "/plan?act=requeue&state=dead_lettered&task=send_mail&per_minute=50",
    "shared": "/jobs?q=state%3Adead&share=true",
    "past": "/?at=6m&range=15m",
    "signal": "/jobs/payouts/payout-acme",
    "dead-letters": "/dead-letters",
    "queues": "/queues",
    "schedules": "/schedules",
    "limits": "/limits",
    "tenants": "/tenants",
    "workers": "/workers",
    "runs": "/runs",
    "tasks": "/tasks",
    "task": "/tasks/charge",
    "graphs": "/graphs",
    "webhooks": "/webhooks",
    "ledger": "/ledger",
    "keys": "/keys",
    "acts": "/acts",
    "changes": "/changes?since=15m",
    "missing": "/nothing-here",
}


#: Pages that are opened further by a key before the picture is taken, by the name of their pictures.
KEYS_OF: Final = {"clock": ("/", "t", "#density .plot")}


class Shown(NamedTuple):
    """A picture that a page of docs/ shows: a part of a page, from its top to the end of an element."""

    page: str
    until: str = ""  #: a selector; "": as much as a window shows
    both: bool = False  #: in both themes


PICTURES: Final = {
    "overview": Shown("overview", "main .cols", both=True),
    "run": Shown("undone", ".timeline-card", both=True),
    "many": Shown("run", ".timeline-card"),
    **{
        name: Shown(name)
        for name in (
            *(
                "search",
                "shared",
                "plan",
                "dead-letters",
                "queues",
                "schedules",
                "tenants",
                "limits",
                "graphs",
            ),
            *("webhooks", "workers", "runs", "task", "past", "clock", "changes", "ledger", "keys", "acts"),
        )
    },
}


@contextlib.contextmanager
def fleet() -> Generator[tuple[str, str]]:
    """Serve a copy of the demo's ledger, with a worker of its shop; yield the addresses of ledger and dashboard."""
    if not DEMO.is_dir():
        raise SystemExit(f"pictures: there is no {DEMO.relative_to(ROOT)}: run make demo first")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBLEDGER_")}
    with tempfile.TemporaryDirectory(prefix="jobledger-pictures-") as folder:
        shutil.copytree(DEMO, Path(folder) / "store")
        process = subprocess.Popen(  # noqa: S603 - of our own program
            [
                *(
                    sys.executable,
                    "-P",
                    "-m",
                    "jobledger.cli",
                    "up",
                    "--dir",
                    f"{folder}/store",
                    "--app",
                    APP,
                ),
                *("--port", "0", "--gateway-port", "0", "--json"),
            ],
            env={**environment, "XDG_DATA_HOME": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert process.stdout is not None, "it is a pipe"
            ready: dict[str, Any] = json.loads(process.stdout.readline())
            yield str(ready["url"]), _entrance(ready)
        finally:
            process.terminate()
            process.wait(timeout=_LIMIT_S)


def _entrance(ready: dict[str, Any]) -> str:
    """Return the address that logs in the account that started the gateway, as a terminal would show it."""
    gateway = str(ready["gateway"])
    key_file = ready.get("key_file")
    return f"{gateway}/login?token={read_account_key(Path(key_file))}" if key_file else gateway


async def work(url: str, minutes: float) -> None:
    """Let the shop work: about three jobs a second, in waves; some fail."""
    chance = random.Random(7)  # noqa: S311 - the same traffic each time
    begun = time.monotonic()
    async with connect(url, name="jobledger-pictures") as ledger:
        for number in itertools.count(100):
            at = (time.monotonic() - begun) / 60
            if at > minutes:
                return
            customer = chance.choice(CUSTOMERS)
            cents = chance.randrange(100, 54_000)
            match chance.randrange(10):
                case 0:
                    order = shop.checkout.options(id=f"order-{number}", tenant=customer)
                    await ledger.enqueue(order, str(number), customer, chance.randrange(100, 50_000))
                case 1 | 2 | 3:
                    await ledger.enqueue(shop.charge.options(tenant=customer), customer, cents)
                case 4 | 5:
                    await ledger.enqueue(shop.import_row.options(tenant=customer), number)
                case _:
                    provider = "invalid" if 0.4 < at / minutes < 0.55 and chance.random() < 0.6 else "example"  # noqa: PLR2004
                    to = f"user{number}@{customer}.{provider}"
                    await ledger.enqueue(shop.send_mail.options(tenant=customer), to, "receipt")
            await anyio.sleep(chance.expovariate(3 + 2 * math.sin(at * 0.9)))


def draw(browser: Browser, url: str, width: int, theme: Literal["light", "dark"]) -> None:
    """Take every page at one width and in one theme."""
    context = browser.new_context(
        viewport={"width": width, "height": _HEIGHT},
        base_url=url,
        color_scheme=theme,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(url)  # it logs in the account that runs the gateway
    for name, path in {**PAGES, **{name: path for name, (path, _, _) in KEYS_OF.items()}}.items():
        page.goto(path)
        page.wait_for_load_state("load")
        if name in KEYS_OF:
            _, key, opened = KEYS_OF[name]
            page.keyboard.press(key)
            page.locator(opened).wait_for()
        page.screenshot(path=ALL / f"{name}-{width}-{theme}.png", full_page=True)
        for picture, shown in PICTURES.items():
            if shown.page == name and width == WIDTHS[0] and (shown.both or theme == THEMES[0]):
                suffix = f"-{theme}" if shown.both else ""
                (SHOWN / f"{picture}{suffix}.webp").write_bytes(
                    part_of(page, shown.until, _QUALITY[shown.both])
                )
    context.close()


def part_of(page: Page, until: str, quality: int) -> bytes:
    """Return a page from its top to the end of an element, or of what it shows, as WebP."""
    box = page.locator(until).first.bounding_box() if until else None
    end = box["y"] + box["height"] + 12 if box else page.evaluate(_END)
    height = end if until else min(end, _SHOWN_HEIGHT)
    clip = {"x": 0, "y": 0, "width": WIDTHS[0], "height": height, "scale": 1}
    asked = {"format": "webp", "quality": quality, "clip": clip, "captureBeyondViewport": True}
    session = page.context.new_cdp_session(page)
    taken = cast("dict[str, str]", session.send("Page.captureScreenshot", asked))
    return base64.b64decode(taken["data"])


def main() -> None:
    """Take all pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("pictures: chromium is not installed: apt-get install chromium")
    for folder in (ALL, SHOWN):
        folder.mkdir(parents=True, exist_ok=True)
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 12.0
    with fleet() as (server, url), contextlib.ExitStack() as stack:
        anyio.run(work, server, minutes)  # before the browser, which has an event loop of its own
        playwright = stack.enter_context(sync_playwright())
        # The sandbox needs rights that containers have not; the pages are our own.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for width in WIDTHS:
            for theme in THEMES:
                draw(browser, url, width, theme)
        browser.close()
    sys.stdout.write(
        f"pictures: {(len(PAGES) + len(KEYS_OF)) * 4} in {ALL.relative_to(ROOT)}, {len([*SHOWN.iterdir()])} in docs/pictures\n"
    )


if __name__ == "__main__":
    main()
