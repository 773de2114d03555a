"""One bound viewer and 2,000 connections of nobody that do their worst to a gateway, from addresses of their own.

    echo '{"port": ..., "key": ..., "route": ..., "jobs": [...], "newest": ..., "seconds": ...}' | python starving.py

Each connection does one thing, holds what it gets for as long as it may, and does it again; who was refused waits as long
as a crude program would. At the end it prints how often each answer came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from typing import Any, Final

from jobledger.gateway.process.low_priority import step_back

_AGAIN_S: Final = 2.0
_HANGS_UP_S: Final = 1.0
_RAMP_S: Final = 5.0
_NOBODY: Final = 2_000
_NDJSON: Final = "content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n"
_SLOW: Final = "content-type: application/json\r\ncontent-length: 100000\r\n"

_drawn = random.Random(1)
_answers: Counter[str] = Counter()


async def _once(port: int, address: str, text: str, *, hold_s: float | None, drips: bool) -> None:
    """Send the beginning of a request; stay until the other side closes, or hang up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        writer.write(text.encode())
        async with asyncio.timeout(hold_s):
            dripping = asyncio.create_task(_drip(writer)) if drips else None
            try:
                line = await reader.readline()
                _answers[line.decode("latin-1").strip()[9:12] or "none"] += 1
                while await reader.read(1 << 12):
                    if not drips:
                        await asyncio.sleep(0.2)  # a slow reader
            finally:
                if dripping is not None:
                    dripping.cancel()
    except TimeoutError:
        _answers["hung up"] += 1
    finally:
        writer.transport.abort()


async def _drip(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while True:
            await asyncio.sleep(1.0)
            writer.write(b"1\r\n{\r\n")


async def _again(port: int, address: str, texts: list[str], *, hold_s: float | None, drips: bool) -> None:
    await asyncio.sleep(_drawn.uniform(0, _RAMP_S))
    while True:
        text = _drawn.choice(texts)
        with contextlib.suppress(OSError):
            await _once(port, address, text, hold_s=hold_s, drips=drips)
        await asyncio.sleep(_drawn.uniform(0, 2 * _AGAIN_S))


def _asking(first: str, more: str = "") -> str:
    return f"{first} HTTP/1.1\r\nhost: 127.0.0.1\r\n{more}\r\n"


async def _worst(port: int, key: str, route: str, jobs: list[str], newest: int) -> None:
    known = f"authorization: Bearer {key}\r\n"
    moments = [_asking(f"GET /v1/jobs?sequence={_drawn.randrange(1, newest)}", known) for _ in range(200)]
    waits = [_asking(f"GET /v1/jobs/mail/{job}", f"{known}prefer: wait=60\r\n") for job in jobs]
    stream = f"{known}accept: text/event-stream\r\n"
    streams = [
        _asking("GET /v1/events", stream),
        _asking("GET /v1/events?from=1", stream),
        _asking("GET /live", known),
    ]
    bodies = [
        _asking(f"POST /in/{route}", _SLOW),
        _asking("POST /login", _SLOW),
        _asking("POST /v1/jobs", _SLOW),
    ]
    async with asyncio.TaskGroup() as group:

        def start(
            count: int, address: str, texts: list[str], *, hold_s: float | None = None, drips: bool = False
        ) -> None:
            for _ in range(count):
                group.create_task(_again(port, address, texts, hold_s=hold_s, drips=drips))

        start(300, "127.0.0.3", waits)
        start(100, "127.0.0.3", waits, hold_s=_HANGS_UP_S)
        start(100, "127.0.0.3", streams)
        start(20, "127.0.0.3", moments)
        start(20, "127.0.0.3", [_asking("POST /v1/jobs/bulk", known + _NDJSON)], drips=True)
        start(_NOBODY * 6 // 10, "127.0.0.2", bodies, drips=True)
        start(_NOBODY * 2 // 10, "127.0.0.2", [_asking("POST /v1/jobs/bulk", _NDJSON)], drips=True)
        start(_NOBODY * 2 // 10, "127.0.0.2", ["GET / HTTP/1.1\r\n"])


async def main(seconds: float, **given: Any) -> None:
    """Do the worst for some seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await _worst(**given)
    sys.stdout.write(json.dumps(dict(_answers)) + "\n")


if __name__ == "__main__":
    step_back(10)  # whoever attacks has machines of its own: what is measured is not their CPU
    given = json.loads(sys.stdin.readline())
    asyncio.run(main(**given))
