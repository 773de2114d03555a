"""What is measured of one system: enqueue, drain, latency, bytes; at rest; and as its ledger and its payloads grow."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from peers.processes import cpu_by_process, cpu_since, memory_kib
from peers.rig import FAILURES, FailedError, Rig, Sent, folder_bytes, rigged
from peers.systems import BARE, SYSTEMS, Setting, settings_of

Figures = dict[str, float]

_LATENCY_JOBS: Final = 200
_HALF_LOAD_S: Final = 1.0
_BEAT_S: Final = 0.005  #: between the jobs that half load adds at once
_SETTLE_S: Final = 3.0
CELL_S: Final = 120.0  #: the longest time of one system in one setting
PAYLOADS: Final = (100, 1_024, 8_192, 60_000)
_PAYLOAD_BYTES: Final = 60_000_000  #: of all jobs of one size together
_SENT_BESIDE: Final = 48  #: what an input has beside its padding
_PER_STEP: Final = 10_000


class Rest(NamedTuple):
    """How long each may rest, and be waited for."""

    idle_s: float
    recovery_s: float


async def measure(
    name: str, setting: Setting, share: float, *, is_whole: bool, limit_s: float
) -> tuple[Figures, str]:
    """Measure a system in one setting on one new server; `is_whole`: also latency, and each concurrency.

    Returns what was measured, and why the rest was not; "" where nothing failed.
    """
    found: Figures = {}
    try:
        async with asyncio.timeout(limit_s):
            await _measured(name, setting, share, found, is_whole=is_whole)
    except TimeoutError:
        return found, f"it took longer than {limit_s:.0f} s"
    except FAILURES as error:
        return found, str(error)
    return found, ""


async def _measured(name: str, setting: Setting, share: float, found: Figures, *, is_whole: bool) -> None:
    async with rigged(name, setting) as rig:
        disk, memory = folder_bytes(rig.server.folder), rig.memory_kib()
        jobs = _part(rig.system.sizes.bulk, share)
        await rig.enqueue("single", 1)
        _note_sent(found, "bulk", await rig.enqueue("bulk", jobs))
        found["waiting memory B"] = (rig.memory_kib() - memory) * 1024 / jobs
        _note_sent(found, "single", await rig.enqueue("single", _part(rig.system.sizes.single, share)))
        await _drains(rig, found, share, is_whole=is_whole)
        if is_whole:
            await _latencies(rig, found, share)
        await rig.stop_workers()
        found["done memory B"] = (rig.memory_kib() - memory) * 1024 / rig.jobs
        found["disk B"] = (folder_bytes(rig.server.folder) - disk) / rig.jobs


def _part(jobs: int, share: float) -> int:
    return max(50, int(jobs * share))


def _note_sent(found: Figures, what: str, sent: Sent) -> None:
    found |= {
        f"{what}/s": sent.rate,
        f"{what} client us": sent.client_us,
        f"{what} server us": sent.server_us,
    }


async def _drains(rig: Rig, found: Figures, share: float, *, is_whole: bool) -> None:
    """Drain with each concurrency, then with two workers; one worker of the usual concurrency stays."""
    system, jobs = rig.system, _part(rig.system.sizes.drain, share)
    usual = system.concurrency
    others = [each for each in system.concurrencies if each != usual] if is_whole else []
    before = 0  # what was enqueued so far waits for the first of them
    for workers, concurrency in ((2, usual), *((1, each) for each in others), (1, usual)):
        if before and rig.jobs < before + jobs * workers:
            await rig.enqueue("bulk", jobs * workers)
        elif not before and rig.jobs < jobs * workers:
            await rig.enqueue("bulk", jobs * workers - rig.jobs)
        drained = await rig.drain(before, workers, concurrency)
        name = "two workers" if workers > 1 else f"drain {concurrency}"
        found |= {
            f"{name}/s": drained.rate,
            f"{name} worker us": drained.worker_us,
            f"{name} server us": drained.server_us,
        }
        before = rig.jobs
        if (workers, concurrency) != (1, usual):
            await rig.stop_workers()


async def _latencies(rig: Rig, found: Figures, share: float) -> None:
    """Measure from the call that enqueues to the first line of the job, at rest and at half the rate of the drain."""
    rest: Figures = {"every_s": rig.system.gap_s, "at_once": 1}
    await rig.enqueue("paced", 20, **rest)
    await _latency(rig, found, "rest", await rig.enqueue("paced", _part(_LATENCY_JOBS, share), **rest))
    rate = found[f"drain {rig.system.concurrency}/s"] / 2
    at_once = max(1, round(rate * _BEAT_S))
    half: Figures = {"every_s": at_once / rate, "at_once": at_once}
    sent = await rig.enqueue("paced", _part(int(rate * _HALF_LOAD_S), share), **half)
    found["half sent/s"] = sent.rate
    await _latency(rig, found, "half", sent)


async def _latency(rig: Rig, found: Figures, what: str, sent: Sent) -> None:
    starts = await rig.all_starts(sent.first, sent.jobs)
    times = [(start.at_ns - start.sent_ns) / 1e6 for start in starts]
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    found |= {f"{what} p50 ms": cuts[49], f"{what} p99 ms": cuts[98]}


async def rest(names: list[str], limits: Rest) -> Mapping[str, Figures | str]:
    """Measure all systems at once while they have nothing to do, then how soon each runs the job of a killed worker again.

    Waiting costs next to nothing, so they do not disturb each other.
    """
    found: dict[str, Figures | str] = {}
    async with contextlib.AsyncExitStack() as stack:
        rigs: dict[str, Rig] = {}
        for name in names:
            try:
                rig = await stack.enter_async_context(rigged(name, settings_of(SYSTEMS[name])[0]))
                await rig.enqueue("bulk", 100)
                await rig.start_workers(1, rig.system.concurrency)
                await rig.until_started(100)
            except FAILURES as error:
                found[name] = str(error)
                continue
            rigs[name] = rig
        await asyncio.sleep(_SETTLE_S)
        found |= await _idle(rigs, limits.idle_s)
        hung = {name: rig for name, rig in rigs.items() if name != BARE}
        recovered = await asyncio.gather(
            *(_recovery(rig, limits.recovery_s) for rig in hung.values()), return_exceptions=True
        )
        for name, after_s in zip(hung, recovered, strict=True):
            if isinstance(after_s, FAILURES):
                found[name] = str(after_s)
            elif isinstance(after_s, BaseException):
                raise after_s
            else:
                figures = found[name]
                assert isinstance(figures, dict), "it did not fail"
                figures["recovery s"] = after_s
    return found


async def _idle(rigs: Mapping[str, Rig], idle_s: float) -> dict[str, Figures]:
    """Return memory, and CPU in percent of a core, of worker and server without work."""
    pids = {name: (rig.worker_pids, [rig.server.pid]) for name, rig in rigs.items()}
    before = {name: [cpu_by_process(each) for each in both] for name, both in pids.items()}
    began = time.monotonic()
    await asyncio.sleep(idle_s)
    found: dict[str, Figures] = {}
    for name, both in pids.items():
        spent = [cpu_since(cpu, each) for cpu, each in zip(before[name], both, strict=True)]
        worker, server = (each / (time.monotonic() - began) * 100 for each in spent)
        found[name] = {
            "idle worker %": worker,
            "idle server %": server,
            "worker MiB": memory_kib(both[0]) / 1024,
            "server MiB": memory_kib(both[1]) / 1024,
        }
    return found


async def _recovery(rig: Rig, limit_s: float) -> float:
    """Kill the worker of a job and start another one; return after how many seconds the job starts again, -1 for not."""
    count = rig.count()
    await rig.enqueue("hang", 1)
    await rig.until(lambda: rig.count() > count)
    await rig.workers[0].kill()
    killed = time.monotonic()
    rig.workers.clear()
    await rig.start_workers(1, rig.system.concurrency)
    with contextlib.suppress(FailedError):
        await rig.until(lambda: rig.count() > count + 1, limit_s)
        return time.monotonic() - killed
    return -1.0


async def grow(name: str, setting: Setting, steps: tuple[int, ...]) -> dict[str, Figures]:
    """Measure the next 10,000 jobs beside more and more that wait."""
    found: dict[str, Figures] = {}
    async with rigged(name, setting) as rig:
        memory = rig.memory_kib()
        for step in steps:
            while rig.jobs < step - _PER_STEP:
                await rig.enqueue("bulk", min(50_000, step - _PER_STEP - rig.jobs))
            figures: Figures = {}
            _note_sent(figures, "bulk", await rig.enqueue("bulk", _PER_STEP))
            _note_sent(figures, "single", await rig.enqueue("single", 1_000))
            figures["waiting memory B"] = (rig.memory_kib() - memory) * 1024 / rig.jobs
            found[f"{step:,} jobs"] = figures
    return found


async def pay(name: str, setting: Setting) -> dict[str, Figures]:
    """Measure inputs of several sizes, each on a new server."""
    found: dict[str, Figures] = {}
    for size in PAYLOADS:
        jobs = min(_PER_STEP, _PAYLOAD_BYTES // size)
        figures: Figures = {}
        async with rigged(name, setting) as rig:
            padding = size - _SENT_BESIDE
            _note_sent(figures, "bulk", await rig.enqueue("bulk", jobs, padding=padding))
            drained = await rig.drain(0, 1, rig.system.concurrency)
            figures["drain/s"] = drained.rate
            figures["drain worker us"] = drained.worker_us
            figures["drain server us"] = drained.server_us
        found[f"{size:,} bytes"] = figures
    return found
