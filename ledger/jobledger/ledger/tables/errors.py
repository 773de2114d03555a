"""What can go wrong with a table.

NotFoundError
└── TableExpiredError
"""

from __future__ import annotations

from typing import Literal

from jobledger.ledger.model.errors import NotFoundError
from jobledger.ledger.tables.record import TableRecord

#: `expired`: its time is over. `gone`: it is not there, although it should be. `differs`: it is not what was stored.
TableState = Literal["expired", "gone", "differs"]


class TableExpiredError(NotFoundError):
    """The rows of a table are not there any more; the ledger keeps only what they were.

    The run becomes a dead letter at once: another attempt would miss them, too. The command in the sentence makes a new
    run that does the steps from that one on again.
    """

    def __init__(self, record: TableRecord, step: str, run_id: str, state: TableState) -> None:
        self.name = record.name
        self.step = step  #: key of the step that made it
        self.state: TableState = state
        why = f"expired at {record.expires_at:%Y-%m-%d %H:%M:%S} UTC" if record.expires_at else "expired"
        if state != "expired":
            why = (
                "was removed before its time"
                if state == "gone"
                else "differs from what was stored: its sha256 is another one"
            )
        super().__init__(
            f"table {record.name!r} of step {step!r} of run {run_id} {why}. "
            f"`jobledger jobs rerun {run_id} --from {step}` makes it again"
        )
