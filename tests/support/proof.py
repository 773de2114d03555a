"""The one check after every run with faults: the product's checker reads the ledger, the traces tell what really ran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from tests.support.traces import Faults, Judged, judge, read

from jobledger.audit.verify import Expectation, Report, leftovers, verify
from jobledger.ledger import Ledger

_NOTHING: Final = Judged(0, [], [], [], [], "", [])
_SHOWN_MAX: Final = 20


class Proof(msgspec.Struct, frozen=True):
    """What was found."""

    report: Report
    judged: Judged
    problems: list[str]  #: empty when all is as it must be

    def hold(self) -> Proof:
        """Return itself, if there is no problem."""
        shown = "\n  ".join(self.problems[:_SHOWN_MAX])
        assert not self.problems, f"{len(self.problems)} problems:\n  {shown}\n{self.report.text()}"
        return self


async def prove(
    ledger: Ledger,
    *,
    enqueued: Iterable[tuple[str, str]] | None,
    unsure: Collection[tuple[str, str]] = (),
    trace: Path | None = None,
    faults: Faults | None = None,
    logs: Iterable[Path] = (),
    secrets: Iterable[str] = (),
    within_s: float = 30.0,
) -> Proof:
    """Check a ledger in which nothing is under way any more.

    `enqueued`: queue and id of every job whose enqueue was acknowledged, None where that is not known. `within_s`:
    how long acknowledgements may still be on their way.
    """
    left = await leftovers(ledger.inbox, ledger.names, within_s=within_s)
    expected = Expectation(
        enqueued=enqueued, unsure=unsure, all_final=True, timers_until=datetime.now(UTC), leftovers=left
    )
    report = await verify(ledger.log, expected=expected)
    problems = (
        [] if report.sound else [f"[{each.rule}] {each.job}: {each.sentence}" for each in report.violations]
    )
    judged = _NOTHING if trace is None else judge(trace, faults)
    problems += [f"overlap: {each}" for each in judged.overlaps]
    problems += [f"repeated: {each}" for each in judged.repeated]
    if trace is not None:
        problems += await _unrecorded(ledger, trace)
    problems += list(_leaks(logs, secrets))
    return Proof(report, judged, problems)


async def _unrecorded(ledger: Ledger, trace: Path) -> list[str]:
    """Return executions that no claim in the ledger allows."""
    claims: Counter[str] = Counter()
    async for batch in ledger.log.read_messages():
        for message in batch:
            words = message.subject.split(".")
            if words[-1] == "started":
                claims[words[-2]] += 1
    ran = Counter(each.job for each in read(trace)[0])
    return [
        f"unrecorded: {job} ran {count} times, the ledger has {claims[job]} claims"
        for job, count in ran.items()
        if count > claims[job]
    ]


def _leaks(logs: Iterable[Path], secrets: Iterable[str]) -> Iterable[str]:
    forbidden = re.compile("|".join(map(re.escape, secrets)) or r"(?!)")
    for path in logs:
        found = forbidden.search(path.read_text(encoding="utf-8", errors="replace"))
        if found:
            yield f"secret: {path.name} holds {found[0][:4]}..."
