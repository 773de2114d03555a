"""The writer against a connection that does as it is told: what goes together, and who gets which answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
import pytest

from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.model.log import Entry
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.durability import Durability
from jobledger.ledger.nats.inbox import ReplyTimeoutError
from jobledger.ledger.nats.parser import Handler
from jobledger.ledger.nats.writer import AppendRefusedError, Commit, Writer, _Observation

pytestmark = pytest.mark.anyio

REFUSED = AppendRefusedError(10071, "wrong last sequence: 7")


class ScriptedConnection:
    """Keeps what was sent, message by message or batch by batch; the test answers as a server does."""

    def __init__(self, durability: Durability | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.durability = durability
        self.is_clustered = False
        self.is_lost = False
        self.lost_listeners: list[Callable[[], None]] = []
        self.refused_listeners: list[Callable[[PermissionRefusedError], bool]] = []
        self.sent: list[tuple[list[str], str]] = []  # data and the reply subject
        self.headers: list[bytes] = []
        self._staged: list[str] = []
        self._handler: Handler | None = None

    def new_inbox(self) -> str:
        return "_INBOX.1"

    async def listen(self, subject: str, handler: Handler) -> None:
        assert subject == "_INBOX.1.*"
        assert self._handler is None
        self._handler = handler

    def send(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        if self.is_lost:
            raise ConnectionLostError
        assert subject == "s"
        self.headers.append(headers)
        self._staged.append(data.decode())
        if reply:
            self.sent.append((self._staged, reply))
            self._staged = []

    def take(self) -> list[str]:
        """What the oldest message or batch holds, without answering it."""
        return self.sent[0][0]

    def answer(self, result: int | AppendRefusedError) -> None:
        said: dict[str, object] = {"stream": "S", "seq": result}
        if isinstance(result, AppendRefusedError):
            said = {"error": {"code": 400, "err_code": result.code, "description": "wrong last sequence: 7"}}
        self.say(self.sent.pop(0)[1], msgspec.json.encode(said))

    def say(self, reply: str, data: bytes, headers: bytes = b"") -> None:
        assert self._handler is not None
        self._handler(reply.encode(), b"", data, headers)

    def answer_safely(self, result: int) -> None:
        """Answer as the connection hands it on: what the handler raises reaches nobody."""
        with contextlib.suppress(ZeroDivisionError):
            self.answer(result)

    def lose(self) -> None:
        self.is_lost = True
        self.sent.clear()
        for listener in self.lost_listeners:
            listener()


class Bench:
    """A writer, its connection, and the answers that came, by the name of the append."""

    def __init__(self, commit: Commit, durability: Durability | None = None) -> None:
        self.server = ScriptedConnection(durability)
        self.writer = Writer(cast("Connection", self.server), commit=commit)
        opening = self.writer.open()
        with pytest.raises(StopIteration):  # this connection has nothing to wait for
            opening.send(None)
        self.answers: dict[str, list[int | Exception]] = {}

    def append(self, name: str, *, chain: str = "", events: int = 1, size: int = 0) -> None:
        padded = name.ljust(size)
        entries = [
            Entry(
                "s",
                padded.encode() if number == 0 else f"{name}+{number}".encode(),
                chain or name,
                0 if number == 0 else None,
            )
            for number in range(events)
        ]
        self.writer.append(entries, lambda result: self.answers.setdefault(name, []).append(result))

    def codes(self, name: str) -> list[int]:
        """The numbers of the refusals that an append got."""
        return [each.code for each in self.answers[name] if isinstance(each, AppendRefusedError)]


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_pipelined_appends_go_out_at_once_and_alone() -> None:
    bench = Bench("pipeline")
    bench.append("a")
    bench.append("b", events=2)
    assert [data for data, _ in bench.server.sent] == [["a"]]
    await turn()
    assert [data for data, _ in bench.server.sent] == [["a"], ["b", "b+1"]]
    bench.server.answer(5)
    bench.server.answer(7)  # of a batch: the sequence of its last
    assert bench.answers == {"a": [5], "b": [6]}


async def test_pipelined_appends_of_several_entries_go_out_as_one_batch() -> None:
    """A batch costs the server nearly the same whatever its size: what two thousand jobs give back is eight batches."""
    bench = Bench("pipeline")
    bench.append("a", events=2)
    bench.append("b", events=2)
    bench.append("c")
    await turn()
    assert [data for data, _ in bench.server.sent] == [["c"], ["a", "a+1", "b", "b+1"]]
    bench.server.answer(5)
    bench.server.answer(9)
    assert bench.answers == {"a": [6], "b": [8], "c": [5]}


async def test_appends_of_one_turn_go_together_and_each_gets_its_own_sequence() -> None:
    bench = Bench("group")
    bench.append("a")
    bench.append("b", events=3)
    bench.append("c")
    await turn()
    assert [data for data, _ in bench.server.sent] == [["a", "b", "b+1", "b+2", "c"]]
    bench.server.answer(14)
    assert bench.answers == {"a": [10], "b": [11], "c": [14]}


async def test_a_server_that_tells_its_durability_is_believed_from_the_first_append_on() -> None:
    ways: tuple[tuple[Durability | None, int], ...] = (("power", 1), ("process", 20), (None, 20))
    for durability, sent in ways:
        bench = Bench("auto", durability)
        for number in range(20):
            bench.append(str(number))
        await turn()
        assert len(bench.server.sent) == sent
    few = Bench("auto", "power")
    for number in range(8):  # a batch of so few would take longer
        few.append(str(number))
    await turn()
    assert len(few.server.sent) == 8
    few.append("one more")  # nine are in flight now: what follows waits for them
    await turn()
    assert len(few.server.sent) == 9
    few.append("later")
    few.append("later still")
    await turn()
    assert len(few.server.sent) == 11
    few.append("waits")
    await turn()
    assert len(few.server.sent) == 11
    few.server.durability = "process"
    few.writer.begin()  # another server, after a reconnect
    few.append("a")
    assert few.server.sent[-1][0] == ["a"]
    told = Bench("pipeline", "power")  # a setting says it outright
    for number in range(20):
        told.append(str(number))
    assert len(told.server.sent) == 20


async def test_a_lone_append_goes_out_plainly() -> None:
    bench = Bench("group")
    bench.append("a")
    await turn()
    assert bench.server.take() == ["a"]
    bench.server.answer(1)
    assert bench.answers == {"a": [1]}


async def test_what_comes_while_groups_are_in_flight_waits_for_the_next() -> None:
    bench = Bench("group")
    for name in "ab":
        bench.append(name)
        await turn()
    for name in "cde":
        bench.append(name)
        await turn()
    assert [data for data, _ in bench.server.sent] == [["a"], ["b"]]
    bench.server.answer(1)
    assert [data for data, _ in bench.server.sent] == [["b"], ["c", "d", "e"]]


async def test_two_appends_of_one_chain_never_share_a_batch_and_keep_their_order() -> None:
    bench = Bench("group")
    bench.append("a1", chain="a")
    bench.append("b1", chain="b")
    bench.append("a2", chain="a")
    bench.append("c1", chain="c")
    bench.append("a3", chain="a")
    await turn()
    batches = [data for data, _ in bench.server.sent]
    assert batches[0] == ["a1", "b1", "c1"]
    while bench.server.sent:
        bench.server.answer(100)
        batches += [data for data, _ in bench.server.sent[len(batches) :]]
    order = [name for answered in bench.answers for name in [answered] if name.startswith("a")]
    assert order == ["a1", "a2", "a3"]


async def test_a_refused_batch_is_sent_again_member_by_member() -> None:
    bench = Bench("group")
    bench.append("a")
    bench.append("b", events=2)
    bench.append("c")
    await turn()
    bench.server.answer(REFUSED)
    assert bench.answers == {}
    assert [data for data, _ in bench.server.sent] == [["a"], ["b", "b+1"], ["c"]]
    bench.server.answer(1)
    bench.server.answer(REFUSED)
    bench.server.answer(2)
    assert (bench.answers["a"], bench.codes("b"), bench.answers["c"]) == ([1], [10071], [2])


async def test_a_lone_refusal_is_not_sent_again() -> None:
    bench = Bench("group")
    bench.append("a", events=2)
    await turn()
    bench.server.answer(REFUSED)
    assert (bench.codes("a"), bench.server.sent) == ([10071], [])


async def test_a_lost_answer_is_told_to_every_member_and_nothing_is_sent_again() -> None:
    bench = Bench("group")
    bench.append("a")
    bench.append("b")
    await turn()
    bench.server.lose()
    assert [type(each) for name in "ab" for each in bench.answers[name]] == [ConnectionLostError] * 2
    bench.server.is_lost = False
    bench.append("c")
    await turn()
    assert bench.server.take() == ["c"]


async def test_a_broken_connection_is_told_to_all_that_is_on_its_way_and_a_late_answer_to_nobody() -> None:
    bench = Bench("pipeline")
    bench.append("a")
    bench.append("b", events=2)
    await turn()
    (_, reply), _ = bench.server.sent
    assert bench.writer.in_flight > 0
    bench.server.lose()
    bench.append("c")  # while there is no connection
    assert "c" not in bench.answers, "nobody is called back from the call itself"
    await turn()
    bench.server.say(reply, b'{"stream":"S","seq":3}')
    assert {name: [type(each) for each in told] for name, told in bench.answers.items()} == {
        name: [ConnectionLostError] for name in "abc"
    }
    assert bench.writer.in_flight == 0


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("commit", ["group", "pipeline"])
async def test_one_who_fails_at_an_answer_keeps_it_from_nobody_else(
    commit: Commit, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(commit)

    def fail(_: object) -> None:
        raise ZeroDivisionError

    bench.writer.append([Entry("s", b"a", "a", 0)], fail)
    bench.append("b")
    await turn()
    bench.append("c")
    await turn()
    if is_lost:
        bench.server.lose()  # if this raised, nats-py would not connect again
    else:
        for first in (4, 5, 6)[: len(bench.server.sent)]:
            bench.server.answer_safely(first)
    assert {name: len(told) for name, told in bench.answers.items()} == {"b": 1, "c": 1}
    assert bench.writer.in_flight == 0
    if is_lost or commit == "group":
        assert "the answer to an append could not be handled" in caplog.text


async def test_what_gets_no_answer_is_told_by_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobledger.ledger.nats.writer._SWEEP_S", 0.01)
    bench = Bench("pipeline")
    bench.writer.reply_timeout_s = 0.05
    told = asyncio.Event()
    doubted: list[tuple[str, Exception]] = []

    def doubt(entries: Sequence[Entry], error: Exception, _: object) -> None:
        doubted.append((entries[0].chain, error))
        told.set()

    bench.writer.append([Entry("s", b"a", "chain", 0)], lambda _: None, doubt)
    async with asyncio.timeout(5):
        await told.wait()
    assert [(chain, type(error)) for chain, error in doubted] == [("chain", ReplyTimeoutError)]
    bench.server.answer(4)
    assert len(doubted) == 1
    assert bench.writer.in_flight == 0


async def test_a_refused_right_is_told_to_the_appends_that_needed_it() -> None:
    bench = Bench("pipeline")
    bench.append("a")
    bench.append("b", events=2)
    await turn()
    (refused,) = bench.server.refused_listeners
    assert not refused(PermissionRefusedError("publish", "other"))
    assert not bench.answers
    assert refused(PermissionRefusedError("publish", "s"))
    assert {name: [type(each) for each in told] for name, told in bench.answers.items()} == {
        name: [PermissionRefusedError] for name in "ab"
    }


@pytest.mark.parametrize(
    ("data", "headers", "told"),
    [
        (b"", b"NATS/1.0 503\r\n\r\n", ConnectionLostError),
        (b"", b"", AppendRefusedError),
        (b"rubbish", b"", AppendRefusedError),
        (b'{"error":{"err_code":10077}}', b"", AppendRefusedError),
    ],
)
async def test_an_answer_that_accepts_nothing_is_an_error(
    data: bytes, headers: bytes, told: type[Exception]
) -> None:
    bench = Bench("pipeline")
    bench.append("a")
    for reply in ("_INBOX.1.", "_INBOX.1.x", "_INBOX.1.7"):  # to nobody
        bench.server.say(reply, b'{"seq":3}')
    bench.server.say(bench.server.sent[0][1], data, headers)
    assert [type(each) for each in bench.answers["a"]] == [told]


async def test_a_batch_holds_neither_too_many_messages_nor_too_many_bytes() -> None:
    bench = Bench("group")
    for number in range(1_200):
        bench.append(f"n{number}")
    await turn()
    while bench.server.sent:
        assert len(bench.server.take()) <= 1_000
        bench.server.answer(10_000)
    for number in range(12):
        bench.append(f"large{number}", size=900_000)
    await turn()
    while bench.server.sent:
        assert sum(map(len, bench.server.take())) <= 4 << 20
        bench.server.answer(20_000)
    assert len(bench.answers) == 1_212
    assert all(len(answers) == 1 for answers in bench.answers.values())


async def test_an_append_larger_than_a_group_may_be_still_goes_out() -> None:
    bench = Bench("group")
    bench.append("a", events=1_000)
    bench.append("b", size=5 << 20)
    bench.append("c")
    await turn()
    while bench.server.sent:
        bench.server.answer(9_999)
    assert set(bench.answers) == {"a", "b", "c"}


async def test_an_answer_that_appends_again_loses_nothing() -> None:
    bench = Bench("group")
    made = 0

    def again(_: int | Exception) -> None:
        nonlocal made
        made += 1
        if made < 50:
            bench.writer.append([Entry("s", b"x", f"chain{made}", 0)], again)

    bench.writer.append([Entry("s", b"x", "chain", 0)], again)
    for _ in range(200):
        await turn()
        if bench.server.sent:
            bench.server.answer(1)
    assert made == 50


async def test_what_waits_when_grouping_ends_is_still_sent() -> None:
    bench = Bench("group")
    for name in "abcd":
        bench.append(name)
        await turn()
    bench.writer._grouping = False
    bench.append("e")
    while bench.server.sent:
        bench.server.answer(1)
        await turn()
    assert set(bench.answers) == set("abcde")


class Paced(Bench):
    """A writer that finds out by itself, and a server that answers at a rate, in time of the test's own."""

    def __init__(self, in_flight: int) -> None:
        super().__init__("auto")
        self.time_s = self.cpu_s = 0.0
        self.writer._observed._cpu_s = lambda: self.cpu_s
        self.writer._loop = self  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]
        self._count = 0
        for _ in range(in_flight):
            self._append()

    def time(self) -> float:
        return self.time_s

    def call_soon(self, call: Callable[[], None]) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, call)

    def _append(self) -> None:
        self._count += 1
        self.append(f"n{self._count}")

    def serve(self, answers: int, *, per_second: float) -> int:
        """Answer one after the other, each answer brings another append; return after how many it grouped."""
        for number in range(answers):
            if self.writer.grouping:
                return number
            self.time_s += 1 / per_second
            self.server.answer(number + 1)
            self._append()
        return answers


@pytest.mark.parametrize("in_flight", [10, 100, 5_000])
async def test_without_a_disk_in_the_way_it_never_groups_and_most_appends_are_not_looked_at(
    in_flight: int,
) -> None:
    bench = Paced(in_flight)
    looks = 0
    observe = bench.writer._observed.answered

    def look(messages: int, in_flight: int, now: float, *, grouping: bool) -> bool | None:
        nonlocal looks
        looks += 1
        return observe(messages, in_flight, now, grouping=grouping)

    bench.writer._observed.answered = look  # type: ignore[method-assign]
    assert bench.serve(40_000, per_second=15_000) == 40_000
    assert 1_000 < looks < 20_000


@pytest.mark.parametrize("in_flight", [10, 100, 1_000])
async def test_a_disk_that_comes_in_the_way_is_noticed_soon(in_flight: int) -> None:
    bench = Paced(in_flight)
    bench.serve(10_000, per_second=15_000)
    assert not bench.writer.grouping
    assert bench.serve(10_000, per_second=3_000) < 4_000 + 2 * in_flight


async def test_after_a_reconnect_it_looks_at_once() -> None:
    bench = Paced(50)
    bench.serve(3_000, per_second=15_000)
    bench.writer.begin()
    bench.writer._observed._cpu_s = lambda: 0.0
    assert bench.serve(3_000, per_second=3_000) < 900


async def test_a_slow_moment_groups_nothing() -> None:
    bench = Paced(50)
    for _ in range(4):  # as the first appends on a stream are, or some while other programs compute
        assert bench.serve(200, per_second=3_000) == 200
        assert bench.serve(5_000, per_second=20_000) == 5_000
    assert bench.serve(4_000, per_second=3_000) < 4_000


def decided(observed: _Observation, now: float, *, per_second: float, grouping: bool) -> tuple[bool, float]:
    """Answer at a rate until it is said whether to group; return that, and when."""
    for _ in range(100_000):
        observed.sent(100, now)
        now += 1 / per_second
        found = observed.answered(1, 100, now, grouping=grouping)
        if found is not None:
            return found, now
    raise AssertionError("nothing was decided")


def test_groups_that_won_against_a_slow_start_are_compared_again_soon() -> None:
    observed = _Observation(cpu_s=lambda: 0.0)
    grouping, began = decided(observed, 0.0, per_second=5_000, grouping=False)
    assert grouping
    now = began
    while grouping:
        grouping, now = decided(observed, now, per_second=25_000, grouping=True)
    assert now - began < 1.0
    assert decided(observed, now, per_second=36_000, grouping=False)[0] is False


def test_groups_that_won_twice_are_left_alone_for_longer_and_cost_one_look() -> None:
    observed = _Observation(cpu_s=lambda: 0.0)
    grouping, now = decided(observed, 0.0, per_second=2_000, grouping=False)
    while grouping:
        grouping, now = decided(observed, now, per_second=8_000, grouping=True)
    looked = now
    grouping, now = decided(observed, now, per_second=2_000, grouping=False)
    assert grouping
    assert now - looked < 0.2  # one window of plain appends, not the longer one behind it
    began = now
    while grouping:
        grouping, now = decided(observed, now, per_second=8_000, grouping=True)
    assert now - began > 15


class Bursts(Paced):
    """Bursts with nothing in flight between them, as where slots come free together: each is answered at a rate."""

    def __init__(self) -> None:
        super().__init__(0)
        self.batches = 0

    def _cost_s(self, messages: int, per_second: float, batch_s: float) -> float:
        return 1 / per_second if messages == 1 else batch_s

    async def burst(self, appends: int, *, per_second: float, batch_s: float, own_share: float = 0.0) -> None:
        for _ in range(appends):
            self._append()
        await turn()
        while self.server.sent:
            messages = len(self.server.take())
            self.batches += messages > 1
            self.time_s += self._cost_s(messages, per_second, batch_s)
            self.cpu_s += own_share * self._cost_s(messages, per_second, batch_s)
            self.server.answer(100)
            await turn()
        self.time_s += 0.01


async def test_bursts_are_grouped_where_a_disk_is_in_the_way() -> None:
    bench = Bursts()
    for _ in range(30):
        await bench.burst(40, per_second=2_000, batch_s=0.004)
    assert bench.writer.grouping
    assert len(bench.answers) == 1_200


async def test_bursts_are_not_grouped_without_a_disk_in_the_way() -> None:
    bench = Bursts()
    for _ in range(200):
        await bench.burst(40, per_second=15_000, batch_s=0.003)
    assert not bench.batches


async def test_bursts_are_not_grouped_where_the_process_itself_is_what_takes_the_time() -> None:
    bench = Bursts()
    for _ in range(200):
        await bench.burst(40, per_second=6_000, batch_s=0.006, own_share=0.6)
    assert not bench.batches
    for _ in range(200):
        await bench.burst(40, per_second=6_000, batch_s=0.006, own_share=0.2)
    assert bench.batches


async def test_groups_that_won_outlast_a_disk_that_hiccups_and_end_where_they_do_not_win() -> None:
    bench = Bursts()
    for _ in range(30):
        await bench.burst(40, per_second=2_000, batch_s=0.004)
    for _ in range(200):  # two seconds, of which the first half is bad
        await bench.burst(40, per_second=500, batch_s=0.016)
    assert bench.writer.grouping
    bench.time_s += 60  # plain appends are looked at again
    for _ in range(100):
        await bench.burst(40, per_second=4_000, batch_s=0.02)
    assert not bench.writer.grouping


async def test_groups_at_half_the_rate_end_after_one_look() -> None:
    bench = Bursts()
    for _ in range(100):
        await bench.burst(40, per_second=6_000, batch_s=0.02)
    assert 1 <= bench.batches <= 8
    assert not bench.writer.grouping


async def test_trials_in_vain_become_rare() -> None:
    bench = Bursts()
    trials: list[float] = []
    while bench.time_s < 1_000:
        before = bench.writer.grouping
        await bench.burst(40, per_second=4_000, batch_s=0.02)
        bench.time_s += 0.25
        if bench.writer.grouping and not before:
            trials.append(bench.time_s)
    pauses = [later - earlier for earlier, later in itertools.pairwise(trials)]
    assert len(trials) == 5, "the first, and after 20, 60, 180 and 540 seconds"
    assert pauses == sorted(pauses)


async def test_too_few_for_a_batch_go_one_by_one_while_others_are_grouped() -> None:
    bench = Bursts()
    bench.writer._grouping = True
    for name in "abc":
        bench.append(name)
    await turn()
    assert [data for data, _ in bench.server.sent] == [["a"], ["b"], ["c"]]
    for name in "defgh":
        bench.append(name)
        await turn()
    assert len(bench.server.sent) == 8, "a few in flight are waited for by nobody"
    for name in "ijk":
        bench.append(name)
        await turn()
    assert len(bench.server.sent) == 10, "the third one beyond them waits for one of the two before it"
    for answer in (1, 2, REFUSED, 4, 5, 6, 7, 8, 9):
        bench.server.answer(answer)
    assert [data for data, _ in bench.server.sent] == [["j"], ["k"]]
    assert (bench.answers["a"], bench.codes("c"), bench.answers["i"]) == ([1], [10071], [9])
    bench.server.answer(10)
    bench.server.answer(11)
    assert bench.writer._groups_in_flight == 0
