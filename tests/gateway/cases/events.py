"""Every code of the events, read line by line; what streams is tested on a server that listens."""

from __future__ import annotations

from typing import Final

from tests.support.gateway import Asker

from jobledger.gateway.http.endpoint import NDJSON

_LINES: Final = {"accept": NDJSON}


async def lines(asker: Asker) -> None:
    await asker.job()
    answer = await asker.sees("GET", "/v1/events?from=1&type=queued", 200, headers=_LINES)
    assert '"queued"' in answer.text.splitlines()[0]
    await asker.sees("GET", "/v1/events?type=melted", "JOB_INVALID_INPUT", headers=_LINES)


CASES: Final = (lines,)
