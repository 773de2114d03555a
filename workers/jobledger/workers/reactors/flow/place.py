"""The chain of grants as one reactor knows it: where the next event must follow, and how it is appended."""

from __future__ import annotations

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.codec import Message, digest
from jobledger.ledger.model.errors import LedgerFullError, WrongSequenceError
from jobledger.ledger.model.limits.flow import FLOW, MAIN, Flow, FlowEvent, Snapshotted
from jobledger.ledger.model.log import end_of_chain


class Chain:
    """The end of the chain of grants, after what was read and what was appended here."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.view: View[Flow] = View()
        self.author = ""  #: who appended its newest event
        self._own: set[str] = set()  # hashes of what was appended here and not read back yet

    async def append(self, event: FlowEvent) -> int:
        """Append on condition that nothing came between; return the stream sequence.

        Raises: WrongSequenceError when another reactor was faster, and what `Log.append` raises.
        """
        (entry,) = FLOW.link(self._ledger.names, [event], self.view)
        before, own = self.view.state, digest(entry.data)
        self._own.add(own)  # it may be read back before the answer comes
        try:
            sequence = await self._ledger.log.append((entry,))
        except (WrongSequenceError, LedgerFullError):  # it is not stored, so it is never read back
            self._own.discard(own)
            raise
        if sequence > self.view.last_sequence:
            self.view = FLOW.advance(entry, event, sequence, before)
            self.author = event.by
        return sequence

    def heard(self, message: Message) -> FlowEvent | None:
        """Take in what was read; return the event if another reactor appended it, None for our own."""
        sequence = message.stream_sequence
        if sequence <= self.view.last_sequence and message.hash in self._own:
            self._own.discard(message.hash)
            return None
        event = FLOW.decode(message)
        if sequence > self.view.last_sequence:
            state = FLOW.evolve(self.view.state, event, sequence)
            self.view = View(state, sequence, message.data)
            self.author = event.by
        if message.hash in self._own:
            self._own.discard(message.hash)
            return None
        return event

    def passed(self, stream_sequence: int) -> None:
        """Take note of a message of the chain that is no event: the next append has to name its sequence."""
        if stream_sequence > self.view.last_sequence:
            self.view = msgspec.structs.replace(self.view, last_sequence=stream_sequence)

    async def newest_snapshot(self) -> tuple[int, Snapshotted] | None:
        """Return the newest snapshot that is stored, and its stream sequence; None without one."""
        subject = FLOW.of_type(self._ledger.names, "snapshotted", MAIN)
        found = await end_of_chain(self._ledger.log, subject)
        if found.event is None:
            return None
        event = FLOW.decode(found.event)
        assert isinstance(event, Snapshotted), "it is stored as a snapshot"
        return found.event.stream_sequence, event
