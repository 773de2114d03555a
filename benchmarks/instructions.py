"""What a job costs in our processes, counted: counts repeat where times do not, so a small rise shows.

    python benchmarks/instructions.py [--only PART ...] [--calls] [--against COMMIT] [--json] [--check | --keep]

Two things are counted, for enqueues, for a worker's jobs and for a projector's events: instructions, where valgrind is
installed (not with `--calls`), and calls of Python functions. Each is the difference of a run with few jobs and one with
many, so what a process costs to start falls out; both repeat to about 0.1 %, but those of a worker to 4 %: how many jobs it
finds at hand in a turn depends on the moment. `--check` fails where a count is above the one that `instructions.json` keeps
by more than the margin, in each of three runs; `--keep` writes the file. Instructions are kept for each version of
Python, machine and way of building Python, since all three change them, and calls for each version of Python; what is not
kept is not compared. `--against` counts the packages of a commit beside those of this tree, which needs nothing kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import against
import counted_process
from projection import history
from shared import run

from jobledger.ledger import Ledger, connect
from jobledger.ledger.server import EmbeddedServer

KEPT: Final = Path(__file__).with_suffix(".json")
#: How many percent a count may be above the one that is kept.
MARGINS: Final[Mapping[str, float]] = {"instructions": 5.0, "calls": 2.0}
_LIMIT_S: Final = 600.0
_TIMES: Final = 3  #: how often a count above the margin is taken, the first time included
#: Only its count is wanted, so no file and no model of a cache.
_VALGRIND: Final = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")

Counts = dict[str, dict[str, float]]  # by kind, then by part


async def _nothing(ledger: Ledger, jobs: int) -> None:
    """Leave a new ledger empty."""


async def _queue(ledger: Ledger, jobs: int) -> None:
    await ledger.enqueue_many(counted_process.noop, counted_process.inputs(jobs))


async def _queue_flaky(ledger: Ledger, jobs: int) -> None:
    await ledger.enqueue_many(counted_process.flaky, counted_process.inputs(jobs))


async def _end(ledger: Ledger, events: int) -> None:
    """Append the events of jobs that ended, three each."""
    await history(ledger.log, events // 3, lead=100)


class Part(NamedTuple):
    """A line of the table."""

    what: str
    prepare: Callable[
        [Ledger, int], Awaitable[None]
    ]  #: what is in the ledger before the counted process starts
    few: int = 150  #: jobs, or events, of the smaller run
    many: int = 1_350


PARTS: Final[Mapping[str, Part]] = {
    "bulk": Part("enqueue_many, a job", _nothing),
    "single": Part("enqueue, a job", _nothing),
    "named": Part("enqueue with options(id=...), a job", _nothing),
    "drain": Part(f"worker at {counted_process.CONCURRENCY}, a job", _queue),
    "retried": Part("worker, a job that fails once", _queue_flaky, few=100, many=500),
    "project": Part("projector, an event", _end),
}


def kinds_here(*, calls_only: bool) -> list[str]:
    """Return what can be counted on this machine."""
    found = shutil.which(_VALGRIND[0]) is not None
    if not found and not calls_only:
        print("valgrind is not installed: only calls are counted", file=sys.stderr)
    return ["instructions", "calls"] if found and not calls_only else ["calls"]


def places() -> dict[str, str]:
    """Return under which name this Python's counts of each kind are kept."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    optimised = "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))
    return {
        "instructions": f"{version} {platform.machine()} {'optimised' if optimised else 'plain'}",
        "calls": version,
    }


async def count(kind: str, part: str, jobs: int, tree: Path) -> int:
    """Return the count of a process that does a part for `jobs` jobs, with the packages of a tree."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jobledger-bench-"))
        server = await stack.enter_async_context(EmbeddedServer(Path(folder), port=0, durability="process"))
        async with connect(server.url, ledger_bytes_max=counted_process.LEDGER_BYTES) as ledger:
            await PARTS[part].prepare(ledger, jobs)
        words = (sys.executable, counted_process.__file__, part, server.url, str(jobs))
        process = await asyncio.create_subprocess_exec(
            *((*_VALGRIND, *words) if kind == "instructions" else (*words, "--calls")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # A hash of a str differs from run to run, and with it the order in sets.
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(against.roots(tree))},
        )
        try:
            said, errors = await asyncio.wait_for(process.communicate(), _LIMIT_S)
        finally:
            if process.returncode is None:
                process.kill()
    if process.returncode:
        sys.exit(f"{part} with {tree} failed:\n{errors.decode()}")
    if kind == "calls":
        figures: dict[str, Any] = json.loads(said)
        assert Path(figures["packages"]).is_relative_to(tree), (
            f"{figures['packages']} was counted, not {tree}"
        )
        return int(figures["calls"])
    told = re.search(r"I\s+refs:\s+([\d,]+)", errors.decode())
    assert told is not None, errors.decode()
    return int(told[1].replace(",", ""))


async def measure(kinds: list[str], parts: list[str], tree: Path) -> Counts:
    """Return the counts a job of a tree's packages. A run takes a tenth of a second to 40 s."""
    found: Counts = {kind: {} for kind in kinds}
    for part in parts:
        row = PARTS[part]
        for kind in kinds:
            print(f"{part}: {kind} ...", file=sys.stderr, flush=True)
            few, many = await asyncio.gather(
                count(kind, part, row.few, tree), count(kind, part, row.many, tree)
            )
            found[kind][part] = round((many - few) / (row.many - row.few), 2)
    return found


def kept() -> dict[str, dict[str, dict[str, float]]]:
    """Return the counts that are kept, by kind, name of the Python, and part."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(KEPT.read_text(encoding="ascii"))
    return found


def keep(counts: Counts) -> None:
    """Write the counts of this Python over those that are kept of it."""
    found = kept()
    for kind, by_part in counts.items():
        found.setdefault(kind, {}).setdefault(places()[kind], {}).update(by_part)
    KEPT.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="ascii")


def known_here() -> Counts:
    """Return the counts that are kept for this Python."""
    return {kind: by_python.get(places()[kind], {}) for kind, by_python in kept().items()}


def above(found: float, known: float) -> float:
    """Return how many percent a count is above another one."""
    return (found / known - 1) * 100


def show(counts: Counts, known: Counts, name: str) -> None:
    """Print a table; `name`: of what the counts are compared with."""
    print(f"{'':36}" + "".join(f"{kind:>16}{name:>12}{'':9}" for kind in counts))
    for part in next(iter(counts.values())):
        line = f"{PARTS[part].what:36}"
        for kind, by_part in counts.items():
            digits = 0 if kind == "instructions" else 1
            before = known.get(kind, {}).get(part)
            compared = (
                f"{'-':>12}{'':9}"
                if before is None
                else f"{before:>12,.{digits}f}{above(by_part[part], before):>+7.1f} %"
            )
            line += f"{by_part[part]:>16,.{digits}f}{compared}"
        print(line.rstrip())


def is_above(kind: str, value: float, before: float | None) -> bool:
    """Return whether a count is above the one that is kept, if one is, by more than the margin."""
    return before is not None and above(value, before) > MARGINS[kind]


async def least(counts: Counts, known: Counts) -> Counts:
    """Return the counts after what is above the margin was counted again, and the least of each was taken."""
    found = {kind: dict(by_part) for kind, by_part in counts.items()}
    for _ in range(_TIMES - 1):
        for kind, by_part in found.items():
            for part, value in by_part.items():
                if is_above(kind, value, known.get(kind, {}).get(part)):
                    again = await measure([kind], [part], against.HERE)
                    by_part[part] = min(value, again[kind][part])
    return found


def refusals(counts: Counts, known: Counts) -> list[str]:
    """Return a sentence for each count that is above the one that is kept by more than the margin."""
    found: list[str] = []
    for kind, by_part in counts.items():
        for part, value in by_part.items():
            before = known.get(kind, {}).get(part)
            if before is not None and is_above(kind, value, before):
                found.append(
                    f"{PARTS[part].what}: {value:,.1f} {kind}, {above(value, before):.1f} % above {before:,.1f}; "
                    f"{MARGINS[kind]:g} % are allowed"
                )
    return found


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="PART", action="append", choices=[*PARTS], help=", ".join(PARTS))
    parser.add_argument("--calls", action="store_true", help="count calls alone, within some seconds")
    parser.add_argument("--against", metavar="COMMIT", default="")
    parser.add_argument("--json", action="store_true")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--check", action="store_true", help="fail where a count rose by more than the margin")
    ends.add_argument("--keep", action="store_true", help="keep the counts for later comparisons")
    return parser.parse_args()


def main() -> None:
    """Count, print, compare."""
    chosen = arguments()
    kinds, parts = kinds_here(calls_only=chosen.calls), chosen.only or list(PARTS)
    known, name = known_here(), "kept"
    if chosen.against:
        commit = against.commit_named(chosen.against)
        with against.tree_of(commit) as tree:
            known, name = run(measure(kinds, parts, tree)), commit[:8]
    counts = run(measure(kinds, parts, against.HERE))
    if chosen.check:
        counts = run(least(counts, known))
    if chosen.json:
        print(json.dumps({"python": places(), "counts": counts, name: known}, indent=2))
    else:
        show(counts, known, name)
    if chosen.keep:
        keep(counts)
    if chosen.check and (found := refusals(counts, known)):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
