"""`make faults`: the mixed run beside all single rows, one seed for both; `--record` puts the figures into the docs.

What is done to three servers comes after that, alone: its pauses are measured.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.figures import FOLDER, Figures  # noqa: E402 - a script finds its neighbours first

PAGE: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- figures: made by `make faults RECORD=1` -->"
END: Final = "<!-- end of figures -->"
#: What runs beside all the others; both take about as long.
LONG: Final = (
    "tests/fault/test_mixed.py",
    "tests/fault/test_workers_die.py",
    "tests/fault/test_groups.py",
    "tests/fault/test_limits.py",
    "tests/fault/test_paused_queues.py",
    "tests/fault/test_schedules_die.py",
    "tests/fault/test_unique.py",
    "tests/fault/test_network.py",
    "tests/fault/test_big_ledgers.py",
)
#: What runs after the others, by itself.
ALONE: Final = "tests/fault/test_cluster.py"
#: Of each part. The halves take twenty minutes on a fast machine, and twice that on a slow one.
LIMIT_S: Final = 3_600.0
_TOLD_EACH_S: Final = 60.0
_END_S: Final = 60.0  #: within which a half ends that is asked to
#: A line of pytest that shows results only.
_RESULTS: Final = re.compile(rb"^[.FEsxX]+(?= *\[|$)", re.MULTILINE)
_FOLDERS: Final = ("tests/fault", "tests/integration", "tests/gateway", "tests/model", "tests/newcomer")
_PYTEST: Final = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-m",
    "fault or walk",
    "--show-capture=no",
    "--durations=40",
    "--durations-min=5",
)
_HEAD: Final = (
    "| Row | What is done | How often, what came of it | Jobs | Events | Violations | Worst recovery | Date | Seed | Test |",
    "|---|---|---|--:|--:|--:|---|---|--:|---|",
)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _start(seed: int, log: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "JOBLEDGER_FAULT_SEED": str(seed)}
    with log.open("wb") as output:
        return subprocess.Popen(
            [*_PYTEST, f"--basetemp={log.with_suffix('')}", *words],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _parts(only: str | None) -> list[list[list[str]]]:
    """Return what runs one after the other: in each part what runs beside each other, about as long each."""
    if only is not None:
        return [[[*_FOLDERS, "-k", only]]]
    return [[[*_FOLDERS, *(f"--ignore={path}" for path in (*LONG, ALONE))], [*LONG]], [[ALONE]]]


def _run(seed: int, only: str | None) -> bool:
    """Run all parts, or one test; return whether all is well. The figures of earlier runs are gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.json") if only is None else ():
        path.unlink()
    well = [_run_part(seed, number, part) for number, part in enumerate(_parts(only))]
    return all(well)


def _run_part(seed: int, number: int, part: list[list[str]]) -> bool:
    logs = [FOLDER / f"part-{number}-{beside}.log" for beside in range(len(part))]
    running = [_start(seed, log, *words) for log, words in zip(logs, part, strict=True)]
    try:
        _wait(running, logs)
    finally:
        _end(running)
    for log in logs:
        _say(log.read_text(encoding="utf-8", errors="replace"))
    return not any(process.wait() for process in running)


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    """End what still runs as Ctrl-C does, so that the servers and workers of its tests end with it."""
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    until = time.monotonic() + _END_S
    for process in running:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _terminated(*_: object) -> None:
    sys.exit("faults: ended by a signal")


def _wait(running: list[subprocess.Popen[bytes]], logs: list[Path]) -> None:
    """Wait until all have ended, or had their time; tell each minute how far they are."""
    began = told = time.monotonic()
    while any(process.poll() is None for process in running):
        now = time.monotonic()
        if now - began > LIMIT_S:
            _say(f"faults: not done after {LIMIT_S / 60:.0f} min; found until then:\n")
            return
        if now - told >= _TOLD_EACH_S:
            told = now
            done = sum(len(line) for log in logs for line in _RESULTS.findall(log.read_bytes()))
            _say(f"faults: {(now - began) / 60:.0f} min, tests done: {done}\n")
        time.sleep(0.2)


def _row(figures: Figures) -> str:
    name = figures.test.rpartition("::")[2].partition("[")[0].removeprefix("test_")
    cells = (
        figures.row,
        figures.what,
        figures.faults,
        f"{figures.jobs:,}",
        f"{figures.events:,}",
        str(figures.violations),
        figures.worst_recovery or "-",
        figures.date,
        str(figures.seed),
        f"`{name}`",
    )
    return "| " + " | ".join(cells) + " |"


def _order(line: str) -> tuple[bool, str, int, str]:
    """Return the place of a line of the table: rows by their letter and number, then those that are named by a word."""
    row, what = line.strip("| ").split(" | ")[:2]
    numbered = re.fullmatch(r"([A-Z]?)(\d+).*", row)
    return (
        numbered is None,
        numbered[1] if numbered else row,
        int(numbered[2]) if numbered else 0,
        row + what,
    )


def _record(files: Iterable[Path], *, keep_others: bool) -> None:
    """Put the figures that are there into the table of the page; `keep_others`: what it has of other rows stays."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    had = [line for line in table.splitlines() if line.startswith("| ") and line not in _HEAD]
    found = [_row(msgspec.json.decode(path.read_bytes(), type=Figures)) for path in files]
    lines = {_order(line): line for line in (*(had if keep_others else ()), *found)}
    table = "\n".join([BEGIN, "", *_HEAD, *(lines[place] for place in sorted(lines)), "", END])
    PAGE.write_text(before + table + after, encoding="utf-8")


def main() -> int:
    """Run, tell, record."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", help="a part of a test's name")
    parser.add_argument("--record", action="store_true", help="update docs/reliability.md")
    parser.add_argument("--no-run", action="store_true", help="only record what the last runs found")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    seed = given.seed
    if seed is None:
        seed = int(os.environ.get("JOBLEDGER_FAULT_SEED") or secrets.randbelow(1 << 31))
    well = True
    if not given.no_run:
        _say(f"faults: seed {seed}; the same again: make faults SEED={seed}\n")
        began = time.monotonic()
        well = _run(seed, given.only)
        took_s = time.monotonic() - began
        _say(f"faults: {'passed' if well else 'FAILED'} in {took_s:.0f} s, seed {seed}\n")
    if given.record and well:
        _record(FOLDER.glob("*.json"), keep_others=given.only is not None)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
