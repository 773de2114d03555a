"""Grants as facts: their wire form, what may follow what, and what an archive run leaves of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.limits.flow import FLOW, Flow, FlowEvent, Granted, GrantedJob, Snapshotted

GOLDEN = Path(__file__).parent / "golden" / "flow"
LINES = [line for release in sorted(GOLDEN.glob("*.jsonl")) for line in release.read_bytes().splitlines()]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
BEFORE = Flow(NOW, 40, 7, 42)


def stored(data: bytes, sequence: int = 50) -> Message:
    return Message(data=data, stream_sequence=sequence, stored_at=NOW, subject="ledger.flow.main.granted")


def granted(jobs: int = 1, *, later_s: float = 0.0, through: int = 45, limits: int = 7) -> Granted:
    named = tuple(GrantedJob(queue="email", job=f"j{n}", held=n + 1) for n in range(jobs))
    at = NOW + timedelta(seconds=later_s)
    return Granted(shard="main", by="w1", at=at, through=through, limits_sequence=limits, jobs=named)


def snapshotted(*, through: int = 45, newest: int = 42) -> Snapshotted:
    return Snapshotted(
        shard="main", by="w1", at=NOW, through=through, limits_sequence=7, low=3, granted=newest
    )


@each_row("line", LINES, ids=lambda line: line[9:20].decode())
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert msgspec.json.encode(FLOW.decode(stored(line))) == line


@pytest.mark.parametrize("cls", FLOW.types.values(), ids=lambda cls: cls.__name__)
def test_every_field_of_every_event_has_a_golden_line(cls: type[FlowEvent]) -> None:
    lines = [line for line in LINES if type(FLOW.decode(stored(line))) is cls]
    written = {name for line in lines for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *cls.__struct_fields__}


@each_row(
    ("before", "event", "said"),
    [
        (BEFORE, granted(), ""),
        (BEFORE, granted(500), ""),
        (BEFORE, granted(limits=9, through=49), ""),
        (BEFORE, snapshotted(), ""),
        (None, snapshotted(newest=0), ""),
        (None, granted(), "a chain of grants begins with a snapshot"),
        (BEFORE, granted(501), "names 501 jobs"),
        (BEFORE, granted(0), "names 0 jobs"),
        (BEFORE, granted(through=50), "takes stream sequence 50 into account, which comes after it"),
        (BEFORE, granted(through=39), "worked out up to 39, the event before it up to 40"),
        (BEFORE, granted(limits=6), "obeys the definitions of 6, the event before it 7"),
        (BEFORE, granted(later_s=-0.000001), "its time is before"),
        (BEFORE, snapshotted(newest=41), "it follows the grant at 41, but 42 is the newest"),
    ],
)
def test_what_may_follow_on_a_chain_of_grants(before: Flow | None, event: FlowEvent, said: str) -> None:
    assert FLOW.check is not None
    found = [sentence for _, sentence in FLOW.check(before, event, 50)]
    assert found == [] if not said else (len(found) == 1 and said in found[0]), found


def test_the_newest_grant_and_what_it_obeyed_are_known_after_each_event() -> None:
    first = FLOW.evolve(None, snapshotted(through=4, newest=0), 5)
    assert first == Flow(NOW, 4, 7, 0)
    second = FLOW.evolve(first, granted(limits=9), 46)
    assert second == Flow(NOW, 45, 9, 46)
    assert FLOW.evolve(second, snapshotted(through=47, newest=46), 48) == Flow(NOW, 47, 9, 46)


def test_an_archive_run_leaves_what_the_newest_snapshot_does_not_tell() -> None:
    assert FLOW.keeps_of == ("snapshotted",)
    kept = FLOW.kept(stored(FLOW.encode(snapshotted(through=45)), 48))
    assert kept is not None
    assert (kept.from_sequence, kept.while_lives) == (46, "")
    assert "up to stream sequence 45" in kept.why
    assert FLOW.kept(stored(FLOW.encode(granted()), 49)) is None
