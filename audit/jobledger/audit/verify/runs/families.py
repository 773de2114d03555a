"""The children of runs, as a check of a ledger keeps them: four sets of items per step, nothing per child."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from jobledger.audit.verify.records import step_bytes
from jobledger.audit.verify.store import Form
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.runs.steps import Step

_FAMILY_BYTES: Final = 400
_GROUP_BYTES: Final = 620


class Items(msgspec.Struct, gc=False):
    """A set of items: bit i stands for item i."""

    bits: bytearray = msgspec.field(default_factory=bytearray)

    def __contains__(self, item: int) -> bool:
        """Return whether an item is in it."""
        return item >> 3 < len(self.bits) and bool(self.bits[item >> 3] >> (item & 7) & 1)

    def add(self, item: int) -> int:
        """Put an item in; return how many bytes it grew by."""
        grown = max(0, (item >> 3) + 1 - len(self.bits))
        self.bits.extend(bytes(grown))
        self.bits[item >> 3] |= 1 << (item & 7)
        return grown

    def remove(self, item: int) -> None:
        """Take an item out."""
        if item in self:
            self.bits[item >> 3] &= ~(1 << (item & 7))

    @property
    def number(self) -> int:
        """The items as a number in which bit i stands for item i."""
        return int.from_bytes(self.bits, "little")


class Group(msgspec.Struct, gc=False):
    """The children of one step, as their own chains record them."""

    begun: Items = msgspec.field(default_factory=Items)
    completed: Items = msgspec.field(default_factory=Items)
    failed: Items = msgspec.field(default_factory=Items)  #: children that ended otherwise
    dead: Items = msgspec.field(default_factory=Items)  #: children that were dead letters, if that is no end
    cancels: bool = True  #: the open ones are cancelled when the run ends
    is_whole: bool = True  #: all that its children did lies in the range that is checked
    waits_for_person: bool = False  #: a dead letter among them has not ended
    is_early: bool = False  #: it has jobs of a batch whose run has not asked for them yet
    waits_since: datetime | None = None  #: since when an end may wait to be counted, by the server's clock

    @property
    def ended(self) -> int:
        """The items whose child has ended, as a number of bits."""
        return self.completed.number | self.failed.number

    def has_ended(self, item: int) -> bool:
        """Return whether the child of an item has ended."""
        return item in self.completed or item in self.failed

    def add_end(self, item: int, state: JobState) -> int:
        """Note how a child ended, or that it is a dead letter; return how many bytes that takes."""
        if state is JobState.COMPLETED:
            return self.completed.add(item)
        is_dead = state is JobState.DEAD_LETTERED and self.waits_for_person
        return self.dead.add(item) if is_dead else self.failed.add(item)

    def size(self) -> int:
        """Return how many bytes it takes, about."""
        return _GROUP_BYTES + sum(
            len(each.bits) for each in (self.begun, self.completed, self.failed, self.dead)
        )


class Family(msgspec.Struct, gc=False):
    """The children of one run."""

    groups: dict[str, Group] = {}  #: groups by the key of their step
    ended_at: datetime | None = (
        None  #: when the run ended, if that ends its children too; by the server's clock
    )
    left: dict[str, Step] = {}  #: for a closed run: its steps whose children were open when it closed


def _weigh(family: Family) -> int:
    groups = sum(len(key) + group.size() for key, group in family.groups.items())
    return _FAMILY_BYTES + groups + sum(map(step_bytes, family.left.values()))


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Family).decode

FAMILIES: Final[Form[Family]] = Form(
    weigh=_weigh, is_live=lambda _: True, encode=_encode, decode=lambda _, data: _decode(data)
)
