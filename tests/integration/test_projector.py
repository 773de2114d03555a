"""Projectors of real histories: catching up, following, several at once, and what stops them."""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.histories import STEPS, SteppedClock, act, memory_history, random_history
from tests.support.limits import LIMIT_S
from tests.support.working import until

from jobledger.ledger.connection import connect
from jobledger.ledger.model.codec import digest
from jobledger.ledger.model.events import EVENT_TYPES, event_type
from jobledger.ledger.model.lock import LOCK
from jobledger.ledger.model.log import Entry
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import Names
from jobledger.projections import (
    EventGapError,
    PositionMismatchError,
    ProjectionError,
    ProjectionTimeoutError,
    Projector,
    ProjectorConfig,
    Store,
    difference,
)
from jobledger.projections.files import require_beginning
from jobledger.projections.layout import LEDGER

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

from tests.support.projections import SMALL, Cut, assert_true, finish

pytestmark = pytest.mark.anyio


async def test_catching_up_in_pieces_equals_catching_up_at_once(tmp_path: Path) -> None:
    log = await memory_history(runs=True)
    head = (await log.head()).last_sequence
    for end in (*range(0, head, 23), head + 1_000):
        with Projector(log, tmp_path / "pieces", config=SMALL) as projector:
            position = await projector.catch_up(end)
            assert position.stream_sequence == min(end, head)
    await finish(log, tmp_path / "whole", ProjectorConfig())
    assert difference(tmp_path / "pieces", tmp_path / "whole") is None
    await assert_true(log, tmp_path / "pieces")


async def test_events_of_other_aggregates_move_only_the_position(tmp_path: Path) -> None:
    log, path = MemoryLog(), tmp_path / "p"
    chain = LOCK.chain(log.names, "account", "42")
    subject = chain.replace(">", "acquired")
    await log.append([Entry(subject, b"one", chain, 0)])
    with Projector(log, path, config=SMALL) as projector:
        assert (await projector.catch_up()).stream_sequence == 1
        assert await act(log, 1, "enqueue", SteppedClock())
        assert await log.append([Entry(subject, b"two", chain, 1)]) == 3
        position = await projector.catch_up()
    assert (position.stream_sequence, position.event_hash) == (3, digest(b"two"))
    with Projector(log, path, config=SMALL) as projector:  # the position is found again
        assert (await projector.catch_up()).stream_sequence == 3
    await assert_true(log, path)
    with Store.open(path) as store:
        assert len(store.jobs()) == 1


@settings(max_examples=30, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STEPS)), max_size=60), cut=st.integers(0, 60)
)
def test_a_rebuilt_projection_equals_the_followed_one_on_any_history(
    moves: Sequence[tuple[int, str]], cut: int
) -> None:
    async def compare(folder: Path) -> None:
        log, clock, path = MemoryLog(), SteppedClock(), folder / "followed"
        for place, (number, step) in enumerate(moves):
            await act(log, number, step, clock)
            if place == cut:
                await finish(log, path)
        await finish(log, path)
        await assert_true(log, path)

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(compare, Path(folder))


async def test_progress_counts_to_the_head(tmp_path: Path) -> None:
    log = await memory_history()
    head = (await log.head()).last_sequence
    seen: list[tuple[int, int]] = []
    with Projector(log, tmp_path / "p", config=SMALL) as projector:
        await projector.catch_up(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (head, head)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) == -(-head // SMALL.batch_events_max)


async def test_running_projector_commits_what_arrives_within_its_linger(tmp_path: Path) -> None:
    log, clock = await memory_history(runs=True), SteppedClock()
    path = tmp_path / "p"
    with Projector(log, path) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await projector.wait_for((await log.head()).last_sequence, timeout_s=LIMIT_S)
            took: list[float] = []
            for number in range(7_000, 7_010):
                await act(log, number, "claim", clock)
                began = time.perf_counter()
                await projector.wait_for((await log.head()).last_sequence, timeout_s=LIMIT_S)
                took.append(time.perf_counter() - began)
            assert min(took) < 1.0  # 50 ms; of ten, one is in time on a busy machine, too
            group.cancel_scope.cancel()
    await assert_true(log, path)


async def test_wait_for_gives_up_in_time(tmp_path: Path) -> None:
    with (
        Projector(MemoryLog(), tmp_path / "p") as projector,
        pytest.raises(ProjectionTimeoutError, match="did not reach stream sequence 5"),
    ):
        await projector.wait_for(5, timeout_s=0.01)


async def test_ledger_made_anew_stops_the_projector(tmp_path: Path) -> None:
    path = tmp_path / "p"
    await finish(await memory_history(seed=1), path)
    other = await memory_history(seed=2, steps=2_000)
    with Projector(other, path) as projector:
        with pytest.raises(PositionMismatchError, match=r"another event there.*jobledger projection rebuild"):
            await projector.catch_up()
        with pytest.raises(PositionMismatchError):
            await projector.run()


async def test_rewound_ledger_stops_the_projector(tmp_path: Path) -> None:
    path = tmp_path / "p"
    await finish(await memory_history(seed=1), path)
    with pytest.raises(PositionMismatchError, match="no event there"):
        await finish(await memory_history(seed=1, steps=20), path)


async def test_ledger_of_another_environment_stops_the_projector(tmp_path: Path) -> None:
    await finish(MemoryLog(names=Names("staging")), tmp_path / "p")
    with pytest.raises(
        PositionMismatchError, match=r"'staging'.*name that environment with --environment, or another file"
    ):
        await finish(MemoryLog(), tmp_path / "p")


@pytest.mark.parametrize("without", [1, 2, 50])
async def test_missing_event_stops_the_projector_with_true_rows(tmp_path: Path, without: int) -> None:
    log, path = await memory_history(), tmp_path / "p"
    with pytest.raises(EventGapError, match=f"stream sequence {without} is missing"):
        await finish(Cut(log, without=without), path)
    with pytest.raises(EventGapError), Projector(Cut(log, without=without), path) as projector:
        await projector.run()
    with Store.open(path) as store:
        assert store.position().stream_sequence < without
    await finish(log, path)
    await assert_true(log, path)


async def test_several_projectors_on_one_file_apply_each_event_once(tmp_path: Path) -> None:
    log, path = await memory_history(runs=True), tmp_path / "p"
    head = (await log.head()).last_sequence
    configs = [ProjectorConfig(batch_events_max=size, linger_s=0) for size in (3, 11, 40)]
    projectors = [Projector(log, path, config=config) for config in configs]
    clock = SteppedClock()
    async with anyio.create_task_group() as group:
        for projector in projectors:
            group.start_soon(projector.run)
        for number in range(8_000, 8_050):
            await act(log, number, "claim", clock)
            await anyio.lowlevel.checkpoint()
        for projector in projectors:
            await projector.wait_for(head + 50, timeout_s=LIMIT_S)
        group.cancel_scope.cancel()
    for projector in projectors:
        projector.close()
    await assert_true(log, path)


async def test_projectors_that_take_turns_never_build_on_what_the_other_outdated(tmp_path: Path) -> None:
    log, path = await memory_history(), tmp_path / "p"
    events = [stored async for batch in log.read() for stored in batch]
    with Projector(log, path) as one, Projector(log, path) as two:
        await one.prepare()
        await two.prepare()
        for end in range(5, len(events) + 5, 5):
            projector = one if end % 2 else two
            assert projector.commit(events[max(0, end - 12) : end])
    await assert_true(log, path)


async def test_projector_of_another_ledger_on_the_same_file_is_refused_in_mid_course(tmp_path: Path) -> None:
    log, other, path = await memory_history(seed=1), await memory_history(seed=2), tmp_path / "p"
    with Projector(log, path) as first, Projector(other, path) as second:
        await first.catch_up(0)
        await second.prepare()
        await first.catch_up(10)
        events = [stored async for batch in other.read() for stored in batch]
        with pytest.raises(PositionMismatchError, match="the projector that came before"):
            second.commit(events)
    await finish(log, path)
    await assert_true(log, path)


async def test_projection_of_a_real_ledger(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    path = tmp_path / "p"
    async with connect(nats_server.url, environment=f"t_{secrets.token_hex(6)}") as ledger:
        log = ledger.log
        with Projector(log, path, config=ProjectorConfig(linger_s=0.01)) as projector:
            async with anyio.create_task_group() as group:
                group.start_soon(projector.run)
                await random_history(log, 3, jobs=20, steps=120, runs=True)
                await projector.wait_for((await log.head()).last_sequence, timeout_s=LIMIT_S)
                group.cancel_scope.cancel()
        await random_history(log, 4, jobs=30, steps=60, runs=True)
        await finish(log, path)
        await assert_true(log, path)


async def test_the_histories_have_every_kind_of_event() -> None:
    """Else the tests above would prove less than they say."""
    log = await memory_history(seed=5, jobs=300, steps=1_800, runs=True)
    seen = {event_type(stored.event) async for batch in log.read() for stored in batch}
    assert seen == set(EVENT_TYPES)


@pytest.mark.parametrize("how", ["deleted", "garbled", "emptied"])
async def test_a_file_that_is_deleted_or_damaged_is_written_again_without_an_event(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.projections.projector._LOOK_EVERY_S", 0.05)
    log = await memory_history()
    path, head = tmp_path / "p", (await log.head()).last_sequence
    with Projector(log, path) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await projector.wait_for(head, timeout_s=LIMIT_S)
            spoil(path, how)
            await until(lambda: reached(path) == head, limit_s=LIMIT_S)
            group.cancel_scope.cancel()
    await assert_true(log, path)


def spoil(path: Path, how: str) -> None:
    """Delete a file with what lies beside it, or write something else over it."""
    if how == "deleted":
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()
    else:
        path.write_bytes(b"" if how == "emptied" else b"\xa5" * path.stat().st_size)


def reached(path: Path) -> int:
    """Return how far a file is, 0 where it cannot be read or is none of ours."""
    try:
        require_beginning(path, LEDGER)
        with Store.open(path) as store:
            return store.position().stream_sequence
    except (ProjectionError, sqlite3.Error):
        return 0


async def test_a_file_of_somebody_else_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with Projector(await memory_history(), path) as projector, pytest.raises(ProjectionError):
        await projector.run()
    assert path.read_text() == "mine"
