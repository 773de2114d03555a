"""`jobledger enqueue`: one job, checked before anything is sent; with --wait its transitions as they come."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import typer

from jobledger.admin.events.lines import event_json
from jobledger.cli import options
from jobledger.cli.command import CREATES, Cli, command
from jobledger.cli.errors import JobNotCompletedError, UsageError
from jobledger.cli.events.lines import show_event
from jobledger.cli.groups import TOP
from jobledger.cli.jobs import options as of_job
from jobledger.cli.jobs.input_text import read_object
from jobledger.cli.jobs.view import progress_text
from jobledger.cli.output import Output
from jobledger.cli.pairs import pairs
from jobledger.cli.session import load_tasks, operator
from jobledger.cli.text import clock_time
from jobledger.cli.times import seconds, time_of
from jobledger.ledger import JobHandle, JobState, Task
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.jobs.attempts import Progress
from jobledger.ledger.outcome import DELAY_S_LIMIT
from jobledger.ledger.tasks import TaskWithOptions

_RESULT_SHOWN_MAX: Final = 2_000
_PROGRESS_EVERY_S: Final = 1.0


_Task = Annotated[str, typer.Argument(metavar="TASK", help="Name of the task.")]
_Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Arguments, read by the types of the task's parameters."),
]
_Input = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON", help="All arguments as one JSON object; - reads it from stdin."),
]
_Id = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Id of the job; enqueueing it again adds no second job. (default: a new one)",
    ),
]
_Delay = Annotated[
    float | None,
    typer.Option(
        "--delay",
        metavar="SPAN",
        parser=seconds(maximum=DELAY_S_LIMIT),
        help="Wait this long before the job may run.",
    ),
]
_At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Wait until this time (UTC) before the job may run."),
]
_Wait = Annotated[
    bool,
    typer.Option("--wait", metavar="", help="Show its events until it ends; exit 0 only if it completed."),
]
_WaitTimeout = Annotated[
    float | None,
    typer.Option(
        "--wait-timeout",
        metavar="SPAN",
        parser=seconds(),
        help="Stop waiting after this long; the job continues.",
    ),
]


@command(TOP, "enqueue", takes=("url", "environment", CREATES, "as_json"))
def enqueue(
    cli: Cli,
    *,
    task: _Task,
    words: _Words = None,
    input_text: _Input = None,
    app: options.App = None,
    queue: of_job.Queue = None,
    priority: of_job.Priority = None,
    job_id: _Id = None,
    max_attempts: of_job.MaxAttempts = None,
    timeout: of_job.Timeout = None,
    delay: _Delay = None,
    at: _At = None,
    tenant: of_job.Tenant = None,
    correlation: of_job.Correlation = None,
    metadata: of_job.Metadata = None,
    limits: of_job.Limits = None,
    wait: _Wait = False,
    wait_timeout: _WaitTimeout = None,
) -> Awaitable[None]:
    """Add one job and print {"id", "created", "sequence"}; created is false if the id exists already."""
    found = load_tasks(app).get(task)
    # All that can be refused without a server is refused here, so a bad request never depends on one.
    chosen = found.options(
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        timeout_s=timeout,
        id=job_id,
        delay_s=delay,
        run_at=_moment(delay, at),
        tenant=tenant,
        correlation=correlation,
        metadata=pairs(metadata, "--metadata") if metadata else None,
        limits=tuple(limits or ()),
        by=operator(),
    )
    values = _values(found, words or [], input_text)
    found.signature.encode((), values)
    return _enqueue(cli, chosen, values, wait=wait or wait_timeout is not None, wait_timeout_s=wait_timeout)


async def _enqueue(
    cli: Cli,
    task: TaskWithOptions[..., Any],
    values: dict[str, Any],
    *,
    wait: bool,
    wait_timeout_s: float | None,
) -> None:
    output = cli.output
    async with cli.ledger() as ledger:
        handle = await ledger.enqueue(task, **values)
        if wait and output.console.is_terminal and not output.as_json:
            done = "was added" if handle.created else "was there already"
            output.say(
                f"job {handle.id} {done}; its events follow until it ends, and Ctrl-C ends only the waiting"
            )
        else:
            # The same line for people and programs: it is short, and is what gets pasted into the next command.
            output.object({"id": handle.id, "created": handle.created, "sequence": handle.sequence})
        if wait:
            async with ledger.hints.watch_progress(handle.ref, _progress_shown(output, ledger.clock)):
                await _wait(output, handle, wait_timeout_s)


def _moment(delay: float | None, at: str | None) -> datetime | None:
    """Return the time of --at.

    Raises: UsageError.
    """
    if delay is not None and at is not None:
        raise UsageError("give --delay or --at, not both")
    return time_of("--at", at, ahead=True)


def _progress_shown(output: Output, clock: Clock) -> Callable[[bytes], None]:
    """Return what shows a live report, at most one a second."""
    shown_at = 0.0

    def on_progress(data: bytes) -> None:
        nonlocal shown_at
        now = clock.monotonic()
        if now - shown_at < _PROGRESS_EVERY_S:
            return
        shown_at = now
        with contextlib.suppress(msgspec.MsgspecError):  # a hint; anybody may send one
            report = msgspec.json.decode(data, type=Progress)
            if output.as_json:
                output.object({"progress": msgspec.structs.asdict(report)})
            else:
                output.say(f"{clock_time(clock.now())} progress: {progress_text(report)}", style="dim")

    return on_progress


async def _wait(output: Output, handle: JobHandle[Any], timeout_s: float | None) -> None:
    """Show the transitions as they come.

    Raises: JobNotCompletedError, ResultTimeoutError.
    """
    async for stored in handle.transitions(timeout_s=timeout_s):
        if output.as_json:
            output.raw(event_json(stored))
        else:
            show_event(output, stored)
    job = await handle.snapshot()
    if job.state is not JobState.COMPLETED:
        why = f": {job.error.type}: {job.error.message}" if job.error is not None else ""
        ended = job.state.value.replace("_", " ")
        raise JobNotCompletedError(f"job {job.id} ended as {ended}{why} (`jobledger jobs show {job.id}`)")
    if not output.as_json:
        result = await handle.result(timeout_s=1)
        output.say(f"result: {_shown(msgspec.json.encode(result).decode(), handle.id)}")


def _values(task: Task[..., Any], words: list[str], input_text: str | None) -> dict[str, Any]:
    """Return the arguments from key=value words or from --input.

    Raises: UsageError, InvalidInputError, PayloadTooLargeError.
    """
    if input_text is None:
        return task.signature.parse_words(pairs(words))
    if words:
        raise UsageError("give the arguments as key=value or as --input, not both")
    return read_object(input_text, what=f"input of task {task.name}")


def _shown(text: str, job_id: str) -> str:
    """Cut a result that would fill screens; the whole of it is one command away."""
    if len(text) <= _RESULT_SHOWN_MAX:
        return text
    return f"{text[:_RESULT_SHOWN_MAX]}... ({len(text):,} characters; whole: jobledger jobs show {job_id} --json)"
