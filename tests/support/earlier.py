"""Ledgers as an earlier release left them."""

from __future__ import annotations

from jobledger.ledger import Ledger
from jobledger.ledger.nats import api


async def of_an_earlier_release(ledger: Ledger) -> None:
    """Give the ledger's stream the settings that it would have from a release without forms."""
    stream = ledger.names.ledger_stream
    config = (await api.stream_info(ledger.inbox, stream)).config
    await api.update_stream(ledger.inbox, stream, {**config, "metadata": {}})
    await ledger.learn_form()
