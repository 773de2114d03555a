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
#: Above this an append waits for a disk: fsync costs 150 us and more here, none 10 to 40 us.
_FSYNC_APPEND_S: Final = 100e-6


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
            if self._told == "auto" and isinstance(result, int):
                self._observe(ahead, asyncio.get_running_loop().time() - sent_at)
            unit.answered(result if isinstance(result, Exception) else result - count + 1)

        self._publisher.send(unit.entries, answered)

    def _observe(self, ahead: int, took_s: float) -> None:
        verdict = self._observed.answer(ahead, took_s)
        if verdict is not None:
            self._grouping = verdict

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
        self._groups_in_flight += 1
        entries = [entry for unit in group for entry in unit.entries]
        self.group_sizes.add(len(entries))

        def answered(result: int | Exception) -> None:
            self._groups_in_flight -= 1
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
    """Estimates the server's time for one append from answers to appends that stood in a queue.

    An append sent behind `ahead` others is answered after about `ahead + 1` times that time. The least of a
    window counts, so that a client which was busy or stopped does not look like a slow disk.
    """

    def __init__(self) -> None:
        self._least = float("inf")
        self._samples = 0

    def answer(self, ahead: int, took_s: float) -> bool | None:
        """Count one answer; return whether to group once enough were seen, else None."""
        if ahead < _OBSERVED_DEPTH_MIN:
            return None
        self._least = min(self._least, took_s / (ahead + 1))
        self._samples += 1
        if self._samples < _OBSERVED_COUNT:
            return None
        verdict = self._least > _FSYNC_APPEND_S
        self._least, self._samples = float("inf"), 0
        return verdict
