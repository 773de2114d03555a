"""The table of the retention setting, and the removal of rows about jobs that were moved into the archive.

An archive run records `archived`. From the rows this takes the jobs that it or an earlier run moved, and that ended longer
ago than the setting in force keeps their rows. So the same events give the same rows, in a rebuilt file too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import MalformedEventError, UnknownEventError
from jobledger.ledger.model.reactor import ARCHIVE, REACTOR, Archived
from jobledger.ledger.model.retention import RETENTION, RetentionState, retention_words
from jobledger.ledger.model.times import time_text
from jobledger.projections.table import Row, Table, integer, named_tables, real, text, timestamp

RETENTION_TABLE: Final = Table(
    name="retention",
    row="ledger: how long it keeps its events ([retention](retention.md)); none before somebody said so",
    columns={
        "name": text("always `main`"),
        "words": text("the setting for a person"),
        "rows_keep_s": real("seconds that rows of moved jobs stay after the job's end; NULL: for ever"),
        "by": text("who set it, as the caller named himself"),
        "at": timestamp("when, by the server's time"),
        "last_sequence": integer("stream sequence of that event"),
    },
    key=("name",),
    sequence="last_sequence",
)
_ROWS_KEEP: Final = "SELECT rows_keep_s FROM retention WHERE rows_keep_s IS NOT NULL"
#: The first condition alone uses the index; its text is exact to a second.
_MOVED: Final = "SELECT id, queue FROM jobs WHERE completed_at IS NOT NULL AND completed_at < ? AND since_us < ? AND last_sequence <= ?"
_ARCHIVED: Final = f".{REACTOR.name}.{ARCHIVE}.archived"


def _values(state: RetentionState, at: str) -> Row:
    return retention_words(state.terms), state.terms.rows_keep_s, state.by, at, state.sequence


RETENTION_TABLES: Final = named_tables(RETENTION, 1, RETENTION_TABLE, _values)


def first_archived(messages: Sequence[Message]) -> int | None:
    """Return the place of the first message that records an archive run; None without any."""
    places = (
        at
        for at, message in enumerate(messages)
        if not isinstance(message, StoredEvent) and message.subject.endswith(_ARCHIVED)
    )
    return next(places, None)


def moved_jobs(connection: sqlite3.Connection, message: Message) -> list[tuple[str, str]]:
    """Return the id and the queue of each job whose rows go by the record of an archive run."""
    kept = connection.execute(_ROWS_KEEP).fetchone()
    if kept is None:
        return []
    try:
        event = REACTOR.decode(message)
    except (
        UnknownEventError,
        MalformedEventError,
    ):  # of a newer release, or written by hand: it moved nothing here
        return []
    if not isinstance(event, Archived):
        return []
    before = message.stored_at - timedelta(seconds=kept[0])
    values = time_text(before + timedelta(seconds=1)), round(before.timestamp() * 1e6), event.through_sequence
    return connection.execute(_MOVED, values).fetchall()
