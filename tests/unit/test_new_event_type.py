"""A new type of event is its class, its row, its case in `evolve` and its column: who forgets one is told which."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = Path("ledger/jobledger/ledger/model")
STATS = Path("projections/jobledger/projections/statistics/tally.py")

#: What a type of event needs: a name, the file, the place, and what is written there.
CLASS = ("class", MODEL / "events.py", "class Fenced(Event", 'class Blessed(Event, frozen=True, kw_only=True, tag="blessed", gc=False):\n    """Somebody blessed the job."""\n\n\n')  # fmt: skip
UNION = ("union", MODEL / "events.py", "    | Fenced\n", "    | Blessed\n")
IMPORTS = [
    ("import", MODEL / name, "    Cancelled,\n", "    Blessed,\n") for name in ("lifecycle.py", "job.py")
]
ROW = ("row", MODEL / "lifecycle.py", "        Fenced: Row[Fenced](", '        Blessed: Row[Blessed](after=_ANY, words=lambda event: ""),\n')  # fmt: skip
CASE = ("case", MODEL / "job.py", "        case Fenced():", "        case Blessed():\n            return _note(job, event, stream_sequence)\n")  # fmt: skip
COLUMN = ("column", STATS, '    "fenced",', '    "blessed",\n')
PARTS = (CLASS, UNION, *IMPORTS, ROW, CASE, COLUMN)

#: What is run to be told: a check of types for what no program can find out by itself.
IMPORT = [sys.executable, "-c", "from jobledger.projections import Store"]
TYPES = [sys.executable, "-m", "mypy", "--no-error-summary", "--explicit-package-bases", "--namespace-packages", "-m", "jobledger.ledger.model.job"]  # fmt: skip


def _copy(folder: Path, without: str) -> Path:
    for root in ("ledger", "audit", "projections"):
        shutil.copytree(ROOT / root, folder / root, ignore=shutil.ignore_patterns("__pycache__"))
    for name, path, before, text in PARTS:
        if name == without:
            continue
        source = (folder / path).read_text(encoding="utf-8")
        assert source.count(before) == 1 or name == "import", (path, before)
        (folder / path).write_text(source.replace(before, text + before, 1), encoding="utf-8")
    return folder


def _run(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    roots = [str(folder / root) for root in ("ledger", "audit", "projections")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "MYPYPATH": os.pathsep.join(roots)}
    words = list(command)
    if "mypy" in words:
        # What is no part of the copy, as the types of the standard library, is read from the run before.
        words += ["--cache-dir", str(ROOT / ".cache" / "mypy-of-copies")]
    return subprocess.run(
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("without", "command", "told"),
    [
        (
            "union",
            IMPORT,
            "each event is a member of JobEvent and has a row in LIFECYCLE, but not ['Blessed']",
        ),
        ("row", IMPORT, "each event is a member of JobEvent and has a row in LIFECYCLE, but not ['Blessed']"),
        ("case", TYPES, 'Argument 1 to "assert_never" has incompatible type "Blessed"'),
        ("column", IMPORT, "every event that is counted has its column: add it to COUNTERS"),
    ],
)
def test_what_was_left_out_is_named(tmp_path: Path, without: str, command: list[str], told: str) -> None:
    ran = _run(_copy(tmp_path, without), command)
    assert ran.returncode != 0
    assert told in ran.stdout + ran.stderr


def test_with_all_its_parts_it_is_an_event_like_any_other(tmp_path: Path) -> None:
    program = (
        "from jobledger.projections.statistics.tally import COUNTERS; from jobledger.ledger.schema.events import event_schema; "
        "from jobledger.ledger.model.lifecycle import LEGAL; from jobledger.ledger.model.events import Blessed; "
        "print('blessed' in COUNTERS, all(Blessed in LEGAL[state] for state in LEGAL if state), "
        "event_schema('blessed')['description'])"
    )
    ran = _run(_copy(tmp_path, ""), [sys.executable, "-c", program])
    assert (ran.returncode, ran.stdout) == (0, "True True Somebody blessed the job.\n"), ran.stderr
