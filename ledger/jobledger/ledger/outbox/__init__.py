"""The outbox: jobs enqueued in the transaction of the application's own database, and the relay that hands them on.

A row of the outbox is no second truth: it is there from the application's commit until its job is in the ledger. The
applications import `enqueue` and `schema`; drivers of databases are imported by those who have them. Source: ADR 060.
"""

from jobledger.ledger.outbox.connections import enqueue
from jobledger.ledger.outbox.errors import OutboxNotFoundError, OutboxUnreachableError
from jobledger.ledger.outbox.table import schema

__all__ = ["OutboxNotFoundError", "OutboxUnreachableError", "enqueue", "schema"]
