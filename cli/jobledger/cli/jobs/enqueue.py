"""`jobledger enqueue`: one job, checked before anything is sent; with --wait its transitions as they come."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, Protocol

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
from jobledger.ledger import JobHandle, JobState, Ledger
from jobledger.ledger.model.attempts import Progress
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.options import Options

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
Wait = Annotated[
    bool,
    typer.Option("--wait", metavar="", help="Show its events until it ends; exit 0 only if it completed."),
]
WaitTimeout = Annotated[
    float | None,
    typer.Option(
        "--wait-timeout",
        metavar="SPAN",
        parser=seconds(),
        help="Stop waiting after this long; the job continues.",
    ),
]


@command(TOP, "enqueue", takes=("url", "environment", CREATES, "as_json"), order=of_job.ORDER)
def enqueue(
    cli: Cli,
    *,
    task: _Task,
    words: _Words = None,
    input_text: _Input = None,
    app: options.App = None,
    order: of_job.Typed,
    wait: Wait = False,
    wait_timeout: WaitTimeout = None,
) -> Awaitable[None]:
    """Add one job and print {"id", "created", "sequence"}; created is false if the id exists already.

    Without --app the task is taken as a worker announced it.
    """
    run_at = _moment(order["delay_s"], order["run_at"])
    how: dict[str, Any] = {**of_job.chosen(order), "run_at": run_at, "by": operator()}
    given = _GivenInput(task, words or [], input_text)
    waiting = EndWait(is_wanted=wait or wait_timeout is not None, timeout_s=wait_timeout)
    if not app:
        # Refused without a server.
        Options().changed({**how, "limits": None}, queue=how["queue"], limits=how["limits"])
        return add_and_wait(cli, lambda ledger: _named(ledger, given, how), waiting)
    found = load_tasks(app).get(task)
    # Refuse here all that can be refused without a server, so that the refusal of a bad request needs none.
    chosen = found.options(**how)
    values = given.values(found.signature)
    found.signature.encode((), values)
    return add_and_wait(cli, lambda ledger: ledger.enqueue(chosen, **values), waiting)


class _GivenInput(NamedTuple):
    """The input from the command line."""

    task: str
    words: list[str]
    text: str | None  #: value of --input

    def values(self, reads: _ReadsWords) -> dict[str, Any]:
        """Return the arguments from key=value words or from --input.

        Raises: UsageError, InvalidInputError, PayloadTooLargeError.
        """
        if self.text is None:
            return reads.parse_words(pairs(self.words))
        if self.words:
            raise UsageError("give the arguments as key=value or as --input, not both")
        return read_object(self.text, what=f"input of task {self.task}")


class _ReadsWords(Protocol):
    def parse_words(self, words: Mapping[str, str]) -> dict[str, Any]: ...


class EndWait(NamedTuple):
    """Whether and how long a command waits for the end of the job that it added."""

    is_wanted: bool
    timeout_s: float | None


async def _named(ledger: Ledger, given: _GivenInput, how: Mapping[str, Any]) -> JobHandle[Any]:
    """Add a job of a task whose code is not here."""
    known = await ledger.announced.get(given.task)
    return await ledger.enqueue_named(given.task, given.values(known.signature), **how)


async def add_and_wait(
    cli: Cli, add: Callable[[Ledger], Awaitable[JobHandle[Any]]], waiting: EndWait
) -> None:
    """Add a job, print its id, and wait for its end if that was asked for.

    Raises: as `add`; JobNotCompletedError, ResultTimeoutError.
    """
    output = cli.output
    async with cli.ledger() as ledger:
        handle = await add(ledger)
        if waiting.is_wanted and output.console.is_terminal and not output.as_json:
            done = "was added" if handle.created else "was there already"
            output.say(
                f"job {handle.id} {done}; its events follow until it ends, and Ctrl-C ends only the waiting"
            )
        else:
            # People and programs get the same line: it is short, and people paste the id into the next command.
            output.object({"id": handle.id, "created": handle.created, "sequence": handle.sequence})
        if waiting.is_wanted:
            async with ledger.hints.watch_progress(handle.ref, _progress_shown(output, ledger.clock)):
                await _wait(output, handle, waiting.timeout_s)


def _moment(delay: float | None, at: str | None) -> datetime | None:
    """Return the time of --at.

    Raises: UsageError.
    """
    if delay is not None and at is not None:
        raise UsageError("give --delay or --at, not both")
    return time_of("--at", at, ahead=True)


def _progress_shown(output: Output, clock: Clock) -> Callable[[bytes], None]:
    """Return a callback that shows live progress reports, at most one a second."""
    shown_at = 0.0

    def on_progress(data: bytes) -> None:
        nonlocal shown_at
        now = clock.monotonic()
        if now - shown_at < _PROGRESS_EVERY_S:
            return
        shown_at = now
        with contextlib.suppress(msgspec.MsgspecError):  # a report is only a hint, and may have any form
            report = msgspec.json.decode(data, type=Progress)
            if output.as_json:
                output.object({"progress": msgspec.structs.asdict(report)})
            else:
                output.say(f"{clock_time(clock.now())} progress: {progress_text(report)}", style="dim")

    return on_progress


async def _wait(output: Output, handle: JobHandle[Any], timeout_s: float | None) -> None:
    """Show the transitions of the job as they come.

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


def _shown(text: str, job_id: str) -> str:
    """Cut a result that would fill screens, and name the command that prints it whole."""
    if len(text) <= _RESULT_SHOWN_MAX:
        return text
    return f"{text[:_RESULT_SHOWN_MAX]}... ({len(text):,} characters; whole: jobledger jobs show {job_id} --json)"
