"""A book of records by name that keeps the newest in memory and the others on the disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from jobledger.audit.verify.spill import Spill

R = TypeVar("R")

#: What a spill's filter and page cache may take, as parts of the memory for records.
_FILTER_PART: Final = 4
_CACHE_PART: Final = 8
_CACHE_BYTES_MIN: Final = 256 << 10
#: What an entry costs beside its record and the letters of its name: its place in the table, the name's own object.
_ENTRY_BYTES: Final = 120
#: Records put aside in one transaction; what they become on the way there is memory as well.
_AT_ONCE: Final = 4_096


class Form(msgspec.Struct, Generic[R], frozen=True):
    """What a book has to know of its records."""

    weigh: Callable[[R], int]  #: bytes it takes in memory, about
    age: Callable[[R], int]  #: grows with use: the smallest are put aside first
    is_live: Callable[[R], bool]
    write: Callable[[R], bytes]
    read: Callable[[bool, bytes], R]  #: given whether it is live


class Book(Generic[R]):
    """Records by name, in about `memory_bytes_max` of memory and as much of the disk as they need.

    Who changes a record that `get` returned need not put it back, as long as it is done before the next `get`.
    """

    def __init__(self, form: Form[R], memory_bytes_max: int | None) -> None:
        """Begin empty; None keeps everything in memory."""
        self._form = form
        parts = 1 + 1 / _FILTER_PART + 1 / _CACHE_PART
        self._bytes_max = None if memory_bytes_max is None else int(memory_bytes_max / parts)
        self._hot: dict[str, R] = {}
        self._weight = 0
        self._spill: Spill | None = None
        self._count = 0

    def __len__(self) -> int:
        """Return how many names there are."""
        return self._count

    @property
    def weight_bytes(self) -> int:
        """About how much memory the records there take."""
        return self._weight

    @property
    def is_spilled(self) -> bool:
        """Whether anything was put aside."""
        return self._spill is not None

    def get(self, name: str) -> R | None:
        """Return a record, None for a name that is new.

        Raises: ScratchSpaceError.
        """
        if self._bytes_max is not None and self._weight > self._bytes_max:
            self._make_room(self._bytes_max)
        record = self._hot.get(name)
        if record is None and self._spill is not None:
            kept = self._spill.get(name)
            if kept is not None:
                record = self._hot[name] = self._form.read(*kept)
                self._weight += self._cost(name, record)
        return record

    def add(self, name: str, record: R) -> None:
        """Take in a record under a new name."""
        self._count += 1
        self._weight += self._cost(name, record)
        self._hot[name] = record

    def replace(self, name: str, record: R) -> None:
        """Put another record in the place of one that `get` has just returned."""
        self._weight += self._form.weigh(record) - self._form.weigh(self._hot[name])
        self._hot[name] = record

    def grow(self, size_bytes: int) -> None:
        """Note that a record became larger."""
        self._weight += size_bytes

    def all(self, *, live_only: bool = False) -> Iterator[tuple[str, R]]:
        """Yield every name and its record; the book must not change meanwhile.

        Raises: ScratchSpaceError.
        """
        for name, record in self._hot.items():
            if not live_only or self._form.is_live(record):
                yield name, record
        if self._spill is not None:
            for name, live, data in self._spill.all(live_only=live_only):
                if name not in self._hot:  # else it was fetched back, and may be another by now
                    yield name, self._form.read(live, data)

    def _make_room(self, bytes_max: int) -> None:
        """Put aside what was not used for longest, until half of the room is free."""
        form = self._form
        if self._spill is None:
            cache_bytes = max(_CACHE_BYTES_MIN, bytes_max // _CACHE_PART)
            self._spill = Spill(filter_bytes=max(1, bytes_max // _FILTER_PART), cache_bytes=cache_bytes)
        coldest_first = iter(sorted(self._hot, key=lambda name: form.age(self._hot[name])))
        while self._weight > bytes_max // 2 and (going := list(itertools.islice(coldest_first, _AT_ONCE))):
            self._spill.put(
                (name, form.is_live(self._hot[name]), form.write(self._hot[name])) for name in going
            )
            for name in going:
                self._weight -= self._cost(name, self._hot.pop(name))

    def _cost(self, name: str, record: R) -> int:
        return self._form.weigh(record) + _ENTRY_BYTES + len(name)

    def close(self) -> None:
        """Let go of what was put aside."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None
