"""Facts that only the monitoring pages of servers show, not their client protocol: durability, and clocks."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec

from jobledger.admin.amounts import duration
from jobledger.admin.checks import Check, clock_apart
from jobledger.ledger.model.times import server_time

_TIMEOUT_S: Final = 1.0
_BYTES_MAX: Final = 1 << 20
_SECOND_NS: Final = 1_000_000_000
_PORT_DEFAULT: Final = 8222
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class Monitor(msgspec.Struct, frozen=True):
    """A monitoring page."""

    url: str
    #: The server's port, where its page was guessed from its address: a page with another port is another server's, and
    #: only this machine is asked. None: a person named the page.
    port: int | None = None


class _Page(NamedTuple):
    """The content of one page."""

    said: dict[str, Any]
    read_at: float  #: seconds since 1970, in the middle between question and answer


async def check_pages(monitors: Sequence[Monitor]) -> list[Check]:
    """Look at durability and, if several pages are named, at each server's clock; takes two seconds at most."""
    found: list[list[Check]] = [[] for _ in monitors]
    several = len(monitors) > 1

    async def check(number: int, monitor: Monitor) -> None:
        page: _Page | None = None
        with anyio.move_on_after(2 * _TIMEOUT_S):  # a name may take long to be looked up
            page = await anyio.to_thread.run_sync(_read, monitor, abandon_on_cancel=True)
        of = f" {urlsplit(monitor.url).netloc}" if several else ""
        if page is None:
            found[number] = [_unknown(monitor, of)]
            return
        found[number] = [_durability(page.said, of)]
        if several and (clock := _clock(page, of)) is not None:
            found[number].append(clock)

    async with anyio.create_task_group() as group:
        for number, monitor in enumerate(monitors):
            group.start_soon(check, number, monitor)
    return list(
        dict.fromkeys(each for checks in found for each in checks)
    )  # failed guesses give equal checks, of which one is kept


def _unknown(monitor: Monitor, of: str) -> Check:
    if monitor.port is None:
        advice = (
            f"nothing that can be read answers at {monitor.url}: look at `http` in the server's configuration"
        )
        return Check(check=f"durability{of}", status="warn", found="unknown", advice=advice)
    advice = "look at sync_interval in the server's configuration, or name its monitoring page: --monitor http://HOST:PORT"
    return Check(check="durability", status="warn", found="unknown", advice=advice)


def _durability(said: dict[str, Any], of: str) -> Check:
    settings = said.get("jetstream", {}).get("config", {})
    if settings.get("sync_always"):
        found = "power: every event is on the disk before it is acknowledged"
        return Check(check=f"durability{of}", status="ok", found=found)
    every = duration(int(settings.get("sync_interval", 0)) / _SECOND_NS)
    found = f"process: the disk is synced every {every}, a power cut loses later events"
    advice = "for power cuts set `sync_interval: always`, or start with --durability power"
    return Check(check=f"durability{of}", status="warn", found=found, advice=advice)


def _clock(page: _Page, of: str) -> Check | None:
    now = page.said.get("now")
    return (
        clock_apart(f"clock{of}", server_time(now).timestamp() - page.read_at)
        if isinstance(now, str)
        else None
    )


def _read(monitor: Monitor) -> _Page | None:
    """Read a page; None if its answer cannot be read, or it is the page of another server."""
    before = time.time()
    try:
        parts = urlsplit(monitor.url)
        if not parts.hostname or (monitor.port is not None and parts.hostname not in _LOOPBACK):
            return None
        link = http.client.HTTPConnection(parts.hostname, parts.port or _PORT_DEFAULT, timeout=_TIMEOUT_S)
        with contextlib.closing(link):
            link.request("GET", "/varz")
            said: Any = msgspec.json.decode(link.getresponse().read(_BYTES_MAX))
    except (OSError, ValueError, http.client.HTTPException):  # ValueError: a wrong port, or no JSON
        return None
    if not isinstance(said, dict) or (monitor.port is not None and said.get("port") != monitor.port):  # pyright: ignore[reportUnknownMemberType] # read by key
        return None
    return _Page(said, (before + time.time()) / 2)  # pyright: ignore[reportUnknownArgumentType]
