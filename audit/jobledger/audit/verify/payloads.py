"""The part of a check that is about large inputs and results: the ledger has their hashes, an object store their text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from jobledger.audit.verify.checker import Checker
from jobledger.audit.verify.references import Reference, References
from jobledger.audit.verify.report import CrossCheck, LargeValues
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import PayloadState
from jobledger.ledger.model.events import PayloadRef
from jobledger.ledger.model.lifecycle import StoreName, references_of

WHAT: Final = "large values"
STATES_MAX: Final = 200  #: large values that are read for the trail of one job
States = Mapping[str, PayloadState]  #: by sha256
NO_STATES: Final[States] = MappingProxyType({})  #: nothing was read
_PROBLEM: Final = {
    "gone": "is gone: the event refers to it, and its job cannot be run or checked without it",
    "differs": "differs from what was stored: its sha256 is not the one that the event names",
}


class PayloadStates(Protocol):
    """Where large values can be looked at: `Stores` of a ledger, or `PayloadFiles` of exports."""

    async def state_of(self, store: StoreName, reference: PayloadRef, /) -> PayloadState:
        """Read a value and return what became of it. Raises: UnreachableError."""
        ...


class PayloadWitness:
    """A witness of `audit.verify`: counts the large values that events refer to, and reads them if it may."""

    def __init__(self, references: References, places: Sequence[PayloadStates]) -> None:
        """`places` are looked at in this order until one has the value; none: the values are only counted."""
        self._references = references
        self._places = places

    def feed(self, batch: Sequence[Message]) -> None:
        """Take what was read; see `audit.Witness`."""
        self._references.add(batch)

    async def finish(self, checker: Checker) -> None:
        """Tell the checker what does not agree; see `audit.Witness`."""
        count = len(self._references)
        if not self._places:
            checker.large_values = LargeValues(count=count, unread=count)
            return
        states: Counter[PayloadState] = Counter()
        wrong = 0
        for reference in self._references:
            wanted = PayloadRef(sha256=reference.sha256, size_bytes=reference.bytes)
            state = await state_among(self._places, reference.store, wanted)
            states[state] += 1
            sentence = problem_of(reference, state)
            if sentence is not None:
                wrong += 1
                checker.note(reference.job, "payload", sentence, stream_sequence=reference.stream_sequence)
        checker.large_values = LargeValues(
            count=count, stored=states["stored"], gone=states["gone"], differs=states["differs"]
        )
        if count:
            said = in_words(checker.large_values)
            checker.compared(CrossCheck(what=WHAT, sentence=said, agrees=not wrong))


async def states_of(places: Sequence[PayloadStates], events: Iterable[StoredEvent]) -> States:
    """Read the large values of a few events, the newest `STATES_MAX` of them, and return what became of each.

    Raises: UnreachableError.
    """
    wanted = [each for stored in events for each in references_of(stored.event)]
    return {
        reference.sha256: await state_among(places, store, reference)
        for store, reference in wanted[-STATES_MAX:]
    }


async def state_among(
    places: Sequence[PayloadStates], store: StoreName, reference: PayloadRef
) -> PayloadState:
    """Return what became of a value: stored when any place has it. Raises: UnreachableError."""
    found: PayloadState = "gone"
    for place in places:
        state = await place.state_of(store, reference)
        if state == "stored":
            return state
        found = state if state == "differs" else found
    return found


def problem_of(reference: Reference, state: PayloadState) -> str | None:
    """Return a sentence on a value that must be there and is not, else None. A result expires, so it may be gone."""
    if state == "stored" or (state == "gone" and reference.store == "results"):
        return None
    kind = "input" if reference.store == "inputs" else "result"
    return f"its large {kind} {reference.sha256[:12]}... {_PROBLEM[state]}"


def in_words(values: LargeValues) -> str:
    """Return what became of large values, for a person; there are some."""
    said = f"{values.stored:,} of {values.count:,} are stored"
    gone = f", {values.gone:,} gone (results expire after a week)" if values.gone else ""
    return said + gone + (f", {values.differs:,} differ" if values.differs else "")
