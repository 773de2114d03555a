"""That the logs under contract whose replicas lag, or whose leader was deposed, do answer from the past: the proof counts."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
from tests.support.log_entries import chain_of, entry, event
from tests.support.replicas import depose_leader, make_lag

from jobledger.ledger import Ledger, connect
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ledger(nats_server: EmbeddedServer) -> AsyncIterator[Ledger]:
    environment = f"t_{secrets.token_hex(6)}"
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20) as made:
        yield made


async def _older(ledger: Ledger, prefix: str) -> int:
    """Append the first event of twenty chains, and return how many of them a read right after it did not show."""
    older = 0
    for number in range(20):
        job_id = f"{prefix}-{number}"
        await ledger.log.append([entry(ledger.log, 0, event(job_id))])
        older += not await ledger.log.read_chain(chain_of(ledger.log, job_id))
    return older


async def test_a_replica_that_lags_is_believed_without_the_proof_and_not_with_it(ledger: Ledger) -> None:
    make_lag(ledger)
    assert await _older(ledger, "proven") == 0
    ledger.log._index = None  # type: ignore[attr-defined]
    assert await _older(ledger, "unproven") > 0


async def test_an_event_that_a_replica_lacks_is_not_taken_for_an_archived_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    depose_leader(ledger, monkeypatch)
    log = ledger.log
    for number in range(20):
        sequence = await log.append([entry(log, 0, event(f"single-{number}"))])
        found = await log.get(sequence)
        assert found is not None
        assert found.stream_sequence == sequence
        assert await log.get(sequence + 1) is None
    log._index = None  # type: ignore[attr-defined]
    older = 0
    for number in range(20):
        sequence = await log.append([entry(log, 0, event(f"unproven-{number}"))])
        older += await log.get(sequence) is None
    assert older > 0


async def test_a_deposed_leader_is_believed_if_it_seems_to_lead_and_not_if_it_tells(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    depose_leader(ledger, monkeypatch)
    assert await _older(ledger, "proven") == 0
    depose_leader(ledger, monkeypatch, tells=False)
    assert await _older(ledger, "unproven") > 0
