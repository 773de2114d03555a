"""The violations that a check has found: the first of them in the order of the ledger, and all of them counted."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator

from jobledger.audit.verify.report import Violation


class Findings:
    """Violations, of which a bounded number is kept."""

    def __init__(self, kept_max: int) -> None:
        """Begin with none."""
        self._kept_max = kept_max
        self.violations: list[Violation] = []
        self.broken: Counter[str] = Counter()  #: number of all violations by rule

    def add(self, found: Violation, *, in_front: bool = False) -> None:
        """Add one; beyond the limit it is only counted. `in_front`: it explains those found already."""
        self.broken[found.rule] += 1
        if in_front:
            self.violations = [found, *self.violations][: self._kept_max]
        elif len(self.violations) < self._kept_max:
            self.violations.append(found)

    def add_first(self, found: Iterable[Violation]) -> None:
        """Add violations that come in no order: the first ones in the ledger are kept, all are counted."""

        def counted() -> Iterator[Violation]:
            for violation in found:
                self.broken[violation.rule] += 1
                yield violation

        room = self._kept_max - len(self.violations)
        first = heapq.nsmallest(max(1, room), counted(), key=lambda each: (each.stream_sequence, each.job))
        self.violations += first[: max(0, room)]
