"""What tasks in processes get, give and say, and whose turn a process is."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.pools import LIMIT_S, Heard, Pools, call, is_gone, until, value

from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    ConfigurationError,
    PayloadTooLargeError,
    StaleClaimError,
    UnreachableError,
)
from jobledger.ledger.outcome import Cancel, Fail, Retry, Snooze
from jobledger.workers.pool.pool import (
    Call,
    PoolClosedError,
    PoolConfig,
    ProcessPool,
    TaskFailure,
)

pytestmark = pytest.mark.anyio


# What a task gets and gives.


async def test_sync_and_async_tasks_return_their_values(pool: ProcessPool) -> None:
    assert value(await pool.run(call("add", left=2, right=3))) == 5
    assert value(await pool.run(call("add_async", left=2, right=3))) == 5
    assert len(pool.pids) == 1


async def test_the_context_knows_the_attempt_and_the_checkpoint(pool: ProcessPool) -> None:
    deadline = datetime(2030, 1, 2, tzinfo=UTC)
    full = msgspec.structs.replace(call("facts"), deadline=deadline, checkpoint=msgspec.Raw(b'{"page":3}'))
    known = ["job-1", "cpu", "facts", 2, "w-1-a"]
    assert value(await pool.run(full)) == [*known, deadline.isoformat(), {"page": 3}]
    bare = msgspec.structs.replace(call("facts"), checkpoint=msgspec.Raw(b""))
    assert value(await pool.run(bare)) == [*known, None, None]


async def test_what_a_task_wishes_comes_back_as_it_was(pool: ProcessPool) -> None:
    assert value(await pool.run(call("give", what="retry"))) == Retry(2.5, "not yet", "low")
    assert value(await pool.run(call("give", what="snooze"))) == Snooze(60)
    assert value(await pool.run(call("give", what="cancel"))) == Cancel("nothing to do")
    assert value(await pool.run(call("give", what="fail"))) == Fail("no use")


@pytest.mark.parametrize(
    ("how", "kind", "words", "may_retry"),
    [
        ("raise", "ValueError", "no such user", True),
        ("give up", "UnicodeEncodeError", "surrogates not allowed", False),
        ("unprintable", "UnprintableError", "(its text cannot be shown: RuntimeError)", False),
        ("foreign", "ForeignError", "from far away", False),
        ("surrogate", "ValueError", "file ?.txt", True),
        ("long", "ValueError", "x" * 2000, True),
        ("exit", "SystemExit", "3", True),
        ("interrupt", "KeyboardInterrupt", "", False),
        ("recurse", "RecursionError", "maximum recursion depth exceeded", False),
    ],
)
async def test_whatever_a_task_raises_is_told_and_the_process_lives(
    pool: ProcessPool, how: str, kind: str, words: str, may_retry: bool
) -> None:
    before = value(await pool.run(call("pid")))
    raised = await pool.run(call("fail", how=how))
    assert isinstance(raised, TaskFailure)
    assert (raised.error.kind, raised.error.type, raised.may_retry) == ("exception", kind, may_retry)
    assert words in raised.error.message
    assert len(raised.error.message) <= 2000
    assert how == "long" or "pool_tasks.py" in raised.error.traceback
    assert "child.py" not in raised.error.traceback
    assert value(await pool.run(call("pid"))) == before


@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        (call("add", left="two", right=3), "invalid_input", "Expected `int`, got `str`"),
        (call("give", what="nan"), "invalid_result", "nan, which JSON cannot say"),
        (call("give", what="object"), "invalid_result", "cannot be written as JSON"),
        (call("give", what="bad retry"), "exception", "Retry's reason"),
        (call("nobody"), "unknown_task", "nobody"),
    ],
)
async def test_what_does_not_fit_is_refused_in_words(
    pools: Pools, asked: Call, kind: str, words: str
) -> None:
    raised = await pools().run(asked)
    assert isinstance(raised, TaskFailure)
    assert raised.error.kind == kind
    assert words in raised.error.message
    assert raised.may_retry == (kind == "exception")  # what was done is not done again


async def test_a_result_may_be_as_large_as_the_limit_and_no_larger(pool: ProcessPool) -> None:
    limit = 8 << 20
    assert len(value(await pool.run(call("give", what="text", size=limit - 2)))) == limit - 2
    raised = await pool.run(call("give", what="text", size=limit - 1))
    assert isinstance(raised, TaskFailure)
    assert raised.error.kind == "invalid_result"
    assert raised.error.message == (
        "the result of task give has 8,388,609 bytes and the limit is 8,388,608: "
        "store it elsewhere and pass a reference"
    )
    with pytest.raises(PayloadTooLargeError, match="input of task give has 8,388,6"):
        await pool.run(call("give", what="x" * limit))
    raised = await pool.run(call("keep_too_much", size=limit), Heard())
    assert isinstance(raised, TaskFailure)
    assert raised.error.type == "PayloadTooLargeError"


# What a task says while it runs.


async def test_every_verb_of_the_context_reaches_the_worker(
    pools: Pools, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()
    with caplog.at_level(logging.WARNING):
        assert value(await pools().run(call("speak"), heard)) == "said"
    assert heard.beats == 1
    assert heard.checkpoints == [b'{"page":1000}']
    first, last = heard.reports[0][0], heard.reports[-1][0]
    assert (first, last, heard.reports[0][1:]) == (0, 1000, (1000, "pages"))
    assert len(heard.reports) < 100
    said = {record.getMessage(): record for record in caplog.records}
    assert set(said) == {"half of it", "elsewhere ?"}
    record: Any = said["half of it"]
    assert (record.name, record.levelname) == ("jobledger.task", "WARNING")
    assert (record.job, record.queue, record.task, record.attempt) == ("job-1", "cpu", "speak", 2)
    assert said["elsewhere ?"].name == "billing"
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("a line on stdout\n", "a line on stderr\n")


async def test_an_async_task_awaits_its_checkpoint_and_its_loop_goes_on(pool: ProcessPool) -> None:
    heard = Heard(answer_after_s=0.2)
    assert value(await pool.run(call("speak_async"), heard)) == "the loop went on"
    assert heard.checkpoints == [b"[1]"]


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (None, "stored"),
        (
            StaleClaimError("job-1", 4, 9),
            "StaleClaimError: job job-1: claim 4 is stale, the current one is 9",
        ),
        (UnreachableError("no answer"), "UnreachableError: no answer"),
        (AttemptStoppedError("cancelled"), "AttemptStoppedError: cancelled"),
        (PayloadTooLargeError("checkpoint", 9, 8), "LedgerError: the checkpoint has 9 bytes"),
    ],
)
async def test_a_checkpoint_blocks_until_it_is_stored_or_refused(
    pool: ProcessPool, answer: BaseException | None, raised: str
) -> None:
    assert value(await pool.run(call("keep"), Heard(answer, 0.05))).startswith(raised)


async def test_a_listener_that_fails_ends_the_process_and_the_call(pools: Pools) -> None:
    pool = pools()
    before = value(await pool.run(call("pid")))
    with pytest.raises(ZeroDivisionError):
        await pool.run(call("keep"), Heard(ZeroDivisionError()))
    assert is_gone(before)
    assert value(await pool.run(call("pid"))) != before


async def test_a_context_is_silent_once_its_attempt_is_over(pool: ProcessPool) -> None:
    await pool.run(call("keep_context"), Heard())
    heard = Heard()
    assert value(await pool.run(call("kept"), heard)) == "AttemptStoppedError"
    assert (heard.reports, heard.checkpoints) == ([], [])


async def test_a_task_that_forks_gives_one_result(pool: ProcessPool) -> None:
    assert value(await pool.run(call("fork_and_return"))) == "parent"
    assert value(await pool.run(call("add", left=1, right=1))) == 2


# Whose turn it is.


async def test_a_process_can_be_taken_first_and_called_later(pools: Pools) -> None:
    pool = pools(size=2)
    assert pool.free == 2
    child = await pool.take()
    other = await pool.take()
    waiting = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    assert pool.free == -1
    pool.give_back(other)
    assert await waiting is other
    pool.give_back(other)
    assert value(await pool.run(call("pid"), child=child)) == child.pid
    assert pool.free == 2


async def test_a_process_that_died_after_it_was_taken_costs_nothing(pools: Pools) -> None:
    pool = pools()
    child = await pool.take()
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: not child.is_alive)
    assert value(await pool.run(call("add", left=1, right=1), child=child)) == 2


async def test_a_pool_that_refuses_lets_what_runs_go_on(pools: Pools) -> None:
    pool = pools()
    child = await pool.take()
    waiting = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    pool.refuse()
    with pytest.raises(PoolClosedError):
        await waiting
    with pytest.raises(PoolClosedError):
        await pool.take()
    assert value(await pool.run(call("add", left=1, right=1), child=child)) == 2


async def test_processes_are_reused(pools: Pools) -> None:
    pool = pools(size=4)
    assert len({value(await pool.run(call("pid"))) for _ in range(20)}) == 1


async def test_fifty_calls_on_two_processes_take_turns(pools: Pools) -> None:
    pool = pools(size=2)
    turns: list[tuple[int, int]] = []

    async def one(number: int) -> None:
        result = await pool.run(call("nap", seconds=0.02), on_begin=lambda pid: turns.append((number, pid)))
        assert value(result) == "awake"

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*map(one, range(50)))
    # Two that begin in the same turn of the loop may be told in either order.
    assert max(abs(number - place) for place, (number, _) in enumerate(turns)) <= 1
    assert {pid for _, pid in turns} == set(pool.pids)
    assert len(pool.pids) == 2


async def test_a_process_is_replaced_after_its_calls(pools: Pools) -> None:
    pool = pools(calls_max=2)
    pids = [value(await pool.run(call("pid"))) for _ in range(5)]
    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert len(set(pids)) == 3
    assert is_gone(pids[0])


def test_a_pool_needs_modules_and_sensible_settings() -> None:
    with pytest.raises(ConfigurationError, match=r"TaskRegistry.load"):
        ProcessPool([])
    with pytest.raises(ConfigurationError, match="size of a process pool must be from 1 to 1000, got 0"):
        PoolConfig(size=0)
