"""A ledger of many runs in little time: what `families` makes of runs once, written again under other names."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from hashlib import sha256
from typing import Final, NamedTuple

from tests.support.families import PARTS, Families

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import Failed
from jobledger.ledger.model.subjects import Names

#: What differs from copy to copy: names of jobs, stream sequences of the copy's own events, and their hashes.
_DIFFERS: Final = re.compile(
    rb'(?P<name>(?<="job":"))|(?<="signal":)(?P<signal>\d+)|(?<="sequence":)(?P<sequence>\d+)'
    rb'|(?<=")(?P<hash>[0-9a-f]{64})(?=")'
)


class _Gap(NamedTuple):
    kind: str  # "name", "hash", "signal" or "sequence"
    of: int  # index of the event whose hash or sequence it is


class _Shape(NamedTuple):
    """An event without what differs."""

    subject: list[str]  # the name of the copy belongs between them
    data: list[bytes | _Gap]


class _Part(NamedTuple):
    """What is copied."""

    shapes: list[_Shape]
    half: int  #: how many of the events are its first half

    @classmethod
    def made_of(cls, story: Families, names: Names) -> _Part:
        events = [each for each in story.messages if isinstance(each, StoredEvent)]
        hashes = {each.hash.encode(): index for index, each in enumerate(events)}
        jobs = {ref.job_id for ref in story.chains}
        half = len(events) // 2
        while isinstance(events[half - 1].event, Failed):
            half += 1  # what follows on it belongs to the same append
        return cls([_Shape(_subject(names, each, jobs), _data(each, hashes)) for each in events], half)


def _subject(names: Names, stored: StoredEvent, jobs: set[str]) -> list[str]:
    tokens = ((f"\0{each}" if each in jobs else each) for each in names.event(stored.event).split("."))
    return ".".join(tokens).split("\0")


def _data(stored: StoredEvent, hashes: dict[bytes, int]) -> list[bytes | _Gap]:
    data: list[bytes | _Gap] = []
    end = 0
    for found in _DIFFERS.finditer(stored.data):
        kind, text = str(found.lastgroup), found[0]
        of = 0 if kind == "name" else hashes[text] if kind == "hash" else int(text) - 1
        data += [stored.data[end : found.start()], _Gap(kind, of)]
        end = found.end()
    return [*data, stored.data[end:]]


class _Copy:
    """A copy of a part; any events of others may lie between its events."""

    def __init__(self, part: _Part, name: str) -> None:
        self._part = part
        self._name = name
        self._sequences: list[int] = []
        self._hashes: list[str] = []

    def write(self, sequence: int) -> tuple[str, bytes]:
        """Return subject and data of the next event, which is stored at `sequence`."""
        shape = self._part.shapes[len(self._sequences)]
        data = b"".join(each if isinstance(each, bytes) else self._fill(each) for each in shape.data)
        self._sequences.append(sequence)
        self._hashes.append(sha256(data).hexdigest())
        return self._name.join(shape.subject), data

    def _fill(self, gap: _Gap) -> bytes:
        if gap.kind == "name":
            return self._name.encode()
        return (self._hashes[gap.of] if gap.kind == "hash" else str(self._sequences[gap.of])).encode()

    @property
    def left(self) -> int:
        """How many events belong to the half that is next."""
        done = len(self._sequences)
        return len(self._part.shapes) - done if done else self._part.half


def copies(
    names: Names, now: datetime, *, first: int, rounds: int, apart: int
) -> Iterator[tuple[str, bytes]]:
    """Yield subject and data of events that are stored from sequence `first` on: `PARTS`, `rounds` times.

    Between the two halves of each part lie `apart` rounds of others.
    """
    parts = [_made(part, names, now) for part in PARTS]
    sequence = first
    begun: deque[list[_Copy]] = deque()
    for number in range(rounds + apart):
        halves: list[_Copy] = []
        if number < rounds:
            begun.append([_Copy(part, f"c{number}-") for part in parts])
            halves += begun[-1]
        if number >= apart:
            halves += begun.popleft()
        for copy in halves:
            for _ in range(copy.left):
                yield copy.write(sequence)
                sequence += 1


def _made(part: Callable[[Families], None], names: Names, now: datetime) -> _Part:
    story = Families()
    story.now = now
    part(story)
    return _Part.made_of(story, names)
