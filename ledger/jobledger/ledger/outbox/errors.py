"""What can go wrong with an outbox's database.

NotFoundError
└── OutboxNotFoundError
UnreachableError
└── OutboxUnreachableError
"""

from __future__ import annotations

from jobledger.ledger.model.errors import NotFoundError, UnreachableError


class OutboxNotFoundError(NotFoundError):
    """The database has no table of an outbox, or the file of the database is not there."""


class OutboxUnreachableError(UnreachableError):
    """The database of an outbox does not answer, refuses the connection or cannot write; nothing was lost by that."""
