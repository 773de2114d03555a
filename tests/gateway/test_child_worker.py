"""The gateway's child that runs deliveries and acts: how it fails while the server is silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from jobledger.gateway.process import worker
from jobledger.gateway.process.children import setup_of
from jobledger.ledger import Ledger
from jobledger.ledger.nats.inbox import ReplyTimeoutError
from jobledger.workers import Worker

pytestmark = pytest.mark.anyio


async def test_a_server_that_is_silent_while_the_worker_begins_is_one_error_with_a_sentence(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of one would be told with a traceback, as what nobody foresaw."""

    async def run(_worker: Worker) -> NoReturn:
        raise ReplyTimeoutError("no answer within 5 s")

    monkeypatch.setattr(Worker, "run", run)
    nothing = cast("Any", None)  # it hears and says nothing before it takes jobs
    with pytest.raises(ReplyTimeoutError, match="no answer within 5 s"):
        await worker.work(ledger, setup_of(ledger, tmp_path / "p.db", "worker"), nothing, nothing)
