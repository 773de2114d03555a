"""Group commit: appends that arrive while one is in flight go out together as one atomic batch.

Where the server fsyncs each write, a batch costs one fsync, so grouping multiplies the rate; where it does not,
a batch costs more than its parts, so the writer pipelines. It does what it was told, or what it observes. No
timer is involved: a lone append goes out at once and plainly. Source: ADR 005.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from jobledger.ledger.log import BATCH_MESSAGES_MAX, Entry
from jobledger.ledger.publisher import Answered, AppendRefusedError, Publisher

Commit = Literal["auto", "group", "pipeline"]

#: One batch: the server's limit is 1,000 messages; the bytes keep a batch from delaying everybody else.
_GROUP_MESSAGES_MAX: Final = min(500, BATCH_MESSAGES_MAX)
_GROUP_BYTES_MAX: Final = 4 << 20
#: Two batches in flight keep the server busy while an answer travels; it allows 50 for a whole stream.
_GROUPS_IN_FLIGHT_MAX: Final = 2
#: Observing: only appends sent behind at least so many say something of the server, and so many of them decide.
_OBSERVED_DEPTH_MIN: Final = 8
_OBSERVED_COUNT: Final = 32
_OBSERVED_GROUPS: Final = 4
#: Above this an append may be waiting for a disk: fsync costs 150 us and more here, none 10 to 60 us.
_SUSPECT_APPEND_S: Final = 60e-6
_LOOK_AGAIN_S: Final = 20.0


class _Unit(msgspec.Struct, frozen=True):
    """Entries that are stored all or none, and who waits for them."""

    entries: Sequence[Entry]
    answered: Answered


class Writer:
    """Orders appends into plain messages or groups; every append gets its own answer."""

    def __init__(self, publisher: Publisher, *, commit: Commit = "auto") -> None:
        self._publisher = publisher
        self._told = commit
        self._grouping = commit == "group"
        self._waiting: deque[_Unit] = deque()
        self._groups_in_flight = 0
        self._messages_in_flight = 0  # in groups
        self._draining: asyncio.Handle | None = None
        self._observed = _Observation()
        self.group_sizes = GroupSizes()

    @property
    def grouping(self) -> bool:
        """Whether appends are grouped at present."""
        return self._grouping

    def append(self, entries: Sequence[Entry], answered: Answered) -> None:
        """Send `entries` as one; `answered` gets the first one's stream sequence or the error, never from here."""
        unit = _Unit(entries, answered)
        if not self._grouping:
            self._send_alone(unit)
            return
        self._waiting.append(unit)
        if self._draining is None and self._groups_in_flight < _GROUPS_IN_FLIGHT_MAX:
            # At the end of this turn of the loop, so that what the same turn appends goes along.
            self._draining = asyncio.get_running_loop().call_soon(self._drain)

    def forget_observations(self) -> None:
        """Observe anew, after a reconnect: it may be another server."""
        if self._told == "auto":
            self._grouping = False
            self._observed = _Observation()

    def _send_alone(self, unit: _Unit) -> None:
        count = len(unit.entries)
        ahead = self._publisher.in_flight
        sent_at = asyncio.get_running_loop().time()

        def answered(result: int | Exception) -> None:
            if self._told == "auto" and isinstance(result, int) and not self._grouping:
                now = asyncio.get_running_loop().time()
                if self._observed.alone(ahead, now - sent_at, now):
                    self._grouping = True
                    self._observed.start_grouping(now)
            unit.answered(result if isinstance(result, Exception) else result - count + 1)

        self._publisher.send(unit.entries, answered)

    def _drain(self) -> None:
        self._draining = None
        while self._waiting and self._groups_in_flight < _GROUPS_IN_FLIGHT_MAX:
            self._send_group(self._take_group())

    def _take_group(self) -> list[_Unit]:
        """Take what fits one batch, at most one unit of a chain.

        The server checks a batch's conditions against the stream before the batch, so two appends of one
        chain would both be accepted; the second one waits for the next batch and loses there, as it must.
        """
        group: list[_Unit] = []
        later: deque[_Unit] = deque()
        chains: set[str] = set()
        messages = size = 0
        while self._waiting and messages < _GROUP_MESSAGES_MAX:
            unit = self._waiting.popleft()
            its_chains = {entry.chain for entry in unit.entries}
            unit_bytes = sum(len(entry.data) for entry in unit.entries)
            too_much = messages + len(unit.entries) > BATCH_MESSAGES_MAX or size + unit_bytes > _GROUP_BYTES_MAX
            if its_chains & chains or (group and too_much):
                later.append(unit)
                chains |= its_chains  # order within a chain is kept
                if too_much:
                    break
                continue
            group.append(unit)
            chains |= its_chains
            messages += len(unit.entries)
            size += unit_bytes
        later.extend(self._waiting)
        self._waiting = later
        return group

    def _send_group(self, group: list[_Unit]) -> None:
        entries = [entry for unit in group for entry in unit.entries]
        self._groups_in_flight += 1
        self._messages_in_flight += len(entries)
        self.group_sizes.add(len(entries))
        queued = self._messages_in_flight
        sent_at = asyncio.get_running_loop().time()

        def answered(result: int | Exception) -> None:
            self._groups_in_flight -= 1
            self._messages_in_flight -= len(entries)
            if self._told == "auto" and isinstance(result, int) and self._grouping:
                now = asyncio.get_running_loop().time()
                self._grouping = self._observed.group(queued, now - sent_at, now)
            if isinstance(result, int):
                first = result - len(entries) + 1
                for unit in group:
                    unit.answered(first)
                    first += len(unit.entries)
            elif isinstance(result, AppendRefusedError) and len(group) > 1:
                for unit in group:  # one of them lost its race or is too large: each gets its own answer
                    self._send_alone(unit)
            else:
                for unit in group:
                    unit.answered(result)
            self._drain()

        self._publisher.send(entries, answered)


class GroupSizes:
    """How large the groups were, for metrics and benchmarks."""

    def __init__(self) -> None:
        self.groups = 0
        self.messages = 0

    def add(self, messages: int) -> None:
        """Count one group."""
        self.groups += 1
        self.messages += messages


class _Observation:
    """Compares what an append costs the server alone and in a group, and says which way to go.

    An append sent behind `ahead` others is answered after about `ahead + 1` times the server's time for one, a
    group likewise. The least of a window counts, so that a client which was busy does not look like a slow
    disk. Grouping is tried only where appends look as if they waited for a disk, and kept only where it wins.
    """

    def __init__(self) -> None:
        self._least = float("inf")
        self._samples = 0
        self._alone_s = float("inf")
        self._look_again_at = 0.0

    def alone(self, ahead: int, took_s: float, now: float) -> bool:
        """Count an answer to a plain append; return whether to group from here on."""
        if ahead < _OBSERVED_DEPTH_MIN or not self._full(took_s / (ahead + 1), _OBSERVED_COUNT):
            return False
        self._alone_s = self._take()
        return self._alone_s > _SUSPECT_APPEND_S and now >= self._look_again_at

    def group(self, messages: int, took_s: float, now: float) -> bool:
        """Count an answer to a group, `messages` being its own and those ahead; return whether to go on grouping."""
        if messages < _OBSERVED_DEPTH_MIN or not self._full(took_s / messages, _OBSERVED_GROUPS):
            return True
        wins = self._take() < self._alone_s
        if not wins or now >= self._look_again_at:
            self._look_again_at = now + (_LOOK_AGAIN_S if not wins else 0.0)
            return False
        return True

    def start_grouping(self, now: float) -> None:
        """Begin a trial of groups; after a while of success plain appends are measured again."""
        self._look_again_at = now + _LOOK_AGAIN_S
        self._least, self._samples = float("inf"), 0

    def _full(self, cost_s: float, count: int) -> bool:
        self._least = min(self._least, cost_s)
        self._samples += 1
        return self._samples >= count

    def _take(self) -> float:
        least, self._least, self._samples = self._least, float("inf"), 0
        return least
