"""Which large values a range of events refers to: each once, in the order of their names, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from jobledger.ledger.audit.spill import scratch, translated
from jobledger.ledger.codec import Message, Stored
from jobledger.ledger.events import (
    Carried,
    Checkpointed,
    Completed,
    Held,
    JobEvent,
    PayloadRef,
    Queued,
    Scheduled,
)

_CACHE_BYTES: Final = 2 << 20
_BYTES_MAX: Final = 2**63 - 1  # what SQLite can hold: the event may be anybody's
_ROWS_AT_ONCE: Final = 1_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", flags=re.ASCII)
_INSERT: Final = "INSERT OR IGNORE INTO disk.wanted VALUES (?, ?, ?, ?)"
_SELECT: Final = "SELECT sha256, bytes, store, stream_sequence FROM disk.wanted ORDER BY sha256"

#: Where a value lies: inputs and checkpoints as long as the ledger, results for a week.
StoreName = Literal["inputs", "results"]


class Reference(msgspec.Struct, frozen=True, gc=False):
    """A large value that an event refers to."""

    sha256: str  #: of its JSON text; 64 hex digits
    bytes: int  #: as the event says
    store: StoreName
    stream_sequence: int  #: of the first event that refers to it


def is_digest(name: str) -> bool:
    """Return whether `name` is a sha256 as we write them: nothing else may become the name of a file."""
    return _DIGEST.fullmatch(name) is not None


def references_of(event: JobEvent) -> Iterator[tuple[StoreName, PayloadRef]]:
    """Yield what an event refers to."""
    if isinstance(event, Queued | Scheduled | Held):
        if event.input_ref is not None:
            yield "inputs", event.input_ref
    elif isinstance(event, Completed):
        if event.result_ref is not None:
            yield "results", event.result_ref
    elif isinstance(event, Checkpointed):
        if event.value_ref is not None:
            yield "inputs", event.value_ref
    elif isinstance(event, Carried):
        job = event.job_state
        found = (("inputs", job.input_ref), ("inputs", job.checkpoint_ref), ("results", job.result_ref))
        for store, reference in found:
            if reference is not None:
                yield store, reference  # type: ignore[misc]


class References:
    """Gathers references on the disk; call `close`, also after an error."""

    def __init__(self) -> None:
        self._connection = scratch(_CACHE_BYTES)
        with translated():
            self._connection.execute(
                "CREATE TABLE disk.wanted (sha256 TEXT PRIMARY KEY, bytes INTEGER NOT NULL, store TEXT NOT NULL, "
                "stream_sequence INTEGER NOT NULL) WITHOUT ROWID"
            )

    def add(self, messages: Iterable[Message]) -> None:
        """Take the events of a range, in stream order.

        Raises: ScratchSpaceError.
        """
        rows = [
            (reference.sha256, min(max(0, reference.size_bytes), _BYTES_MAX), store, message.stream_sequence)
            for message in messages
            if isinstance(message, Stored)
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
            found: int = self._connection.execute("SELECT count(*) FROM disk.wanted").fetchone()[0]
        return found

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()
