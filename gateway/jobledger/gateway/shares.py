"""Counts of the things that each asker has open in one gateway: everyone has a share, so that nobody starves others.

`rates` counts how often somebody asks, this module how much of it goes on at once. The guard begins an `Asker` for each
request; code anywhere that holds something for a while counts it with `opened`. Counting is a few operations on dicts.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Final, Literal, get_args

import msgspec

from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.errors import ConfigurationError

Kind = Literal["requests", "anonymous", "waits", "streams", "readers", "uploads", "past", "connections"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_SHARE_MAX: Final = 100_000
_RETRY_AFTER_S: Final = "2"
#: `/readyz` reports an overload once fewer than one in this many places is free.
_FREE_PART: Final = 10


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The number of things of a kind that may be open at once."""

    each: int  #: for one asker: a key or a person; for `anonymous` and `connections`, a network address
    total: int  #: for all together

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work. Raises: ConfigurationError."""
        if not 1 <= self.each <= self.total <= _SHARE_MAX:
            raise ConfigurationError(
                f"a share needs 1 to {_SHARE_MAX:,} for all and no more than that for each, "
                f"got {self.each} of {self.total}"
            )


SHARES: Final[Mapping[Kind, Share]] = {
    "requests": Share(each=500, total=1_000),
    "anonymous": Share(each=64, total=256),
    "waits": Share(each=200, total=500),
    # Each event is written to each stream, so an asker may have few.
    "streams": Share(each=50, total=500),
    "readers": Share(each=4, total=32),
    # All uploads together stay below the room for appends: each may have `BULK_APPENDS_MAX` of them in flight.
    "uploads": Share(each=2, total=4),
    "past": Share(each=2, total=8),
    "connections": Share(each=2_000, total=4_000),
}
_WORDS: Final[Mapping[Kind, str]] = {
    "requests": "requests",
    "anonymous": "requests without a key",
    "waits": "requests that wait",
    "streams": "streams",
    "readers": "streams that read the past",
    "uploads": "bulk uploads",
    "past": "views of the past",
    "connections": "connections",
}


class Shares:
    """The open things of one gateway, counted."""

    def __init__(self, shares: Mapping[Kind, Share] | None = None) -> None:
        """`shares`: shares by kind, which replace the usual ones."""
        self.bounds: dict[Kind, Share] = {**SHARES, **(shares or {})}
        self._held: dict[tuple[Kind, str], int] = {}
        self.open: dict[Kind, int] = dict.fromkeys(KINDS, 0)  #: number open, by kind
        self.refused: dict[Kind, int] = dict.fromkeys(KINDS, 0)  #: number refused, by kind

    def take(self, kind: Kind, who: str, *, named: str = "", is_bound: bool = True) -> None:
        """Count a thing as open until `give_back`; the last places go to askers that hold fewer than are free.

        `named`: the asker's name in a refusal. `is_bound` False: only the total applies, not the share of one asker.

        Raises: ProblemError (SHARE_USED, BUSY).
        """
        share, taken = self.bounds[kind], self.open[kind]
        key = (kind, who)
        held = self._held.get(key, 0)
        free = share.total - taken
        if free <= 0 or (is_bound and (held >= share.each or held >= free)):
            self.refused[kind] += 1
            raise self._refusal(kind, held, free, named or who)
        self._held[key] = held + 1
        self.open[kind] = taken + 1

    def give_back(self, kind: Kind, who: str) -> None:
        """Count a taken thing as closed."""
        key = (kind, who)
        held = self._held[key] - 1
        if held:
            self._held[key] = held
        else:
            del self._held[key]
        self.open[kind] -= 1

    def connected(self, address: str, *, is_bound: bool = True) -> Callable[[], None]:
        """Count a connection from an address; return its end. Raises: ProblemError (SHARE_USED, BUSY).

        `is_bound` False: a connection of a proxy, which carries the requests of many clients.
        """
        network = network_of(address)
        self.take("connections", network, named=f"the address {network}", is_bound=is_bound)
        return partial(self.give_back, "connections", network)

    def overloaded(self) -> str:
        """Return "" while there is room, else a sentence about the overload."""
        # Not `anonymous`, which anybody could fill to take every gateway out of service.
        for kind in ("requests", "connections"):
            taken, total = self.open[kind], self.bounds[kind].total
            if (total - taken) * _FREE_PART < total:
                return (
                    f"this gateway is overloaded: {taken:,} {_WORDS[kind]} are open, of {total:,} that may be"
                )
        return ""

    def _refusal(self, kind: Kind, held: int, free: int, who: str) -> ProblemError:
        words, share = _WORDS[kind], self.bounds[kind]
        if free <= 0:
            return ProblemError(
                "BUSY", f"{share.total:,} {words} are open already, of all who ask: try again in a moment"
            )
        kept = "" if held >= share.each else f", and the {free:,} that are free are kept for others"
        return ProblemError(
            "SHARE_USED",
            f"{who} has {held:,} {words} open, of {min(share.each, held + free):,} that one may have{kept}: "
            f"end some, or try again in {_RETRY_AFTER_S} s",
            headers={"retry-after": _RETRY_AFTER_S},
            share=kind,
            open=held,
        )


class Asker:
    """The asker of a request, from `begin` to `end`: everything `opened` meanwhile in this task counts for them."""

    __slots__ = ("_is_bound", "_kind", "_named", "_shares", "_token", "_who")

    def __init__(
        self, shares: Shares, who: str, *, named: str, kind: Kind = "requests", is_bound: bool = True
    ) -> None:
        """Parameters: see `Shares.take`."""
        self._shares = shares
        self._kind: Kind = kind
        self._who = who
        self._named = named
        self._is_bound = is_bound

    def begin(self) -> None:
        """Take the request's place. Raises: ProblemError (SHARE_USED, BUSY)."""
        self._shares.take(self._kind, self._who, named=self._named, is_bound=self._is_bound)
        self._token = _ASKER.set(self)

    def end(self) -> None:
        """Give it back, in the task that began."""
        _ASKER.reset(self._token)
        self._shares.give_back(self._kind, self._who)

    @contextlib.contextmanager
    def opened(self, kind: Kind) -> Generator[None, None, None]:
        """Count a further thing as open for the length of a block. Raises: ProblemError (SHARE_USED, BUSY)."""
        self._shares.take(kind, self._who, named=self._named, is_bound=self._is_bound)
        try:
            yield
        finally:
            self._shares.give_back(kind, self._who)


_ASKER: Final[ContextVar[Asker | None]] = ContextVar("jobledger-asker", default=None)


def opened(kind: Kind) -> contextlib.AbstractContextManager[None]:
    """Count a thing as open for the length of a block, in the current asker's share; the gateway itself has no share.

    Raises: ProblemError (SHARE_USED, BUSY).
    """
    asker = _ASKER.get()
    return contextlib.nullcontext() if asker is None else asker.opened(kind)


def network_of(address: str) -> str:
    """Return the network that counts as one address: for IPv6 64 bits, since one client has all of these."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
