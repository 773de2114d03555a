"""`jobledger audit verify` on ledgers that somebody wrote anew: each change is found, named, and exits with 4."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import nats
import pytest
from tests.support.stores import history, store_in

from jobledger.audit.verify import verify
from jobledger.audit.verify.file import write_report
from jobledger.cli.main import run
from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.codec import Message, StoredEvent, digest
from jobledger.ledger.model.events import Completed, Started
from jobledger.ledger.server import EmbeddedServer

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.anyio

Event = tuple[str, bytes]  #: subject and bytes of one event
Change = Callable[[list[Message]], tuple[list[Event], int, str]]


@pytest.fixture
async def ledger(nats_server: EmbeddedServer) -> AsyncIterator[Ledger]:
    """A ledger in the plain environment, as the stories are; gone with the test."""
    async with connect(nats_server.url, ledger_bytes_max=16 << 20) as made:
        yield made
        raw = await nats.connect(nats_server.url)
        await raw.jetstream().delete_stream(made.names.ledger_stream)
        await raw.close()


def plain(messages: list[Message]) -> list[Event]:
    return [(message.subject, message.data) for message in messages]


def _pick(messages: list[Message], cls: type[Any]) -> int:
    """Return the index of an event in the middle that another one of its job follows."""
    places = [
        at
        for at, each in enumerate(messages)
        if isinstance(each, StoredEvent) and isinstance(each.event, cls)
    ]
    followed = [at for at in places if any(messages[at].hash.encode() in each.data for each in messages)]
    return followed[len(followed) // 2]


def flipped(messages: list[Message]) -> tuple[list[Event], int, str]:
    """One bit of a stored event; what is left still reads as one. The event that names its hash tells."""
    at = _pick(messages, Started)
    rewritten = plain(messages)
    subject, data = rewritten[at]
    rewritten[at] = (subject, data.replace(b'"worker":"w1"', b'"worker":"w0"').replace(b'"w2"', b'"w3"'))
    assert rewritten[at][1] != data
    follower = next(each for each in messages if messages[at].hash.encode() in each.data)
    return rewritten, follower.stream_sequence, "chain"


def dropped(messages: list[Message]) -> tuple[list[Event], int, str]:
    """One event less; the stream is dense all the same."""
    at = _pick(messages, Started)
    follower = next(each for each in messages if messages[at].hash.encode() in each.data)
    return plain(messages[:at] + messages[at + 1 :]), follower.stream_sequence - 1, "chain"


def swapped(messages: list[Message]) -> tuple[list[Event], int, str]:
    """Two events of one job in each other's place."""
    at = _pick(messages, Started)
    follower = next(place for place, each in enumerate(messages) if messages[at].hash.encode() in each.data)
    rewritten = plain(messages)
    rewritten[at], rewritten[follower] = rewritten[follower], rewritten[at]
    return rewritten, at + 1, "chain"


def forged(messages: list[Message]) -> tuple[list[Event], int, str]:
    """A second outcome behind everything, with the right link."""
    last = next(
        each
        for each in reversed(messages)
        if isinstance(each, StoredEvent) and isinstance(each.event, Completed)
    )
    event = msgspec.structs.replace(last.event, prev=digest(last.data))
    rewritten = [*plain(messages), (last.subject, msgspec.json.encode(event))]
    return rewritten, len(rewritten), "outcome"


def cut(messages: list[Message]) -> tuple[list[Event], int, str]:
    """The newest events are gone: only the earlier report tells."""
    return plain(messages[:-3]), len(messages) - 2, "history"


@pytest.mark.parametrize("change", [flipped, dropped, swapped, forged, cut])
async def test_a_ledger_that_was_written_anew_is_found_out(
    ledger: Ledger,
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Change,
) -> None:
    await store_in(ledger, history(random.Random(5), 20))
    messages = [each async for batch in ledger.log.read_messages() for each in batch]
    write_report(await verify(ledger.log), tmp_path / "before.json")
    rewritten, sequence, rule = change(messages)
    await _write_anew(nats_server.url, ledger.names.ledger_stream, rewritten)
    words = [
        "audit",
        "verify",
        "--url",
        nats_server.url,
        "--against",
        str(tmp_path / "before.json"),
        "--json",
    ]
    code = await anyio.to_thread.run_sync(run, words)
    shown = capsys.readouterr()
    first = json.loads(shown.out)["violations"][0]
    assert (code, first["stream_sequence"], first["rule"]) == (4, sequence, rule)
    said = json.loads(shown.err)["error"]["message"]
    assert f"rule `{rule}` is broken at stream sequence {sequence}" in said


async def _write_anew(url: str, stream: str, events: list[Event]) -> None:
    raw = await nats.connect(url)
    try:
        jetstream = raw.jetstream()
        config = (await jetstream.stream_info(stream)).config
        await jetstream.delete_stream(stream)
        # Without what the client adds by itself the server keeps the settings as they were.
        metadata = config.metadata or {}
        config.metadata = {name: value for name, value in metadata.items() if not name.startswith("_nats")}
        await jetstream.add_stream(config)
        for subject, data in events:
            await jetstream.publish(subject, data)
    finally:
        await raw.close()


async def test_the_documented_example_is_what_the_command_prints(
    ledger: Ledger,
    nats_server: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every event of these ledgers is the same each time, byte for byte, and so are their hashes."""
    monkeypatch.setenv("COLUMNS", "120")
    await store_in(ledger, history(random.Random(5), 3))
    code, shown = await _verify(nats_server.url, capsys)
    assert (code, shown in DOCS) == (0, True), shown
    messages = [each async for batch in ledger.log.read_messages() for each in batch]
    rewritten, _, _ = forged(messages)
    await _write_anew(nats_server.url, ledger.names.ledger_stream, rewritten)
    code, shown = await _verify(nats_server.url, capsys)
    documented = re.search(r"^the ledger is NOT sound.*?(?=^```)", DOCS, flags=re.MULTILINE | re.DOTALL)
    assert documented is not None
    first, second, rest = documented[0].split("...\n")
    assert (code, shown.startswith(first), second in shown, rest) == (4, True, True, ""), shown


async def _verify(url: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = await anyio.to_thread.run_sync(run, ["audit", "verify", "--url", url])
    shown = capsys.readouterr()
    # Those events are older each day, and their server's time is of this moment.
    text = re.sub(r"^notice: .*\n", "", shown.out + shown.err, flags=re.MULTILINE)
    text = re.sub(r"are [0-9.]+ \w+ apart at most, at \d+", "are 0.9 ms apart at most, at 3", text)
    return code, re.sub(r"in [0-9.]+ s", "in 0.01 s", text)
