"""The golden lines of every release, and what each of them is about: jobs' lie in the folder, others' in one of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from jobledger.ledger.model.aggregates import AGGREGATES, JOB, event_name

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"


class Line(NamedTuple):
    data: bytes
    aggregate: str

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.data)
        return found

    @property
    def name(self) -> str:
        """Return the name of its type that no other type has."""
        return event_name(self.aggregate, self.said["type"])


def golden_lines() -> list[Line]:
    return [
        Line(data, _about(path))
        for path in sorted(GOLDEN.rglob("*.jsonl"))
        for data in path.read_bytes().splitlines()
    ]


def _about(path: Path) -> str:
    return (
        JOB.name
        if path.parent == GOLDEN
        else next(each for each in AGGREGATES if path.parent.name.startswith(each))
    )
