"""The shortcut for whole messages gives what nats-py's own parser gives, however the bytes arrive."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser
from tests.support.tables import each_row

from jobledger.ledger.nats.parser import Collector, MessageParser

OURS = 1
_HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


class Client:
    """Notes what a parser hands on, by either way."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.handlers: dict[bytes, Any] = {b"%d" % OURS: self.note}

    def note(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.got.append((OURS, subject, reply, data, headers))

    def on_failure(self, subject: bytes, error: Exception) -> None:
        self.got.append((subject, error))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        self.got.append((sid, bytes(subject), bytes(reply), data, headers or b""))

    async def _process_ping(self) -> None:
        self.got.append("ping")

    async def _process_pong(self) -> None:
        self.got.append("pong")

    async def _process_err(self, text: str) -> None:
        self.got.append(text)


def _message(sid: int, reply: bytes, headers: bytes, data: bytes) -> bytes:
    middle = b" " + reply if reply else b""
    if headers:
        sizes = b" %d %d" % (len(headers), len(headers) + len(data))
        return b"HMSG a.b %d%s%s\r\n" % (sid, middle, sizes) + headers + data + b"\r\n"
    return b"MSG a.b %d%s %d\r\n" % (sid, middle, len(data)) + data + b"\r\n"


frames = st.one_of(
    st.builds(
        _message,
        st.sampled_from([OURS, OURS, OURS, 7]),
        st.sampled_from([b"", b"_INBOX.x.1"]),
        st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([b"MSG a.b 1 3\r\nabc\r\n", b"\r\n", b"x" * 70_000, b"y" * 200_000]),
        ),
    ),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'slow'\r\n"]),
)


def _parsed(parser: Parser, client: Client, chunks: list[bytes], late: list[bool] | None = None) -> list[Any]:
    """Give a parser what came, chunk by chunk; with `late` as the socket does: the rest is perhaps parsed later."""

    async def feed() -> None:
        rest = b""
        for number, chunk in enumerate(chunks):
            if late is None:
                await parser.parse(chunk)
                continue
            assert isinstance(parser, MessageParser)
            rest += chunk if rest else parser.take(chunk)
            if rest and not (number < len(late) and late[number]):
                await parser.parse(rest)
                rest = b""
        await parser.parse(rest)

    asyncio.run(feed())
    return client.got


@given(
    st.lists(frames, max_size=12),
    st.lists(st.integers(1, 5_000), max_size=40),
    st.none() | st.lists(st.booleans(), max_size=40),
)
def test_what_is_handed_on_is_what_the_plain_parser_hands_on(
    sent: list[bytes], cuts: list[int], late: list[bool] | None
) -> None:
    stream, chunks = b"".join(sent), list[bytes]()
    for cut in cuts:
        chunks.append(stream[:cut])
        stream = stream[cut:]
    chunks = [chunk for chunk in [*chunks, stream] if chunk]
    plain, quick = Client(), Client()
    expected = _parsed(Parser(plain), plain, chunks)
    assert _parsed(MessageParser(cast("Any", quick), quick.handlers), quick, chunks, late) == expected
    assert len(expected) == sum(frame != b"+OK\r\n" for frame in sent)


@each_row(
    "nonsense",
    [b"MSG a.b 1\r\n", b"MSG a.b x 3\r\nabc\r\n", b"MSG a.b 1 -3\r\n", b"HMSG a.b 1 3\r\n", b"?\r\n"],
)
def test_what_is_no_message_is_refused_as_nats_py_refuses_it(nonsense: bytes) -> None:
    client = Client()
    with pytest.raises(ProtocolError):
        _parsed(MessageParser(cast("Any", client), client.handlers), client, [nonsense])
    assert client.got == []


def test_a_subject_with_white_space_that_the_server_takes_ends_no_connection() -> None:
    # The server stores it for anybody who may publish; nats-py's parser refuses it, in every connection that reads.
    sent = b"".join(
        _message(OURS, reply, headers, b"data").replace(b"a.b", b"a.\x0b7.\x0cb\x0b")
        for reply in (b"", b"_INBOX.x.1")
        for headers in (b"", b"NATS/1.0\r\nA: b\r\n\r\n")
    )
    for cut in range(len(sent)):
        client = Client()
        got = _parsed(MessageParser(cast("Any", client), client.handlers), client, [sent[:cut], sent[cut:]])
        assert [(each[1], each[3]) for each in got] == [(b"a.\x0b7.\x0cb\x0b", b"data")] * 4


def test_what_is_not_ours_leaves_the_messages_behind_it_to_the_shortcut() -> None:
    class Slow(Client):
        async def _process_msg(
            self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any
        ) -> None:
            assert (bytes(subject), bytes(reply), data, headers) == (b"a.b", b"", b"data", _HEADERS)
            self.got.append(sid)

    ours, theirs = _message(OURS, b"", b"", b"data"), _message(7, b"", _HEADERS, b"data")
    sent = b"".join((ours, b"PONG\r\n", ours, theirs, ours, b"-ERR 'slow'\r\n", ours))
    for cut in range(1, len(sent)):
        client = Slow()
        chunks = [sent[at : at + cut] for at in range(0, len(sent), cut)]
        got = _parsed(MessageParser(cast("Any", client), client.handlers), client, chunks)
        quick = (OURS, b"a.b", b"", b"data", b"")
        assert got == [quick, "pong", quick, 7, quick, "'slow'", quick], cut


def test_what_follows_a_lost_connection_in_the_same_bytes_is_forgotten() -> None:
    class Losing(Client):
        async def _process_err(self, text: str) -> None:
            await super()._process_err(text)
            parser.reset()

    client = Losing()
    parser = MessageParser(cast("Any", client), client.handlers)
    sent = b"-ERR 'stale'\r\n" + _message(OURS, b"", b"", b"old") + b"MSG a."
    assert _parsed(parser, client, [sent]) == ["'stale'"]
    assert _parsed(parser, client, [_message(OURS, b"", b"", b"new")])[1:] == [
        (OURS, b"a.b", b"", b"new", b"")
    ]


def test_what_was_kept_is_forgotten_with_the_connection() -> None:
    client = Client()
    parser = MessageParser(cast("Any", client), client.handlers)
    _parsed(parser, client, [b"MSG a.b 1 10\r\nabc"])
    parser.reset()
    assert _parsed(parser, client, [_message(OURS, b"", b"", b"new")]) == [(OURS, b"a.b", b"", b"new", b"")]


class Collecting(Client):
    """Calls the collector for what is not collected, as a connection does."""

    def __init__(self, collector: Collector) -> None:
        super().__init__()
        self.collector = collector

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        if sid == OURS:
            self.collector(bytes(subject), bytes(reply), data, headers or b"")


class Noting(Collector):
    """Notes what comes by a call, and how many were collected before it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, bytes, bytes]] = []

    def heard(self, subject: bytes, data: bytes, headers: bytes) -> None:
        self.calls.append((len(self.messages), data, headers))


@given(st.lists(frames, max_size=12), st.lists(st.integers(1, 100_000), max_size=20))
def test_a_collector_has_everything_in_the_order_of_the_wire(sent: list[bytes], cuts: list[int]) -> None:
    stream, chunks = b"".join(sent), list[bytes]()
    for cut in cuts:
        chunks.append(stream[:cut])
        stream = stream[cut:]
    chunks = [chunk for chunk in [*chunks, stream] if chunk]
    plain, collector = Client(), Noting()
    messages: list[tuple[bytes, bytes, bytes, int]] = []
    calls: list[tuple[int, bytes, bytes]] = []
    for got in _parsed(Parser(plain), plain, chunks):
        if got[0] == OURS and got[2]:
            messages.append((got[1], got[2], got[3], sum(map(len, got[1:]))))
        elif got[0] == OURS:
            calls.append((len(messages), got[3], got[4]))
    client = Collecting(collector)
    number = b"%d" % OURS
    parser = MessageParser(cast("Any", client), {number: collector}, {number: collector})
    _parsed(parser, client, chunks)
    assert [(raw.subject, raw.reply, raw.data, raw.wire_bytes) for raw in collector.messages] == messages
    assert collector.calls == calls
