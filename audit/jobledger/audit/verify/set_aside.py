"""The part of a check that is about messages which are no events: which there are, and who accepted them."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from jobledger.audit.verify.report import AcknowledgedMessage, Violation
from jobledger.ledger.model.log import Log, events_among
from jobledger.ledger.model.unreadable import UNREADABLE, Acknowledged

_DIGEST_BYTES: Final = 32


class SetAside:
    """The messages of a range that are no events, in stream order; 40 bytes of memory for each."""

    def __init__(self) -> None:
        self._sequences = array("Q")
        self._digests = bytearray()
        self.accepted: dict[int, AcknowledgedMessage] = {}  #: the accepted messages, by stream sequence

    def add(self, stream_sequence: int, digest: bytes) -> None:
        """Take in the next one; `digest` is the sha256 of its bytes."""
        self._sequences.append(stream_sequence)
        self._digests += digest

    def accept(self, event: Acknowledged) -> None:
        """Take in an acknowledgement; ignore it if its hash is not that of the message."""
        at = bisect_left(self._sequences, event.sequence)
        if at == len(self._sequences) or self._sequences[at] != event.sequence:
            return
        begin = at * _DIGEST_BYTES
        if self._digests[begin : begin + _DIGEST_BYTES].hex() == event.sha256:
            self.accepted[event.sequence] = AcknowledgedMessage(
                stream_sequence=event.sequence,
                subject=event.stored_as,
                why=event.why,
                by=event.by,
                at=event.at,
                reason=event.reason,
            )

    def forgive(self, violations: Sequence[Violation], broken: Counter[str]) -> list[Violation]:
        """Return the violations without those of accepted messages; subtract these from the count `broken`, too."""
        broken["readable"] -= len(self.accepted)
        if not broken["readable"]:
            del broken["readable"]
        return [each for each in violations if not self._is_forgiven(each)]

    def _is_forgiven(self, each: Violation) -> bool:
        return each.rule == "readable" and each.stream_sequence in self.accepted

    def listed(self, limit: int) -> tuple[AcknowledgedMessage, ...]:
        """Return the first ones that were accepted, in stream order."""
        return tuple(self.accepted[sequence] for sequence in sorted(self.accepted)[:limit])

    @property
    def unaccepted(self) -> int:
        """How many nobody accepted."""
        return len(self._sequences) - len(self.accepted)


async def acknowledgements(log: Log, from_sequence: int) -> AsyncGenerator[Acknowledged, None]:
    """Yield what people accepted from a stream sequence on.

    Raises: CorruptLedgerError, UnreachableError.
    """
    if from_sequence > (await log.head()).last_sequence:
        return
    subject = UNREADABLE.everything(log.names)
    batches = log.read_messages(from_sequence=from_sequence, subject=subject)
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for message in events_among(batch):
                yield UNREADABLE.decode(message)
