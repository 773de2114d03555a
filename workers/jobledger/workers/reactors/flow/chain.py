"""The chain of grants as known to one reactor: the event that the next one must follow, and the append."""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.codec import Message, digest
from jobledger.ledger.model.errors import LedgerFullError, WrongSequenceError
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.limits.flow import FLOW, MAIN, Flow, FlowEvent, Snapshotted
from jobledger.ledger.model.log import end_of_chain

#: Number of stored states: of the newest snapshot, and of the one before, which a reader may be about to read.
_STATES_KEPT: Final = 2
_STATES_MAX: Final = 16


class Chain:
    """The end of the chain of grants, after the events that were read or appended here."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.view: View[Flow] = View()
        self.author = ""  #: author of its newest event
        #: References to large states that may still be stored, by their snapshots' stream sequences.
        self.states: dict[int, PayloadRef] = {}
        self.unused: list[PayloadRef] = []  #: our states whose snapshots were refused
        self._own: set[str] = set()  # hashes of events appended here and not read back yet

    async def append(self, event: FlowEvent) -> int:
        """Append on condition that no other event came; return the stream sequence.

        Raises: WrongSequenceError when another reactor was faster, and what `Log.append` raises.
        """
        (entry,) = FLOW.link(self._ledger.names, [event], self.view)
        before, own = self.view.state, digest(entry.data)
        self._own.add(own)  # the event may be read back before the answer comes
        try:
            sequence = await self._ledger.log.append((entry,))
        except (WrongSequenceError, LedgerFullError):  # the event is not stored, so it will not be read back
            self._own.discard(own)
            if isinstance(event, Snapshotted) and event.state_ref is not None:
                self.unused.append(event.state_ref)
            raise
        self._note(event, sequence)
        if sequence > self.view.last_sequence:
            self.view = FLOW.advance(entry, event, sequence, before)
            self.author = event.by
        return sequence

    def heard(self, message: Message) -> FlowEvent | None:
        """Note an event that was read; return it if another reactor appended it, None for our own."""
        sequence = message.stream_sequence
        if sequence <= self.view.last_sequence and message.hash in self._own:
            self._own.discard(message.hash)
            return None
        event = FLOW.decode(message)
        self._note(event, sequence)
        if sequence > self.view.last_sequence:
            state = FLOW.evolve(self.view.state, event, sequence)
            self.view = View(state, sequence, message.data)
            self.author = event.by
        if message.hash in self._own:
            self._own.discard(message.hash)
            return None
        return event

    def _note(self, event: FlowEvent, stream_sequence: int) -> None:
        """Note the place of a snapshot's state; forget the oldest of many, which were removed long ago."""
        if isinstance(event, Snapshotted) and event.state_ref is not None:
            self.states[stream_sequence] = event.state_ref
            if len(self.states) > _STATES_MAX:
                del self.states[min(self.states)]

    def superseded(self) -> list[PayloadRef]:
        """Return the states no longer needed: two newer snapshots have one, or their own snapshot was refused."""
        stored = [self.states[sequence] for sequence in sorted(self.states)]
        old, kept = stored[:-_STATES_KEPT], stored[-_STATES_KEPT:]
        return [each for each in (*self.unused, *old) if each not in kept]

    def forget(self, state: PayloadRef) -> None:
        """Note that a state was removed."""
        self.unused = [each for each in self.unused if each != state]
        self.states = {sequence: each for sequence, each in self.states.items() if each != state}

    def passed(self, stream_sequence: int) -> None:
        """Note a message of the chain that is no event: the next append must name its sequence."""
        if stream_sequence > self.view.last_sequence:
            self.view = msgspec.structs.replace(self.view, last_sequence=stream_sequence)

    async def newest_snapshot(self) -> tuple[int, Snapshotted] | None:
        """Return the newest stored snapshot and its stream sequence; None without one."""
        subject = FLOW.of_type(self._ledger.names, "snapshotted", MAIN)
        found = await end_of_chain(self._ledger.log, subject)
        if found.event is None:
            return None
        event = FLOW.decode(found.event)
        assert isinstance(event, Snapshotted), "it is stored as a snapshot"
        return found.event.stream_sequence, event
