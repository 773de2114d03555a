"""The end of the demo: the ledger is compared with the file system, then shown from the projection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from jobledger.admin.amounts import duration, size
from jobledger.audit.verify import Report, verify
from jobledger.cli.demo.tasks import FileIndex, index_file
from jobledger.cli.jobs.view import show_attempts, show_events
from jobledger.cli.output import Output
from jobledger.cli.text import colored, shortened
from jobledger.ledger import Ledger
from jobledger.ledger.model.chain import fold
from jobledger.projections import JobRow, Store

_SLOWEST: Final = 5
_DEAD_SHOWN_MAX: Final = 12
_PATH_SHOWN: Final = 44
_ERROR_SHOWN: Final = 46


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of all indexed files."""

    bytes: int
    lines: int
    tokens: int


class DemoFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the demo, and the durations of its parts."""

    root: Path
    files: list[Path]
    lost: list[str]  #: ids of the jobs that the killed worker ran
    enqueue_s: float
    drain_s: float  #: from the first worker's start to the last job's end
    before_kill_jobs: int  #: done by both workers, before one was killed
    before_kill_s: float
    recovery_s: float  #: from the kill to the end of the last job it interrupted


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The findings from the ledger, for programs."""

    ok: bool  #: True without faults
    files: int
    states: dict[str, int]  #: jobs by state
    events: dict[str, int]  #: events by type
    indexed: Sums
    ledger_bytes: int
    interrupted_jobs: list[str]
    enqueue_s: float
    drain_s: float
    before_kill: dict[str, float]
    recovery_s: float
    faults: list[str]  #: sentences on facts that do not agree


async def examine(ledger: Ledger, store: Store, played: DemoFigures) -> Findings:
    """Prove the ledger sound, and compare the projection with it and with the files."""
    report = await verify(ledger.log)
    rows = {_path(row): row for row in store.jobs(2 * len(played.files))}
    indexed = [_index(row) for row in rows.values() if row.status == "completed"]
    faults = [*_faults(store, report, rows, played)]
    return Findings(
        ok=not faults,
        files=len(played.files),
        states=report.states,
        events=report.types,
        indexed=Sums(
            bytes=sum(each.size_bytes for each in indexed),
            lines=sum(each.lines for each in indexed),
            tokens=sum(each.tokens for each in indexed),
        ),
        ledger_bytes=(await ledger.log.head()).stored_bytes,
        interrupted_jobs=played.lost,
        enqueue_s=played.enqueue_s,
        drain_s=played.drain_s,
        before_kill={"jobs": played.before_kill_jobs, "seconds": played.before_kill_s},
        recovery_s=played.recovery_s,
        faults=faults,
    )


def _faults(store: Store, report: Report, rows: dict[Path, JobRow], played: DemoFigures) -> Iterator[str]:
    """Yield each fault in the ledger, between ledger and projection, and between jobs and files."""
    yield from (violation.sentence for violation in report.violations)
    if {state: count for state, count in store.counts_by_state().items() if count} != report.states:
        yield "the projection counts other states than the ledger"
    if report.jobs != len(rows) or rows.keys() != set(played.files):
        yield f"{report.jobs} jobs for {len(played.files)} files, or for other files"
    for path, row in rows.items():
        if row.status not in {"completed", "dead_lettered"}:
            yield f"job {row.id} is {row.status}"
        elif row.status == "completed" and _index(row).size_bytes != path.stat().st_size:
            yield f"{path} has another size than its job says"
        elif row.status == "dead_lettered" and _can_be_indexed(path):
            yield f"{path} can be indexed, but its job is a dead letter"
    for job_id in played.lost:
        states = [attempt.status for attempt in store.attempts("index", job_id)]
        if len(states) < 2 or "lost" not in states:  # noqa: PLR2004 - the killed worker and another one
            yield f"job {job_id} should show its first attempt as lost, and a later one"


def _path(row: JobRow) -> Path:
    return Path(str(msgspec.json.decode(row.input or b'{"path": ""}')["path"]))


def _index(row: JobRow) -> FileIndex:
    return msgspec.json.decode(row.result or b"", type=FileIndex)


def _can_be_indexed(path: Path) -> bool:
    try:
        index_file(str(path))
    except Exception:  # noqa: BLE001 - any failure counts as the job's
        return False
    return True


async def show(output: Output, ledger: Ledger, store: Store, found: Findings, played: DemoFigures) -> None:
    """Print the tables, the trail and the totals."""
    states = [(colored(state), count) for state, count in store.counts_by_state().items() if count]
    output.table(("state", "jobs>"), states, title="Jobs by state")
    _show_slowest(output, store, played.root)
    _show_dead_letters(output, store, played.root)
    await _show_trail(output, ledger, store, played)
    events = sorted(found.events.items(), key=lambda item: -item[1])
    output.table(
        ("event", "stored>"), [(colored(name), count) for name, count in events], title="Events in the ledger"
    )
    _show_totals(output, found)


def _show_slowest(output: Output, store: Store, root: Path) -> None:
    rows: list[tuple[Any, ...]] = []
    for slow in store.slowest(50):
        row = store.job(slow.queue, slow.job_id)
        if slow.status == "completed" and row is not None and len(rows) < _SLOWEST:
            found = _index(row)
            rows.append((_name(row, root), found.lines, found.tokens, duration(slow.duration_ms / 1000)))
    output.table(("file", "lines>", "tokens>", "took>"), rows, title="Slowest files")


def _show_dead_letters(output: Output, store: Store, root: Path) -> None:
    letters = store.dead_letters(_DEAD_SHOWN_MAX)
    output.say()
    if not letters:
        output.say("No dead letters: each of these files can be tokenized.")
        return
    output.say("Dead letters", style="bold")
    for letter in letters:
        row = store.job(letter.queue, letter.job_id)
        output.say(f"{letter.job_id}  {'?' if row is None else _name(row, root)}")
        reason = f"{letter.error_type}: {letter.error}".replace(f"{root}/", "")
        said = f"{letter.reason} after {letter.attempts} attempts: {shortened(reason, _ERROR_SHOWN)}"
        output.say(f"    {said}", style="red")


def _name(row: JobRow, root: Path) -> str:
    path = _path(row)
    name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    return name if len(name) <= _PATH_SHOWN else f"…{name[1 - _PATH_SHOWN :]}"


async def _show_trail(output: Output, ledger: Ledger, store: Store, played: DemoFigures) -> None:
    """Show one job that was interrupted, if possible one that completed."""
    rows = [row for job_id in played.lost if (row := store.job("index", job_id)) is not None]
    row = next((row for row in rows if row.status == "completed"), rows[0])
    history = await (await ledger.job(row.id)).history()
    job = fold(history).job
    assert job is not None, "a history is not empty"
    output.say()
    output.say(f"Job {row.id} ran {_name(row, played.root)} when its worker was killed", style="bold")
    show_attempts(output, job)
    show_events(output, history)


def _show_totals(output: Output, found: Findings) -> None:
    total, files, sums = sum(found.events.values()), found.files, found.indexed
    until_kill = _rate(found.before_kill["jobs"], found.before_kill["seconds"])
    enqueued = f"{duration(found.enqueue_s)}: {_rate(files, found.enqueue_s)}"
    output.say()
    output.say("Totals", style="bold")
    output.facts(
        [
            ("indexed", f"{sums.lines:,} lines, {sums.tokens:,} tokens, {size(sums.bytes)}"),
            (
                "ledger",
                f"{total:,} events, {size(found.ledger_bytes)}, sequence 1 to {total:,} without a hole",
            ),
            ("enqueued", f"{files:,} jobs in {enqueued}"),
            ("throughput", f"{until_kill} until the kill, on two workers"),
            ("drained", f"{files:,} jobs in {duration(found.drain_s)}, waiting for the lease included"),
            ("recovered", f"the interrupted jobs ended {duration(found.recovery_s)} after the kill"),
        ]
    )


def _rate(count: float, seconds: float) -> str:
    return f"{count / max(seconds, 1e-9):,.0f} jobs/s"
