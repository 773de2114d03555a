"""What a stream keeps and says: JetStream's rules as far as the product relies on them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.nats.pull import time_of

if TYPE_CHECKING:
    from tests.model.simulation.consumers import Consumer

UNIX = time_of(0)


class Message(NamedTuple):
    """One stored message."""

    subject: str
    headers: dict[str, str]
    data: bytes
    stored_ns: int


@cache
def matcher(filter_subject: str) -> Callable[[str], Any]:
    patterns = {"*": r"[^.]+", ">": r".+"}
    parts = [patterns.get(part) or re.escape(part) for part in filter_subject.split(".")]
    return re.compile(r"\.".join(parts)).fullmatch


def header_block(headers: dict[str, str], **own: str) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    lines += [f"Nats-{name.replace('_', '-')}: {value}\r\n" for name, value in own.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


def timestamp(nanoseconds: int) -> str:
    return time_of(nanoseconds).isoformat(timespec="microseconds")[:-6] + "Z"


def nanoseconds(moment: datetime) -> int:
    since = moment - UNIX
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


class Stream:
    """Messages by sequence, the newest of each subject, and the consumers that hand them out."""

    def __init__(self, name: str, config: dict[str, Any], now_ns: Callable[[], int]) -> None:
        self.name = name
        self.config = config
        self.consumers: dict[str, Consumer] = {}
        self.messages: dict[int, Message] = {}
        self.last_sequence = 0
        self.created = timestamp(now_ns())[:-1] + "000Z"
        self._now_ns = now_ns
        self._newest: dict[str, int] = {}
        self._age_ns = int(config.get("max_age") or 0)
        self._one_each = config.get("max_msgs_per_subject") == 1
        self.is_work_queue = config.get("retention") == "workqueue"
        self._seen_ids: dict[str, int] = {}

    def last_of(self, subject: str) -> int:
        """Return the sequence of a subject's newest message, 0 for none (any more)."""
        sequence = self._newest.get(subject, 0)
        message = self.message(sequence) if sequence else None
        return sequence if message is not None else 0

    def last_of_filter(self, filter_subject: str) -> int:
        if "*" not in filter_subject and ">" not in filter_subject:
            return self.last_of(filter_subject)
        fits = matcher(filter_subject)
        return max((n for n in list(self.messages) if (m := self.message(n)) and fits(m.subject)), default=0)

    def message(self, sequence: int) -> Message | None:
        message = self.messages.get(sequence)
        if message is not None and self._age_ns and self._now_ns() - message.stored_ns >= self._age_ns:
            self.remove(sequence)
            return None
        return message

    def store(self, subject: str, headers: dict[str, str], data: bytes) -> int:
        seen = self._seen_ids.get(headers.get("Nats-Msg-Id", ""))
        if seen is not None:
            return seen
        self.last_sequence += 1
        if self._one_each or "Nats-Schedule" in headers:
            self.remove(self._newest.get(subject, 0))
        self.messages[self.last_sequence] = Message(subject, headers, data, self._now_ns())
        self._newest[subject] = self.last_sequence
        if "Nats-Msg-Id" in headers:
            self._seen_ids[headers["Nats-Msg-Id"]] = self.last_sequence
        return self.last_sequence

    def remove(self, sequence: int) -> None:
        message = self.messages.pop(sequence, None)
        if message is not None and self._newest.get(message.subject) == sequence:
            del self._newest[message.subject]

    def sequences(self, filter_subject: str | None, from_sequence: int = 1) -> list[int]:
        """Return the sequences that fit a filter, in order."""
        fits = matcher(filter_subject) if filter_subject else None
        return [
            number
            for number in sorted(self.messages)
            if number >= from_sequence
            and (m := self.message(number)) is not None
            and (fits is None or fits(m.subject))
        ]

    def subjects(self, filter_subject: str) -> dict[str, int]:
        fits = matcher(filter_subject)
        return {subject: 1 for subject in self._newest if fits(subject) and self.last_of(subject)}

    def state(self) -> dict[str, Any]:
        held = [n for n in list(self.messages) if self.message(n) is not None]
        first = min(held, default=self.last_sequence + 1)
        return {"first_seq": first, "last_seq": self.last_sequence, "bytes": 0, "messages": len(held)}


class LedgerStream(Stream):
    """The ledger: the product's own log in memory is what stores."""

    def __init__(self, name: str, config: dict[str, Any], now_ns: Callable[[], int], log: MemoryLog) -> None:
        super().__init__(name, config, now_ns)
        self.log = log
        self._read: dict[int, Message] = {}  # what is stored never changes, and is read again and again

    def message(self, sequence: int) -> Message | None:
        message = self._read.get(sequence)
        if message is None:
            kept = self.log._kept
            if not 1 <= sequence <= len(kept):
                return None
            found = kept[sequence - 1]
            message = Message(found.subject, {}, found.data, nanoseconds(found.stored_at))
            self._read[sequence] = message
        return message

    def last_of_filter(self, filter_subject: str) -> int:
        indexes = self.log._chains.get(filter_subject)
        if indexes is not None:
            return indexes[-1] + 1
        return max(self.sequences(filter_subject), default=0)

    def last_of(self, subject: str) -> int:
        return self.last_of_filter(subject)

    def sequences(self, filter_subject: str | None, from_sequence: int = 1) -> list[int]:
        indexes = self.log._chains.get(filter_subject or "")
        if indexes is not None:
            return [index + 1 for index in indexes[bisect_left(indexes, from_sequence - 1) :]]
        fits = matcher(filter_subject or ">")
        return [
            number
            for number, kept in enumerate(self.log._kept, start=1)
            if number >= from_sequence and fits(kept.subject)
        ]

    def subjects(self, filter_subject: str) -> dict[str, int]:
        fits = matcher(filter_subject)
        found: Iterable[str] = (kept.subject for kept in self.log._kept)
        return {subject: 1 for subject in found if fits(subject)}

    def state(self) -> dict[str, Any]:
        return {
            "first_seq": 1,
            "last_seq": len(self.log._kept),
            "bytes": self.log._stored_bytes,
            "messages": len(self.log._kept),
        }
