"""What a run of the fault suite found, as a JSON file for each test, from which docs/reliability.md is made."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = Path(__file__).parents[2] / ".cache" / "faults"


class Figures(msgspec.Struct, kw_only=True):
    """One row of the table."""

    row: str  #: of the scoreboard; with a letter where a row has several runs
    what: str  #: what is done to what
    faults: str  #: how often
    jobs: int
    events: int
    violations: int
    worst_recovery: str  #: with its unit and what it is; "" where there is none
    date: str
    seed: int
    seconds: float
    test: str  #: node id, for the command that repeats it


class Recorder:
    """Writes the figures of one test; what an earlier run wrote is gone from the beginning."""

    def __init__(self, test: str, seed: int, began: float) -> None:
        self._test = test
        self._seed = seed
        self._began = began
        name = test.rpartition("::")[2].translate(str.maketrans("[]/ ", "----"))
        self._path = FOLDER / f"{name}.json"
        self._path.unlink(missing_ok=True)

    def __call__(
        self,
        row: str,
        what: str,
        *,
        faults: str,
        jobs: int,
        events: int,
        now: float,
        worst_recovery: str = "",
    ) -> None:
        """Note a run that found no violation: one that did never comes here."""
        figures = Figures(
            row=row,
            what=what,
            faults=faults,
            jobs=jobs,
            events=events,
            violations=0,
            worst_recovery=worst_recovery,
            date=datetime.now(UTC).date().isoformat(),
            seed=self._seed,
            seconds=round(now - self._began, 1),
            test=self._test,
        )
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
