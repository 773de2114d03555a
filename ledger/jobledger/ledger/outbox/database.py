"""The database of an outbox, as the relay and people see it: its rows read, deleted, refused and tried again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, Self

import msgspec

from jobledger.ledger.outbox.table import Dialect


class OutboxRow(NamedTuple):
    """A row that waits."""

    number: int
    text: str  #: the written order


class OutboxCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows there are."""

    waiting: int
    refused: int
    oldest_at: datetime | None  #: when the oldest that waits was added; None where none waits


class ListedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row as people see it."""

    number: int
    text: str
    added_at: datetime
    refused_at: datetime | None
    refusal: str | None


class OutboxDatabase(Protocol):
    """A database with an outbox. Each method raises OutboxUnreachableError, and OutboxNotFoundError without the table.

    After either the next call connects again.
    """

    @property
    def dialect(self) -> Dialect:
        """Which kind it is."""
        ...

    async def create(self) -> None:
        """Make the table where it is missing."""
        ...

    async def waiting(self, count: int) -> list[OutboxRow]:
        """Return the oldest rows that wait, at most `count`, and fewer where they are large."""
        ...

    async def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows whose jobs are in the ledger."""
        ...

    async def refuse(self, number: int, sentence: str) -> None:
        """Put a row aside, with the reason."""
        ...

    async def retry(self, numbers: Sequence[int] | None) -> int:
        """Let refused rows wait again, all of them for None; return how many."""
        ...

    async def discard(self, numbers: Sequence[int] | None) -> int:
        """Delete refused rows for good, all of them for None; return how many."""
        ...

    async def counts(self) -> OutboxCounts:
        """Return how many rows wait and are refused."""
        ...

    async def rows(self, count: int, *, refused_only: bool) -> list[ListedRow]:
        """Return rows, the oldest first."""
        ...

    async def wait(self, seconds: float) -> None:
        """Return when a row may have been added, at the latest after that time."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...

    async def __aenter__(self) -> Self:
        """Connect."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        ...
