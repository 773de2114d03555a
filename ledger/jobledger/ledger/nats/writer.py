"""Group commit: appends that arrive while two batches are in flight go out together as the next one.

Where the server fsyncs each write, a batch costs four fsyncs, so grouping multiplies the rate; where it does not,
a batch costs more than its parts, so it pipelines all but batches of callers. It obeys its setting, else what the server
says of its disk, else observations. No timer is involved: a lone append goes out at once and plainly. Source: ADR 005.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.log import BATCH_MESSAGES_MAX, Entry
from jobledger.ledger.nats.append_stats import AppendMeter
from jobledger.ledger.nats.durability import Durability
from jobledger.ledger.nats.publisher import Answered, AppendRefusedError, Publisher

Commit = Literal["auto", "group", "pipeline"]
#: What is faster on a server whose durability is known.
_FASTER: Final[Mapping[Durability | None, Commit]] = {"power": "group", "process": "pipeline", None: "auto"}

#: One batch: the server's limit is 1,000 messages; the bytes keep a batch from delaying everybody else.
_GROUP_MESSAGES_MAX: Final = min(500, BATCH_MESSAGES_MAX)
_GROUP_BYTES_MAX: Final = 4 << 20
#: Two batches in flight keep the server busy while an answer travels; it allows 50 for a whole stream.
_GROUPS_IN_FLIGHT_MAX: Final = 2
#: A batch costs as much as about ten appends with an fsync each: fewer than that are sent one by one, all at once.
_FEW: Final = 8
#: A window of observation counts while at least this many appends are in flight, with this many answers in this time.
_OBSERVED_DEPTH_MIN: Final = 8
_OBSERVED_COUNT: Final = 256
_OBSERVED_S: Final = 0.05
#: Plain appends faster than this do not wait for a disk: between what fsync allows, 2,000 to 7,000/s, and what a slow
#: machine does without, 15,000/s and more; where groups are tried in vain a client loses a tenth of its rate for a moment.
_FAST_RATE: Final = 12_000.0
#: A process that computes for this share of the time in which appends are in flight waits for itself, not for a disk:
#: in a burst it may stay below `_FAST_RATE` without any. With an fsync each it computes for a fifth of the time.
_OWN_SHARE_MAX: Final = 0.4
#: After a slow window the writer looks at a second one, twice as long, and decides by that one: the first appends on a
#: stream are slow on any machine, and groups would win against them where plain appends are soon faster.
_SECOND_LOOK: Final = 2
_GROUPS_WIN_BY: Final = 1.5
#: Groups are given up after this many slower windows in a row: a disk hiccups, and where several processes append in
#: turns, groups pay only once all of them group. One window is enough where groups are at half the rate.
_LOSSES_MAX: Final = 4.0
#: Groups that won are compared with plain appends again after this time; so are groups that did not win, and after
#: each trial in vain three times as late as before: a trial delays the bursts that fall into it.
_LOOK_AGAIN_S: Final = 20.0
#: When groups have won for the first time, the writer looks at plain appends again after this time: the ones that the
#: groups won against may have been slow because they were the first.
_FIRST_LOOK_AGAIN_S: Final = 0.5
_LOOK_AGAIN_MAX_S: Final = 600.0
#: After a window that changed nothing, this many appends are not observed: observing all takes 5 % of a worker's time.
_UNOBSERVED: Final = 2_048


class _Unit(msgspec.Struct, frozen=True):
    """Entries that are stored all or none, and who waits for them."""

    entries: Sequence[Entry]
    answered: Answered


class _Alone:
    """The answer of a unit that was sent by itself."""

    __slots__ = ("answered", "count", "writer")

    def __init__(self, writer: Writer, count: int, answered: Answered) -> None:
        self.writer = writer
        self.count = count
        self.answered = answered

    def __call__(self, result: int | Exception) -> None:
        self.writer.answered_alone(self.count, result)
        self.answered(result if isinstance(result, Exception) else result - self.count + 1)


class Writer:
    """Orders appends into plain messages or groups; every append gets its own answer."""

    def __init__(
        self, publisher: Publisher, *, commit: Commit = "auto", durability: Durability | None = None
    ) -> None:
        """`durability`: what the server says that an acknowledged append survives; None: it does not say."""
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        self._setting = commit
        self._waiting: deque[_Unit] = deque()
        self._groups_in_flight = 0
        self._grouped_in_flight = 0  # messages in groups
        # Messages that go one by one also where others are grouped.
        self._few = _FEW if commit == "auto" else 1
        self._alone_in_flight = 0  # units sent by themselves, of those that are looked at
        self._draining: asyncio.Handle | None = None
        self.begin(durability)
        self.meter: AppendMeter | None = None  #: counts group commits, where somebody wants to know

    @property
    def grouping(self) -> bool:
        """Whether appends are grouped at present."""
        return self._grouping

    def append(self, entries: Sequence[Entry], answered: Answered) -> None:
        """Send `entries` as one; `answered` gets the first one's stream sequence or the error, never from here."""
        # Several entries are a batch in any case, which costs the server nearly as much as one of hundreds: those that wait
        # at the same time go out as one.
        if not self._grouping and len(entries) == 1:
            if self._unobserved:
                self._unobserved -= 1
                self._publisher.send(entries, answered)
            else:
                self._send_alone(entries, answered)
            return
        self._waiting.append(_Unit(entries, answered))
        if self._draining is None and self._groups_in_flight < _GROUPS_IN_FLIGHT_MAX:
            # At the end of this turn of the loop, so that what the same turn appends goes along.
            self._draining = self._loop.call_soon(self._drain)

    def begin(self, durability: Durability | None) -> None:
        """Choose the way of sending, on the first connection and after each reconnect: it may be another server."""
        self._told = _FASTER[durability] if self._setting == "auto" else self._setting
        self._grouping = self._told == "group"
        self._observed = _Observation()
        self._unobserved = 0 if self._told == "auto" else sys.maxsize  # how many appends nobody looks at

    def _send_alone(self, entries: Sequence[Entry], answered: Answered) -> None:
        self._publisher.send(entries, _Alone(self, len(entries), answered))
        self._alone_in_flight += 1
        if self._observed.since is None and self._publisher.in_flight == self._alone_in_flight:
            self._observe_sent()  # else answers that are not observed come first

    def _observe_sent(self) -> None:
        """Start the observed time now if enough appends are in flight, not only at the first answer."""
        if self._told == "auto" and not self._unobserved:
            self._observed.sent(self.in_flight, self._loop.time())

    def answered_alone(self, messages: int, result: int | Exception) -> None:
        """Take note of the answer of a unit that was sent by itself."""
        self._alone_in_flight -= 1
        self._observe(messages, result, grouped=False)

    @property
    def in_flight(self) -> int:
        """How many appends have no answer yet."""
        return self._publisher.in_flight + self._grouped_in_flight + len(self._waiting)

    def _observe(self, messages: int, result: int | Exception, *, grouped: bool) -> None:
        """Learn from an answer which way of sending is faster here; `grouped`: how the messages were sent."""
        if self._told != "auto" or self._unobserved or isinstance(result, Exception):
            return
        # Sent before the last change, so it tells nothing of the present way.
        if grouped is not self._grouping:
            self._observed.pause()
            return
        in_flight = self.in_flight
        grouping = self._observed.answered(messages, in_flight, self._loop.time(), grouping=self._grouping)
        if grouping is None:
            return
        if not (grouping or self._grouping):
            # Those in flight are counted, too: their answers belong to this window, and would begin the next one early.
            self._unobserved = _UNOBSERVED + in_flight
        self._grouping = grouping

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
            unit_bytes, waits = 0, False
            for entry in unit.entries:
                unit_bytes += len(entry.data)
                waits = waits or entry.chain in chains
            too_much = (
                messages + len(unit.entries) > BATCH_MESSAGES_MAX or size + unit_bytes > _GROUP_BYTES_MAX
            )
            for entry in unit.entries:
                chains.add(entry.chain)  # also of one that waits: order within a chain is kept
            if waits or (group and too_much):
                later.append(unit)
                if too_much:
                    break
                continue
            group.append(unit)
            messages += len(unit.entries)
            size += unit_bytes
        later.extend(self._waiting)
        self._waiting = later
        return group

    def _send_group(self, group: list[_Unit]) -> None:
        entries = [entry for unit in group for entry in unit.entries]
        if len(entries) <= self._few and len(entries) == len(group):
            self._send_few(group)
            return
        self._groups_in_flight += 1
        self._grouped_in_flight += len(entries)
        self._observe_sent()
        if self.meter is not None:
            self.meter.group_messages.observe(len(entries))

        def answered(result: int | Exception) -> None:
            self._groups_in_flight -= 1
            self._grouped_in_flight -= len(entries)
            self._observe(len(entries), result, grouped=True)
            if isinstance(result, int):
                first = result - len(entries) + 1
                for unit in group:
                    unit.answered(first)
                    first += len(unit.entries)
            elif isinstance(result, AppendRefusedError) and len(group) > 1:
                for unit in group:  # one of them lost its race or is too large: each gets its own answer
                    self._send_alone(unit.entries, unit.answered)
            else:
                for unit in group:
                    unit.answered(result)
            self._drain()

        self._publisher.send(entries, answered)

    def _send_few(self, group: list[_Unit]) -> None:
        """Send units one by one that are too few for a batch; where more are in flight, the next group waits for them."""
        left = len(group)
        # While few are in flight in all, nobody waits: over a network that would be a round trip for each.
        takes_place = self._few == 1 or self._publisher.in_flight + left > self._few
        self._groups_in_flight += takes_place

        def answered(unit: _Unit, result: int | Exception) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._groups_in_flight -= takes_place
            count = len(unit.entries)
            self._observe(count, result, grouped=True)
            unit.answered(result if isinstance(result, Exception) else result - count + 1)
            if not left:
                self._drain()

        for unit in group:
            self._publisher.send(unit.entries, functools.partial(answered, unit))
        self._observe_sent()


class _Observation:
    """Counts answers per second while enough appends are in flight, alone and in groups, and says which way to go.

    It compares what matters: appends stored per second, whatever limits them. Grouping is tried only
    where plain appends are slow enough for a disk to be in the way, and kept only where it clearly wins.
    """

    def __init__(self, cpu_s: Callable[[], float] = time.process_time) -> None:
        """`cpu_s` returns how long this process has computed."""
        self.since: float | None = None  # when the time began to count; None: too few are in flight
        self._answers = 0  # of the present window
        self._busy_s = 0.0
        self._cpu_s = cpu_s
        self._own_since = 0.0  # what `_cpu_s` said at `since`
        self._own_s = 0.0  # of the present window
        self._own_share = 0.0  # of the last window
        self._alone_rate = 0.0
        self._doubted = False  # whether the last window of plain appends was slow
        # Windows in a row in which groups did not win; they count more where groups were slower than plain appends.
        self._lost = 0.0
        self._won = False  # whether they did since the last look at plain appends
        self._look_again_at = 0.0
        self._vain_s = _LOOK_AGAIN_S  # how long the next trial in vain puts off the one after it

    def answered(self, messages: int, in_flight: int, now: float, *, grouping: bool) -> bool | None:
        """Count answered messages; return whether to group from here on, None while there is nothing to say."""
        rate = self._rate(messages, in_flight, now)
        if rate is None:
            return None
        if grouping:
            if rate > _GROUPS_WIN_BY * self._alone_rate:
                self._lost, self._won, self._vain_s = 0.0, True, _LOOK_AGAIN_S
                if now < self._look_again_at:
                    return True
            else:
                self._lost += max(1.0, self._alone_rate / rate) ** 2
                if self._lost < _LOSSES_MAX:
                    return True
            # Where groups won before, it may be the disk that is slower now: plain appends are looked at before they go.
            self._look_again_at = now if self._won else now + self._put_off_s()
            return False
        if rate > _FAST_RATE or self._own_share > _OWN_SHARE_MAX or now < self._look_again_at:
            self._doubted = self._won = False
            return False
        self._doubted = not (self._doubted or self._won)
        if self._doubted:
            return None
        self._look_again_at = now + (_LOOK_AGAIN_S if self._won else _FIRST_LOOK_AGAIN_S)
        self._alone_rate, self._lost, self._won = rate, 0.0, False
        return True

    def _put_off_s(self) -> float:
        """Return how long no groups are tried after a trial in vain."""
        put_off_s = self._vain_s
        self._vain_s = min(3 * put_off_s, _LOOK_AGAIN_MAX_S)
        return put_off_s

    def sent(self, in_flight: int, now: float) -> None:
        """Let the time count from here on if enough are in flight, where it did not count before."""
        if self.since is None and in_flight >= _OBSERVED_DEPTH_MIN:
            self.since, self._own_since = now, self._cpu_s()

    def pause(self) -> None:
        """Let the time not count until the next answer or group."""
        self.since = None

    def _rate(self, messages: int, in_flight: int, now: float) -> float | None:
        """Return answers per second of the time in which enough were in flight, when there is a window of it."""
        own_s = self._cpu_s()
        if self.since is not None:
            self._answers += messages
            self._busy_s += now - self.since
            self._own_s += own_s - self._own_since
        self.since, self._own_since = (now if in_flight >= _OBSERVED_DEPTH_MIN else None), own_s
        times = _SECOND_LOOK if self._doubted else 1
        if self._answers < times * _OBSERVED_COUNT or self._busy_s < times * _OBSERVED_S:
            return None
        rate, self._own_share = self._answers / self._busy_s, self._own_s / self._busy_s
        self.since = None  # the first answer of the next window may still belong to this way of sending
        self._answers, self._busy_s, self._own_s = 0, 0.0, 0.0
        return rate
