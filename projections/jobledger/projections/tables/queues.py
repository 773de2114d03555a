"""The table of queues that were ever paused: the state after the newest event of each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.queue_pause import QUEUE, QueueState
from jobledger.ledger.model.times import time_text
from jobledger.projections.table import AggregateTables, CacheLimits, Rows, Table, integer, text, timestamp
from jobledger.projections.tables.acts import ActName, put_act

QUEUE_PAUSES: Final = Table(
    name="queue_pauses",
    row="queue that was ever [paused](queues.md)",
    columns={
        "queue": text("the queue"),
        "paused": integer("1: its newest event paused it; 0: that resumed it"),
        "since": timestamp("the server's time of that event"),
        "by": text("who, as the caller named himself"),
        "reason": text("why, if somebody said so"),
        "until": timestamp("when the pause ends by itself; NULL: when somebody resumes the queue"),
        "interrupt": integer("1: running attempts were to be given back"),
        "last_sequence": integer("of that event"),
    },
    key=("queue",),
    sequence="last_sequence",
)
_PUT: Final = QUEUE_PAUSES.putting()
_READ: Final = "SELECT queue, paused, since, by, reason, until, interrupt, last_sequence FROM queue_pauses ORDER BY queue"


def read_pauses(select: Callable[[str], Sequence[Sequence[Any]]]) -> dict[str, QueueState]:
    """Return every queue that was ever paused as it is now; `select` runs a statement on a projection's file."""
    return {
        queue: QueueState(
            paused=bool(paused),
            since=datetime.fromisoformat(since),
            by=by,
            reason=reason,
            until=None if until is None else datetime.fromisoformat(until),
            interrupt=bool(interrupt),
            sequence=sequence,
        )
        for queue, paused, since, by, reason, until, interrupt, sequence in select(_READ)
    }


class QueueRows(Rows):
    """The rows of `queue_pauses`: each is the state after the newest event of a queue."""

    def __init__(self, connection: sqlite3.Connection, _cache: CacheLimits) -> None:
        self._connection = connection

    def apply(self, messages: Sequence[Message]) -> None:
        """Bring the rows forward; see `table.Rows`."""
        for message in messages:
            event = QUEUE.decode(message)
            state = QUEUE.evolve(None, event, message.stream_sequence)
            until = None if state.until is None else time_text(state.until)
            said = (int(state.paused), time_text(message.stored_at), state.by, state.reason, until)
            row = (event.queue, *said, int(state.interrupt), state.sequence)
            self._connection.execute(_PUT, row)
            act: ActName = "pause" if state.paused else "resume"
            put_act(self._connection, message, act, by=state.by, reason=state.reason, queue=event.queue)


QUEUE_TABLES: Final = AggregateTables(aggregate=QUEUE.name, version=2, tables=(QUEUE_PAUSES,), rows=QueueRows)
