"""`jobledger jobs debug`: run one attempt of a job again, here, and write nothing to the ledger."""

from __future__ import annotations

import asyncio
import pdb  # noqa: T100 - what --pdb is for
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import msgspec
import typer

from jobledger.audit.archive.chain import export_folders
from jobledger.cli import options
from jobledger.cli.command import ROWS, Cli, command
from jobledger.cli.errors import INTERRUPTED, JobNotCompletedError, StoppedBySignalError, report
from jobledger.cli.exit import exit_at_once
from jobledger.cli.groups import JOBS
from jobledger.cli.one_job import JobId, found_history, newest
from jobledger.cli.output import Output
from jobledger.cli.session import load_tasks, run, watch_signals
from jobledger.cli.text import plain_lines, shortened
from jobledger.ledger import TaskRegistry
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import Completed, Failed, event_type
from jobledger.ledger.model.lifecycle import ENDING_TYPES, words
from jobledger.ledger.model.state_words import state_words
from jobledger.ledger.model.subjects import Names
from jobledger.workers import debug as again
from jobledger.workers.process import tune_collector

_VALUE_SHOWN_MAX: Final = 300
_SWALLOWED_S: Final = 1.0
_OVERTIME_S: Final = 3.0


@command(JOBS, "debug", takes=ROWS)
def debug(
    cli: Cli,
    *,
    job_id: JobId,
    attempt: Annotated[
        int | None,
        typer.Option(
            "--attempt", min=1, metavar="N", help="Number of the attempt to run again. (default: the newest)"
        ),
    ] = None,
    debugger: Annotated[
        bool,
        typer.Option(
            "--pdb", metavar="", help="Run without timeout, and stop in the debugger where the task raises."
        ),
    ] = False,
    modules: options.App = None,
    queue: options.Queue = None,
    archives: options.Archives = None,
) -> None:
    """Run an attempt again here, on the same input and checkpoint, without writing anything to the ledger.

    The code that --app loads runs, with its effects elsewhere (mail, databases). Exits with 1 unless the attempt
    completes.
    """
    tasks, as_json = load_tasks(modules), cli.output.as_json
    material = run(lambda: _fetch(cli, job_id, queue, attempt, tasks, archives))
    names = Names(cli.target.environment)
    tune_collector()
    # The connection is closed here, so that a debugger may hold the attempt for any time.
    task = tasks.get(material.task)
    ran = run(
        lambda: (
            again.run(material, task, names, limited=False)
            if debugger
            else _bounded(
                lambda: again.run(material, task, names, modules=tasks.modules),
                # A child process is killed at its timeout, but its start alone may take longer.
                None if task.rules.run_in == "process" else material.timeout_s,
                as_json=as_json,
            )
        )
    )
    if as_json:
        cli.output.object(_body(material, ran))
    else:
        _show(cli.output, material, ran)
    if debugger and ran.error is not None:
        pdb.post_mortem(ran.error.__traceback__)
    if not isinstance(_end(ran).event, Completed):
        ended = state_words(ran.job.state.value)
        raise JobNotCompletedError(
            f"attempt {material.attempt} did not complete here: the job would be {ended}"
        )


async def _bounded(
    attempt: Callable[[], Awaitable[again.DebugResult]], timeout_s: float | None, *, as_json: bool
) -> again.DebugResult:
    """Run the attempt. Ctrl-C and the timeout end it even if the task ignores its cancellation.

    Raises: StoppedBySignalError.
    """
    loop, ran = asyncio.get_running_loop(), None

    def stop() -> None:
        group.cancel_scope.cancel()
        loop.call_later(_SWALLOWED_S, exit_at_once, INTERRUPTED)

    def give_up() -> None:
        sentence = f"the task still runs after its timeout of {timeout_s:g} s: it swallows cancellation"
        exit_at_once(report(JobNotCompletedError(sentence), as_json=as_json))

    over = loop.call_later(timeout_s + _OVERTIME_S, give_up) if timeout_s is not None else None
    async with anyio.create_task_group() as group:
        await group.start(watch_signals, stop)
        ran = await attempt()
        group.cancel_scope.cancel()
    if over is not None:
        over.cancel()
    if ran is None:
        raise StoppedBySignalError
    return ran


async def _fetch(  # noqa: PLR0917 - options of the command
    cli: Cli,
    job_id: str,
    queue: str | None,
    attempt: int | None,
    tasks: TaskRegistry,
    archives: Sequence[Path] | None,
) -> again.Material:
    async with found_history(cli, job_id, queue, archives, "jobledger jobs debug") as found:
        exports = export_folders(archives) if archives else ()
        material = await again.fetch(
            found.ledger, newest(found.history, cli.output), attempt, exports=exports
        )
    tasks.get(material.task)
    return material


def _body(material: again.Material, ran: again.DebugResult) -> dict[str, Any]:
    recorded, executed = again.recorded_end(material), again.executed(ran)
    return {
        "id": material.ref.job_id,
        "queue": material.ref.queue,
        "task": material.task,
        "attempt": material.attempt,
        "status": ran.job.state.value,
        "steps_given_back": executed.given_back,
        "steps_executed": executed.here,
        "recorded": None if recorded is None else msgspec.Raw(recorded.data),
        "events": [msgspec.Raw(stored.data) for stored in ran.events],
    }


def _show(output: Output, material: again.Material, ran: again.DebugResult) -> None:
    output.say(f"job {material.ref.job_id}", style="bold")
    output.say(
        f"attempt {material.attempt} of {material.task}, run again here; nothing was written", style="dim"
    )
    recorded, here = again.recorded_end(material), _end(ran)
    executed = again.executed(ran)
    output.facts(
        [
            ("steps given back", ", ".join(executed.given_back) or None),
            ("steps executed here", ", ".join(executed.here) or None),
            (
                "recorded",
                _words(recorded) if recorded is not None else "no end: it never ran, or is still running",
            ),
            ("here", _words(here)),
        ]
    )
    if isinstance(here.event, Failed) and here.event.error.traceback:
        output.say()
        for line in plain_lines(here.event.error.traceback.rstrip()):
            output.say(f"  {line}")


def _end(ran: again.DebugResult) -> StoredEvent:
    """Return the event that ended the attempt; events on the job's further way may follow it."""
    return next(stored for stored in ran.events if event_type(stored.event) in ENDING_TYPES)


def _words(stored: StoredEvent) -> str:
    event = stored.event
    if isinstance(event, Completed):
        value = bytes(event.result).decode(errors="replace")
        large = event.result_ref
        return f"completed: {shortened(value, _VALUE_SHOWN_MAX) if large is None else 'a large result'}"
    if isinstance(event, Failed):
        return f"failed: {event.error.type}: {shortened(event.error.message, _VALUE_SHOWN_MAX)}"
    detail = words(stored.event)
    return f"{event_type(event)}{f': {detail}' if detail else ''}"
