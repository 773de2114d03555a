"""The access log: every answered request has its line, whenever the process ends."""

from __future__ import annotations

import asyncio
import json
import logging
import select
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.support.limits import LIMIT_S

from jobledger.cli.logs import set_up_logs
from jobledger.gateway.process import access_log
from jobledger.gateway.process.access_log import AccessLog

pytestmark = pytest.mark.anyio


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is written to stderr, write by write, as a gateway logs."""
    writes: list[str] = []

    stream = SimpleNamespace(write=writes.append)
    monkeypatch.setattr("jobledger.cli.logs.sys", SimpleNamespace(stderr=stream))
    set_up_logs(verbose=True, debug=False)
    yield writes
    set_up_logs(verbose=False, debug=False)


def asked(path: str) -> dict[str, str | int | float]:
    return {"request": "r-1", "key": "k-1", "method": "GET", "path": path, "status": 200, "ms": 1.5}


async def test_lines_of_a_moment_are_written_together_and_each_as_a_whole(written: list[str]) -> None:
    log = AccessLog()
    for number in range(100):
        log.add(asked(f"/{number}/\x9b"))
    assert written == []
    async with asyncio.timeout(LIMIT_S):
        while not written:
            await asyncio.sleep(0.005)
    lines = "".join(written).splitlines()
    assert [line.split()[4] for line in lines] == [f"/{number}/\\x9b" for number in range(100)]
    assert lines[0].endswith("Z INFO jobledger.gateway.access: GET /0/\\x9b 200 1.5 ms, request r-1, key k-1")
    assert 1 < len(written) < 10
    assert all(each.endswith("\n") and len(each) <= select.PIPE_BUF for each in written)


async def test_a_line_of_json_has_each_field_and_its_own_time(
    written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_logs(verbose=True, debug=False, log_format="json")
    times = iter((0.0, 1.0))
    monkeypatch.setattr(access_log, "time", SimpleNamespace(time=lambda: next(times)))
    log = AccessLog()
    log.add(asked("/a"))
    log.add(asked("/b"))
    log.close()
    first, second = map(json.loads, "".join(written).splitlines())
    assert first == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "info",
        "logger": "jobledger.gateway.access",
        "message": "GET /a 200 1.5 ms, request r-1, key k-1",
        **asked("/a"),
    }
    assert (second["time"], second["path"]) == ("1970-01-01T00:00:01.000Z", "/b")


async def test_lines_wait_up_to_a_number_and_not_after_the_end(
    written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "_LINES_MAX", 2)
    log = AccessLog()
    for path, count in (("/a", 0), ("/b", 2), ("/c", 2)):
        log.add(asked(path))
        assert "".join(written).count("\n") == count, path
    log.close()
    assert "".join(written).count("\n") == 3
    log.add(asked("/d"))
    assert "".join(written).count("\n") == 4


async def test_another_handler_is_told_every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="jobledger.gateway.access")
    log = AccessLog()
    log.add(asked("/a"))
    log.add(asked("/b"))
    log.close()
    assert [line[:7] for line in caplog.messages[0].splitlines()] == ["GET /a ", "GET /b "]
