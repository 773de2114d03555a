"""The large values that a range of events refers to: each once, in the order of their names, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from jobledger.audit.verify.store import scratch, translated
from jobledger.ledger.model.codec import Message, StoredEvent, is_digest
from jobledger.ledger.model.lifecycle import StoreName, references_of

_CACHE_BYTES: Final = 2 << 20
_BYTES_MAX: Final = 2**63 - 1  # the largest number in SQLite; an event may name a larger one
_ROWS_AT_ONCE: Final = 1_000
# A value that is an input of one event and a result of another has to last as an input does.
_INSERT: Final = (
    "INSERT INTO wanted VALUES (?, ?, ?, ?, ?) ON CONFLICT (sha256) DO UPDATE SET store = excluded.store, "
    "stream_sequence = excluded.stream_sequence, job = excluded.job "
    "WHERE excluded.store = 'inputs' AND store <> 'inputs'"
)
_SELECT: Final = "SELECT sha256, bytes, store, stream_sequence, job FROM wanted ORDER BY sha256"


class Reference(msgspec.Struct, frozen=True, gc=False):
    """A large value that an event refers to."""

    sha256: str  #: the sha256 of its JSON text; 64 hex digits
    bytes: int  #: its size, as the event says
    store: StoreName  #: `inputs` where any event refers to it as one
    stream_sequence: int  #: sequence of the first event that refers to it there
    job: str  #: `<queue>/<job id>` of that event


class References:
    """Gathers references on the disk; call `close`, also after an error."""

    def __init__(self) -> None:
        self._connection = scratch(_CACHE_BYTES)
        with translated():
            self._connection.execute(
                "CREATE TEMP TABLE wanted (sha256 TEXT PRIMARY KEY, bytes INTEGER NOT NULL, store TEXT NOT NULL, "
                "stream_sequence INTEGER NOT NULL, job TEXT NOT NULL) WITHOUT ROWID"
            )

    def add(self, messages: Iterable[Message]) -> None:
        """Take the events of a range, in stream order.

        Raises: ScratchSpaceError.
        """
        rows = [
            (
                reference.sha256,
                min(max(0, reference.size_bytes), _BYTES_MAX),
                store,
                message.stream_sequence,
                f"{message.event.queue}/{message.event.job}",
            )
            for message in messages
            if isinstance(message, StoredEvent)
            for store, reference in references_of(message.event)
            if is_digest(reference.sha256)
        ]
        if rows:
            with translated():
                self._connection.executemany(_INSERT, rows)

    def __iter__(self) -> Iterator[Reference]:
        """Yield each value once, in the order of the digests.

        Raises: ScratchSpaceError.
        """
        with translated():
            cursor = self._connection.execute(_SELECT)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                for row in rows:
                    yield Reference(*row)

    def __len__(self) -> int:
        """Return how many values there are."""
        with translated():
            found: int = self._connection.execute("SELECT count(*) FROM wanted").fetchone()[0]
        return found

    def close(self) -> None:
        """Close the temporary file."""
        self._connection.close()
