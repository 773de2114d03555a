"""Whatever is taken for an event can be held by every reader: what the schema bounds, tables, metrics and exports bear."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import anyio
import msgspec
import pytest
from tests.support.golden import golden_lines
from tests.support.json_schema import violations

from jobledger.admin.events.lines import event_json
from jobledger.audit.export import write_export
from jobledger.audit.export.check import verify_export
from jobledger.audit.trail import trail_of
from jobledger.audit.verify import verify
from jobledger.cli.events.lines import message_line
from jobledger.ledger.model.aggregates import AGGREGATES, event_name
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import aggregate_of
from jobledger.ledger.schema.events import event_schema
from jobledger.projections import Projector, Store, difference
from jobledger.projections.metrics.figures import read_figures
from jobledger.projections.metrics.metrics import figures_metrics

pytestmark = [pytest.mark.anyio, pytest.mark.unsound_ledger("messages that are no events are published")]

SEALED: Final = 2  #: the version of an event whose values are sealed under a key
NUMBERS: Final = (0, -1, 2**53, 2**63 - 1, 2**63, -(2**63), 10**400, 1.5)
REALS: Final = (0, -1e308, 1e308, 5e-324, 10**300, 2**70)
TIMES: Final = (
    "1970-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "1969-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999-14:00",
    "1970-01-01T00:00:00+14:00",
    "2026-01-02T00:00:00",
    "soon",
)
TEXTS: Final = ("", "\0", "a\u202eb\x1b[31m", "x" * 5_000, "\U0001f600")


def changed(value: Any, tried: AbstractSet[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of a leaf and the value with it at an extreme: each leaf that was not tried, each extreme once."""
    match value:
        case dict():
            members = cast("dict[str, Any]", value)
            # `v` and `type` would make an event of a newer version of it; so would version 2 without a `key`.
            fixed = {"v", "type", *(("key",) if members.get("v") == SEALED else ())}
            for name in members.keys() - fixed:
                for leaf, each in changed(members[name], tried, f"{path}.{name}"):
                    yield leaf, {**members, name: each}
        case list():
            items = cast("Sequence[Any]", value)
            for at, item in enumerate(items):
                for leaf, each in changed(item, tried, f"{path}[]"):
                    yield leaf, [*items[:at], each, *items[at + 1 :]]
        case _ if path not in tried:
            yield from ((path, each) for each in extremes(value))
        case _:
            pass


def extremes(value: Any) -> Sequence[Any]:
    match value:
        case bool():
            return (not value,)
        case int():
            return NUMBERS
        case float():
            return REALS
        case str():
            return TIMES if value[:3] == "202" and value.endswith("Z") else TEXTS
        case _:
            return ()


def place(aggregate: str, event: dict[str, Any]) -> str:
    leaf = event["type"] if event["type"] != "queued" else f"queued.{event.get('priority', 'normal')}"
    return ".".join((aggregate, *(str(event.get(field)) for field in AGGREGATES[aggregate].key), leaf))


async def filled() -> MemoryLog:
    """Return the golden events, and each leaf of each type of event at each extreme: a leaf of two lines is tried once."""
    log = MemoryLog()
    tried: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for line in golden_lines():
        before = tried[line.aggregate, line.said["type"]]
        made_of = list(changed(line.said, before))
        before.update(path for path, _ in made_of)
        for made in (line.said, *(each for _, each in made_of)):
            is_same_job = made.get("job") == line.said.get("job") is not None  # each becomes one of its own
            event = {**made, "job": f"j{len(log._kept)}"} if is_same_job else made
            data = json_of(event)
            subject = f"ledger.{place(line.aggregate, event)}"
            await log.append([Entry(subject, data, f"{len(log._kept)}", 0)])
    return log


def json_of(event: Any) -> bytes:
    """As msgspec writes it, and numbers of any size."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


async def messages(log: MemoryLog) -> list[Message]:
    return [message async for batch in log.read_messages() for message in batch]


async def test_every_reader_bears_every_event_that_is_one(tmp_path: Path) -> None:
    log = await filled()
    found = await messages(log)
    aside = {each.stream_sequence for each in found if isinstance(each, Unreadable)}
    events = [each for each in found if isinstance(each, StoredEvent)]
    assert len(aside) > 500  # the extremes out of bounds,
    assert len(events) > 1_000  # and those within
    with Projector(log, tmp_path / "followed.db") as projector:
        await projector.catch_up()
    with Projector(log, tmp_path / "again.db") as projector:
        await projector.catch_up(until=len(found) // 2)
        await projector.catch_up()
    assert difference(tmp_path / "followed.db", tmp_path / "again.db") is None
    with Store.open(tmp_path / "followed.db") as store:
        rows = {row[0] for row in store.select("SELECT stream_sequence FROM unreadable")}
        assert rows == aside
        assert list(figures_metrics(read_figures(store, 200, datetime.now(UTC)), datetime.now(UTC)))
        for view in ("v_jobs", "v_attempts"):
            store.select(f"SELECT * FROM {view}")
    report = await verify(log)
    named = {each.stream_sequence for each in report.violations if each.rule == "readable"}
    assert report.broken["readable"] == len(aside)
    assert named <= aside
    manifest = await write_export(log, tmp_path / "export")
    assert manifest.count == len(found)
    assert (await verify_export(tmp_path / "export")).broken["readable"] == len(aside)
    for message in found:
        assert message_line(message).plain
        assert msgspec.json.decode(event_json(message))
    trail_of(events, now=datetime.now(UTC))


def test_bounds_are_those_of_the_schema() -> None:
    """The tests of codec and schema hold each to examples; here the same extremes go through both."""

    schema = functools.cache(event_schema)

    async def compare() -> None:
        for message in await messages(await filled()):
            if not isinstance(message, Unreadable):
                event = msgspec.json.decode(message.data)
                name = event_name(aggregate_of(message.subject), event["type"])
                wrong = list(violations(event, schema(name)))
                assert all(any(word in each for word in ("match", "anyOf")) for each in wrong), (wrong, event)

    anyio.run(compare)
