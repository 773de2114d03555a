"""Processes of a pool that die, are killed or do not start: told, replaced, and nobody else's matter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.support.pools import APPS, LIMIT_S, TASKS, Heard, Pools, call, is_gone, until, value

from jobledger.ledger.model.errors import LedgerError
from jobledger.workers.pool import child_process
from jobledger.workers.pool.pool import (
    ChildStartError,
    PoolClosedError,
    PoolConfig,
    ProcessDeath,
    ProcessPool,
    TaskFailure,
)

# What a worker does about them is tried with each run of the tests, in test_process_tasks.py.
pytestmark = [pytest.mark.anyio, pytest.mark.fault]
#: The target is 2 s (which `make faults` measures); here other tests have the processor, too.
WHOLE_AGAIN_S = LIMIT_S


# Deaths.


@pytest.mark.parametrize(
    ("how", "code", "number", "words"),
    [
        ("exit", 7, None, "the process running the task ended itself with exit code 7"),
        ("segfault", None, signal.SIGSEGV, "the process running the task was ended by SIGSEGV"),
        ("abort", None, signal.SIGABRT, "the process running the task was ended by SIGABRT"),
        ("kill", None, signal.SIGKILL, "was ended by SIGKILL, which the system sends when memory runs out"),
    ],
)
async def test_a_death_is_told_and_the_pool_is_whole_again(
    pools: Pools, how: str, code: int | None, number: int | None, words: str
) -> None:
    pool = pools()
    before = value(await pool.run(call("pid")))
    died = await pool.run(call("die", how=how))
    assert isinstance(died, ProcessDeath)
    assert (died.exit_code, died.signal) == (code, number)
    assert words in died.sentence
    assert died.error.message == died.sentence
    assert is_gone(before)
    began = time.monotonic()
    assert value(await pool.run(call("pid"))) != before
    assert time.monotonic() - began < WHOLE_AGAIN_S


async def test_a_process_that_closes_its_line_is_killed(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_EXIT_LIMIT_S", 0.1)
    died = await pools().run(call("die", how="close"))
    assert isinstance(died, ProcessDeath)
    assert died.sentence == "the process running the task was killed: it closed its line to the worker"


async def test_a_crash_is_told_with_the_line_of_the_task(pools: Pools) -> None:
    died = await pools().run(call("die", how="segfault"))
    assert isinstance(died, ProcessDeath)
    assert "Segmentation fault" in died.traceback
    assert "pool_tasks.py" in died.traceback
    assert " in die" in died.traceback
    assert "child.py" not in died.traceback


async def test_memory_that_runs_out_is_an_exception_and_a_fresh_process(pools: Pools) -> None:
    pool = pools(memory_bytes_max=2 << 30)
    before = value(await pool.run(call("pid")))
    raised = await pool.run(call("use_memory", size_bytes=4 << 30))
    assert isinstance(raised, TaskFailure)
    assert raised.error.type == "MemoryError"
    began = time.monotonic()
    assert value(await pool.run(call("pid"))) != before
    assert time.monotonic() - began < WHOLE_AGAIN_S


async def test_one_death_leaves_the_other_calls_alone(pools: Pools) -> None:
    pool = pools(size=2)
    heard = Heard()
    napping = asyncio.create_task(pool.run(call("nap", seconds=0.6), heard))
    await heard.began.wait()
    assert isinstance(await pool.run(call("die", how="segfault")), ProcessDeath)
    assert isinstance(await pool.run(call("die", how="exit")), ProcessDeath)
    assert value(await napping) == "awake"


async def test_a_process_that_dies_between_calls_is_replaced_by_the_next(pools: Pools) -> None:
    pool = pools()
    before = value(await pool.run(call("pid")))
    os.kill(before, signal.SIGKILL)
    await until(lambda: pool.pids == [])
    assert value(await pool.run(call("pid"))) != before


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("garbage", "was killed: it sent a frame that is no message"),
        ("too much", "was killed: it announced a frame of 4,294,967,295 bytes"),
        ("deep", "was killed: it sent a frame that is no message"),
        ("another result", "was killed: it sent a result of call 999 in call 1"),
    ],
)
async def test_a_process_that_breaks_the_protocol_is_killed(pools: Pools, how: str, words: str) -> None:
    pool = pools()
    died = await pool.run(call("send", how=how), Heard())
    assert isinstance(died, ProcessDeath)
    assert words in died.sentence
    assert value(await pool.run(call("add", left=1, right=1))) == 2


# Cancelling.


@pytest.mark.parametrize("how", ["asleep", "in C", "with a program"])
async def test_a_timeout_leaves_no_process_behind(pools: Pools, how: str) -> None:
    pool = pools()
    await pool.run(call("pid"))
    heard = Heard()
    begun: list[int] = []
    running = asyncio.create_task(pool.run(call("hang", how=how), heard, on_begin=begun.append))
    await heard.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_gone(begun[0])
    programs = [int(pid) for pid, _, _ in heard.reports]
    await until(lambda: all(map(is_gone, programs)))
    assert len(programs) == (how == "with a program")
    began = time.monotonic()
    assert value(await pool.run(call("pid"))) != begun[0]
    assert time.monotonic() - began < WHOLE_AGAIN_S


async def test_timeouts_around_run_are_timeouts(pools: Pools) -> None:
    pool = pools()
    await pool.run(call("pid"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await pool.run(call("hang", how="asleep"))


async def test_giving_up_one_s_turn_harms_nobody(pool: ProcessPool) -> None:
    heard = Heard()
    napping = asyncio.create_task(pool.run(call("nap", seconds=0.3), heard))
    impatient = asyncio.create_task(pool.run(call("pid")))
    patient = asyncio.create_task(pool.run(call("pid")))
    await heard.began.wait()
    impatient.cancel()
    assert value(await napping) == "awake"
    assert value(await patient) == pool.pids[0]
    assert impatient.cancelled()


async def test_a_process_is_made_ready_even_if_who_asked_has_left(pools: Pools) -> None:
    """A timeout shorter than the start would else start processes for ever and never run anything."""
    pool = pools()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await pool.run(call("pid"))
    await until(lambda: pool._idle != [])
    assert value(await pool.run(call("pid"))) == pool.pids[0]


# Starting.


async def test_a_module_that_cannot_be_imported_is_told_and_not_tried_for_ever(
    pools: Pools, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.workers.pool.pool._PAUSE_FIRST_S", 3.0)
    monkeypatch.setattr("jobledger.workers.pool.pool._PAUSE_MAX_S", 3.0)
    module = tmp_path / "late_tasks.py"
    module.write_text("import os\nfrom jobledger.ledger import task\n\nraise ValueError('no settings')\n")
    pool = pools(str(module))
    words = r"late_tasks.py cannot be imported: ValueError: no settings \(.*late_tasks.py, line 4\)"
    with pytest.raises(ChildStartError, match=words):
        await pool.run(call("pid"))
    for _ in range(20):
        with pytest.raises(ChildStartError, match=words):
            await pool.run(call("pid"))
    assert (pool.pids, pool._starting) == ([], set())
    assert ["the next try is in 3 s" in record.getMessage() for record in caplog.records] == [True]
    module.write_text(
        "import os\nfrom jobledger.ledger import task\n\n@task\ndef pid() -> int:\n    return 5\n"
    )
    await until(lambda: asyncio.get_running_loop().time() > pool._may_start_at)
    assert value(await pool.run(call("pid"))) == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import os; os._exit(9)",
            "while it loaded .*, a process ended itself with exit code 9; see the worker's error",
        ),
        ("import sys; sys.exit(0)", r"called sys\.exit\(0\) while it was imported"),
        ("x = 1", "holds no task"),
    ],
)
async def test_a_process_that_does_not_start_is_told(
    pools: Pools, tmp_path: Path, text: str, words: str
) -> None:
    module = tmp_path / "bad_tasks.py"
    module.write_text(text)
    with pytest.raises(ChildStartError, match=words):
        await pools(str(module)).run(call("pid"))


async def test_a_module_that_takes_for_ever_to_import_is_given_up(pools: Pools, tmp_path: Path) -> None:
    module = tmp_path / "slow_tasks.py"
    module.write_text("import time; time.sleep(600)")
    with pytest.raises(ChildStartError, match=r"a process did not load .* within 0.5 s"):
        await pools(str(module), start_s=0.5).run(call("pid"))


async def test_calls_wait_for_a_process_that_lives_when_no_other_starts(pools: Pools, tmp_path: Path) -> None:
    module, once, go = tmp_path / "once_tasks.py", tmp_path / "once", tmp_path / "go"
    module.write_text(
        "import time\nfrom pathlib import Path\nfrom jobledger.ledger import task\n\n"
        f"Path({str(once)!r}).touch(exist_ok=False)\n\n"
        f"@task\ndef wait() -> int:\n    while not Path({str(go)!r}).exists():\n        time.sleep(0.01)\n    return 5\n"
    )
    pool = pools(str(module), size=2)
    calls = [asyncio.create_task(pool.run(call("wait"))) for _ in range(3)]
    await until(lambda: pool._start_error is not None)
    go.touch()
    assert [value(await each) for each in calls] == [5, 5, 5]
    assert len(pool.pids) == 1


# Signals, and the end.


@pytest.mark.parametrize(
    ("how", "seen"),
    [("itself", "still here"), ("program", -signal.SIGTERM), ("fork", -signal.SIGTERM)],
)
async def test_stop_signals_are_for_the_worker_and_for_what_tasks_start(
    pool: ProcessPool, how: str, seen: object
) -> None:
    assert value(await pool.run(call("heed", how=how))) == seen


async def test_a_process_leads_its_own_session(pool: ProcessPool) -> None:
    pid = value(await pool.run(call("pid")))
    assert os.getsid(pid) == pid != os.getsid(0)


async def test_close_lets_processes_end_in_good_order(pools: Pools, tmp_path: Path) -> None:
    pool = pools(size=2)
    heard = Heard()
    napping = asyncio.create_task(pool.run(call("nap", seconds=0.3), heard))
    await heard.began.wait()
    await pool.run(call("at_exit", path=str(tmp_path / "left")))
    await pool.close()
    assert (tmp_path / "left").read_text() == "in good order"
    assert value(await napping) == "awake"
    with pytest.raises(PoolClosedError):
        await pool.run(call("pid"))


async def test_close_kills_what_is_left_after_its_limit_and_refuses_who_waits(pools: Pools) -> None:
    pool = pools()
    heard = Heard()
    hanging = asyncio.create_task(pool.run(call("hang", how="asleep"), heard))
    await heard.began.wait()
    waiting = asyncio.create_task(pool.run(call("pid")))
    await asyncio.sleep(0)
    await pool.close(limit_s=0.1)
    died = await hanging
    assert isinstance(died, ProcessDeath)
    assert died.sentence.endswith("was killed because the worker's pool was closed")
    with pytest.raises(PoolClosedError):
        await waiting
    assert pool.pids == []


def test_the_standard_loop_will_do() -> None:
    async def work() -> None:
        async with ProcessPool([TASKS], PoolConfig(size=2)) as pool:
            results = await asyncio.gather(*(pool.run(call("add", left=n, right=0)) for n in range(6)))
            assert [value(each) for each in results] == list(range(6))
            died = await pool.run(call("die", how="segfault"))
            assert isinstance(died, ProcessDeath)
            assert died.signal == signal.SIGSEGV
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await pool.run(call("hang", how="asleep"))
            assert value(await pool.run(call("give", what="text", size=1 << 20))) == "x" * (1 << 20)

    asyncio.run(work())


@contextlib.contextmanager
def worker_with_pool(
    how: str, silence_s: float = 0
) -> Generator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """Run a process with a pool; yield it and the pids of what it started, by what they do."""
    worker = subprocess.Popen(
        [sys.executable, str(APPS / "run_pool.py"), how, str(silence_s)], stdout=subprocess.PIPE, text=True
    )
    pids: dict[str, int] = {}
    try:
        assert worker.stdout is not None
        for line in worker.stdout:
            if line == "ready\n":
                break
            number, _, name = line.strip().partition(" ")
            pids[name] = int(number)
        yield worker, pids
    finally:
        worker.kill()
        worker.communicate(timeout=LIMIT_S)
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["asleep", "in C"])
async def test_processes_do_not_outlive_a_worker_that_is_killed(how: str) -> None:
    with worker_with_pool(how) as (worker, pids):
        assert set(pids) == {"busy", "idle"}
        assert not any(map(is_gone, pids.values()))
        worker.kill()
        await until(lambda: all(map(is_gone, pids.values())), WHOLE_AGAIN_S)


async def test_processes_do_not_outlive_a_worker_that_is_frozen() -> None:
    """Else its job could be taken over while it still runs."""
    with worker_with_pool("with a program", silence_s=2.0) as (worker, pids):
        await asyncio.sleep(3)  # longer than they wait for a sign, of which there are some
        assert not any(map(is_gone, pids.values()))
        worker.send_signal(signal.SIGSTOP)
        await until(lambda: all(map(is_gone, pids.values())), 2.0 + WHOLE_AGAIN_S)


async def test_a_process_says_that_the_worker_was_silent(pools: Pools) -> None:
    pool = pools(silence_s=1.0)
    heard = Heard()
    hanging = asyncio.create_task(pool.run(call("hang", how="asleep"), heard))
    await heard.began.wait()
    assert pool._ticking is not None
    pool._ticking.cancel()
    died = await hanging
    assert isinstance(died, ProcessDeath)
    assert died.signal == signal.SIGKILL
    words = "the process running the task ended itself: the worker gave no sign of life for 1 s"
    assert died.sentence.startswith(words)


def test_the_errors_are_the_ledger_s() -> None:
    assert issubclass(ChildStartError, LedgerError)
    assert issubclass(PoolClosedError, LedgerError)
