"""The end of the demo: what the ledger says is held against the file system, then shown from the projection."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from jobledger.admin.amounts import duration, size
from jobledger.cli.demo.tasks import FileIndex, index_file
from jobledger.cli.jobs.view import show_attempts, show_trail
from jobledger.cli.output import Output
from jobledger.cli.text import colored, shortened
from jobledger.ledger import Job, JobHandle, JobState, Ledger
from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, extend, fold
from jobledger.ledger.model.events import Cancelled, Completed, DeadLettered, Discarded, event_type
from jobledger.projections import Store

_SLOWEST: int = 5
_DEAD_SHOWN_MAX: int = 12
_PATH_SHOWN: int = 44
_ERROR_SHOWN: int = 46


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long the parts took."""

    enqueue_s: float
    drain_s: float  #: from the first worker's start to the last job's end
    before_kill_jobs: int  #: done by both workers, before one was killed
    before_kill_s: float
    recovery_s: float  #: from the kill to the end of the last job it interrupted


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says, counted event by event."""

    files: int
    events: Counter[str]
    states: Counter[str]
    size_bytes: int
    lines: int
    tokens: int
    stored_bytes: int
    faults: list[str]  #: what does not agree; empty when the demo succeeded


async def examine(
    ledger: Ledger, files: Sequence[Path], store: Store, lost: Sequence[JobHandle[Any]]
) -> Findings:
    """Fold every job from the ledger alone, and compare with the files and with the projection."""
    chains: defaultdict[str, JobView] = defaultdict(lambda: EMPTY_CHAIN)
    finals: Counter[str] = Counter()
    types: Counter[str] = Counter()
    async for stored in ledger.events(follow=False):
        chains[stored.event.job] = extend(chains[stored.event.job], stored)
        types[event_type(stored.event)] += 1
        finals[stored.event.job] += isinstance(stored.event, Completed | DeadLettered | Cancelled | Discarded)
    jobs = [chain.job for chain in chains.values() if chain.job is not None]
    indexed = [
        msgspec.json.decode(job.result, type=FileIndex) for job in jobs if job.state is JobState.COMPLETED
    ]
    states = Counter(job.state.value for job in jobs)
    return Findings(
        files=len(files),
        events=types,
        states=states,
        size_bytes=sum(each.size_bytes for each in indexed),
        lines=sum(each.lines for each in indexed),
        tokens=sum(each.tokens for each in indexed),
        stored_bytes=(await ledger.log.head()).stored_bytes,
        faults=[
            *_faults_of_files(jobs, files),
            *(f"job {job_id} has {count} final events" for job_id, count in finals.items() if count != 1),
            *_faults_of_lost({job.id: job for job in jobs}, lost),
            *(
                []
                if +Counter(store.counts_by_state()) == states
                else ["the projection counts other states than the ledger"]
            ),
        ],
    )


def _faults_of_files(jobs: Sequence[Job], files: Sequence[Path]) -> list[str]:
    """Hold jobs against files: one each, what was indexed is as it lies there, what failed cannot be tokenized."""
    faults: list[str] = []
    by_path = {str(msgspec.json.decode(job.order.input)["path"]): job for job in jobs}
    if len(by_path) != len(jobs) or by_path.keys() != {str(path) for path in files}:
        faults.append(f"{len(jobs)} jobs for {len(files)} files, or for other files")
    for path, job in by_path.items():
        if job.state is JobState.COMPLETED:
            if msgspec.json.decode(job.result, type=FileIndex).size_bytes != Path(path).stat().st_size:
                faults.append(f"{path} has another size than its job says")
        elif job.state is not JobState.DEAD_LETTERED:
            faults.append(f"job {job.id} is {job.state.value}")
        elif _can_be_indexed(path):
            faults.append(f"{path} can be indexed, but its job is a dead letter")
    return faults


def _can_be_indexed(path: str) -> bool:
    try:
        index_file(path)
    except Exception:  # noqa: BLE001 - any failure is the one the job had
        return False
    return True


def _faults_of_lost(jobs: dict[str, Job], lost: Sequence[JobHandle[Any]]) -> list[str]:
    """Each job that its worker's death interrupted must have lost that attempt and gone on elsewhere."""
    return [
        f"job {handle.id} should show its first attempt as lost, and a later one"
        for handle in lost
        if len(jobs[handle.id].attempts) < 2  # noqa: PLR2004 - the lost one and another
        or not any(attempt.state == "lost" for attempt in jobs[handle.id].attempts)
    ]


def as_object(findings: Findings, timing: Timing, lost: Sequence[JobHandle[Any]]) -> dict[str, Any]:
    """Return the report for a program."""
    return {
        "ok": not findings.faults,
        "files": findings.files,
        "states": dict(findings.states),
        "events": dict(findings.events),
        "indexed": {"bytes": findings.size_bytes, "lines": findings.lines, "tokens": findings.tokens},
        "ledger_bytes": findings.stored_bytes,
        "interrupted_jobs": [handle.id for handle in lost],
        "enqueue_s": timing.enqueue_s,
        "drain_s": timing.drain_s,
        "before_kill": {"jobs": timing.before_kill_jobs, "seconds": timing.before_kill_s},
        "recovery_s": timing.recovery_s,
        "faults": findings.faults,
    }


async def show(
    output: Output,
    *,
    store: Store,
    root: Path,
    findings: Findings,
    timing: Timing,
    lost: Sequence[JobHandle[Any]],
) -> None:
    """Print the tables, the trail and the totals."""
    counts = {state: count for state, count in store.counts_by_state().items() if count}
    output.table(
        ("state", "jobs>"),
        [(colored(state), count) for state, count in counts.items()],
        title="Jobs by state",
    )
    _show_slowest(output, store, root)
    _show_dead_letters(output, store, root)
    await _show_trail(output, lost, root)
    events = sorted(findings.events.items(), key=lambda item: -item[1])
    output.table(
        ("event", "stored>"), [(colored(name), count) for name, count in events], title="Events in the ledger"
    )
    _show_totals(output, findings, timing)


def _show_slowest(output: Output, store: Store, root: Path) -> None:
    rows: list[tuple[Any, ...]] = []
    for slow in store.slowest(50):
        row = store.job(slow.queue, slow.job_id)
        if slow.status == "completed" and row is not None and row.result is not None and len(rows) < _SLOWEST:
            found = msgspec.json.decode(row.result, type=FileIndex)
            rows.append(
                (_file(slow.input, root), found.lines, found.tokens, duration(slow.duration_ms / 1000))
            )
    output.table(("file", "lines>", "tokens>", "took>"), rows, title="Slowest files")


def _show_dead_letters(output: Output, store: Store, root: Path) -> None:
    letters = store.dead_letters(_DEAD_SHOWN_MAX)
    if not letters:
        output.say()
        output.say("No dead letters: each of these files can be tokenized.")
        return
    output.say()
    output.say("Dead letters", style="bold")
    for letter in letters:
        row = store.job(letter.queue, letter.job_id)
        name = _file(row.input if row is not None else None, root)
        output.say(f"{letter.job_id}  {name}")
        reason = f"{letter.error_type}: {letter.error}".replace(f"{root}/", "")
        output.say(
            f"    {letter.reason} after {letter.attempts} attempts: {shortened(reason, _ERROR_SHOWN)}",
            style="red",
        )


def _file(value: msgspec.Raw | None, root: Path) -> str:
    if value is None:
        return "?"
    path = Path(str(msgspec.json.decode(value)["path"]))
    name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    return name if len(name) <= _PATH_SHOWN else f"…{name[1 - _PATH_SHOWN :]}"


async def _show_trail(output: Output, lost: Sequence[JobHandle[Any]], root: Path) -> None:
    handle, history = lost[0], await lost[0].history()
    for each in lost:  # one that completed shows the point best
        chain = await each.history()
        job = fold(chain).job
        if job is not None and job.state is JobState.COMPLETED:
            handle, history = each, chain
            break
    job = fold(history).job
    assert job is not None, "a history is not empty"
    output.say()
    output.say(f"Job {handle.id} ran {_file(job.order.input, root)} when its worker was killed", style="bold")
    show_attempts(output, job)
    show_trail(output, history)


def _show_totals(output: Output, findings: Findings, timing: Timing) -> None:
    total = sum(findings.events.values())
    output.say()
    output.say("Totals", style="bold")
    output.facts(
        [
            ("indexed", f"{findings.lines:,} lines, {findings.tokens:,} tokens, {size(findings.size_bytes)}"),
            (
                "ledger",
                f"{total:,} events, {size(findings.stored_bytes)}, sequence 1 to {total:,} without a hole",
            ),
            (
                "enqueued",
                f"{findings.files:,} jobs in {duration(timing.enqueue_s)}: {_rate(findings.files, timing.enqueue_s)}",
            ),
            (
                "throughput",
                f"{_rate(timing.before_kill_jobs, timing.before_kill_s)} until the kill, on two workers",
            ),
            (
                "drained",
                f"{findings.files:,} jobs in {duration(timing.drain_s)}, waiting for the lease included",
            ),
            ("recovered", f"the interrupted jobs ended {duration(timing.recovery_s)} after the kill"),
        ]
    )


def _rate(count: int, seconds: float) -> str:
    return f"{count / max(seconds, 1e-9):,.0f} jobs/s"
