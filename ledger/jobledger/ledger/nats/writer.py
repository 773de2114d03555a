"""Appends on their way to one stream, from the condition to the answer, in one place.

Many are on their way at once, and each has one entry here, `_Append`, until its answer comes, its time is up, or the
connection breaks. nats-py's own asynchronous publish never reports a refusal of the server, which a conditional append
needs; here a refusal is an ordinary answer. `jetstream` decides what a missing answer means.

Group commit: appends that arrive while two batches are in flight go out together as the next one. If the server fsyncs
each write, a batch costs four fsyncs, so grouping multiplies the rate; if not, a batch costs more than its parts, so
only the callers' own batches go out as such. The writer follows its setting, else the durability that the server
announces, else observations. No timer is involved: a lone append goes out at once and plainly. Source: ADR 005, ADR
066.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.errors import LedgerError, PermissionRefusedError
from jobledger.ledger.model.log import BATCH_MESSAGES_MAX, Entry
from jobledger.ledger.nats.api import NO_ROOM
from jobledger.ledger.nats.append_stats import AppendMeter
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.durability import Durability
from jobledger.ledger.nats.inbox import ReplyTimeoutError, status_of
from jobledger.ledger.nats.server_use import ServerUse

logger = logging.getLogger("jobledger.connection")

Commit = Literal["auto", "group", "pipeline"]
#: The faster way on a server whose durability is known.
_FASTER: Final[Mapping[Durability | None, Commit]] = {"power": "group", "process": "pipeline", None: "auto"}

REPLY_TIMEOUT_S: Final = 5.0
#: For a cluster: a message to a leader that is gone gets no answer, and the next leader
#: takes it within a second or two of its election.
_CLUSTER_REPLY_TIMEOUT_S: Final = 1.5
_SWEEP_S: Final = 0.25
#: Codes of a refusal by the condition; ADR 001 explains them.
WRONG_SEQUENCE_CODES: Final = frozenset({10071, 10164})

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
#: Plain appends faster than this do not wait for a disk: between the rate with fsync, 2,000 to 7,000/s, and that of a
#: slow machine without, 15,000/s and more. A trial of groups in vain costs a client a tenth of its rate for a moment.
_FAST_RATE: Final = 12_000.0
#: A process that computes for this share of the time in which appends are in flight is slowed by itself, not by a
#: disk: in a burst it may stay below `_FAST_RATE` even without fsync. With an fsync each it computes for a fifth of
#: the time.
_OWN_SHARE_MAX: Final = 0.4
#: After a slow window the writer looks at a second one, twice as long, and decides by that one: the first appends on a
#: stream are slow on any machine, and groups would win against them although plain appends are soon faster.
_SECOND_LOOK: Final = 2
_GROUPS_WIN_BY: Final = 1.5
#: Groups are given up after this many slower windows in a row: a disk may be slow for a moment, and if several
#: processes append in turns, groups pay only once all of them group. One window is enough if groups are at half the
#: rate.
_LOSSES_MAX: Final = 4.0
#: Groups that won are compared with plain appends again after this time. So are groups that did not win, but after
#: each trial in vain three times as late as before, since a trial delays bursts within it.
_LOOK_AGAIN_S: Final = 20.0
#: When groups have won for the first time, the writer tries plain appends again after this time: the earlier ones may
#: have been slow because they were the first.
_FIRST_LOOK_AGAIN_S: Final = 0.5
_LOOK_AGAIN_MAX_S: Final = 600.0
#: After a window that changed nothing, this many appends are not observed: observing all takes 5 % of a worker's time.
_UNOBSERVED: Final = 2_048


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: _Error | None = None


_decode_ack = msgspec.json.Decoder(_PubAck).decode


class AppendRefusedError(LedgerError):
    """The server refused an append, by its number."""

    def __init__(self, code: int, description: str) -> None:
        self.code = code
        super().__init__(f"the server refused an append: {description} ({code})")

    @property
    def is_lost_race(self) -> bool:
        """Whether its condition did not hold."""
        return self.code in WRONG_SEQUENCE_CODES

    @property
    def is_full(self) -> bool:
        """Whether there is no room for it, in the stream or on the server."""
        return self.code in NO_ROOM


#: Called once with the stream sequence of the first entry, or with an error.
Answered = Callable[[int | Exception], None]
#: Called instead of `Answered` if an append was not plainly accepted, with the data for a further look.
Doubted = Callable[[Sequence[Entry], Exception, Answered], None]


class _Append(msgspec.Struct, eq=False, gc=False):
    """Entries that are stored all or none, with the callback for their answer.

    An object of few fields that the garbage collector does not visit, since thousands are in flight at once.
    """

    entries: Sequence[Entry]
    answered: Answered
    doubted: Doubted | None = None
    deadline: float = 0.0  #: loop time; set when it is sent

    def end(self, result: int | Exception) -> None:
        """Pass on the outcome; raises nothing, since others in its group or on its connection wait, too."""
        try:
            if self.doubted is not None and isinstance(result, Exception):
                self.doubted(self.entries, result, self.answered)
            else:
                self.answered(result)
        except Exception:  # any error of a callback: the others must get their answers
            logger.exception("the answer to an append could not be handled")

    def __repr__(self) -> str:
        """Show no entries, since an event loop writes failing callbacks into the log."""
        return f"<{type(self).__name__}>"


class Writer:
    """Orders the appends to one stream into plain messages or groups; every append gets its own answer, once.

    A sent append is answered within its limit, or when the connection breaks.
    """

    def __init__(self, connection: Connection, *, commit: Commit = "auto") -> None:
        self.reply_timeout_s = _CLUSTER_REPLY_TIMEOUT_S if connection.is_clustered else REPLY_TIMEOUT_S
        self._connection = connection
        self._loop = connection.loop
        self._prefix = f"{connection.new_inbox()}."
        self._prefix_length = len(self._prefix)
        self._is_open = False
        self._count = 0  # number of the newest sent append
        self._open: dict[int, _Append] = {}  # sent and not yet answered, by number, oldest first
        self._sweeping: asyncio.TimerHandle | None = None
        self._use = ServerUse(connection, "took no write")
        self._setting = commit
        self._waiting: deque[_Append] = deque()
        self._groups_in_flight = 0
        self._grouped_in_flight = 0  # messages in groups
        # Messages that go one by one even while others are grouped.
        self._few = _FEW if commit == "auto" else 1
        self._alone_in_flight = 0  # observed appends that were sent by themselves
        self._draining: asyncio.Handle | None = None
        self.meter: AppendMeter | None = None  #: counts group commits, if wanted
        self.begin()

    async def open(self) -> None:
        """Listen for answers; harmless when done before."""
        if self._is_open:
            return
        self._is_open = True
        self._connection.lost_listeners.append(self._on_lost)
        self._connection.refused_listeners.append(self._on_refused)
        await self._connection.listen(f"{self._prefix}*", self._on_answer)

    def begin(self) -> None:
        """Choose the way of sending, on the first connection and after each reconnect: the server may be a new one."""
        self.durability = self._connection.durability  #: the durability that the server announces
        self._told = _FASTER[self.durability] if self._setting == "auto" else self._setting
        self._grouping = self._told == "group"
        self._observed = _Observation()
        self._unobserved = (
            0 if self._told == "auto" else sys.maxsize
        )  # number of next appends that are not observed

    def close(self) -> None:
        """Stop the timers; waiting appends are answered by the end of the connection."""
        self._use.is_useful()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    @property
    def grouping(self) -> bool:
        """Whether appends are grouped at present."""
        return self._grouping

    @property
    def in_flight(self) -> int:
        """The number of appends without an answer yet."""
        return len(self._open) + self._grouped_in_flight + len(self._waiting)

    # From an append to the wire.

    def append(self, entries: Sequence[Entry], answered: Answered, doubted: Doubted | None = None) -> None:
        """Send `entries` as one; `answered` gets the first one's stream sequence or the error, after this call.

        `doubted`, if given, gets the error instead.
        """
        append = _Append(entries, answered, doubted)
        # Several entries are a batch in any case, which costs the server nearly as much as one of hundreds: those that wait
        # at the same time go out as one.
        if not self._grouping and len(entries) == 1:
            if not self._unobserved:
                self._send_alone(append)
                return
            self._unobserved -= 1
            self._send(append)
            return
        self._waiting.append(append)
        if self._draining is None and self._groups_in_flight < _GROUPS_IN_FLIGHT_MAX:
            # At the end of this turn of the loop, together with other appends of the turn.
            self._draining = self._loop.call_soon(self._drain)

    def send(self, entries: Sequence[Entry], answered: Answered) -> None:
        """Send `entries` as one at once, and not in a group with others; else as `append`. Any stream takes them."""
        self._send(_Append(entries, answered))

    def _send(self, append: _Append) -> None:
        """Send one entry plainly, several as one atomic batch, and wait for its answer."""
        entries = append.entries
        entry = entries[-1]
        number = self._count = self._count + 1
        try:
            headers = _condition(entry) if len(entries) == 1 else self._stage(entries)
            append.deadline = self._loop.time() + self.reply_timeout_s
            if self._sweeping is None:
                self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)
            self._connection.send(entry.subject, f"{self._prefix}{number}", headers, entry.data)
            self._open[number] = append
        except ConnectionLostError as error:
            self._loop.call_soon(append.end, error)

    def _stage(self, entries: Sequence[Entry]) -> bytes:
        """Send all of a batch but the last without a reply, whose answer is for all; return the last one's headers."""
        batch = uuid.uuid4().hex
        for number, entry in enumerate(entries[:-1], start=1):
            tail = f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {number}\r\n"
            self._connection.send(entry.subject, "", _condition(entry, tail), entry.data)
        tail = f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {len(entries)}\r\nNats-Batch-Commit: 1\r\n"
        return _condition(entries[-1], tail)

    # From the answer to who waits.

    def _on_answer(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes) -> None:
        """Take the server's answer to one append; called by the connection's reader."""
        try:
            append = self._open.pop(int(subject[self._prefix_length :]))
        except (KeyError, ValueError):  # it was answered already
            return
        try:
            ack = _decode_ack(data)
        except msgspec.MsgspecError:
            self._refuse(append, _no_acknowledgement(data, headers))
            return
        if ack.error is not None:
            self._refuse(append, AppendRefusedError(ack.error.err_code, ack.error.description))
            return
        if self._use.is_doubted:
            self._use.is_useful()
        append.answered(ack.seq + 1 - len(append.entries))

    def _refuse(self, append: _Append, error: Exception) -> None:
        """Pass on that the server did not take an append: it refused it, or nobody listens."""
        if isinstance(error, ConnectionLostError):
            self._use.is_useless()
        elif self._use.is_doubted:
            self._use.is_useful()
        append.end(error)

    def _sweep(self) -> None:
        """End overdue appends with an error; all limits are equal, so the oldest comes first."""
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep) if self._open else None
        now = self._loop.time()
        overdue = itertools.takewhile(lambda each: each[1].deadline <= now, self._open.items())
        for number, append in list(overdue):
            if self._open.pop(number, None) is None:
                continue  # the answer to another one ended it
            self._use.is_useless()
            append.end(ReplyTimeoutError(f"no answer to an append within {self.reply_timeout_s:g} s"))

    def _on_lost(self) -> None:
        """End all appends in flight with an error: no answer will come on this connection."""
        for number in list(self._open):
            self._open.pop(number).end(ConnectionLostError())

    def _on_refused(self, error: PermissionRefusedError) -> bool:
        """End appends that the server does not allow to this user; return whether there were any."""
        hears_nothing = error.verb == "subscribe" and error.subject == f"{self._prefix}*"
        refused = [
            number
            for number, append in self._open.items()
            if hears_nothing or any(entry.subject == error.subject for entry in append.entries)
        ]
        for number in refused:
            self._open.pop(number).end(error)
        return bool(refused)

    # Groups.

    def _drain(self) -> None:
        self._draining = None
        while self._waiting and self._groups_in_flight < _GROUPS_IN_FLIGHT_MAX:
            self._send_group(self._take_group())

    def _take_group(self) -> list[_Append]:
        """Take appends that fit into one batch, at most one of each chain.

        The server checks a batch's conditions against the stream before the batch, so two appends of one
        chain would both be accepted; the second one waits for the next batch and loses there, as it must.
        """
        group: list[_Append] = []
        later: deque[_Append] = deque()
        chains: set[str] = set()
        messages = size = 0
        while self._waiting and messages < _GROUP_MESSAGES_MAX:
            append = self._waiting.popleft()
            append_bytes, waits = 0, False
            for entry in append.entries:
                append_bytes += len(entry.data)
                waits = waits or entry.chain in chains
            too_much = (
                messages + len(append.entries) > BATCH_MESSAGES_MAX or size + append_bytes > _GROUP_BYTES_MAX
            )
            for entry in append.entries:
                chains.add(entry.chain)  # also for a waiting append, to keep the order within a chain
            if waits or (group and too_much):
                later.append(append)
                if too_much:
                    break
                continue
            group.append(append)
            messages += len(append.entries)
            size += append_bytes
        later.extend(self._waiting)
        self._waiting = later
        return group

    def _send_group(self, group: list[_Append]) -> None:
        entries = [entry for append in group for entry in append.entries]
        if len(entries) <= self._few and len(entries) == len(group):
            self._send_few(group)
            return
        self._groups_in_flight += 1
        self._grouped_in_flight += len(entries)
        self._observe_sent()
        if self.meter is not None:
            self.meter.group_messages.observe(len(entries))
        self._send(_Append(entries, functools.partial(self._on_group_answered, group, len(entries))))

    def _on_group_answered(self, group: list[_Append], messages: int, result: int | Exception) -> None:
        self._groups_in_flight -= 1
        self._grouped_in_flight -= messages
        self._observe(messages, result, grouped=True)
        if isinstance(result, int):
            for append in group:
                append.end(result)
                result += len(append.entries)
        elif isinstance(result, AppendRefusedError) and len(group) > 1:
            for append in group:  # one of them lost its race or is too large: send each by itself
                self._send_alone(append)
        else:
            for append in group:
                append.end(result)
        self._drain()

    def _send_few(self, group: list[_Append]) -> None:
        """Send appends one by one if they are too few for a batch; if more are in flight, the next group waits."""
        left = len(group)
        # While few are in flight in all, none waits, since over a network that would be a round trip for each.
        takes_place = self._few == 1 or len(self._open) + left > self._few
        self._groups_in_flight += takes_place

        def answered(append: _Append, result: int | Exception) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._groups_in_flight -= takes_place
            self._observe(len(append.entries), result, grouped=True)
            append.end(result)
            if not left:
                self._drain()

        for append in group:
            self._send(_Append(append.entries, functools.partial(answered, append)))
        self._observe_sent()

    # Which way is faster.

    def _send_alone(self, append: _Append) -> None:
        """Send an append by itself, and observe how long its answer takes."""
        self._send(_Append(append.entries, functools.partial(self._on_alone_answered, append)))
        self._alone_in_flight += 1
        if self._observed.since is None and len(self._open) == self._alone_in_flight:
            self._observe_sent()  # else answers of appends that are not observed come first

    def _on_alone_answered(self, append: _Append, result: int | Exception) -> None:
        self._alone_in_flight -= 1
        self._observe(len(append.entries), result, grouped=False)
        append.end(result)

    def _observe_sent(self) -> None:
        """Start the observed time now, not only at the first answer, if enough appends are in flight."""
        if self._told == "auto" and not self._unobserved:
            self._observed.sent(self.in_flight, self._loop.time())

    def _observe(self, messages: int, result: int | Exception, *, grouped: bool) -> None:
        """Learn from an answer which way of sending is faster here; `grouped`: how the messages were sent."""
        if self._told != "auto" or self._unobserved or isinstance(result, Exception):
            return
        # Sent before the last change of the way, so it tells nothing of the present one.
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


def _condition(entry: Entry, tail: str = "") -> bytes:
    """Return the header block of an entry: its condition, and the headers of its batch."""
    if entry.expected is None:
        return f"NATS/1.0\r\n{entry.headers}{tail}\r\n".encode()
    return (
        f"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {entry.expected}\r\n"
        f"Nats-Expected-Last-Subject-Sequence-Subject: {entry.chain}\r\n{entry.headers}{tail}\r\n"
    ).encode()


def _no_acknowledgement(data: bytes, headers: bytes) -> Exception:
    """Return the error for an unreadable answer."""
    if data:
        return AppendRefusedError(0, "an answer that is no acknowledgement")
    if (
        status_of(headers) == "503"
    ):  # no stream listens on the subject: it is being created or moved, or is gone
        return ConnectionLostError()
    return AppendRefusedError(0, "an empty answer")


class _Observation:
    """Counts answers per second while enough appends are in flight, alone and in groups, and chooses the better way.

    It compares stored appends per second, whatever limits them. Grouping is tried only if plain appends are slow
    enough for a disk to be the cause, and kept only if it clearly wins.
    """

    def __init__(self, cpu_s: Callable[[], float] = time.process_time) -> None:
        """`cpu_s` returns how long this process has computed."""
        self.since: float | None = None  # when the time began to count; None: too few are in flight
        self._answers = 0  # of the present window
        self._busy_s = 0.0
        self._cpu_s = cpu_s
        self._own_since = 0.0  # the value of `_cpu_s` at `since`
        self._own_s = 0.0  # of the present window
        self._own_share = 0.0  # of the last window
        self._alone_rate = 0.0
        self._doubted = False  # whether the last window of plain appends was slow
        # Windows in a row in which groups did not win; they count more where groups were slower than plain appends.
        self._lost = 0.0
        self._won = False  # whether groups won since the last trial of plain appends
        self._look_again_at = 0.0
        self._vain_s = _LOOK_AGAIN_S  # how long the next trial in vain delays the one after it

    def answered(self, messages: int, in_flight: int, now: float, *, grouping: bool) -> bool | None:
        """Count answered messages; return whether to group from here on, None: no change."""
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
            # If groups won before, the disk may just be slower now: plain appends are tried before groups are given up.
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
        """Start counting the time if enough are in flight and it did not count before."""
        if self.since is None and in_flight >= _OBSERVED_DEPTH_MIN:
            self.since, self._own_since = now, self._cpu_s()

    def pause(self) -> None:
        """Stop counting the time until the next answer or group."""
        self.since = None

    def _rate(self, messages: int, in_flight: int, now: float) -> float | None:
        """Return answers per second of the time in which enough were in flight, once it fills a window."""
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
