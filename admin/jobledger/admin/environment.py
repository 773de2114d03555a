"""An environment on a server: its ledger and buckets, made before anybody needs them."""

from __future__ import annotations

import msgspec

from jobledger.ledger import Ledger
from jobledger.ledger.nats.addresses import shown
from jobledger.ledger.nats.books.key_uses import ensure_uses
from jobledger.ledger.nats.streams import find_stream
from jobledger.ledger.nats.task_book import write_tasks


class ReadyEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment whose ledger and buckets are there."""

    url: str  #: without a password
    environment: str  #: "" for the one without a name
    ledger_bytes_max: int  #: the ledger's present limit
    last_sequence: int  #: that of its newest event; 0 before the first
    replicas: int  #: copies of the ledger; 1 on a single server


async def prepare(ledger: Ledger) -> ReadyEnvironment:
    """Make missing buckets, which processes would make later; `connect` made the ledger and the others.

    Leave out the buckets for tables of runs and bodies of webhooks: large, and never needed by many environments.

    Raises: StreamMismatchError, JetStreamDisabledError, LedgerFullError (no room), PermissionRefusedError,
        UnreachableError.
    """
    config, names = ledger.config, ledger.names
    await write_tasks(ledger.inbox, names, [], replicas=config.replicas)
    await ensure_uses(ledger.inbox, names, config.replicas)
    stream = await find_stream(ledger.inbox, names.ledger_stream)
    assert stream is not None, "connect made it"
    return ReadyEnvironment(
        url=shown(config.url),
        environment=names.environment,
        ledger_bytes_max=stream.config["max_bytes"],
        last_sequence=stream.state.last_sequence,
        replicas=int(stream.config.get("num_replicas", 1)),
    )
