"""What every log promises of one append to several chains: each on its own condition, all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import cluster
from tests.support.made_up import THING, Thing, dropped, made

from jobledger.ledger import JobState, connect
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.aggregates import AGGREGATES
from jobledger.ledger.model.chain import Addition, JobView, commit_all, load, transact_all
from jobledger.ledger.model.commands import Enqueue, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import IllegalTransitionError, WrongSequenceError
from jobledger.ledger.model.lock import LOCK, Acquire
from jobledger.ledger.model.lock import decide as decide_lock
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import JobRef, LockRef

pytestmark = pytest.mark.anyio

WRITERS = 9
ROUNDS = 15


@pytest.fixture(autouse=True)
def things(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the made-up aggregate known."""
    monkeypatch.setitem(AGGREGATES, THING.name, THING)


def ref(job_id: str) -> JobRef:
    return JobRef(queue="q", job_id=job_id)


def stamp(by: str = "test") -> Stamp:
    return Stamp(at=datetime.now(UTC), by=by)


def new_job(job_id: str, by: str = "test") -> Addition:
    return JobView(), decide(None, Enqueue(ref=ref(job_id), task="t"), stamp(by))


async def thing(log: Log, name: str) -> View[Thing]:
    return THING.view(await log.last(THING.chain(log.names, "toy", name)))


async def test_chains_of_three_aggregates_are_stored_as_one_at_consecutive_sequences(log: Log) -> None:
    lock = decide_lock(LockRef(scope="s", lock_id="l"), None, Acquire(holder="h", lease_s=1), stamp())
    additions: list[Addition] = [
        (View[Thing](), [made("a"), dropped("a")]),
        new_job("j"),
        (LOCK.view(None), [lock]),
    ]
    assert await commit_all(log, additions) == 1
    assert (await log.head()).last_sequence == 4
    last = await log.last(THING.chain(log.names, "toy", "a"))
    assert last is not None
    assert (last.stream_sequence, THING.decode(last).prev) == (2, await _hash(log, 1))
    job = (await load(log, ref("j"))).job
    assert job is not None
    assert (job.state, job.last_sequence) == (JobState.QUEUED, 3)
    assert LOCK.view(await log.last(LOCK.chain(log.names, "s", "l"))).last_sequence == 4


async def _hash(log: Log, sequence: int) -> str:
    message = await log.get(sequence)
    assert message is not None
    return message.hash


@pytest.mark.parametrize("stale_first", [True, False])
async def test_one_chain_that_moved_refuses_all(log: Log, *, stale_first: bool) -> None:
    await commit_all(log, [(View[Thing](), [made("a")])])
    stale: Addition = (View[Thing](), [made("a", by="late")])
    fresh = new_job("j")
    with pytest.raises(WrongSequenceError) as caught:
        await commit_all(log, [stale, fresh] if stale_first else [fresh, stale])
    assert caught.value.chain == THING.chain(log.names, "toy", "a")
    assert (await log.head()).last_sequence == 1
    assert await commit_all(log, [(await thing(log, "a"), [dropped("a")]), fresh]) == 2


async def test_a_decision_that_refuses_or_adds_nothing_appends_nothing(log: Log) -> None:
    async def refuse() -> Sequence[Addition]:
        raise IllegalTransitionError("j", "queued", "be made")

    async def nothing() -> Sequence[Addition]:
        return []

    with pytest.raises(IllegalTransitionError):
        await transact_all(log, refuse)
    assert await transact_all(log, nothing) == 0
    assert (await log.head()).last_sequence == 0


async def test_what_was_decided_on_an_old_view_is_decided_again(log: Log) -> None:
    asked: list[int] = []

    async def once_more() -> Sequence[Addition]:
        view = await thing(log, "a")
        asked.append(view.last_sequence)
        if len(asked) == 1:  # somebody is faster
            await commit_all(log, [(view, [made("a", by="faster")])])
        return [(view, [made("a", size=2)]), new_job("j")]

    assert await transact_all(log, once_more) == 2
    assert asked == [0, 1]


async def _race(log: Log) -> None:
    """Nine writers, each with a job of its own, want the next turn of one thing: one gets each turn."""
    for turn in range(ROUNDS):
        view = await thing(log, "turn")

        async def attempt(writer: int, view: View[Thing] = view, turn: int = turn) -> int | None:
            mine = [(view, [made("turn", by=f"w{writer}")]), new_job(f"{turn}-{writer}", f"w{writer}")]
            with contextlib.suppress(WrongSequenceError):
                return await commit_all(log, mine)
            return None

        stored = await asyncio.gather(*(attempt(writer) for writer in range(WRITERS)))
        winners = [writer for writer, sequence in enumerate(stored) if sequence is not None]
        assert len(winners) == 1
        for writer in range(WRITERS):
            job = (await load(log, ref(f"{turn}-{writer}"))).job
            assert (job is not None) == (writer in winners)
    assert (await log.head()).last_sequence == 2 * ROUNDS


async def test_of_nine_writers_one_gets_both_chains_and_the_others_neither(log: Log) -> None:
    await _race(log)


async def test_nine_writers_that_decide_again_all_get_their_turn(log: Log) -> None:
    async def take(writer: int) -> int:
        async def both() -> Sequence[Addition]:
            return [(await thing(log, "turn"), [made("turn")]), new_job(f"j{writer}")]

        return await transact_all(log, both)

    stored = await asyncio.gather(*map(take, range(WRITERS)))
    assert sorted(stored) == list(range(1, 2 * WRITERS, 2))


async def test_three_replicas_keep_the_same_promise(nats_server_binary: str, tmp_path: Path) -> None:
    async with cluster(nats_server_binary, tmp_path) as made:
        for commit in ("pipeline", "group"):
            settings: dict[str, Any] = {"replicas": 3, "ledger_bytes_max": 64 << 20, "commit": commit}
            async with connect(made.url, environment=f"t_{commit}", **settings) as ledger:
                await _race(ledger.log)
