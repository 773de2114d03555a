"""The rule `owner`: no value of a job that has an owner is in the clear. Counts uses of destroyed keys, too."""

from __future__ import annotations

from collections.abc import Iterator

from jobledger.audit.verify.chains import Chains
from jobledger.ledger.model.aggregate import Broken
from jobledger.ledger.model.envelope import VERSION_SEALED
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.owner import OwnerErased, OwnerState
from jobledger.ledger.model.seals import clear_field, number_of, owner_of


class OwnerRule:
    """The rule `owner` over the chains of owners that a checker keeps."""

    def __init__(self, owners: Chains) -> None:
        self._owners = owners
        #: Events that name a key which was recorded as destroyed before: by a process that stood still meanwhile, say.
        self.late = 0

    def job(self, event: JobEvent) -> Iterator[Broken]:
        """Yield what is wrong with an event of a job that has an owner."""
        if found := clear_field(event):
            yield "owner", f"{found} is in the clear, and the job has the owner {owner_of(event.key)}"
        if event.v < VERSION_SEALED:
            yield "owner", f"it names the key {event.key}, and its version {event.v} knows of none"
        state: OwnerState | None = self._owners.state_of(owner_of(event.key).split(":"))
        if state is not None and isinstance(state.event, OwnerErased):
            self.late += number_of(event.key) <= state.number
